//! What the console shows beside the feed: partitions with their logs and their devices.

use serde_json::{Map, Value, json};
use tidewater_model::{ClientId, CommitSeq, Cursor, ScopeFilter};
use tidewater_store::{ClientRecord, PartitionRecord, StoreError};

use crate::Server;

/// Everything at once: the console of a development server has little to show, and that of a
/// large one shows the beginning.
pub(crate) async fn read(server: &Server) -> Result<Value, StoreError> {
    let store = server.engine().store();
    let mut partitions = store.list_partitions(None, PARTITIONS_SHOWN + 1).await?;
    let more_partitions = partitions.len() > PARTITIONS_SHOWN;
    partitions.truncate(PARTITIONS_SHOWN);
    let mut described = Vec::new();
    for record in partitions {
        let mut clients = store
            .list_clients(&record.partition, None, CLIENTS_SHOWN + 1)
            .await?;
        let more_clients = clients.len() > CLIENTS_SHOWN;
        clients.truncate(CLIENTS_SHOWN);
        let clients: Vec<_> = clients
            .iter()
            .map(|(id, client)| describe_client(id, client, record.head))
            .collect();
        described.push(describe_partition(&record, clients, more_clients));
    }
    let usage = server.usage();
    let pushed = server.engine().push_totals();
    Ok(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "schemaVersion": server.engine().schema().version(),
        "nowMs": server.engine().clock().now_ms(),
        "usage": {
            "connections": usage.connections,
            "rounds": usage.rounds,
            "bufferedBytes": usage.buffered_bytes,
        },
        "pushes": {
            "transactions": pushed.transactions,
            "commits": pushed.commits,
        },
        "partitions": described,
        "morePartitions": more_partitions,
    }))
}

fn describe_partition(record: &PartitionRecord, clients: Vec<Value>, more: bool) -> Value {
    json!({
        "partition": record.partition.as_str(),
        "head": record.head.get(),
        "horizon": record.horizon.seq().get(),
        "logEpoch": record.log_epoch.as_str(),
        "lastSeenMs": record.last_authenticated_at_ms,
        "clients": clients,
        "moreClients": more,
    })
}

fn describe_client(id: &ClientId, client: &ClientRecord, head: CommitSeq) -> Value {
    let read = match client.cursor {
        Cursor::Never => CommitSeq::START,
        Cursor::At(seq) => seq,
    };
    json!({
        "clientId": id.as_str(),
        "actor": client.actor.as_str(),
        "cursor": client.cursor.to_i64(),
        "lag": head.get().saturating_sub(read.get()),
        "lastSeenMs": client.updated_at_ms,
        "wireVersion": client.wire_version,
        "failure": client.failure.as_ref().map(|failure| json!({
            "code": failure.code,
            "atMs": failure.at_ms,
            "streak": failure.streak,
        })),
        "subscriptions": client
            .subscriptions
            .iter()
            .take(SUBSCRIPTIONS_SHOWN)
            .map(|subscription| json!({
                "id": subscription.id,
                "table": subscription.table,
                "scopes": describe_scopes(&subscription.scopes),
                "complete": subscription.complete,
            }))
            .collect::<Vec<_>>(),
        "subscriptionCount": client.subscriptions.len(),
    })
}

fn describe_scopes(scopes: &ScopeFilter) -> Value {
    let entries = scopes.entries().iter();
    let entries = entries.map(|entry| {
        let values: Vec<_> = entry.values.iter().take(VALUES_SHOWN).collect();
        (entry.variable.clone(), json!(values))
    });
    Value::Object(entries.collect::<Map<_, _>>())
}

const PARTITIONS_SHOWN: usize = 50;
/// Of one partition.
const CLIENTS_SHOWN: usize = 200;
/// Of one client.
const SUBSCRIPTIONS_SHOWN: usize = 20;
/// Of one scope variable.
const VALUES_SHOWN: usize = 20;

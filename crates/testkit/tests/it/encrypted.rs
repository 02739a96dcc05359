//! Columns that only devices can read (§5.11): the server carries them and looks at nothing.

use std::collections::HashMap;

use serde_json::{Value, json};
use syncular_client::{Mutation, values::EncryptionConfig};
use tidewater_testkit::{InstanceSpec, StoreKind, scopes};

use crate::support::{Replica, World, object};

on_every_store!(
    devices_with_the_key_read_what_the_server_cannot,
    plain_columns_of_an_encrypted_row_still_conflict,
);

const SECRET: &str = "meet at noon";

fn world(kind: StoreKind) -> World {
    let schema = json!({ "version": 1, "tables": [{
        "name": "notes", "primaryKey": "id",
        "columns": [
            { "name": "id", "type": "string", "nullable": false },
            { "name": "team_id", "type": "string", "nullable": false },
            { "name": "title", "type": "string", "nullable": true },
            { "name": "secret", "type": "bytes", "declaredType": "string", "encrypted": true,
              "nullable": true },
        ],
        "scopes": [{ "pattern": "team:{team_id}", "column": "team_id" }],
    }] });
    let world = World::new(kind, InstanceSpec::new(schema));
    for actor in ["alice", "bob"] {
        world.allow(actor, scopes([("team_id", &["t1"])]));
    }
    world
}

fn replica(world: &World, actor: &str) -> Replica {
    let mut replica = world.replica(actor);
    replica.client.set_encryption(EncryptionConfig {
        keys: HashMap::from([("notes".to_owned(), vec![7; 32])]),
        key_id_columns: HashMap::new(),
    });
    replica
}

fn put(replica: &mut Replica, title: &str, secret: &str, base_version: Option<i64>) -> String {
    let values = json!({ "id": "n1", "team_id": "t1", "title": title, "secret": secret });
    replica.mutate(Mutation::Upsert {
        table: "notes".to_owned(),
        values: object(values),
        base_version,
    })
}

fn secrets(replica: &Replica) -> Vec<Value> {
    let rows = replica.client.read_rows("notes").unwrap();
    rows.into_iter()
        .map(|row| row.values["secret"].clone())
        .collect()
}

fn devices_with_the_key_read_what_the_server_cannot(kind: StoreKind) {
    let world = world(kind);
    let (mut alice, mut bob) = (replica(&world, "alice"), replica(&world, "bob"));
    put(&mut alice, "plain", SECRET, None);
    alice.sync();
    let request = &alice.wire.last_request;
    assert!(!contains(request, SECRET) && contains(request, "t1"));
    // By a segment, and then from the log.
    bob.sync();
    assert_eq!(secrets(&bob), [json!(SECRET)]);
    bob.patch("n1", json!({ "secret": "at one" }), None);
    bob.sync();
    alice.sync();
    assert_eq!(secrets(&alice), [json!("at one")]);

    let [row] = &world.rows("notes")[..] else {
        panic!("one row")
    };
    assert_eq!(row.values["title"], json!("plain"));
    let stored = row.values["secret"].to_string();
    assert!(!stored.contains("at one"), "{stored}");
}

fn plain_columns_of_an_encrypted_row_still_conflict(kind: StoreKind) {
    let world = world(kind);
    let (mut alice, mut bob) = (replica(&world, "alice"), replica(&world, "bob"));
    put(&mut alice, "one", SECRET, None);
    alice.sync();
    bob.sync();
    put(&mut alice, "two", SECRET, Some(1));
    alice.sync();
    put(&mut bob, "three", "other", Some(1));
    let report = bob.sync();
    assert_eq!(report.conflicts, 1);
    assert_eq!(secrets(&bob), [json!(SECRET)]);
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|window| window == text.as_bytes())
}

//! Which requests are refused before anything is done (§1.7). Pure.

use std::collections::BTreeSet;

use tidewater_model::{ClientId, ErrorCode, limits};
use tidewater_schema::{SchemaView, Table, TableIndex};
use tidewater_store::ClientRecord;
use tidewater_wire::{Pull, PushCommit, RequestParts, Subscription, WireVersion};

use crate::{Identity, RoundError, partition::PartitionState, pull, scope};

/// Whether a request knows of another epoch, or of a later place in the log. Then nothing is
/// decided before the database was asked: there may be other nodes.
pub(super) fn knows_more(request: &RequestParts, state: &PartitionState) -> bool {
    let epoch = request.header.log_epoch.as_ref();
    let differs =
        epoch.is_some_and(|epoch| epoch.as_bytes() != state.log_epoch.as_str().as_bytes());
    let pull = request.pull.as_ref();
    differs || pull.is_some_and(|pull| pull::furthest(&pull.subscriptions) > state.head)
}

/// Compares log epochs; `true` means the client must reset (§2.1).
pub(super) fn epoch(request: &RequestParts, state: &PartitionState) -> Result<bool, RoundError> {
    if request.version == WireVersion::V1 {
        if state.epoch_required {
            return Err(RoundError::new(
                ErrorCode::ClientWireUnsupported,
                "wire version 1 cannot follow a restored log",
            ));
        }
        return Ok(false);
    }
    match &request.header.log_epoch {
        None if !request.commits.is_empty() => Err(RoundError::new(
            ErrorCode::InvalidRequest,
            "a request without a log epoch must not push",
        )),
        None => Ok(true),
        Some(epoch) => Ok(epoch.as_bytes() != state.log_epoch.as_str().as_bytes()),
    }
}

/// Refuses a client id that is reserved, too long or someone else's.
pub(crate) fn client(
    identity: &Identity,
    client: &ClientId,
    record: Option<&ClientRecord>,
) -> Result<(), RoundError> {
    let refuse = |message| Err(RoundError::new(ErrorCode::InvalidClientId, message));
    if client
        .as_str()
        .starts_with(limits::RESERVED_CLIENT_ID_PREFIX)
    {
        return refuse("the client id is reserved for commands");
    }
    if client.as_str().len() > limits::ID_BYTES_MAX {
        return refuse("the client id is too long");
    }
    if has_nul(client.as_str()) {
        return refuse("the client id has a U+0000 in it");
    }
    match record {
        Some(record) if record.actor != identity.actor => {
            refuse("the client id belongs to another actor")
        }
        _ => Ok(()),
    }
}

/// Whether a text holds the one character that not every database can. An id that one store took
/// and another did not would be two different protocols.
fn has_nul(id: &str) -> bool {
    id.contains('\0')
}

/// Refuses more operations than one request may carry (§6.1), and ids that are over their cap
/// (OQ-32) or that not every database can hold.
pub(super) fn operations(commits: &[PushCommit], cap: usize) -> Result<(), RoundError> {
    let operations: usize = commits.iter().map(|commit| commit.operations.len()).sum();
    if operations > cap {
        return Err(RoundError::new(
            ErrorCode::TooManyOperations,
            "the request has too many operations",
        )
        .with_details(serde_json::json!({ "operations": operations, "cap": cap })));
    }
    let long = |id: &str| id.len() > limits::ID_BYTES_MAX;
    let too_long = commits.iter().any(|commit| {
        long(&commit.client_commit_id)
            || commit
                .operations
                .iter()
                .any(|operation| long(&operation.row_id))
    });
    if too_long {
        return Err(
            RoundError::new(ErrorCode::InvalidRequest, "an id is too long")
                .with_details(serde_json::json!({ "bytesMax": limits::ID_BYTES_MAX })),
        );
    }
    if commits
        .iter()
        .any(|commit| has_nul(&commit.client_commit_id))
    {
        return Err(RoundError::new(
            ErrorCode::InvalidRequest,
            "the id of a commit has a U+0000 in it",
        ));
    }
    Ok(())
}

/// Refuses a pull that accepts no rows or has a bad subscription.
pub(super) fn pull(view: &SchemaView, pull: &Pull) -> Result<(), RoundError> {
    if !pull.header.accept.inline_rows() && !pull.header.accept.external_rows() {
        return Err(RoundError::new(
            ErrorCode::InvalidRequest,
            "a pull must accept inline or external rows",
        ));
    }
    if pull.subscriptions.len() > limits::SUBSCRIPTIONS_PER_REQUEST_MAX {
        return Err(
            RoundError::new(ErrorCode::InvalidRequest, "too many subscriptions").with_details(
                serde_json::json!({ "subscriptionsMax": limits::SUBSCRIPTIONS_PER_REQUEST_MAX }),
            ),
        );
    }
    let mut ids = BTreeSet::new();
    for subscription in &pull.subscriptions {
        if !ids.insert(subscription.id.as_bytes()) {
            return Err(RoundError::new(
                ErrorCode::InvalidSubscription,
                "a subscription id is used twice",
            )
            .with_details(serde_json::json!({ "subscription": &*subscription.id })));
        }
        let (_, table) = known_table(view, &subscription.table)?;
        scope::check_requested(table, &subscription.scopes)?;
        values(subscription)?;
    }
    Ok(())
}

/// Finds a subscription's table, with its columns as the requester knows them.
pub(super) fn known_table<'v>(
    view: &'v SchemaView,
    table: &str,
) -> Result<(TableIndex, &'v Table), RoundError> {
    let found = view
        .find(table)
        .and_then(|index| Some((index, &**view.table(index)?)));
    found.ok_or_else(|| {
        RoundError::new(
            ErrorCode::UnknownTable,
            "a subscription names an unknown table",
        )
        .with_details(serde_json::json!({ "table": table }))
    })
}

fn values(subscription: &Subscription) -> Result<(), RoundError> {
    let values: usize = subscription
        .scopes
        .entries()
        .iter()
        .map(|entry| entry.values.len())
        .sum();
    if values <= limits::SCOPE_VALUES_PER_SUBSCRIPTION_MAX {
        return Ok(());
    }
    Err(RoundError::new(
        ErrorCode::InvalidRequest,
        "a subscription has too many scope values",
    )
    .with_details(serde_json::json!({ "valuesMax": limits::SCOPE_VALUES_PER_SUBSCRIPTION_MAX })))
}

#[cfg(test)]
mod tests {
    use bytestring::ByteString;

    use super::*;

    fn commit(id: &str) -> PushCommit {
        PushCommit {
            client_commit_id: ByteString::from(id),
            operations: Vec::new(),
        }
    }

    #[test]
    fn ids_that_not_every_database_holds_are_refused() {
        let identity = Identity::new("p", "ann");
        let long = "x".repeat(limits::ID_BYTES_MAX + 1);
        for (id, is_fit) in [
            ("c1", true),
            ("", true),
            ("c\u{1}", true),
            ("c\0", false),
            ("\0", false),
            (&*long, false),
        ] {
            let refused = client(&identity, &ClientId::new(id), None);
            let code = refused.as_ref().err().map(|error| error.code);
            let expected = (!is_fit).then_some(ErrorCode::InvalidClientId);
            assert_eq!(code, expected, "client {id:?}");
            let refused = operations(&[commit("m1"), commit(id)], 10);
            let code = refused.as_ref().err().map(|error| error.code);
            let expected = (!is_fit).then_some(ErrorCode::InvalidRequest);
            assert_eq!(code, expected, "commit {id:?}");
        }
    }
}

//! Whether what was read may be served (§2.4).
//!
//! A read comes back with the gate of its own snapshot, so nothing has to be read again to find
//! out whether it may be sent: the gate guards exactly the data beside it.
//!
//! Not here: the horizon, which decides what a section is and not whether it may be served.

use std::collections::BTreeSet;

use tidewater_model::{CommitSeq, ErrorCode, LogEpoch};
use tidewater_store::{Gate, StoreError};

use crate::{
    RoundError,
    partition::{PartitionState, pending},
    round::RoundContext,
};

/// What a round relies on.
#[derive(Clone, Copy, Debug)]
struct Expected<'a> {
    log_epoch: &'a LogEpoch,
    schema_version: i32,
    /// Checkpoints that this process completes.
    declared: &'a BTreeSet<String>,
    /// A snapshot that ends before it does not hold what was acknowledged already.
    head: CommitSeq,
}

/// Why a snapshot must not be served.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Refusal {
    EpochChanged,
    SchemaChanged { stored: i32, running: i32 },
    CheckpointPending(String),
    Stale,
}

fn check(gate: &Gate, expected: &Expected<'_>) -> Result<(), Refusal> {
    if gate.log_epoch.as_ref() != Some(expected.log_epoch) {
        return Err(Refusal::EpochChanged);
    }
    if gate.schema_version != expected.schema_version {
        return Err(Refusal::SchemaChanged {
            stored: gate.schema_version,
            running: expected.schema_version,
        });
    }
    if let Some(name) = pending(gate, expected.declared) {
        return Err(Refusal::CheckpointPending(name.to_owned()));
    }
    if gate.head < expected.head {
        return Err(Refusal::Stale);
    }
    Ok(())
}

/// Refuses a snapshot that is not of the round's log, of the running schema, or new enough.
pub(super) async fn admit(context: &RoundContext, gate: &Gate) -> Result<(), RoundError> {
    let expected = Expected {
        log_epoch: &context.log_epoch,
        schema_version: context.engine.schema().version(),
        declared: &context.engine.parts.config.declared_checkpoints,
        head: context.head,
    };
    let Err(refusal) = check(gate, &expected) else {
        return Ok(());
    };
    let not_ready = |details| {
        RoundError::new(
            ErrorCode::SchemaNotReady,
            "server schema is not ready for this request",
        )
        .with_details(details)
    };
    Err(match refusal {
        Refusal::EpochChanged => {
            relearn(context).await?;
            not_ready(serde_json::json!({ "logEpochChanged": true }))
        }
        Refusal::SchemaChanged { stored, running } => not_ready(serde_json::json!({
            "storedSchemaVersion": stored,
            "runningSchemaVersion": running,
        })),
        Refusal::CheckpointPending(name) => not_ready(serde_json::json!({
            "partition": context.identity.partition.as_str(),
            "projection": name,
        })),
        Refusal::Stale => RoundError::new(
            ErrorCode::StorageStaleRead,
            "storage returned an older state than was acknowledged",
        ),
    })
}

/// Another process rotated the epoch: without this, every later round would be refused here
/// instead of being told to reset.
async fn relearn(context: &RoundContext) -> Result<(), StoreError> {
    let engine = &context.engine;
    let partition = &context.identity.partition;
    let Some(record) = engine.store().find_partition(partition).await? else {
        return Ok(());
    };
    let known = engine.partitions.find(partition);
    // A state of this epoch may know of a newer commit than the record does.
    if known.is_none_or(|state| state.log_epoch != record.log_epoch) {
        engine.activity.forget(partition);
        engine.partitions.set(PartitionState::from(&record));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tidewater_model::HorizonSeq;

    use super::*;

    #[track_caller]
    fn check_gate(epoch: Option<&str>, schema_version: i32, head: u64, refusal: Option<Refusal>) {
        let gate = Gate {
            log_epoch: epoch.map(LogEpoch::new),
            schema_version,
            head: CommitSeq::new(head).unwrap(),
            horizon: HorizonSeq::START,
            writer_fence: None,
            pending_checkpoints: vec!["titles".to_owned()],
        };
        let declared = BTreeSet::from(["titles".to_owned()]);
        let expected = Expected {
            log_epoch: &LogEpoch::new("e1"),
            schema_version: 2,
            declared: &declared,
            head: CommitSeq::new(7).unwrap(),
        };
        assert_eq!(check(&gate, &expected).err(), refusal);
        let others = BTreeSet::from(["bodies".to_owned()]);
        let expected = Expected {
            declared: &others,
            ..expected
        };
        // Whoever does not complete it must not show it, unless something worse is the matter.
        let pending = Refusal::CheckpointPending("titles".to_owned());
        let refusal = match refusal {
            None | Some(Refusal::Stale) => Some(pending),
            worse => worse,
        };
        assert_eq!(check(&gate, &expected).err(), refusal);
    }

    #[test]
    fn a_snapshot_at_or_after_the_rounds_head_is_served() {
        check_gate(Some("e1"), 2, 7, None);
        check_gate(Some("e1"), 2, 8, None);
        check_gate(Some("e1"), 2, 6, Some(Refusal::Stale));
    }

    #[test]
    fn another_epoch_or_none_is_refused_before_anything_else() {
        check_gate(Some("e2"), 3, 0, Some(Refusal::EpochChanged));
        check_gate(None, 2, 7, Some(Refusal::EpochChanged));
    }

    #[test]
    fn another_schema_version_is_refused() {
        check_gate(
            Some("e1"),
            3,
            7,
            Some(Refusal::SchemaChanged {
                stored: 3,
                running: 2,
            }),
        );
        check_gate(
            Some("e1"),
            1,
            7,
            Some(Refusal::SchemaChanged {
                stored: 1,
                running: 2,
            }),
        );
    }
}

//! Telling the other nodes about commits, inside the transaction that makes them: the server
//! passes the notification on if and only if the transaction commits, and after it.
//!
//! The statement goes out together with COMMIT, so it costs no round trip. It has a price all the
//! same: the server lets transactions that notify commit one after the other. So this is for
//! processes that have no signals, like an import, and for operators who want it so
//! (`docs/adr/0010-commits-are-announced-after-they-are-made.md`).

use tidewater_model::{CommitSeq, PartitionId};
use tidewater_store::signals::{self, NodeId, Signal};

use crate::{
    params::{Param, Step},
    side::PAYLOAD_BYTES_MAX,
};

/// The name of the channel, which differs between schemas of one database, as an expression.
pub(crate) const CHANNEL: &str =
    "'tidewater_' || quote_ident(current_schema())::regnamespace::oid::text";

/// Announces what became of partitions.
pub(crate) fn step(node: &NodeId, signals: impl IntoIterator<Item = Signal>) -> Step<'static> {
    let payloads = signals.into_iter().map(|signal| payload(node, &signal));
    let payloads = Param::owned_texts(payloads.collect());
    let sql = format!("SELECT pg_notify({CHANNEL}, q.payload) FROM unnest($1::text[]) q (payload)");
    Step::once(sql, vec![payloads])
}

/// That the commits of a partition up to this one are there.
pub(crate) fn commits(partition: &PartitionId, up_to: CommitSeq) -> Signal {
    Signal::Commits {
        partition: partition.clone(),
        up_to,
    }
}

/// A payload cannot name a partition with a very long name. Then everybody looks everywhere.
fn payload(node: &NodeId, signal: &Signal) -> String {
    signals::encode(node, signal)
        .filter(|text| text.len() <= PAYLOAD_BYTES_MAX)
        .or_else(|| signals::encode(node, &Signal::Anything))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_is_too_long_to_be_named_is_any_partition() {
        let node = NodeId::new("n1");
        let seq = CommitSeq::new(7).unwrap();
        let named = |length| {
            let partition = PartitionId::new("p".repeat(length));
            signals::decode(&payload(&node, &commits(&partition, seq)))
        };
        assert!(matches!(
            named(7_800),
            Some((_, Signal::Commits { up_to, .. })) if up_to == seq
        ));
        assert_eq!(named(7_900), Some((node.clone(), Signal::Anything)));
    }
}

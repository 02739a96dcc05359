//! What a planner may ask for: the limits of a reaction and its idempotency key (§6.9).

use std::collections::BTreeSet;

use serde_json::Value;
use tidewater_model::{ClientId, PartitionId, limits};
use tidewater_store::ReactionWrite;
use tidewater_wire::PushCommit;

use crate::PlannedReaction;

/// A reaction outside its limits: a fault of the planner.
#[derive(Debug, thiserror::Error)]
#[error("reaction {key:?}: {fault}")]
pub(super) struct BadReaction {
    key: String,
    fault: &'static str,
}

/// Checks planned reactions and gives them their keys.
pub(super) fn check(
    planned: Vec<PlannedReaction>,
    partition: &PartitionId,
    client: &ClientId,
    commit: &PushCommit,
) -> Result<Vec<ReactionWrite>, BadReaction> {
    if planned.len() > limits::REACTIONS_PER_COMMIT_MAX {
        let fault = "a commit has too many reactions";
        return Err(BadReaction {
            key: String::new(),
            fault,
        });
    }
    let mut keys = BTreeSet::new();
    let mut writes = Vec::with_capacity(planned.len());
    for mut reaction in planned {
        reaction.payload.sort_all_objects();
        let text = reaction.payload.to_string();
        if let Some(fault) = fault(&reaction, &text, keys.contains(&reaction.key)) {
            return Err(BadReaction {
                key: reaction.key,
                fault,
            });
        }
        let id = [
            partition.as_str(),
            client.as_str(),
            &*commit.client_commit_id,
            reaction.key.as_str(),
        ];
        writes.push(ReactionWrite {
            idempotency_key: Value::from(id.to_vec()).to_string(),
            kind: reaction.kind,
            version: reaction.version,
            payload: text,
            max_attempts: reaction
                .max_attempts
                .unwrap_or(limits::REACTION_ATTEMPTS_DEFAULT),
        });
        keys.insert(reaction.key);
    }
    Ok(writes)
}

fn fault(reaction: &PlannedReaction, text: &str, repeated: bool) -> Option<&'static str> {
    if repeated {
        return Some("its key is used twice in the commit");
    }
    if !(1..=limits::REACTION_KEY_BYTES_MAX).contains(&reaction.key.len()) {
        return Some("its key must have 1 to 256 bytes");
    }
    if !is_kind(&reaction.kind) {
        return Some("its type must be a letter, then letters, digits, '.', '_', ':' and '-'");
    }
    if reaction.version < 1 {
        return Some("its version must be at least 1");
    }
    let attempts = reaction
        .max_attempts
        .unwrap_or(limits::REACTION_ATTEMPTS_DEFAULT);
    if !(1..=limits::REACTION_ATTEMPTS_MAX).contains(&attempts) {
        return Some("it must be tried 1 to 100 times");
    }
    if text.len() > limits::REACTION_PAYLOAD_BYTES_MAX {
        return Some("its payload is larger than 64 KiB");
    }
    if depth(&reaction.payload) > limits::REACTION_PAYLOAD_DEPTH_MAX {
        return Some("its payload is nested deeper than 16 levels");
    }
    None
}

fn is_kind(kind: &str) -> bool {
    kind.len() <= limits::REACTION_TYPE_BYTES_MAX
        && kind.starts_with(|first: char| first.is_ascii_alphabetic())
        && kind
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reaction() -> PlannedReaction {
        PlannedReaction {
            key: "k".to_owned(),
            kind: "mail.send".to_owned(),
            version: 1,
            payload: json!({"to": "ann"}),
            max_attempts: None,
        }
    }

    fn run(planned: Vec<PlannedReaction>) -> Result<Vec<ReactionWrite>, &'static str> {
        let commit = PushCommit {
            client_commit_id: "c\"1".into(),
            operations: Vec::new(),
        };
        check(
            planned,
            &PartitionId::new("p"),
            &ClientId::new("c"),
            &commit,
        )
        .map_err(|error| error.fault)
    }

    #[track_caller]
    fn check_refused(change: impl FnOnce(&mut PlannedReaction)) {
        let mut bad = reaction();
        change(&mut bad);
        assert!(run(vec![bad]).is_err());
    }

    #[test]
    fn the_idempotency_key_keeps_its_parts_apart() {
        let writes = run(vec![reaction()]).unwrap();
        assert_eq!(writes[0].idempotency_key, r#"["p","c","c\"1","k"]"#);
        assert_eq!(writes[0].max_attempts, 10);
    }

    #[test]
    fn what_is_outside_the_limits_is_refused() {
        check_refused(|bad| bad.key.clear());
        check_refused(|bad| bad.key = "k".repeat(257));
        check_refused(|bad| bad.kind = "9mail".to_owned());
        check_refused(|bad| bad.kind = "mail send".to_owned());
        check_refused(|bad| bad.kind = "m".repeat(129));
        check_refused(|bad| bad.version = 0);
        check_refused(|bad| bad.max_attempts = Some(0));
        check_refused(|bad| bad.max_attempts = Some(101));
        check_refused(|bad| bad.payload = json!("x".repeat(65_536)));
        check_refused(|bad| bad.payload = (0..17).fold(json!(1), |inner, _| json!([inner])));
        assert!(run(vec![reaction(), reaction()]).is_err(), "one key twice");
        let many = |count| {
            (0..count).map(|n| PlannedReaction {
                key: n.to_string(),
                ..reaction()
            })
        };
        assert!(run(many(101).collect()).is_err());
        assert_eq!(run(many(100).collect()).unwrap().len(), 100);
    }
}

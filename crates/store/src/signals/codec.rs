//! Signals as text, for whatever carries them: one JSON object, without a line break.
//!
//! Nodes of different versions share a database while they are replaced one by one. So a kind
//! that is not known, or an object that is not understood, is no signal and no error either.

use std::borrow::Cow;

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use tidewater_model::{ActorId, CommitSeq, PartitionId};
use tidewater_wire::control::WakeReason;

use super::{NodeId, Signal};

/// Longest text of a signal: more than the largest presence document takes.
pub const SIGNAL_BYTES_MAX: usize = 128 * 1024;

#[derive(Deserialize, Serialize)]
struct Text<'a> {
    /// What it is.
    k: Kind,
    /// The node.
    #[serde(borrow)]
    n: Cow<'a, str>,
    /// The partition.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    p: Option<Cow<'a, str>>,
    /// The place in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    s: Option<u64>,
    /// The actor.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    a: Option<Cow<'a, str>>,
    /// Bytes.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    b: Option<Cow<'a, str>>,
    /// The reason.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    r: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Commits,
    Registry,
    Presence,
    RefreshScopes,
    Wake,
    Anything,
    Alive,
    Asks,
    Gone,
}

/// The text of a signal; `None` for one that is too long.
pub fn encode(from: &NodeId, signal: &Signal) -> Option<String> {
    let mut text = Text {
        k: Kind::Anything,
        n: from.as_str().into(),
        p: None,
        s: None,
        a: None,
        b: None,
        r: None,
    };
    match signal {
        Signal::Commits { partition, up_to } => {
            text.k = Kind::Commits;
            text.p = Some(partition.as_str().into());
            text.s = Some(up_to.get());
        }
        Signal::Registry { partition } => {
            text.k = Kind::Registry;
            text.p = Some(partition.as_str().into());
        }
        Signal::Presence { partition, bytes } => {
            text.k = Kind::Presence;
            text.p = Some(partition.as_str().into());
            text.b = Some(BASE64_STANDARD.encode(bytes).into());
        }
        Signal::RefreshScopes { partition, actor } => {
            text.k = Kind::RefreshScopes;
            text.p = Some(partition.as_str().into());
            text.a = actor.as_ref().map(|actor| actor.as_str().into());
        }
        Signal::Wake { partition, reason } => {
            text.k = Kind::Wake;
            text.p = Some(partition.as_str().into());
            text.r = Some(reason.as_str().into());
        }
        Signal::Anything => {}
        Signal::Alive { asks: true } => text.k = Kind::Asks,
        Signal::Alive { asks: false } => text.k = Kind::Alive,
        Signal::Gone => text.k = Kind::Gone,
    }
    let text = serde_json::to_string(&text).ok()?;
    (text.len() <= SIGNAL_BYTES_MAX).then_some(text)
}

/// The signal of a text, and who sent it.
pub fn decode(text: &str) -> Option<(NodeId, Signal)> {
    if text.len() > SIGNAL_BYTES_MAX {
        return None;
    }
    let text: Text<'_> = serde_json::from_str(text).ok()?;
    let partition = || text.p.as_deref().map(PartitionId::new);
    let signal = match text.k {
        Kind::Commits => Signal::Commits {
            partition: partition()?,
            up_to: CommitSeq::new(text.s?)?,
        },
        Kind::Registry => Signal::Registry {
            partition: partition()?,
        },
        Kind::Presence => Signal::Presence {
            partition: partition()?,
            bytes: BASE64_STANDARD.decode(text.b.as_deref()?).ok()?.into(),
        },
        Kind::RefreshScopes => Signal::RefreshScopes {
            partition: partition()?,
            actor: text.a.as_deref().map(ActorId::new),
        },
        Kind::Wake => Signal::Wake {
            partition: partition()?,
            reason: WakeReason::ALL
                .into_iter()
                .find(|reason| Some(reason.as_str()) == text.r.as_deref())?,
        },
        Kind::Anything => Signal::Anything,
        Kind::Alive => Signal::Alive { asks: false },
        Kind::Asks => Signal::Alive { asks: true },
        Kind::Gone => Signal::Gone,
    };
    Some((NodeId::new(&*text.n), signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(signal: &Signal, expected: &str) {
        let node = NodeId::new("n1");
        let text = encode(&node, signal).unwrap();
        assert_eq!(text, expected);
        assert_eq!(decode(&text), Some((node, signal.clone())));
    }

    #[test]
    fn every_signal_comes_back_as_it_was() {
        let partition = PartitionId::new("a \"b\"\u{0}\u{1F600}\n");
        let p = r#""p":"a \"b\"\u0000😀\n""#;
        check(
            &Signal::Commits {
                partition: partition.clone(),
                up_to: CommitSeq::MAX,
            },
            &format!(r#"{{"k":"commits","n":"n1",{p},"s":9007199254740991}}"#),
        );
        check(
            &Signal::Registry {
                partition: partition.clone(),
            },
            &format!(r#"{{"k":"registry","n":"n1",{p}}}"#),
        );
        check(
            &Signal::Presence {
                partition: partition.clone(),
                bytes: vec![0, 255, 10].into(),
            },
            &format!(r#"{{"k":"presence","n":"n1",{p},"b":"AP8K"}}"#),
        );
        check(
            &Signal::RefreshScopes {
                partition: partition.clone(),
                actor: Some(ActorId::new("bob")),
            },
            &format!(r#"{{"k":"refresh-scopes","n":"n1",{p},"a":"bob"}}"#),
        );
        check(
            &Signal::RefreshScopes {
                partition: partition.clone(),
                actor: None,
            },
            &format!(r#"{{"k":"refresh-scopes","n":"n1",{p}}}"#),
        );
        check(
            &Signal::Wake {
                partition,
                reason: WakeReason::CatchupRequired,
            },
            &format!(r#"{{"k":"wake","n":"n1",{p},"r":"catchup-required"}}"#),
        );
        check(&Signal::Anything, r#"{"k":"anything","n":"n1"}"#);
        check(&Signal::Alive { asks: true }, r#"{"k":"asks","n":"n1"}"#);
        check(&Signal::Alive { asks: false }, r#"{"k":"alive","n":"n1"}"#);
        check(&Signal::Gone, r#"{"k":"gone","n":"n1"}"#);
    }

    #[test]
    fn what_is_not_understood_is_no_signal() {
        for text in [
            "",
            "null",
            "[]",
            r#"{"k":"commits","n":"n1"}"#,
            r#"{"k":"commits","n":"n1","p":"p","s":-1}"#,
            r#"{"k":"commits","n":"n1","p":"p","s":9007199254740992}"#,
            r#"{"k":"presence","n":"n1","p":"p","b":"?"}"#,
            r#"{"k":"wake","n":"n1","p":"p","r":"of another version"}"#,
            r#"{"k":"of another version","n":"n1"}"#,
            r#"{"k":"alive"}"#,
            "cGFydGl0aW9u:7",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
        let more = r#"{"k":"alive","n":"n1","of":"a later version"}"#;
        assert!(decode(more).is_some());
    }

    #[test]
    fn a_signal_that_is_too_long_is_none() {
        let signal = |length: usize| Signal::Presence {
            partition: PartitionId::new("p"),
            bytes: vec![7; length].into(),
        };
        let node = NodeId::new("n1");
        assert!(encode(&node, &signal(64 * 1024)).is_some());
        assert_eq!(encode(&node, &signal(SIGNAL_BYTES_MAX)), None);
        assert_eq!(decode(&" ".repeat(SIGNAL_BYTES_MAX + 1)), None);
    }
}

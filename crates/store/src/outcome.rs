//! The recorded outcome of a pushed commit as JSON text (§2.3): the column
//! `sync_push_results.result`.
//!
//! The shape is that of existing Syncular databases, so that their outcomes replay and theirs
//! would read ours. What we record beyond it are members that they ignore: `actorId`,
//! `schemaVersion`, `contentDigest` and, in a conflict, `conflictColumns`.
//!
//! Writing is on the path of every push and appends to one buffer. Reading happens on replays
//! only and is strict: text that does not say exactly one outcome is [`StoredResult::Unreadable`],
//! because a commit whose outcome is in doubt must not be applied again.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidewater_model::{ActorId, CommitSeq};

use crate::{
    PushResultRecord, PushStatus, ResultRecord, StoredResult,
    json::{push_bytes, push_integer, push_text},
};

/// Writes an outcome.
pub fn encode(record: &PushResultRecord) -> String {
    // An applied record takes about 35 bytes; the fixed members about 300.
    let mut out = String::with_capacity(320 + record.results.len() * 36);
    match record.status {
        PushStatus::Applied(commit_seq) => {
            out.push_str("{\"status\":\"applied\",\"commitSeq\":");
            push_integer(&mut out, commit_seq.to_i64());
        }
        PushStatus::Rejected => out.push_str("{\"status\":\"rejected\""),
    }
    if let Some(at_ms) = record.recorded_at_ms {
        out.push_str(",\"recordedAtMs\":");
        push_integer(&mut out, at_ms);
    }
    if let Some(actor) = &record.actor {
        out.push_str(",\"actorId\":");
        push_text(&mut out, actor.as_str());
    }
    if let Some(schema_version) = record.schema_version {
        out.push_str(",\"schemaVersion\":");
        push_integer(&mut out, schema_version);
    }
    if let Some(digest) = &record.content_digest {
        out.push_str(",\"contentDigest\":");
        push_text(&mut out, digest);
    }
    out.push_str(",\"results\":[");
    for (index, result) in record.results.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_result(&mut out, result);
    }
    out.push_str("]}");
    out
}

fn push_result(out: &mut String, result: &ResultRecord) {
    out.push_str("{\"opIndex\":");
    match result {
        ResultRecord::Applied { op_index } => {
            push_integer(out, *op_index);
            out.push_str(",\"status\":\"applied\"}");
        }
        ResultRecord::Conflict {
            op_index,
            code,
            message,
            server_version,
            server_row,
            conflict_columns,
        } => {
            push_integer(out, *op_index);
            out.push_str(",\"status\":\"conflict\",\"code\":");
            push_text(out, code);
            out.push_str(",\"message\":");
            push_text(out, message);
            out.push_str(",\"serverVersion\":");
            push_integer(out, *server_version);
            out.push_str(",\"serverRow\":");
            push_bytes(out, server_row);
            if let Some(columns) = conflict_columns {
                out.push_str(",\"conflictColumns\":");
                push_bytes(out, columns);
            }
            out.push('}');
        }
        ResultRecord::Error {
            op_index,
            code,
            message,
            retryable,
            details,
        } => {
            push_integer(out, *op_index);
            out.push_str(",\"status\":\"error\",\"code\":");
            push_text(out, code);
            out.push_str(",\"message\":");
            push_text(out, message);
            out.push_str(",\"retryable\":");
            out.push_str(if *retryable { "true" } else { "false" });
            if let Some(details) = details {
                // Details are JSON text already, checked when they were built (§6.3.1).
                out.push_str(",\"details\":");
                out.push_str(details);
            }
            out.push('}');
        }
    }
}

/// Reads an outcome.
pub fn decode(text: &str) -> StoredResult {
    serde_json::from_str::<Outcome<'_>>(text)
        .ok()
        .and_then(Outcome::into_record)
        .map_or(StoredResult::Unreadable, |record| {
            StoredResult::Readable(Box::new(record))
        })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    status: Status,
    commit_seq: Option<i64>,
    recorded_at_ms: Option<i64>,
    actor_id: Option<String>,
    schema_version: Option<i32>,
    content_digest: Option<String>,
    #[serde(borrow)]
    results: Vec<Record<'a>>,
}

#[derive(Deserialize, Eq, PartialEq)]
#[serde(rename_all = "camelCase")]
enum Status {
    Applied,
    Rejected,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    op_index: i32,
    status: RecordStatus,
    code: Option<String>,
    message: Option<String>,
    server_version: Option<i64>,
    #[serde(borrow)]
    server_row: Option<Cow<'a, str>>,
    #[serde(borrow)]
    conflict_columns: Option<Cow<'a, str>>,
    retryable: Option<bool>,
    details: Option<Details>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum RecordStatus {
    Applied,
    Conflict,
    Error,
}

/// In the order in which a replay sends them. A database with a JSON type of its own reorders
/// members, and a replay must send the text that was sent first.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    field_paths: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_action: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    references: Option<BTreeMap<String, String>>,
}

impl Outcome<'_> {
    fn into_record(self) -> Option<PushResultRecord> {
        let status = match (self.status, self.commit_seq) {
            (Status::Applied, Some(seq)) => {
                let seq = CommitSeq::from_i64(seq).filter(|seq| *seq != CommitSeq::START)?;
                PushStatus::Applied(seq)
            }
            (Status::Rejected, None) => PushStatus::Rejected,
            (Status::Applied, None) | (Status::Rejected, Some(_)) => return None,
        };
        let results = self
            .results
            .into_iter()
            .map(Record::into_result)
            .collect::<Option<_>>()?;
        Some(PushResultRecord {
            status,
            results,
            recorded_at_ms: self.recorded_at_ms,
            actor: self.actor_id.map(ActorId::new),
            schema_version: self.schema_version,
            content_digest: self.content_digest,
        })
    }
}

impl Record<'_> {
    fn into_result(self) -> Option<ResultRecord> {
        let op_index = self.op_index;
        Some(match self.status {
            RecordStatus::Applied => ResultRecord::Applied { op_index },
            RecordStatus::Conflict => ResultRecord::Conflict {
                op_index,
                code: self.code?,
                message: self.message?,
                server_version: self.server_version?,
                server_row: decode_bytes(&self.server_row?)?,
                conflict_columns: match self.conflict_columns {
                    Some(text) => Some(decode_bytes(&text)?),
                    None => None,
                },
            },
            RecordStatus::Error => ResultRecord::Error {
                op_index,
                code: self.code?,
                message: self.message?,
                retryable: self.retryable.unwrap_or(false),
                details: match self.details {
                    Some(details) => Some(serde_json::to_string(&details).ok()?),
                    None => None,
                },
            },
        })
    }
}

fn decode_bytes(text: &str) -> Option<Bytes> {
    STANDARD.decode(text).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seq(raw: u64) -> CommitSeq {
        CommitSeq::new(raw).unwrap()
    }

    fn bare(status: PushStatus, results: Vec<ResultRecord>) -> PushResultRecord {
        PushResultRecord {
            status,
            results,
            recorded_at_ms: None,
            actor: None,
            schema_version: None,
            content_digest: None,
        }
    }

    fn conflict() -> ResultRecord {
        ResultRecord::Conflict {
            op_index: 2,
            code: "sync.version_conflict".to_owned(),
            message: "row \"moved\" on\n".to_owned(),
            server_version: 9,
            server_row: Bytes::from((0..=255).collect::<Vec<u8>>()),
            conflict_columns: Some(Bytes::from_static(&[5])),
        }
    }

    fn error(details: Option<&str>) -> ResultRecord {
        ResultRecord::Error {
            op_index: 0,
            code: "shop.closed".to_owned(),
            message: "geschlossen \u{1F512}".to_owned(),
            retryable: true,
            details: details.map(str::to_owned),
        }
    }

    #[track_caller]
    fn check(record: &PushResultRecord, text: &str) {
        assert_eq!(encode(record), text);
        assert_eq!(
            decode(text),
            StoredResult::Readable(Box::new(record.clone()))
        );
    }

    #[track_caller]
    fn check_unreadable(text: &str) {
        assert_eq!(decode(text), StoredResult::Unreadable, "{text}");
    }

    #[test]
    fn an_applied_outcome_has_the_shape_of_existing_databases() {
        let results = vec![
            ResultRecord::Applied { op_index: 0 },
            ResultRecord::Applied { op_index: 1 },
        ];
        check(
            &bare(PushStatus::Applied(seq(7)), results),
            r#"{"status":"applied","commitSeq":7,"results":[{"opIndex":0,"status":"applied"},{"opIndex":1,"status":"applied"}]}"#,
        );
    }

    #[test]
    fn our_own_members_stand_beside_those_of_existing_databases() {
        let record = PushResultRecord {
            recorded_at_ms: Some(1_700_000_000_123),
            actor: Some(ActorId::new("u\"1")),
            schema_version: Some(4),
            content_digest: Some("sha256:00".to_owned()),
            ..bare(PushStatus::Rejected, Vec::new())
        };
        check(
            &record,
            r#"{"status":"rejected","recordedAtMs":1700000000123,"actorId":"u\"1","schemaVersion":4,"contentDigest":"sha256:00","results":[]}"#,
        );
    }

    #[test]
    fn every_kind_of_record_reads_back_as_written() {
        let details = r#"{"fieldPaths":["a.b"],"reason":"too_late","requiredAction":"ask","references":{"child":"notes","row":"ü\"1"}}"#;
        for result in [conflict(), error(None), error(Some(details))] {
            let record = bare(PushStatus::Rejected, vec![result]);
            let text = encode(&record);
            assert_eq!(decode(&text), StoredResult::Readable(Box::new(record)));
        }
    }

    #[test]
    fn an_outcome_of_the_reference_is_read() {
        let text = r#"{"status":"rejected","cacheIdentity":"8b6d","recordedAtMs":5,
            "results":[{"opIndex":1,"status":"error","code":"sync.forbidden","message":"no"}]}"#;
        let expected = PushResultRecord {
            recorded_at_ms: Some(5),
            ..bare(
                PushStatus::Rejected,
                vec![ResultRecord::Error {
                    op_index: 1,
                    code: "sync.forbidden".to_owned(),
                    message: "no".to_owned(),
                    retryable: false,
                    details: None,
                }],
            )
        };
        assert_eq!(decode(text), StoredResult::Readable(Box::new(expected)));
    }

    #[test]
    fn details_that_a_database_reordered_are_put_in_order_again() {
        let text = r#"{"results": [{"code": "x.y", "status": "error", "details": {"reason": "r",
            "references": {"row": "1", "child": "t"}, "fieldPaths": ["b", "a"]}, "message": "m",
            "opIndex": 0}], "status": "rejected"}"#;
        let StoredResult::Readable(record) = decode(text) else {
            panic!("readable");
        };
        let ResultRecord::Error { details, .. } = &record.results[0] else {
            panic!("an error record");
        };
        assert_eq!(
            details.as_deref(),
            Some(r#"{"fieldPaths":["b","a"],"reason":"r","references":{"child":"t","row":"1"}}"#)
        );
    }

    #[test]
    fn text_that_does_not_say_one_outcome_is_unreadable() {
        check_unreadable("");
        check_unreadable("null");
        check_unreadable("{");
        check_unreadable(r#"{"status":"applied","results":[]}"#);
        check_unreadable(r#"{"status":"applied","commitSeq":0,"results":[]}"#);
        check_unreadable(r#"{"status":"applied","commitSeq":1.5,"results":[]}"#);
        check_unreadable(r#"{"status":"applied","commitSeq":9007199254740992,"results":[]}"#);
        check_unreadable(r#"{"status":"rejected","commitSeq":1,"results":[]}"#);
        check_unreadable(r#"{"status":"cached","commitSeq":1,"results":[]}"#);
        check_unreadable(r#"{"status":"rejected","status":"rejected","results":[]}"#);
        check_unreadable(r#"{"status":"rejected"}"#);
        check_unreadable(r#"{"status":"rejected","results":[]} x"#);
        check_record_unreadable(r#"{"status":"applied"}"#);
        check_record_unreadable(r#"{"opIndex":0,"status":"error","code":"a"}"#);
        check_record_unreadable(r#"{"opIndex":0,"status":"error","code":"a","message":1}"#);
        check_record_unreadable(
            r#"{"opIndex":0,"status":"error","code":"a","message":"m","details":{"other":1}}"#,
        );
        check_record_unreadable(
            r#"{"opIndex":0,"status":"conflict","code":"a","message":"m","serverVersion":1}"#,
        );
        check_record_unreadable(
            r#"{"opIndex":0,"status":"conflict","code":"a","message":"m","serverVersion":1,"serverRow":"*"}"#,
        );
    }

    #[track_caller]
    fn check_record_unreadable(record: &str) {
        check_unreadable(&format!(r#"{{"status":"rejected","results":[{record}]}}"#));
    }

    #[test]
    fn no_prefix_of_an_outcome_is_readable() {
        let text = encode(&bare(PushStatus::Rejected, vec![conflict(), error(None)]));
        for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
            check_unreadable(&text[..end]);
        }
    }
}

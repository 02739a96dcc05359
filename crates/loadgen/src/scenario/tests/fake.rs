//! A small server of the protocol that can be told to misbehave. One partition, no limits.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::ScopeFilter;
use tidewater_wire::{
    Change, ChangeRow, CommitFrame, MediaType, OperationAction, Pull, PushCommit, PushOutcome,
    PushResult, Request, RequestParts, Response, ResponseFrame, ResponseHeader, SegmentRef,
    SegmentWriter, SubEnd, SubStart, SubStatus, Subscription, WireVersion, content_address,
    row::{Column, Field, Slot, Value, decode_row, decode_sparse_row, encode_row},
};

use crate::{stub::Answer, table::Table};

/// What the server does wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fault {
    None,
    /// Acknowledges a commit that it does not keep.
    LosesCommit,
    /// Gives one place to two commits.
    OverwritesCommit,
    /// Leaves a place in the log empty.
    SkipsPlace,
    /// Delivers rows of every list.
    LeaksRows,
    /// Applies a commit again when it comes again.
    ForgetsResults,
    /// Delivers other rows in the log than were pushed.
    CorruptsLog,
    /// Delivers other rows in bootstraps than were pushed.
    CorruptsRows,
    /// Leaves a row out of bootstraps.
    HidesRow,
    /// Serves another segment than was asked for.
    SwapsSegments,
    /// Answers 429 for a while.
    Refuses,
    /// Has a client start over that is some commits behind, which is its right.
    Resets {
        behind: i64,
    },
}

#[derive(Debug)]
pub(super) struct FakeServer {
    fault: Fault,
    log: BTreeMap<i64, CommitFrame>,
    head: i64,
    rows: BTreeMap<ByteString, (i64, Bytes)>,
    results: HashMap<(ByteString, ByteString), i64>,
    segments: HashMap<String, Bytes>,
    requests: u64,
}

const CHANGES_MAX: usize = 1000;
const FAULTY_COMMIT: i64 = 50;

impl FakeServer {
    pub(super) fn new(fault: Fault) -> Self {
        Self {
            fault,
            log: BTreeMap::new(),
            head: 0,
            rows: BTreeMap::new(),
            results: HashMap::new(),
            segments: HashMap::new(),
            requests: 0,
        }
    }

    pub(super) fn answer(&mut self, path: &str, body: &Bytes) -> Answer {
        self.requests += 1;
        if self.fault == Fault::Refuses && (60..65).contains(&self.requests) {
            let body = r#"{"code":"sync.rate_limited","retryable":true}"#;
            return (429, Bytes::from_static(body.as_bytes()));
        }
        match path.strip_prefix("/segments/") {
            Some(id) => match self.segments.get(id) {
                Some(_) if self.fault == Fault::SwapsSegments => (200, "SSG2".into()),
                Some(bytes) => (200, bytes.clone()),
                None => (404, Bytes::new()),
            },
            None => {
                let request = Request::decode(body).unwrap().into_parts();
                (200, self.round(request).encode().unwrap())
            }
        }
    }

    fn round(&mut self, request: RequestParts) -> Response {
        let mut frames = vec![ResponseFrame::Header(ResponseHeader {
            log_epoch: "e1".into(),
            latest_schema_version: Some(1),
            reset_required: request.header.log_epoch.is_none(),
            ..ResponseHeader::default()
        })];
        if request.header.log_epoch.is_some() {
            for commit in &request.commits {
                let key = (
                    request.header.client_id.clone(),
                    commit.client_commit_id.clone(),
                );
                let outcome = self.push(key, commit, request.version);
                frames.push(ResponseFrame::PushResult(PushResult {
                    client_commit_id: commit.client_commit_id.clone(),
                    outcome,
                    results: Vec::new(),
                }));
            }
            if let Some(pull) = &request.pull {
                for subscription in &pull.subscriptions {
                    self.pull(pull, subscription, &mut frames);
                }
            }
        }
        Response {
            version: request.version,
            frames,
        }
    }

    fn push(
        &mut self,
        key: (ByteString, ByteString),
        commit: &PushCommit,
        version: WireVersion,
    ) -> PushOutcome {
        if let Some(&seq) = self.results.get(&key)
            && self.fault != Fault::ForgetsResults
        {
            return PushOutcome::Cached(seq);
        }
        let is_faulty = self.head == FAULTY_COMMIT;
        let seq = match self.fault {
            Fault::OverwritesCommit if is_faulty && self.results.len().is_multiple_of(2) => {
                self.head
            }
            Fault::SkipsPlace if is_faulty => self.head + 2,
            _ => self.head + 1,
        };
        self.head = seq;
        self.results.insert(key, seq);
        if self.fault == Fault::LosesCommit && is_faulty {
            return PushOutcome::Applied(seq);
        }
        let changes = commit
            .operations
            .iter()
            .map(|operation| {
                let OperationAction::Upsert(payload) = &operation.action else {
                    panic!("the generator does not delete");
                };
                self.upsert(&operation.row_id, payload, version)
            })
            .collect();
        let frame = CommitFrame {
            commit_seq: seq,
            created_at_ms: 1,
            actor_id: "a".into(),
            tables: vec!["tasks".into()],
            changes,
        };
        self.log.insert(seq, frame);
        PushOutcome::Applied(seq)
    }

    fn upsert(&mut self, row_id: &ByteString, payload: &[u8], version: WireVersion) -> Change {
        let stored = self.rows.get(row_id);
        let row_version = stored.map_or(1, |(version, _)| version + 1);
        let row: Bytes = if version.is_sparse() {
            let columns = columns_of(payload);
            let slots = decode_sparse_row(&columns, 0, payload).unwrap();
            let old = stored.map(|(_, row)| decode_row(&columns, row).unwrap());
            let values: Vec<Option<&[u8]>> = slots
                .iter()
                .enumerate()
                .map(|(index, slot)| match slot {
                    Slot::Absent => old.as_ref().unwrap()[index].map(|field| field.encoded),
                    Slot::Null => None,
                    Slot::Present(field) => Some(field.encoded),
                })
                .collect();
            encode_row(&values).into()
        } else {
            Bytes::copy_from_slice(payload)
        };
        self.rows.insert(row_id.clone(), (row_version, row.clone()));
        let row = match self.fault {
            Fault::CorruptsLog => corrupt(&row),
            _ => row,
        };
        Change {
            table_index: 0,
            row_id: row_id.clone(),
            scopes: vec![("list_id".into(), list_of(&row).into())],
            row: Some(ChangeRow { row_version, row }),
        }
    }

    fn is_asked(&self, scopes: &ScopeFilter, list: &str) -> bool {
        let values = &scopes.entries()[0].values;
        self.fault == Fault::LeaksRows || values.iter().any(|value| value == list)
    }

    fn pull(&mut self, pull: &Pull, subscription: &Subscription, out: &mut Vec<ResponseFrame>) {
        let bootstrap = subscription.cursor < 0;
        let behind = self.head - subscription.cursor;
        let reset = match self.fault {
            Fault::Resets { behind: most } => !bootstrap && behind >= most,
            _ => false,
        };
        let (status, reason_code) = if reset {
            (SubStatus::Reset, "sync.cursor_expired".into())
        } else {
            (SubStatus::Active, ByteString::new())
        };
        out.push(ResponseFrame::SubStart(SubStart {
            id: subscription.id.clone(),
            status,
            reason_code,
            effective_scopes: subscription.scopes.clone(),
            bootstrap,
        }));
        let end = if reset {
            SubEnd {
                next_cursor: -1,
                bootstrap_state: None,
            }
        } else if bootstrap {
            self.bootstrap(pull, subscription, out)
        } else {
            self.incremental(subscription, out)
        };
        out.push(ResponseFrame::SubEnd(end));
    }

    fn incremental(&self, subscription: &Subscription, out: &mut Vec<ResponseFrame>) -> SubEnd {
        let mut changes = 0;
        let mut next_cursor = self.head;
        for (&seq, commit) in self.log.range(subscription.cursor + 1..) {
            let mut commit = commit.clone();
            commit
                .changes
                .retain(|change| self.is_asked(&subscription.scopes, &change.scopes[0].1));
            if commit.changes.is_empty() {
                continue;
            }
            changes += commit.changes.len();
            if changes > CHANGES_MAX {
                next_cursor = seq - 1;
                break;
            }
            out.push(ResponseFrame::Commit(commit));
        }
        SubEnd {
            next_cursor,
            bootstrap_state: None,
        }
    }

    fn bootstrap(
        &mut self,
        pull: &Pull,
        subscription: &Subscription,
        out: &mut Vec<ResponseFrame>,
    ) -> SubEnd {
        let or_default = |asked: i32, default| match usize::try_from(asked) {
            Ok(0) | Err(_) => default,
            Ok(asked) => asked,
        };
        let page_rows = or_default(pull.header.limit_snapshot_rows, 1000);
        let pages = or_default(pull.header.max_snapshot_pages, 4);
        // The token is the last row id as a JSON string.
        let token = subscription.bootstrap_state.as_ref();
        let mut after: Option<ByteString> = token.map(|token| token.trim_matches('"').into());
        let mut rows: Vec<(ByteString, i64, Bytes)> = self
            .rows
            .iter()
            .filter(|(id, _)| after.as_ref().is_none_or(|after| *id > after))
            .filter(|(_, (_, row))| self.is_asked(&subscription.scopes, list_of(row)))
            .map(|(id, (version, row))| (id.clone(), *version, row.clone()))
            .collect();
        if self.fault == Fault::HidesRow {
            rows.retain(|(id, ..)| *id != "task-0000042");
        }
        let mut more = true;
        for _ in 0..pages {
            let page: Vec<_> = rows.drain(..page_rows.min(rows.len())).collect();
            more = !rows.is_empty();
            let bytes = self.segment(&page);
            let segment = match pull.header.accept.inline_rows() {
                true => ResponseFrame::SegmentInline(bytes),
                false => ResponseFrame::SegmentRef(self.publish(bytes, page.len())),
            };
            out.push(segment);
            after = page.last().map(|(id, ..)| id.clone());
            if !more {
                break;
            }
        }
        SubEnd {
            next_cursor: self.head,
            bootstrap_state: after
                .filter(|_| more)
                .map(|after| format!("\"{after}\"").into()),
        }
    }

    fn segment(&self, page: &[(ByteString, i64, Bytes)]) -> Bytes {
        let columns = page.first().map_or(6, |(_, _, row)| width_of_row(row));
        let mut writer = SegmentWriter::new("tasks", 1, &columns_for(columns));
        for (_, version, row) in page {
            match self.fault {
                Fault::CorruptsRows => writer.push(*version, &corrupt(row)),
                _ => writer.push(*version, row),
            }
        }
        writer.finish().into()
    }

    fn publish(&mut self, bytes: Bytes, rows: usize) -> SegmentRef {
        let segment_id = content_address(&bytes);
        self.segments.insert(segment_id.clone(), bytes.clone());
        SegmentRef {
            segment_id: segment_id.into(),
            media_type: MediaType::Rows,
            table: "tasks".into(),
            byte_length: i64::try_from(bytes.len()).unwrap(),
            row_count: i64::try_from(rows).unwrap(),
            as_of_commit_seq: self.head,
            scope_digest: "d".into(),
            row_cursor: None,
            next_row_cursor: None,
            url: None,
        }
    }
}

/// The widths that the tests use, with the scopes they have.
fn columns_for(width: usize) -> Vec<Column> {
    let scopes = if width == 10 { 3 } else { 1 };
    Table::new(width, scopes, 1).unwrap().columns
}

fn columns_of(payload: &[u8]) -> Vec<Column> {
    let wide = columns_for(10);
    let width = match decode_sparse_row(&wide, 0, payload) {
        Ok(_) => 10,
        Err(_) => 6,
    };
    columns_for(width)
}

fn width_of_row(row: &[u8]) -> usize {
    match decode_row(&columns_for(10), row) {
        Ok(_) => 10,
        Err(_) => 6,
    }
}

fn fields(row: &[u8]) -> Vec<Option<Field<'_>>> {
    decode_row(&columns_for(width_of_row(row)), row).unwrap()
}

fn list_of(row: &[u8]) -> &str {
    match fields(row)[1].unwrap().value {
        Value::String(list) => list,
        other => panic!("{other:?} is no list"),
    }
}

/// The row with one letter of its title changed.
fn corrupt(row: &Bytes) -> Bytes {
    let fields = fields(row);
    let title = fields.len().min(10);
    let index = if title == 10 { 4 } else { 2 };
    let mut changed = fields[index].unwrap().encoded.to_vec();
    changed[10] ^= 1;
    let values: Vec<Option<&[u8]>> = (0..fields.len())
        .map(|at| match at == index {
            true => Some(&changed[..]),
            false => fields[at].map(|field| field.encoded),
        })
        .collect();
    encode_row(&values).into()
}

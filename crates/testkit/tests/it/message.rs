//! Requests built by hand and responses taken apart, for any wire version.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use serde_json::Value;
use tidewater_model::{ScopeFilter, ScopeValues};
use tidewater_schema::Schema;
use tidewater_testkit::rows::{full_row, sparse_row};
use tidewater_wire::{
    Accept, CommitFrame, ErrorFrame, Operation, OperationAction, PullHeader, PushCommit,
    PushResult, PushResultDetails, Request, RequestFrame, RequestHeader, Response, ResponseFrame,
    ResponseHeader, SegmentRef, SubEnd, SubStart, Subscription, WireVersion,
};

/// Writes requests as one client of one wire version would.
#[derive(Clone)]
pub(crate) struct Author {
    pub(crate) client_id: String,
    pub(crate) version: WireVersion,
    pub(crate) schema: Arc<Schema>,
    /// What goes into the header; never in wire version 1.
    pub(crate) log_epoch: Option<ByteString>,
    pub(crate) limits: PullHeader,
}

/// The two accept bits for rows.
pub(crate) const ROWS: u8 = 0b0011;
/// Rows by reference only.
pub(crate) const EXTERNAL_ROWS: u8 = 0b0010;

impl Author {
    pub(crate) fn new(client_id: &str, version: WireVersion, schema: &Arc<Schema>) -> Self {
        Self {
            client_id: client_id.to_owned(),
            version,
            schema: Arc::clone(schema),
            log_epoch: None,
            limits: pull_header(ROWS),
        }
    }

    pub(crate) fn request(
        &self,
        commits: Vec<PushCommit>,
        pull: Option<Vec<Subscription>>,
    ) -> Bytes {
        let mut frames = vec![RequestFrame::Header(RequestHeader {
            client_id: self.client_id.as_str().into(),
            schema_version: self.schema.version(),
            log_epoch: self.log_epoch.clone().filter(|_| self.version.has_epoch()),
        })];
        frames.extend(commits.into_iter().map(RequestFrame::PushCommit));
        if let Some(subscriptions) = pull {
            frames.push(RequestFrame::PullHeader(self.limits));
            frames.extend(subscriptions.into_iter().map(RequestFrame::Subscription));
        }
        Request {
            version: self.version,
            frames,
        }
        .encode()
        .unwrap()
    }

    /// An upsert of the columns named. A full row in versions 1 and 2: what is not named is NULL.
    pub(crate) fn upsert(&self, table: &str, values: &Value, base: Option<i64>) -> Operation {
        let compiled = self.schema.table(self.schema.find(table).unwrap());
        let key = &compiled.columns[compiled.primary_key].name;
        let encode = if self.version.is_sparse() {
            sparse_row
        } else {
            full_row
        };
        let payload = encode(compiled, values).unwrap();
        Operation {
            table: table.into(),
            row_id: values[key].as_str().unwrap().into(),
            action: OperationAction::Upsert(payload.into()),
            base_version: base,
        }
    }
}

pub(crate) fn pull_header(accept: u8) -> PullHeader {
    PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept: Accept::from_bits(accept).unwrap(),
    }
}

pub(crate) fn delete(table: &str, row_id: &str) -> Operation {
    Operation {
        table: table.into(),
        row_id: row_id.into(),
        action: OperationAction::Delete,
        base_version: None,
    }
}

pub(crate) fn commit(id: &str, operations: Vec<Operation>) -> PushCommit {
    PushCommit {
        client_commit_id: id.into(),
        operations,
    }
}

/// A subscription to the notes of teams.
pub(crate) fn teams(id: &str, teams: &[&str], cursor: i64) -> Subscription {
    subscription(id, "notes", "team_id", teams, cursor)
}

pub(crate) fn subscription(
    id: &str,
    table: &str,
    variable: &str,
    values: &[&str],
    cursor: i64,
) -> Subscription {
    let values = values.iter().map(|&value| value.to_owned()).collect();
    let entry = ScopeValues {
        variable: variable.to_owned(),
        values,
    };
    Subscription {
        id: id.into(),
        table: table.into(),
        scopes: ScopeFilter::new(vec![entry]).unwrap(),
        params: None,
        cursor,
        bootstrap_state: None,
    }
}

/// A response by its parts.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) version: WireVersion,
    pub(crate) header: ResponseHeader,
    pub(crate) results: Vec<PushResult>,
    pub(crate) details: Vec<PushResultDetails>,
    pub(crate) sections: Vec<Section>,
    pub(crate) error: Option<ErrorFrame>,
}

/// What one subscription was sent.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) start: SubStart,
    pub(crate) commits: Vec<CommitFrame>,
    pub(crate) inline: Vec<Bytes>,
    pub(crate) references: Vec<SegmentRef>,
    /// `None` when an error came first.
    pub(crate) end: Option<SubEnd>,
}

impl Answer {
    /// Takes a response apart. What breaks the grammar of responses panics.
    pub(crate) fn read(bytes: &Bytes) -> Self {
        let response = Response::decode(bytes).unwrap();
        let mut frames = response.frames.into_iter();
        let Some(ResponseFrame::Header(header)) = frames.next() else {
            panic!("a response begins with its header")
        };
        let mut answer = Self {
            version: response.version,
            header,
            results: Vec::new(),
            details: Vec::new(),
            sections: Vec::new(),
            error: None,
        };
        for frame in frames {
            answer.take(frame);
        }
        answer
    }

    fn take(&mut self, frame: ResponseFrame) {
        match frame {
            ResponseFrame::PushResult(result) => self.results.push(result),
            ResponseFrame::PushResultDetails(details) => self.details.push(details),
            ResponseFrame::SubStart(start) => self.sections.push(Section {
                start,
                commits: Vec::new(),
                inline: Vec::new(),
                references: Vec::new(),
                end: None,
            }),
            ResponseFrame::Commit(commit) => self.section().commits.push(commit),
            ResponseFrame::SegmentInline(segment) => self.section().inline.push(segment),
            ResponseFrame::SegmentRef(reference) => self.section().references.push(reference),
            ResponseFrame::SubEnd(end) => self.section().end = Some(end),
            ResponseFrame::Error(error) => self.error = Some(error),
            other => panic!("an unexpected frame: {other:?}"),
        }
    }

    fn section(&mut self) -> &mut Section {
        self.sections.last_mut().expect("a section is open")
    }
}

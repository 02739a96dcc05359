//! Requests built by hand and responses taken apart, for any wire version.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use bytestring::ByteString;
use serde_json::Value;
use tidewater_model::{ScopeFilter, ScopeValues};
use tidewater_schema::Schema;
use tidewater_wire::{
    Accept, CommitFrame, ErrorFrame, Operation, OperationAction, PullHeader, PushCommit,
    PushResult, PushResultDetails, Request, RequestFrame, RequestHeader, Response, ResponseFrame,
    ResponseHeader, SegmentRef, SubEnd, SubStart, Subscription, WireVersion,
};

use crate::rows::{full_row, sparse_row};

/// Writes requests as one client of one wire version would.
#[derive(Clone, Debug)]
pub struct Author {
    /// The replica.
    pub client_id: String,
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// What its rows are encoded for.
    pub schema: Arc<Schema>,
    /// What goes into the header; never in wire version 1.
    pub log_epoch: Option<ByteString>,
    /// What goes into the pull header.
    pub limits: PullHeader,
}

/// The two accept bits for rows.
pub const ROWS: u8 = 0b0011;
/// Rows by reference only.
pub const EXTERNAL_ROWS: u8 = 0b0010;

impl Author {
    /// An author that knows no epoch and takes rows.
    pub fn new(client_id: &str, version: WireVersion, schema: &Arc<Schema>) -> Self {
        Self {
            client_id: client_id.to_owned(),
            version,
            schema: Arc::clone(schema),
            log_epoch: None,
            limits: pull_header(ROWS),
        }
    }

    /// A complete request; without `pull` it only pushes.
    pub fn request(&self, commits: Vec<PushCommit>, pull: Option<Vec<Subscription>>) -> Bytes {
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
        let request = Request {
            version: self.version,
            frames,
        };
        request.encode().expect("the frames are in order")
    }

    /// An upsert of the columns named. A full row in versions 1 and 2: what is not named is NULL.
    ///
    /// # Panics
    ///
    /// When there is no such table, or the values are not those of a row.
    pub fn upsert(&self, table: &str, values: &Value, base: Option<i64>) -> Operation {
        let index = self.schema.find(table).expect("the table exists");
        let compiled = self.schema.table(index);
        let key = &compiled.columns[compiled.primary_key].name;
        let encode = if self.version.is_sparse() {
            sparse_row
        } else {
            full_row
        };
        let payload = encode(compiled, values).expect("the values are those of a row");
        Operation {
            table: table.into(),
            row_id: values[key].as_str().expect("the key is text").into(),
            action: OperationAction::Upsert(payload.into()),
            base_version: base,
        }
    }
}

/// The header of a pull that asks for no particular amounts.
///
/// # Panics
///
/// When a bit is set that is not defined.
pub fn pull_header(accept: u8) -> PullHeader {
    PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept: Accept::from_bits(accept).expect("four bits are defined"),
    }
}

/// A delete.
pub fn delete(table: &str, row_id: &str) -> Operation {
    Operation {
        table: table.into(),
        row_id: row_id.into(),
        action: OperationAction::Delete,
        base_version: None,
    }
}

/// A commit.
pub fn commit(id: &str, operations: Vec<Operation>) -> PushCommit {
    PushCommit {
        client_commit_id: id.into(),
        operations,
    }
}

/// A subscription to the notes of teams.
pub fn teams(id: &str, teams: &[&str], cursor: i64) -> Subscription {
    subscription(id, "notes", "team_id", teams, cursor)
}

/// A subscription by one scope variable; a cursor of -1 begins.
pub fn subscription(
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
        scopes: ScopeFilter::new(vec![entry]).expect("one variable is named once"),
        params: None,
        cursor,
        bootstrap_state: None,
    }
}

/// A response by its parts.
#[derive(Debug)]
pub struct Answer {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// What it begins with.
    pub header: ResponseHeader,
    /// What became of the commits, in their order.
    pub results: Vec<PushResult>,
    /// Companions of rejected results.
    pub details: Vec<PushResultDetails>,
    /// What became of the subscriptions, in their order.
    pub sections: Vec<Section>,
    /// The failure it ended with.
    pub error: Option<ErrorFrame>,
}

/// What one subscription was sent.
#[derive(Debug)]
pub struct Section {
    /// What became of the subscription.
    pub start: SubStart,
    /// The log.
    pub commits: Vec<CommitFrame>,
    /// Rows segments inside the response.
    pub inline: Vec<Bytes>,
    /// Segments by reference.
    pub references: Vec<SegmentRef>,
    /// What the client stores; `None` when an error came first.
    pub end: Option<SubEnd>,
}

impl Answer {
    /// Takes a response apart.
    pub fn read(bytes: &Bytes) -> Result<Self> {
        let response = Response::decode(bytes).context("decode a response")?;
        let mut frames = response.frames.into_iter();
        let Some(ResponseFrame::Header(header)) = frames.next() else {
            bail!("a response begins with its header")
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
            answer.take(frame)?;
        }
        Ok(answer)
    }

    fn take(&mut self, frame: ResponseFrame) -> Result<()> {
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
            ResponseFrame::Commit(commit) => self.section()?.commits.push(commit),
            ResponseFrame::SegmentInline(segment) => self.section()?.inline.push(segment),
            ResponseFrame::SegmentRef(reference) => self.section()?.references.push(reference),
            ResponseFrame::SubEnd(end) => self.section()?.end = Some(end),
            ResponseFrame::Error(error) => self.error = Some(error),
            other => bail!("an unexpected frame: {other:?}"),
        }
        Ok(())
    }

    fn section(&mut self) -> Result<&mut Section> {
        self.sections.last_mut().context("a section is open")
    }
}

//! Requests to ask with, and responses taken apart.

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tidewater_model::{LogEpoch, ScopeFilter, ScopeValues};
use tidewater_wire::{
    Accept, CommitFrame, ErrorFrame, Operation, PullHeader, PushCommit, PushResult,
    PushResultDetails, Request, RequestFrame, RequestHeader, Response, ResponseFrame,
    ResponseHeader, RoundFailure, RowsSegment, SegmentRef, SubEnd, SubStart, Subscription,
    WireVersion,
};

use crate::RoundBody;

/// A request in the making.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    version: WireVersion,
    client: String,
    schema_version: Option<i32>,
    epoch: Epoch,
    failure: Option<String>,
    commits: Vec<PushCommit>,
    pull: Option<PullHeader>,
    subscriptions: Vec<Subscription>,
}

#[derive(Clone, Debug)]
enum Epoch {
    Live,
    Absent,
    Named(String),
}

impl Ask {
    /// Of client `c1` in the newest wire version, with nothing in it yet.
    pub(crate) fn new() -> Self {
        Self {
            version: WireVersion::V3,
            client: "c1".to_owned(),
            schema_version: None,
            epoch: Epoch::Live,
            failure: None,
            commits: Vec::new(),
            pull: None,
            subscriptions: Vec::new(),
        }
    }

    /// Pulls these with default limits, taking rows inline and by reference.
    pub(crate) fn pull(subscriptions: impl IntoIterator<Item = Subscription>) -> Self {
        Self::new().and_pull(subscriptions)
    }

    pub(crate) fn and_pull(
        mut self,
        subscriptions: impl IntoIterator<Item = Subscription>,
    ) -> Self {
        self.pull = Some(PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 0,
            max_snapshot_pages: 0,
            accept: Accept::from_bits(0b0011).unwrap(),
        });
        self.subscriptions.extend(subscriptions);
        self
    }

    pub(crate) fn version(&self) -> WireVersion {
        self.version
    }

    pub(crate) fn in_version(mut self, version: WireVersion) -> Self {
        self.version = version;
        self
    }

    pub(crate) fn of_client(mut self, client: &str) -> Self {
        client.clone_into(&mut self.client);
        self
    }

    pub(crate) fn of_schema(mut self, schema_version: i32) -> Self {
        self.schema_version = Some(schema_version);
        self
    }

    pub(crate) fn without_epoch(mut self) -> Self {
        self.epoch = Epoch::Absent;
        self
    }

    pub(crate) fn of_epoch(mut self, epoch: &str) -> Self {
        self.epoch = Epoch::Named(epoch.to_owned());
        self
    }

    pub(crate) fn after_failure(mut self, code: &str) -> Self {
        self.failure = Some(code.to_owned());
        self
    }

    pub(crate) fn push(mut self, id: &str, operations: Vec<Operation>) -> Self {
        self.commits.push(PushCommit {
            client_commit_id: id.into(),
            operations,
        });
        self
    }

    /// `limitCommits`, `limitSnapshotRows`, `maxSnapshotPages`; 0 is the default.
    pub(crate) fn limited(mut self, changes: i32, rows: i32, pages: i32) -> Self {
        let pull = self.pull.as_mut().expect("limits belong to a pull");
        pull.limit_commits = changes;
        pull.limit_snapshot_rows = rows;
        pull.max_snapshot_pages = pages;
        self
    }

    pub(crate) fn accepting(mut self, bits: u8) -> Self {
        let pull = self
            .pull
            .as_mut()
            .expect("what is accepted belongs to a pull");
        pull.accept = Accept::from_bits(bits).unwrap();
        self
    }

    pub(crate) fn encode(self, live: &LogEpoch, schema_version: i32) -> Bytes {
        let log_epoch = match self.epoch {
            _ if !self.version.has_epoch() => None,
            Epoch::Live => Some(live.as_str().into()),
            Epoch::Absent => None,
            Epoch::Named(epoch) => Some(epoch.into()),
        };
        let header = RequestHeader {
            client_id: self.client.into(),
            schema_version: self.schema_version.unwrap_or(schema_version),
            log_epoch,
        };
        let mut frames = vec![RequestFrame::Header(header)];
        frames.extend(
            self.failure
                .map(|code| RequestFrame::RoundFailure(RoundFailure { code: code.into() })),
        );
        frames.extend(self.commits.into_iter().map(RequestFrame::PushCommit));
        frames.extend(self.pull.map(RequestFrame::PullHeader));
        frames.extend(
            self.subscriptions
                .into_iter()
                .map(RequestFrame::Subscription),
        );
        Request {
            version: self.version,
            frames,
        }
        .encode()
        .unwrap()
    }
}

/// A subscription without a token.
pub(crate) fn subscription(
    id: &str,
    table: &str,
    scopes: &[(&str, &[&str])],
    cursor: i64,
) -> Subscription {
    let entries = scopes
        .iter()
        .map(|&(variable, values)| ScopeValues {
            variable: variable.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        })
        .collect();
    Subscription {
        id: id.into(),
        table: table.into(),
        scopes: ScopeFilter::new(entries).unwrap(),
        params: None,
        cursor,
        bootstrap_state: None,
    }
}

/// A response by what it says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) version: WireVersion,
    pub(crate) header: ResponseHeader,
    pub(crate) results: Vec<PushResult>,
    pub(crate) details: Vec<PushResultDetails>,
    pub(crate) sections: Vec<SeenSection>,
    pub(crate) error: Option<ErrorFrame>,
}

/// A section; without an end when an error cut it short.
#[derive(Debug)]
pub(crate) struct SeenSection {
    pub(crate) start: SubStart,
    pub(crate) commits: Vec<CommitFrame>,
    pub(crate) pages: Vec<SeenPage>,
    pub(crate) end: Option<SubEnd>,
}

/// A page of a bootstrap.
#[derive(Debug)]
pub(crate) enum SeenPage {
    Inline(RowsSegment),
    External(SegmentRef),
}

impl SeenSection {
    pub(crate) fn next_cursor(&self) -> i64 {
        self.end.as_ref().unwrap().next_cursor
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.end.as_ref().unwrap().bootstrap_state.as_deref()
    }
}

impl SeenPage {
    pub(crate) fn inline(&self) -> &RowsSegment {
        match self {
            Self::Inline(segment) => segment,
            Self::External(reference) => panic!("the page is outside: {reference:?}"),
        }
    }

    pub(crate) fn external(&self) -> &SegmentRef {
        match self {
            Self::External(reference) => reference,
            Self::Inline(_) => panic!("the page is inline"),
        }
    }
}

impl Answer {
    /// The only section.
    pub(crate) fn section(&self) -> &SeenSection {
        assert_eq!((self.sections.len(), &self.error), (1, &None));
        &self.sections[0]
    }

    /// Reads a response that obeys the grammar; anything else panics.
    pub(crate) fn decode(bytes: &Bytes) -> Self {
        let Response { version, frames } = Response::decode(bytes).unwrap();
        let mut answer = Self {
            version,
            header: ResponseHeader::default(),
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
            ResponseFrame::Header(header) => self.header = header,
            ResponseFrame::PushResult(result) => self.results.push(result),
            ResponseFrame::PushResultDetails(details) => self.details.push(details),
            ResponseFrame::Error(error) => self.error = Some(error),
            ResponseFrame::SubStart(start) => self.sections.push(SeenSection {
                start,
                commits: Vec::new(),
                pages: Vec::new(),
                end: None,
            }),
            ResponseFrame::Commit(commit) => self.open().commits.push(commit),
            ResponseFrame::SegmentInline(bytes) => {
                let segment = RowsSegment::decode(&bytes).unwrap();
                self.open().pages.push(SeenPage::Inline(segment));
            }
            ResponseFrame::SegmentRef(reference) => {
                self.open().pages.push(SeenPage::External(reference));
            }
            ResponseFrame::SubEnd(end) => self.open().end = Some(end),
            ResponseFrame::Lease(_) | ResponseFrame::Unknown(_) => panic!("not sent: {frame:?}"),
        }
    }

    fn open(&mut self) -> &mut SeenSection {
        self.sections.last_mut().unwrap()
    }
}

/// All bytes of a response.
pub(crate) async fn collect(mut body: RoundBody) -> Bytes {
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.next().await {
        bytes.extend_from_slice(&piece);
    }
    bytes.freeze()
}

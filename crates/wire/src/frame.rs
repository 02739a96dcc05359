//! The frames, as values (§1.5, §1.6).
//!
//! Fields stand in wire order and are named as in the protocol. Text and bytes are slices of the
//! message they were decoded from, so a frame is cheap to clone and outlives its connection.
//! `json` fields keep their text byte for byte.
//!
//! What the types cannot express is not representable: an upsert has a payload, an applied
//! result has a commit sequence, a URL has an expiry (§1.4 of the protocol: presence ties).

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::ScopeFilter;

/// A frame of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestFrame {
    /// `01`
    Header(RequestHeader),
    /// `05`, wire version 3 only.
    RoundFailure(RoundFailure),
    /// `02`
    PushCommit(PushCommit),
    /// `03`
    PullHeader(PullHeader),
    /// `04`
    Subscription(Subscription),
    /// A type without a layout in this version, kept in place.
    Unknown(UnknownFrame),
}

/// A frame of a response.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseFrame {
    /// `10`
    Header(ResponseHeader),
    /// `19`
    Lease(LeaseFrame),
    /// `11`
    PushResult(PushResult),
    /// `1B`
    PushResultDetails(PushResultDetails),
    /// `12`
    SubStart(SubStart),
    /// `13`
    Commit(CommitFrame),
    /// `14`
    SegmentRef(SegmentRef),
    /// `15`: one complete rows segment.
    SegmentInline(Bytes),
    /// `16`
    SubEnd(SubEnd),
    /// `1F`
    Error(ErrorFrame),
    /// A type without a layout in this version, kept in place.
    Unknown(UnknownFrame),
}

/// A frame that is skipped and preserved (§1.2).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnknownFrame {
    /// The type byte.
    pub frame_type: u8,
    /// The payload, uninterpreted.
    pub payload: Bytes,
}

/// `REQ_HEADER`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestHeader {
    /// The replica; not empty.
    pub client_id: ByteString,
    /// The schema the client was generated for; at least 1.
    pub schema_version: i32,
    /// The epoch the client last accepted; always `None` in wire version 1.
    pub log_epoch: Option<ByteString>,
}

/// `ROUND_FAILURE`: why the client's previous round failed where the server could not see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RoundFailure {
    /// For example `transport.timeout`.
    pub code: ByteString,
}

/// `PUSH_COMMIT`
#[derive(Clone, Debug, PartialEq)]
pub struct PushCommit {
    /// The idempotency key within the client; not empty.
    pub client_commit_id: ByteString,
    /// At least one.
    pub operations: Vec<Operation>,
}

/// One write a client asks for (§6.1).
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The table.
    pub table: ByteString,
    /// The primary key as text.
    pub row_id: ByteString,
    /// Insert or update, or delete.
    pub action: OperationAction,
    /// The row version the author last saw. Preserved on a delete, and ignored there.
    pub base_version: Option<i64>,
}

/// What an operation does. Only an upsert carries a row.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationAction {
    /// The encoded row: full in versions 1 and 2, sparse in 3. Opaque to the message codec.
    Upsert(Bytes),
    /// Nothing to carry.
    Delete,
}

/// `PULL_HEADER`, as sent: not clamped yet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PullHeader {
    /// Changes per incremental section; 0 asks for the default.
    pub limit_commits: i32,
    /// Rows per snapshot page; 0 asks for the default.
    pub limit_snapshot_rows: i32,
    /// Snapshot pages per section; 0 asks for the default.
    pub max_snapshot_pages: i32,
    /// Which deliveries the client understands.
    pub accept: Accept,
}

/// The `accept` bits of a pull (§4.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Accept(u8);

impl Accept {
    /// Takes the four defined bits; `None` when another is set.
    pub fn from_bits(bits: u8) -> Option<Self> {
        (bits & 0xf0 == 0).then_some(Self(bits))
    }

    /// The byte on the wire.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Rows segments inside the response.
    pub fn inline_rows(self) -> bool {
        self.0 & 1 != 0
    }

    /// Rows segments by reference.
    pub fn external_rows(self) -> bool {
        self.0 & 2 != 0
    }

    /// SQLite images by reference.
    pub fn images(self) -> bool {
        self.0 & 4 != 0
    }

    /// Signed URLs in references.
    pub fn signed_urls(self) -> bool {
        self.0 & 8 != 0
    }
}

/// `SUBSCRIPTION`
#[derive(Clone, Debug, PartialEq)]
pub struct Subscription {
    /// Chosen by the client, echoed.
    pub id: ByteString,
    /// The table.
    pub table: ByteString,
    /// Requested scopes.
    pub scopes: ScopeFilter,
    /// JSON, ignored by this server.
    pub params: Option<ByteString>,
    /// The last commit applied; any negative number means never.
    pub cursor: i64,
    /// The resume token of an unfinished bootstrap, as JSON text.
    pub bootstrap_state: Option<ByteString>,
}

/// `RESP_HEADER`
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ResponseHeader {
    /// Present in a floor response only.
    pub required_schema_version: Option<i32>,
    /// The newest schema version the server knows.
    pub latest_schema_version: Option<i32>,
    /// The current epoch; not empty from wire version 2 on, absent from version 1.
    pub log_epoch: ByteString,
    /// The client must reset its log state; not in wire version 1.
    pub reset_required: bool,
}

/// `LEASE`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LeaseFrame {
    /// Not empty.
    pub lease_id: ByteString,
    /// Unix milliseconds.
    pub expires_at_ms: i64,
}

/// `PUSH_RESULT`
#[derive(Clone, Debug, PartialEq)]
pub struct PushResult {
    /// Echo of the commit's id.
    pub client_commit_id: ByteString,
    /// What became of the commit.
    pub outcome: PushOutcome,
    /// One record per operation, or only that of the terminating one.
    pub results: Vec<OpResult>,
}

/// What became of a pushed commit (§6.3).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PushOutcome {
    /// Written now, at this place.
    Applied(i64),
    /// Written before, at this place.
    Cached(i64),
    /// Not written.
    Rejected,
}

/// One record of a push result.
#[derive(Clone, Debug, PartialEq)]
pub enum OpResult {
    /// The operation was applied.
    Applied {
        /// Which operation.
        op_index: i32,
    },
    /// The row moved on since the author saw it.
    Conflict {
        /// Which operation.
        op_index: i32,
        /// A catalogue code.
        code: ByteString,
        /// Text for people.
        message: ByteString,
        /// The row's version now.
        server_version: i64,
        /// The row now: full, in the requester's columns.
        server_row: Bytes,
        /// Which columns conflict, as a presence bitmap; empty before wire version 3.
        conflict_columns: Bytes,
    },
    /// The operation was refused.
    Error {
        /// Which operation.
        op_index: i32,
        /// A catalogue code or one of the host's.
        code: ByteString,
        /// Text for people.
        message: ByteString,
        /// Whether the same commit may succeed later.
        retryable: bool,
    },
}

/// `PUSH_RESULT_DETAILS`: the companion of the rejected result directly before it (§6.3.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PushResultDetails {
    /// That of the result.
    pub client_commit_id: ByteString,
    /// At least one.
    pub entries: Vec<RejectionDetail>,
}

/// Details of one error record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RejectionDetail {
    /// Names an error record of the result.
    pub op_index: i32,
    /// JSON text that obeys §6.3.1.
    pub details: ByteString,
}

/// `SUB_START`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SubStart {
    /// Echo of the subscription's id.
    pub id: ByteString,
    /// What became of the subscription.
    pub status: SubStatus,
    /// Empty, `sync.scope_revoked` or `sync.cursor_expired`.
    pub reason_code: ByteString,
    /// Empty unless active.
    pub effective_scopes: ScopeFilter,
    /// Whether the section delivers segments.
    pub bootstrap: bool,
}

/// What became of a subscription.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SubStatus {
    /// Served.
    Active,
    /// The grant is gone: the client purges.
    Revoked,
    /// The history is gone: the client bootstraps again.
    Reset,
}

impl SubStatus {
    /// The byte on the wire.
    pub fn tag(self) -> u8 {
        match self {
            Self::Active => 1,
            Self::Revoked => 2,
            Self::Reset => 3,
        }
    }

    /// The status with this byte.
    pub fn from_tag(tag: u8) -> Option<Self> {
        [Self::Active, Self::Revoked, Self::Reset]
            .into_iter()
            .find(|status| status.tag() == tag)
    }

    /// The name in renderings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Revoked => "revoked",
            Self::Reset => "reset",
        }
    }
}

/// `COMMIT`
#[derive(Clone, Debug, PartialEq)]
pub struct CommitFrame {
    /// The place in the log.
    pub commit_seq: i64,
    /// The server's clock, Unix milliseconds.
    pub created_at_ms: i64,
    /// Who pushed it.
    pub actor_id: ByteString,
    /// The dictionary of this frame.
    pub tables: Vec<ByteString>,
    /// The changes, in commit order.
    pub changes: Vec<Change>,
}

/// One entry of the log: a row after a write.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Index into the frame's tables.
    pub table_index: u16,
    /// The primary key as text.
    pub row_id: ByteString,
    /// The row after an upsert; `None` for a delete.
    pub row: Option<ChangeRow>,
    /// Stored scopes, by ascending UTF-16 order of the variable.
    pub scopes: Vec<(ByteString, ByteString)>,
}

/// The row of an upsert.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChangeRow {
    /// Its version after the write.
    pub row_version: i64,
    /// The full row, in the requester's columns.
    pub row: Bytes,
}

/// `SEGMENT_REF`
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRef {
    /// `sha256:` and the hash of the uncompressed bytes.
    pub segment_id: ByteString,
    /// Rows or image.
    pub media_type: MediaType,
    /// The table.
    pub table: ByteString,
    /// Uncompressed size.
    pub byte_length: i64,
    /// Rows in it.
    pub row_count: i64,
    /// The pin.
    pub as_of_commit_seq: i64,
    /// Digest of this subscription's effective scopes.
    pub scope_digest: ByteString,
    /// Where the page starts; `None` on the first.
    pub row_cursor: Option<ByteString>,
    /// Where the next page starts; `None` on the last.
    pub next_row_cursor: Option<ByteString>,
    /// A signed URL and when it stops working, Unix milliseconds.
    pub url: Option<(ByteString, i64)>,
}

/// What a segment's bytes are.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum MediaType {
    /// A rows segment, format SSG2.
    Rows,
    /// A SQLite database file.
    Sqlite,
}

impl MediaType {
    /// The byte on the wire.
    pub fn tag(self) -> u8 {
        match self {
            Self::Rows => 1,
            Self::Sqlite => 2,
        }
    }

    /// The media type with this byte.
    pub fn from_tag(tag: u8) -> Option<Self> {
        [Self::Rows, Self::Sqlite]
            .into_iter()
            .find(|media| media.tag() == tag)
    }

    /// The name in renderings and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Sqlite => "sqlite",
        }
    }
}

/// `SUB_END`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SubEnd {
    /// What the client stores as its cursor.
    pub next_cursor: i64,
    /// Present exactly while a bootstrap is incomplete, JSON text.
    pub bootstrap_state: Option<ByteString>,
}

/// `ERROR`
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ErrorFrame {
    /// A catalogue code.
    pub code: ByteString,
    /// Text for people.
    pub message: ByteString,
    /// The code's category.
    pub category: ByteString,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// What the client should do.
    pub recommended_action: ByteString,
    /// JSON text.
    pub details: Option<ByteString>,
}

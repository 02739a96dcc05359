//! Every limit of the protocol and every cap of our own, with its reason.
//!
//! Limits of the protocol are constants. Operators may lower or raise those that
//! configuration names, within the bounds given here.

/// Largest integer that every client language represents exactly (Conventions).
pub const SAFE_INTEGER_MAX: i64 = 9_007_199_254_740_991;

/// Operations that references may append to one commit (§6.11).
pub const APPENDED_OPERATIONS_DEFAULT: usize = 1_000;

/// Reactions of one commit (§6.9).
pub const REACTIONS_PER_COMMIT_MAX: usize = 100;
/// Length of a reaction's key (§6.9).
pub const REACTION_KEY_BYTES_MAX: usize = 256;
/// Length of a reaction's type (§6.9).
pub const REACTION_TYPE_BYTES_MAX: usize = 128;
/// Length of a reaction's payload as JSON text (§6.9).
pub const REACTION_PAYLOAD_BYTES_MAX: usize = 65_536;
/// Nesting of a reaction's payload (§6.9).
pub const REACTION_PAYLOAD_DEPTH_MAX: usize = 16;
/// Deliveries of a reaction before it is given up, when the planner does not say (§6.9).
pub const REACTION_ATTEMPTS_DEFAULT: i32 = 10;
/// Most deliveries a planner may ask for (§6.9).
pub const REACTION_ATTEMPTS_MAX: i32 = 100;

/// Deepest JSON accepted anywhere: the published clients' parsers stop there (OQ-18).
pub const JSON_DEPTH_MAX: usize = 127;

/// Operations over all commits of one request (§6.1).
pub const OPERATIONS_PER_REQUEST_DEFAULT: usize = 500;

/// Changes in one incremental section: default, and largest a client may ask for (§4.2).
pub const PULL_CHANGES_MAX: i32 = 1_000;

/// Rows in one snapshot page when the client does not say (§4.2).
pub const SNAPSHOT_ROWS_DEFAULT: i32 = 1_000;
/// Most rows a client may ask for in one snapshot page (§4.2).
pub const SNAPSHOT_ROWS_MAX: i32 = 50_000;
/// Snapshot pages of one section when the client does not say (§4.2).
pub const SNAPSHOT_PAGES_DEFAULT: i32 = 4;
/// Most snapshot pages a client may ask for in one section (§4.2).
pub const SNAPSHOT_PAGES_MAX: i32 = 50;

/// Largest rows segment sent inside a response when the client also takes references (§5.7).
pub const INLINE_SEGMENT_BYTES_DEFAULT: usize = 256 * 1024;

/// Rows in one block of a rows segment: a receiver commits block by block (§5.2).
pub const SEGMENT_BLOCK_ROWS_MAX: usize = 1_000;
/// Bytes of row data after which a block is closed (§5.2).
pub const SEGMENT_BLOCK_BYTES_TARGET: usize = 256 * 1024;

/// How long a published segment can be fetched, in milliseconds: 24 hours (§5.1).
pub const SEGMENT_LIFETIME_MS_DEFAULT: i64 = 24 * 60 * 60 * 1_000;

/// Publications of one segment: the same empty page may be published for every tenant (§5.1).
pub const PUBLICATIONS_PER_SEGMENT_MAX: usize = 1_024;

/// Encoded size of rejection details (§6.3.1).
pub const REJECTION_DETAILS_BYTES_MAX: usize = 4_096;
/// Field paths in rejection details (§6.3.1).
pub const REJECTION_PATHS_MAX: usize = 32;
/// Length of one field path (§6.3.1).
pub const REJECTION_PATH_BYTES_MAX: usize = 160;
/// Length of `reason` and `requiredAction` (§6.3.1).
pub const REJECTION_TOKEN_BYTES_MAX: usize = 96;
/// References in rejection details (§6.3.1).
pub const REJECTION_REFERENCES_MAX: usize = 16;
/// Length of a reference's key (§6.3.1).
pub const REJECTION_REFERENCE_KEY_BYTES_MAX: usize = 64;
/// Length of a reference's value (§6.3.1).
pub const REJECTION_REFERENCE_VALUE_BYTES_MAX: usize = 256;

/// Length of a table, column or index name (§2.4).
pub const IDENTIFIER_BYTES_MAX: usize = 63;
/// Columns of a table: the header of a rows segment counts them in 16 bits (§5.2).
pub const COLUMNS_PER_TABLE_MAX: usize = 65_535;
/// Length of the code in a ROUND_FAILURE frame (§1.5).
pub const ROUND_FAILURE_CODE_BYTES_MAX: usize = 64;

/// Decoded size of a request body, on any binding (OQ-32).
pub const REQUEST_BODY_BYTES_DEFAULT: usize = 32 * 1024 * 1024;
/// Subscriptions in one request (OQ-32): hundreds are normal for a windowed client.
pub const SUBSCRIPTIONS_PER_REQUEST_MAX: usize = 5_000;
/// Scope values in one subscription (OQ-32).
pub const SCOPE_VALUES_PER_SUBSCRIPTION_MAX: usize = 10_000;
/// Length of a client id, a client commit id and a row id (OQ-32).
pub const ID_BYTES_MAX: usize = 1_024;

/// Commits that pruning always leaves in the log (§4.6).
pub const RETAINED_COMMITS_DEFAULT: u64 = 1_000;
/// A client seen within this time holds back pruning, in milliseconds: 14 days (§4.6).
pub const ACTIVE_WINDOW_MS_DEFAULT: i64 = 14 * 24 * 60 * 60 * 1_000;
/// Commits older than this are pruned whoever needs them, in milliseconds: 30 days (§4.6).
pub const FORCED_AGE_MS_DEFAULT: i64 = 30 * 24 * 60 * 60 * 1_000;

/// Largest blob: 64 MiB (§5.9.3).
pub const BLOB_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// Smallest body worth compressing (§5.8).
pub const COMPRESSED_BODY_BYTES_MIN: usize = 1_024;

/// Ids that start like this belong to commands and are refused from clients (§2.3).
pub const RESERVED_CLIENT_ID_PREFIX: &str = "[\"remote-command\",";

// A client that asks for nothing special must get what it could also ask for.
const _: () = assert!(SNAPSHOT_ROWS_DEFAULT <= SNAPSHOT_ROWS_MAX);
const _: () = assert!(SNAPSHOT_PAGES_DEFAULT <= SNAPSHOT_PAGES_MAX);
// A client active within the window must not lose its history to the age limit first.
const _: () = assert!(ACTIVE_WINDOW_MS_DEFAULT <= FORCED_AGE_MS_DEFAULT);

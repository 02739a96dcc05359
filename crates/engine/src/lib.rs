//! The server's decisions, and the driver that reads before them and writes after them.
//!
//! [`Engine::round`] answers one request, whichever binding it came over. It loads what the
//! request names, decides with pure functions (`scope`, `push::decide`, `pull::plan`,
//! `bootstrap`, `retention`), and applies. Time, ids and permissions come through `ports`.
//!
//! Not here: HTTP, SQL, configuration files.

mod activity;
mod blobs;
mod builds;
mod checkpoints;
mod config;
mod crdt;
mod engine;
mod error;
mod event;
mod flight;
mod hooks;
mod nodes;
mod partition;
mod ports;
mod pull;
mod push;
mod realtime;
mod retention;
mod round;
mod scope;
mod segments;
#[cfg(test)]
mod testing;
mod transfers;

pub use blobs::{BlobBytes, BlobGrant, BlobUpload, Swept, UploadGrant};
pub use builds::BuildStats;
pub use checkpoints::{Readiness, ReadinessPhase};
pub use config::{EngineConfig, Retention};
pub use crdt::{CrdtMerger, CrdtMergers, MergeError, YjsMerger};
pub use engine::{Engine, EngineParts};
pub use error::RoundError;
pub use event::CommitEvent;
pub use hooks::{
    CandidateCommit, CandidateOperation, CandidateReader, CandidateRow, CommitValidator, Hooks,
    PlannedReaction, ReactionPlanner, ReadError, Rejection, RejectionError, RowValidator, RowView,
    RowWrite, ValidatorError,
};
pub use ports::{
    Clock, Identity, Ids, RandomIds, ResolveError, ResolveRequest, ScopeResolver, SystemClock,
};
pub use push::totals::PushTotals;
pub use realtime::{CloseReason, HubConfig, Outgoing, RealtimeStats, Session};
pub use round::RoundBody;
pub use segments::SegmentGrant;
pub use transfers::{Transfers, UrlSource};

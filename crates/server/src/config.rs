//! What an operator can set about the HTTP front.
//!
//! Every default is fit for production. Sizes bound memory and times bound how long a slow or
//! silent peer can hold it, so there is no setting for "no limit".

use std::{path::PathBuf, time::Duration};

use tidewater_model::limits;

use crate::Origin;

/// Limits of the HTTP front.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Largest request body, after decompression (OQ-32).
    pub request_bytes_max: usize,
    /// Bytes of request bodies held at once, over all requests; more are refused with a hint.
    pub buffered_bytes_max: usize,
    /// Rounds answered at once; more are refused with a hint, before authentication.
    pub rounds_max: usize,
    /// How long authentication may take; then the request fails.
    pub auth_timeout: Duration,
    /// A request body that brings less than [`PROGRESS_BYTES_MIN`] in this time is given up.
    pub body_timeout: Duration,
    /// Whether responses are compressed for clients that accept it.
    pub compress: bool,
    /// Origins whose pages may use the server from a browser, beside its own.
    pub allowed_origins: Vec<Origin>,
    /// How segments and blobs are sent and taken.
    pub transfers: TransferConfig,
    /// How [`crate::serve`] treats connections.
    pub connections: ConnectionConfig,
}

/// Limits of downloads and uploads.
#[derive(Clone, Debug)]
pub struct TransferConfig {
    /// Downloads of segments and blobs at once; more are refused with a hint.
    pub downloads_max: usize,
    /// Uploads of blobs at once; more are refused with a hint.
    pub uploads_max: usize,
    /// Compressed copies of small segments, in memory. At 0 there are none: small segments are
    /// sent as they are.
    pub copies_memory_bytes_max: u64,
    /// Compressed copies of large segments, in unnamed files. At 0 there are none: large segments
    /// are sent as they are.
    pub copies_disk_bytes_max: u64,
    /// The folder of those files; the system's if there is none.
    pub scratch: Option<PathBuf>,
}

/// Limits of the connections that [`crate::serve`] accepts.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Connections open at once; more are answered 429 and closed.
    pub connections_max: usize,
    /// How long the head of the next request may take, waiting for it included.
    pub header_timeout: Duration,
    /// A client that takes less than [`PROGRESS_BYTES_MIN`] of a response in this time, or does
    /// not take the rest of it, is cut off.
    pub write_timeout: Duration,
    /// How long requests in flight may take after shutdown has begun.
    pub drain_timeout: Duration,
}

/// Bytes that count as progress of a slow transfer: one every second does not.
pub const PROGRESS_BYTES_MIN: usize = 16 * 1024;

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            request_bytes_max: limits::REQUEST_BODY_BYTES_DEFAULT,
            buffered_bytes_max: 512 * 1024 * 1024,
            rounds_max: 2_048,
            auth_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            compress: true,
            allowed_origins: Vec::new(),
            transfers: TransferConfig::default(),
            connections: ConnectionConfig::default(),
        }
    }
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            downloads_max: 2_048,
            uploads_max: 256,
            copies_memory_bytes_max: 32 * 1024 * 1024,
            copies_disk_bytes_max: 1024 * 1024 * 1024,
            scratch: None,
        }
    }
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            // Above the idle time after which common proxies close their own connections.
            header_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(25),
        }
    }
}

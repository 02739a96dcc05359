//! Room for sockets: the number of files that a process may have open.
//!
//! The default of most systems is 1,024, far below what one process can serve; the hard limit
//! is what the administrator means.

use anyhow::{Context as _, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors beside those of sockets.
const OTHERS: u64 = 256;

/// Makes room for this many sockets, or says what is in the way.
pub(crate) fn make_room(sockets: u32) -> anyhow::Result<()> {
    let wanted = u64::from(sockets) + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    // No limit is none.
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= wanted),
        "{sockets} sockets need {wanted} files open at once, and `ulimit -Hn` allows {:?}",
        limit.maximum.unwrap_or_default()
    );
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("raise the limit of open files")
}

//! `tidewater segments` and `tidewater blobs`: looking after what is kept beside the database.
//!
//! They work on the places that the configuration names. What they print is data; `--json` makes
//! it one JSON object a line, with everything that is known.

mod blobs;
mod segments;

use std::{
    io::{self, Write as _},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use bytesize::ByteSize;
use serde_json::Value;

pub(crate) use self::{
    blobs::{BlobsCommand, run as blobs},
    segments::{SegmentsCommand, run as segments},
};

/// Which server's.
#[derive(clap::Args, Debug)]
pub(crate) struct Place {
    /// The configuration file of the server.
    #[arg(long, value_name = "FILE", env = "TIDEWATER_CONFIG")]
    config: std::path::PathBuf,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Lines on standard output. A reader that has seen enough ends the listing without a failure.
pub(crate) struct Lines {
    out: io::BufWriter<io::StdoutLock<'static>>,
    is_closed: bool,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self {
            out: io::BufWriter::new(io::stdout().lock()),
            is_closed: false,
        }
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(crate) fn text(&mut self, line: &str) -> anyhow::Result<()> {
        let written = writeln!(self.out, "{line}");
        self.check(written)
    }

    pub(crate) fn json(&mut self, value: &Value) -> anyhow::Result<()> {
        self.text(&value.to_string())
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        let flushed = self.out.flush();
        self.check(flushed)
    }

    fn check(&mut self, written: io::Result<()>) -> anyhow::Result<()> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            written => written.context("write to standard output"),
        }
    }
}

/// The machine's time, Unix milliseconds.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

/// A time that is still to come or has passed, for people.
fn distance(at_ms: i64, now_ms: i64) -> String {
    let minutes = (at_ms.saturating_sub(now_ms) / 60_000).unsigned_abs();
    let text = match minutes {
        0..60 => format!("{minutes} min"),
        60..2_880 => format!("{} h", minutes / 60),
        _ => format!("{} d", minutes / 1_440),
    };
    if at_ms < now_ms {
        format!("{text} ago")
    } else {
        format!("in {text}")
    }
}

/// A size for people.
fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_distances() {
        for (at_ms, text) in [
            (0, "in 0 min"),
            (59 * 60_000, "in 59 min"),
            (-60 * 60_000, "1 h ago"),
            (47 * 3_600_000, "in 47 h"),
            (-49 * 3_600_000, "2 d ago"),
        ] {
            assert_eq!(distance(at_ms, 0), text);
        }
    }
}

//! Logs, and the last words of a program that failed. Both go to standard error.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// Starts logging for the rest of the process.
pub(crate) fn start(config: &LogConfig) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.filter)
        .with_context(|| format!("log.filter: {:?} is not a filter", config.filter))?;
    let builder = fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    let started = match config.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("start logging: {error}"))
}

/// Says why the program ends.
pub(crate) fn complain(error: &anyhow::Error) {
    // Nobody is left to hear that standard error is gone.
    let _ = writeln!(io::stderr(), "error: {error:#}");
}

/// Tells the person at the terminal how far it is.
pub(crate) fn tell(progress: &str) {
    let _ = writeln!(io::stderr(), "{progress}");
}

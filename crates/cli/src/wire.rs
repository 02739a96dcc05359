//! Messages of the protocol, for people and for scripts.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use tidewater_model::limits;
use tidewater_wire::{Message, RowsSegment, render};

use crate::{Failure, run};

/// `wire render`
pub(crate) fn render(file: &Path, segment: bool) -> Result<(), Failure> {
    let bytes = read(file)?;
    let rendered = if segment {
        RowsSegment::decode(&bytes)
            .and_then(|segment| render::rows_segment(&segment))
            .map_err(wrong)?
    } else {
        render::message(&Message::decode(&bytes).map_err(wrong)?)
    };
    let text = serde_json::to_string_pretty(&rendered).context("render the message")?;
    run::print(&(text + "\n"))?;
    Ok(())
}

/// `wire recode`
pub(crate) fn recode(file: &Path) -> Result<(), Failure> {
    let bytes = read(file)?;
    let again = Message::decode(&bytes)
        .map_err(wrong)?
        .encode()
        .context("encode the message")?;
    io::stdout()
        .lock()
        .write_all(&again)
        .context("write the message")?;
    Ok(())
}

fn wrong(error: tidewater_wire::DecodeError) -> Failure {
    Failure::Wrong(anyhow!(error).context("decode"))
}

fn read(file: &Path) -> Result<Bytes, Failure> {
    // Far above what the protocol allows, far below what would hurt.
    let bytes_max = 8 * u64::try_from(limits::REQUEST_BODY_BYTES_DEFAULT)?;
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        io::stdin()
            .lock()
            .take(bytes_max + 1)
            .read_to_end(&mut bytes)
            .context("read input")?;
    } else {
        let open = std::fs::File::open(file);
        let open = open.with_context(|| format!("open {}", file.display()))?;
        open.take(bytes_max + 1)
            .read_to_end(&mut bytes)
            .context("read input")?;
    }
    if u64::try_from(bytes.len())? > bytes_max {
        return Err(Failure::Wrong(anyhow!(
            "the input is longer than {bytes_max} bytes"
        )));
    }
    Ok(Bytes::from(bytes))
}

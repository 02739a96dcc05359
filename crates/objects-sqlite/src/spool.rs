//! Content on its way in: checked while it is put aside.
//!
//! **Invariant:** nothing reaches the database before its content has been hashed to the end, and
//! no content is in memory as a whole.

use std::{
    fs::File,
    io::{Seek, SeekFrom, Write},
    path::PathBuf,
};

use bytes::Bytes;
use futures_util::{TryStreamExt, stream::BoxStream};
use tidewater_objects::{ObjectError, ObjectErrorKind};
use tidewater_wire::ContentHasher;

use crate::database::{blocking, io_failed};

/// Content that is what its address says.
pub(crate) struct Spooled {
    /// At its beginning.
    pub(crate) file: File,
    pub(crate) length: u64,
}

/// Written at once, so that a trickle of small chunks does not become a thread each.
const WRITE_BYTES: usize = 1024 * 1024;

/// Puts a stream aside in a file of `folder` that has no name.
pub(crate) async fn spool(
    during: &'static str,
    folder: PathBuf,
    id: &str,
    bytes_max: u64,
    mut body: BoxStream<'static, Result<Bytes, ObjectError>>,
) -> Result<Spooled, ObjectError> {
    let mut file = blocking(during, move || {
        tempfile::tempfile_in(folder).map_err(io_failed(during))
    })
    .await?;
    let mut hasher = ContentHasher::new();
    let mut length = 0_u64;
    let mut waiting: Vec<Bytes> = Vec::new();
    let mut waiting_bytes = 0;
    loop {
        let chunk = body.try_next().await?;
        let is_end = chunk.is_none();
        if let Some(chunk) = chunk {
            let added = u64::try_from(chunk.len()).expect("a length fits in 64 bits");
            length = length.saturating_add(added);
            if length > bytes_max {
                return Err(ObjectError::new(ObjectErrorKind::TooLarge, during)
                    .with_detail(format!("it has more than {bytes_max} bytes")));
            }
            waiting_bytes += chunk.len();
            waiting.push(chunk);
        }
        if !is_end && waiting_bytes < WRITE_BYTES {
            continue;
        }
        let chunks = std::mem::take(&mut waiting);
        waiting_bytes = 0;
        (file, hasher) = blocking(during, move || {
            for chunk in &chunks {
                hasher.update(chunk);
                file.write_all(chunk).map_err(io_failed(during))?;
            }
            Ok((file, hasher))
        })
        .await?;
        if is_end {
            break;
        }
    }
    check(during, hasher, id)?;
    file.seek(SeekFrom::Start(0)).map_err(io_failed(during))?;
    Ok(Spooled { file, length })
}

/// Checks that hashed content is what its address says.
pub(crate) fn check(
    during: &'static str,
    hasher: ContentHasher,
    id: &str,
) -> Result<(), ObjectError> {
    let found = hasher.finish();
    if found == id {
        return Ok(());
    }
    Err(ObjectError::new(ObjectErrorKind::ContentMismatch, during)
        .with_detail(format!("the content is {found}, not {id}")))
}

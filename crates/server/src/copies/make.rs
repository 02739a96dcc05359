//! Makes one copy.

use std::{
    fs::File,
    io::{self, Write as _},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;

use super::{Copies, Copy, Place, Progress, held::Key};
use crate::{
    encoding::{Coding, Encoder},
    transfer::Opening,
};

/// A copy in the making.
pub(super) struct Making {
    pub(super) copies: Arc<Copies>,
    pub(super) copy: Arc<Copy>,
    pub(super) key: Key,
    pub(super) length: u64,
    pub(super) sender: watch::Sender<Progress>,
}

impl Making {
    /// Makes it and tells those who wait.
    pub(super) async fn run(self, coding: Coding, open: impl FnOnce() -> Opening + Send) {
        match self.make(coding, open).await {
            Ok(bytes) => {
                self.copies.held.lock().finish(&self.key, bytes);
                self.sender.send_replace(Progress::Done(bytes));
            }
            Err(error) => {
                tracing::warn!(%error, "a segment could not be compressed");
                if matches!(self.copy.place, Place::File(_)) {
                    self.copies.disk_failed();
                }
                self.copies.held.lock().remove(&self.key);
                self.sender.send_replace(Progress::Failed);
            }
        }
    }

    async fn make(&self, coding: Coding, open: impl FnOnce() -> Opening + Send) -> io::Result<u64> {
        let permit = self.copies.work.acquire().await;
        let _permit = permit.map_err(io::Error::other)?;
        // What went wrong is in the log; who asks for the plain bytes learns it, too.
        let object = open()
            .await
            .map_err(|error| io::Error::other(error.message))?;
        let size = usize::try_from(self.length).map_err(io::Error::other)?;
        let mut work = Work {
            encoder: Encoder::new(coding, Some(size))?,
            copy: Arc::clone(&self.copy),
            collected: Vec::new(),
            written: 0,
        };
        let mut chunks = object.into_chunks();
        while let Some(chunk) = chunks.next().await {
            work = work
                .step(Step::Push(chunk.map_err(io::Error::other)?))
                .await?;
            if work.written > 0 {
                self.sender.send_replace(Progress::Growing(work.written));
            }
        }
        let work = work.step(Step::Finish).await?;
        if let Place::Memory(place) = &self.copy.place {
            // Nobody else makes this copy.
            let _ = place.set(Bytes::from(work.collected));
        }
        Ok(work.written)
    }
}

enum Step {
    Push(Bytes),
    Finish,
}

struct Work {
    encoder: Encoder,
    copy: Arc<Copy>,
    collected: Vec<u8>,
    written: u64,
}

impl Work {
    /// One piece of work where work is allowed.
    async fn step(mut self, step: Step) -> io::Result<Self> {
        let work = move || {
            match step {
                Step::Push(chunk) => self.encoder.push(&chunk)?,
                Step::Finish => self.encoder.finish()?,
            }
            let made = self.encoder.made();
            match &self.copy.place {
                Place::Memory(_) => self.collected.extend_from_slice(made),
                Place::File(file) => {
                    let mut file: &File = file;
                    file.write_all(made)?;
                }
            }
            self.written += u64::try_from(made.len()).map_err(io::Error::other)?;
            made.clear();
            Ok(self)
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(io::Error::other)?
    }
}

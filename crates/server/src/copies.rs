//! Compressed copies of immutable objects: made once for all who ask (§5.8).
//!
//! Many devices fetch the same image within a minute. The first one who asks in a coding has the
//! copy made, by a task of its own that nobody's disconnect ends; the others read what is there
//! already and wait for the rest. Small copies are kept in memory and large ones in unnamed files
//! that vanish with the process; either kind has a bound, and the copy that was not asked for the
//! longest goes first.
//!
//! **Invariant:** a copy is known by the content address *and* the coding, and only here: it never
//! reaches a segment store, where an address stands for the uncompressed bytes.

mod held;
mod make;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use self::held::Held;
use crate::{
    TransferConfig,
    encoding::Coding,
    quota::Share,
    transfer::{ChunkBody, Opening},
};

/// The copies of one server.
pub(crate) struct Copies {
    config: TransferConfig,
    held: Mutex<Held>,
    /// Copies being made at once: it is work for the processors.
    work: Semaphore,
    /// When a file could not be made or written last.
    disk_failed_at: Mutex<Option<Instant>>,
}

/// A copy, or what there is of it so far.
pub(crate) struct Copy {
    place: Place,
    progress: watch::Receiver<Progress>,
}

enum Place {
    /// Empty until it is done.
    Memory(OnceLock<Bytes>),
    File(Arc<File>),
}

/// How many bytes of a copy there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Progress {
    Growing(u64),
    Done(u64),
    Failed,
}

/// Uncompressed objects up to this size have their copies in memory.
const SMALL_BYTES_MAX: u64 = 1024 * 1024;
/// How long nothing is copied to files after that went wrong.
const DISK_PAUSE: Duration = Duration::from_secs(60);
/// Read from a file at once.
const CHUNK_BYTES: u64 = 256 * 1024;

impl Copies {
    pub(crate) fn new(config: TransferConfig) -> Arc<Self> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Arc::new(Self {
            held: Mutex::new(Held::new(
                config.copies_memory_bytes_max,
                config.copies_disk_bytes_max,
            )),
            config,
            work: Semaphore::new(threads),
            disk_failed_at: Mutex::default(),
        })
    }

    /// How many copies were made since the start.
    pub(crate) fn made(&self) -> u64 {
        self.held.lock().made()
    }

    /// The object of `length` bytes under `id` in this coding, as a body that keeps `share`.
    ///
    /// `open` opens the uncompressed bytes, if a copy has to be made. `Err` gives the share back
    /// where no copy can be had: the object is sent as it is then.
    pub(crate) async fn body(
        self: &Arc<Self>,
        id: &str,
        coding: Coding,
        length: u64,
        share: Share,
        open: impl FnOnce() -> Opening + Send + 'static,
    ) -> Result<Body, Share> {
        let Some(copy) = self.find_or_begin(id, coding, length, open).await else {
            return Err(share);
        };
        // What fails before its first byte has cost nobody anything.
        let mut progress = copy.progress.clone();
        let begun = |progress: &Progress| match (progress, &copy.place) {
            (Progress::Growing(bytes), Place::File(_)) => *bytes > 0,
            (Progress::Growing(_), Place::Memory(_)) => false,
            (Progress::Done(_) | Progress::Failed, _) => true,
        };
        let state = progress.wait_for(begun).await.map(|progress| *progress);
        let length = match state {
            Ok(Progress::Done(length)) => Some(length),
            Ok(Progress::Growing(_)) => None,
            Ok(Progress::Failed) | Err(_) => return Err(share),
        };
        match &copy.place {
            Place::Memory(bytes) => match bytes.get() {
                Some(bytes) => {
                    let chunks = stream::iter([Ok(bytes.clone())]);
                    Ok(ChunkBody::body(chunks, length, share))
                }
                None => Err(share),
            },
            Place::File(file) => {
                let reader = Reader {
                    file: Arc::clone(file),
                    progress,
                    offset: 0,
                };
                Ok(ChunkBody::body(reader.into_chunks(), length, share))
            }
        }
    }

    async fn find_or_begin(
        self: &Arc<Self>,
        id: &str,
        coding: Coding,
        length: u64,
        open: impl FnOnce() -> Opening + Send + 'static,
    ) -> Option<Arc<Copy>> {
        let key = held::Key::new(id, coding);
        if let Some(copy) = self.held.lock().find(&key) {
            return Some(copy);
        }
        let is_small = length <= SMALL_BYTES_MAX;
        let place = if is_small {
            Place::Memory(OnceLock::new())
        } else {
            Place::File(self.create_file().await?)
        };
        let (sender, progress) = watch::channel(Progress::Growing(0));
        let copy = Arc::new(Copy { place, progress });
        let (copy, is_new) = self.held.lock().begin(&key, copy, length, is_small)?;
        if is_new {
            let made = make::Making {
                copies: Arc::clone(self),
                copy: Arc::clone(&copy),
                key,
                length,
                sender,
            };
            tokio::spawn(made.run(coding, open));
        }
        Some(copy)
    }

    async fn create_file(&self) -> Option<Arc<File>> {
        let failed_at = *self.disk_failed_at.lock();
        if failed_at.is_some_and(|at| at.elapsed() < DISK_PAUSE) {
            return None;
        }
        let folder = self.config.scratch.clone();
        let create = move || match folder {
            Some(folder) => tempfile::tempfile_in(folder),
            None => tempfile::tempfile(),
        };
        match tokio::task::spawn_blocking(create).await {
            Ok(Ok(file)) => Some(Arc::new(file)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "no scratch file for a compressed copy");
                self.disk_failed();
                None
            }
            Err(_) => None,
        }
    }

    /// A full disk must not cut short every download, again and again.
    fn disk_failed(&self) {
        *self.disk_failed_at.lock() = Some(Instant::now());
    }
}

impl Copy {
    fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Whether nothing will come of it: it failed, or whoever made it is gone.
    fn is_dead(&self) -> bool {
        match self.progress() {
            Progress::Failed => true,
            Progress::Growing(_) => self.progress.has_changed().is_err(),
            Progress::Done(_) => false,
        }
    }
}

/// Reads a file that may still grow.
struct Reader {
    file: Arc<File>,
    progress: watch::Receiver<Progress>,
    offset: u64,
}

impl Reader {
    fn into_chunks(self) -> impl futures_core::Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::try_unfold(self, |mut reader| async move {
            let chunk = reader.next().await?;
            Ok(chunk.map(|chunk| (chunk, reader)))
        })
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let progress = *self.progress.borrow_and_update();
            let end = match progress {
                Progress::Growing(end) => end,
                Progress::Done(end) if end == self.offset => return Ok(None),
                Progress::Done(end) => end,
                Progress::Failed => return Err(io::Error::other("the copy could not be made")),
            };
            if end > self.offset {
                return self.read(end).await.map(Some);
            }
            let changed = self.progress.changed().await;
            changed.map_err(|_| io::Error::other("the copy was given up"))?;
        }
    }

    async fn read(&mut self, end: u64) -> io::Result<Bytes> {
        let length = (end - self.offset).min(CHUNK_BYTES);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let read = move || {
            let mut chunk = vec![0; length];
            read_exact_at(&file, &mut chunk, offset)?;
            Ok::<_, io::Error>(Bytes::from(chunk))
        };
        let chunk = tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)??;
        self.offset += u64::try_from(chunk.len()).map_err(io::Error::other)?;
        Ok(chunk)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, chunk: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, chunk, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut chunk: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !chunk.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, chunk, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        chunk = &mut chunk[read..];
        offset += u64::try_from(read).map_err(io::Error::other)?;
    }
    Ok(())
}

//! A backend with deadlines, conditional writes and signed URLs.
//!
//! What the `object_store` crate leaves to its caller is here: a bound for every call, an update
//! of a small document that loses nobody's write, and pages of a listing in order.
//!
//! **Conditional writes** are the provider's where it has them. A directory has none, so writers
//! of one process take turns per key, and no other process can have the directory.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    io::SeekFrom,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use object_store::{
    Attributes, Error, GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion, local::LocalFileSystem,
    memory::InMemory, path::Path, signer::Signer,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncSeekExt as _},
    sync::Mutex,
};

use super::{
    keys::{Keys, Names},
    s3::S3Signer,
};
use crate::{ObjectError, ObjectErrorKind, ObjectStream, SignedUrl, signed};

/// Where objects are kept, and how.
#[derive(Clone)]
pub struct Backend {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    signer: Option<Arc<dyn Signer>>,
    /// Where an upload can be signed with its length.
    s3: Option<S3Signer>,
    /// Empty, or it ends in a slash.
    prefix: String,
    conditions: Conditions,
    /// Whether objects carry metadata of their own.
    has_attributes: bool,
    limits: BackendLimits,
    turns: Vec<Arc<Mutex<()>>>,
    /// What it is if it is a directory.
    files: Option<Directory>,
}

pub(super) struct Directory {
    store: Arc<LocalFileSystem>,
    /// Held while the directory is ours.
    _claim: File,
}

/// Who sees to it that two writers of one document do not overwrite each other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Conditions {
    /// The provider, by `If-Match` and `If-None-Match`. Its listings are in order.
    Provider,
    /// This process, which is the only one that writes there.
    Process,
}

/// Bounds of what is asked of a backend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BackendLimits {
    /// Longest that one operation takes, retries included, and longest that a stream waits for
    /// its next chunk.
    pub call_timeout: Duration,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Times that one request is sent again after a failure that may pass.
    pub retries_max: usize,
    /// Requests of one operation that run at once.
    pub requests_at_once: usize,
}

impl Default for BackendLimits {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(5),
            retries_max: 3,
            requests_at_once: 8,
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Backend")
            .field("store", &self.inner.store)
            .field("prefix", &self.inner.prefix)
            .finish_non_exhaustive()
    }
}

/// What one kind of backend has.
pub(super) struct Kind {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) signer: Option<Arc<dyn Signer>>,
    pub(super) s3: Option<S3Signer>,
    pub(super) conditions: Conditions,
    pub(super) files: Option<Directory>,
}

impl Backend {
    /// Any store whose writes can be conditional, and whose objects carry metadata. Downloads are
    /// signed by `signer`; uploads past the server are not to be had.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        signer: Option<Arc<dyn Signer>>,
        prefix: &str,
        limits: BackendLimits,
    ) -> Self {
        let kind = Kind {
            store,
            signer,
            s3: None,
            conditions: Conditions::Provider,
            files: None,
        };
        Self::assemble(kind, prefix, limits)
    }

    /// A directory, which is made if need be.
    ///
    /// With `durable`, what is acknowledged has been synced to the disk, directories included.
    /// One backend can have a directory as a durable one, and one as another; a second is
    /// `Refused`, in whatever process it is opened.
    pub fn directory(
        path: &std::path::Path,
        durable: bool,
        limits: BackendLimits,
    ) -> Result<Self, ObjectError> {
        const DURING: &str = "open the directory of objects";
        let claim = claim(path, durable).map_err(|error| {
            ObjectError::new(ObjectErrorKind::Refused, DURING)
                .with_detail(path.display().to_string())
                .with_source(error)
        })?;
        let files = LocalFileSystem::new_with_prefix(path)
            .map_err(failed(DURING))?
            .with_fsync(durable);
        let files = Arc::new(files);
        let store: Arc<dyn ObjectStore> = Arc::<LocalFileSystem>::clone(&files);
        let kind = Kind {
            store,
            signer: None,
            s3: None,
            conditions: Conditions::Process,
            files: Some(Directory {
                store: files,
                _claim: claim,
            }),
        };
        Ok(Self::assemble(kind, "", limits))
    }

    /// Memory, for tests of what stands on a backend.
    pub fn in_memory() -> Self {
        Self::new(
            Arc::new(InMemory::new()),
            None,
            "",
            BackendLimits::default(),
        )
    }

    pub(super) fn assemble(kind: Kind, prefix: &str, limits: BackendLimits) -> Self {
        let turns = match kind.conditions {
            Conditions::Provider => 0,
            Conditions::Process => TURNS,
        };
        Self {
            inner: Arc::new(Inner {
                store: kind.store,
                signer: kind.signer,
                s3: kind.s3,
                prefix: prefix.to_owned(),
                conditions: kind.conditions,
                has_attributes: kind.conditions == Conditions::Provider,
                limits,
                files: kind.files,
                turns: (0..turns).map(|_| Arc::default()).collect(),
            }),
        }
    }

    pub(super) fn s3_signer(&self) -> Option<&S3Signer> {
        self.inner.s3.as_ref()
    }

    pub(super) fn keys(&self) -> Keys {
        let names = match self.inner.conditions {
            Conditions::Provider => Names::Exact,
            Conditions::Process => Names::Folded,
        };
        Keys::new(&self.inner.prefix, names)
    }

    pub(crate) fn limits(&self) -> &BackendLimits {
        &self.inner.limits
    }

    pub(crate) fn has_attributes(&self) -> bool {
        self.inner.has_attributes
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.inner.files.is_some()
    }

    pub(crate) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.inner.store
    }

    /// Waits for one operation, but not longer than is allowed.
    pub(crate) async fn bounded<T>(
        &self,
        during: &'static str,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ObjectError> {
        match tokio::time::timeout(self.inner.limits.call_timeout, call).await {
            Ok(result) => result.map_err(failed(during)),
            Err(_) => Err(too_slow(during)),
        }
    }

    /// What is known about an object without its bytes, with its metadata.
    pub(crate) async fn head(
        &self,
        during: &'static str,
        path: &Path,
    ) -> Result<Option<(ObjectMeta, Attributes)>, ObjectError> {
        let options = GetOptions::new().with_head(true);
        let found = self.get(during, path, options).await?;
        Ok(found.map(|result| (result.meta, result.attributes)))
    }

    async fn get(
        &self,
        during: &'static str,
        path: &Path,
        options: GetOptions,
    ) -> Result<Option<GetResult>, ObjectError> {
        let call = async {
            match self.inner.store.get_opts(path, options).await {
                Ok(result) => Ok(Some(result)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        self.bounded(during, call).await
    }

    /// Opens an object, or a part of it.
    pub(crate) async fn open(
        &self,
        during: &'static str,
        path: &Path,
        range: Option<Range<u64>>,
    ) -> Result<Option<ObjectStream>, ObjectError> {
        let Some(range) = range else {
            let found = self.get(during, path, GetOptions::new()).await?;
            return Ok(found.map(|result| self.stream(during, result)));
        };
        // A provider refuses a range that starts behind the end, or is empty.
        let Some((meta, _)) = self.head(during, path).await? else {
            return Ok(None);
        };
        let range = crate::clamp(Some(range), meta.size);
        if range.is_empty() {
            let nothing = stream::empty().boxed();
            return Ok(Some(ObjectStream::new(meta.size, range, nothing)));
        }
        let options = GetOptions::new().with_range(Some(range));
        let found = self.get(during, path, options).await?;
        Ok(found.map(|result| self.stream(during, result)))
    }

    fn stream(&self, during: &'static str, result: GetResult) -> ObjectStream {
        let total_length = result.meta.size;
        let range = result.range.clone();
        let timeout = self.inner.limits.call_timeout;
        let pieces = match result.payload {
            GetResultPayload::File(file, _) => pieces_of(during, file, range.clone()),
            GetResultPayload::Stream(pieces) => pieces.map_err(failed(during)).boxed(),
        };
        let chunks = stream::unfold(Some(pieces), move |state| async move {
            let mut pieces = state?;
            match tokio::time::timeout(timeout, pieces.next()).await {
                Ok(Some(Ok(piece))) => Some((Ok(piece), Some(pieces))),
                Ok(Some(Err(error))) => Some((Err(error), None)),
                Ok(None) => None,
                Err(_) => Some((Err(too_slow(during)), None)),
            }
        });
        ObjectStream::new(total_length, range, chunks.boxed())
    }

    /// Reads a small document and which version it is.
    pub(crate) async fn read_document(
        &self,
        during: &'static str,
        path: &Path,
    ) -> Result<Option<(Bytes, UpdateVersion)>, ObjectError> {
        let Some(result) = self.get(during, path, GetOptions::new()).await? else {
            return Ok(None);
        };
        if result.meta.size > DOCUMENT_BYTES_MAX {
            return Err(ObjectError::new(ObjectErrorKind::Corrupt, during)
                .with_detail(format!("{path} is not a document of ours: it is too long")));
        }
        let version = UpdateVersion {
            e_tag: result.meta.e_tag.clone(),
            version: result.meta.version.clone(),
        };
        let bytes = self.bounded(during, result.bytes()).await?;
        Ok(Some((bytes, version)))
    }

    /// Changes a small document: reads it, lets `decide` say what becomes of it, and writes that
    /// if nobody was faster; else once more.
    ///
    /// It runs to its end even if the caller is gone where writers take turns in this process.
    pub(crate) async fn update<T, D>(
        &self,
        during: &'static str,
        path: Path,
        decide: D,
    ) -> Result<T, ObjectError>
    where
        T: Send + 'static,
        D: Fn(Option<&[u8]>) -> Result<Update<T>, ObjectError> + Send + Sync + 'static,
    {
        if self.inner.conditions == Conditions::Provider {
            return self.merge(during, &path, &decide).await;
        }
        let turn = Arc::clone(&self.inner.turns[turn_of(&path)]);
        let backend = self.clone();
        let task = tokio::spawn(async move {
            let _turn = turn.lock_owned().await;
            backend.merge(during, &path, &decide).await
        });
        task.await.map_err(|error| {
            ObjectError::new(ObjectErrorKind::Unavailable, during).with_source(error)
        })?
    }

    async fn merge<T>(
        &self,
        during: &'static str,
        path: &Path,
        decide: &Decide<T>,
    ) -> Result<T, ObjectError> {
        for attempt in 0..UPDATE_ATTEMPTS_MAX {
            let found = self.read_document(during, path).await?;
            let document = found.as_ref().map(|(bytes, _)| &**bytes);
            let (bytes, outcome) = match decide(document)? {
                Update::Keep(outcome) => return Ok(outcome),
                Update::Write(bytes, outcome) => (bytes, outcome),
            };
            let mode = match (self.inner.conditions, found) {
                (Conditions::Process, _) => PutMode::Overwrite,
                (Conditions::Provider, None) => PutMode::Create,
                (Conditions::Provider, Some((_, version))) => PutMode::Update(version),
            };
            let payload = PutPayload::from(bytes);
            let put = self.inner.store.put_opts(path, payload, mode.into());
            match tokio::time::timeout(self.inner.limits.call_timeout, put).await {
                Ok(Ok(_)) => return Ok(outcome),
                Ok(Err(Error::Precondition { .. } | Error::AlreadyExists { .. })) => {
                    tokio::time::sleep(backoff(attempt, path)).await;
                }
                Ok(Err(error)) => return Err(failed(during)(error)),
                Err(_) => return Err(too_slow(during)),
            }
        }
        Err(ObjectError::new(ObjectErrorKind::Unavailable, during)
            .with_detail(format!("{path} is changed by too many at once")))
    }

    /// Makes a file on the same disk an object, without copying it; whether it did.
    pub(crate) async fn link(
        &self,
        during: &'static str,
        path: &Path,
        file: std::path::PathBuf,
    ) -> Result<bool, ObjectError> {
        let Some(directory) = &self.inner.files else {
            return Ok(false);
        };
        let target = directory
            .store
            .path_to_filesystem(path)
            .map_err(failed(during))?;
        let link = move || {
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::hard_link(file, target)
        };
        let linked = tokio::task::spawn_blocking(link).await;
        // Another disk, or a file system without links: it can be copied.
        Ok(match linked {
            Ok(Ok(())) => true,
            Ok(Err(error)) => error.kind() == std::io::ErrorKind::AlreadyExists,
            Err(_) => false,
        })
    }

    /// Writes an object that is in memory.
    pub(crate) async fn put(
        &self,
        during: &'static str,
        path: &Path,
        payload: PutPayload,
        attributes: Attributes,
    ) -> Result<(), ObjectError> {
        let options = PutOptions {
            attributes,
            ..PutOptions::default()
        };
        let put = self.inner.store.put_opts(path, payload, options);
        self.bounded(during, put).await.map(drop)
    }

    /// Removes an object, whether it is there or not.
    pub(crate) async fn delete(
        &self,
        during: &'static str,
        path: &Path,
    ) -> Result<(), ObjectError> {
        let call = async {
            match self.inner.store.delete(path).await {
                Err(Error::NotFound { .. }) => Ok(()),
                result => result,
            }
        };
        self.bounded(during, call).await
    }

    /// Every object below a prefix, in any order.
    pub(crate) fn list(
        &self,
        during: &'static str,
        prefix: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta, ObjectError>> {
        self.bound_listing(during, self.inner.store.list(Some(prefix)))
    }

    /// At most `limit` objects directly below a prefix, in order, from the first whose name is
    /// after `after`.
    pub(crate) async fn list_page(
        &self,
        during: &'static str,
        prefix: &Path,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectMeta>, ObjectError> {
        let depth = prefix.parts().count() + 1;
        let store = &self.inner.store;
        let listing = match after {
            Some(name) => store.list_with_offset(Some(prefix), &prefix.clone().join(name)),
            None => store.list(Some(prefix)),
        };
        let mut listing = self.bound_listing(during, listing);
        let mut page = BTreeMap::new();
        while let Some(meta) = listing.try_next().await? {
            if meta.location.parts().count() != depth {
                continue;
            }
            if self.inner.conditions == Conditions::Provider && page.len() == limit {
                break;
            }
            page.insert(meta.location.to_string(), meta);
            if page.len() > limit {
                page.pop_last();
            }
        }
        Ok(page.into_values().collect())
    }

    fn bound_listing(
        &self,
        during: &'static str,
        listing: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta, ObjectError>> {
        let timeout = self.inner.limits.call_timeout;
        stream::unfold(Some(listing), move |state| async move {
            let mut listing = state?;
            match tokio::time::timeout(timeout, listing.next()).await {
                Ok(Some(Ok(meta))) => Some((Ok(meta), Some(listing))),
                // A directory that nothing was ever put in.
                Ok(Some(Err(Error::NotFound { .. })) | None) => None,
                Ok(Some(Err(error))) => Some((Err(failed(during)(error)), None)),
                Err(_) => Some((Err(too_slow(during)), None)),
            }
        })
        .boxed()
    }

    /// A URL that reads one object. The provider compares its end with its own clock, so it is
    /// signed with ours, whatever `now_ms` says.
    pub(crate) async fn presign_get(
        &self,
        during: &'static str,
        path: &Path,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let Some(signer) = &self.inner.signer else {
            return Ok(None);
        };
        let seconds = signed::clamp_lifetime(lifetime);
        let call = signer.signed_url(Method::GET, path, Duration::from_secs(seconds));
        let url = self.bounded(during, call).await?;
        Ok(Some(SignedUrl {
            url: url.into(),
            expires_at_ms: signed::expiry_ms(now_ms, seconds),
        }))
    }
}

/// Takes a directory for this process: nobody else may take turns there.
fn claim(path: &std::path::Path, durable: bool) -> std::io::Result<File> {
    std::fs::create_dir_all(path)?;
    let name = if durable { "data.lock" } else { "cache.lock" };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.join(name))?;
    file.try_lock()?;
    Ok(file)
}

/// What becomes of a document.
pub(crate) enum Update<T> {
    /// It stays as it is.
    Keep(T),
    /// It is replaced by these bytes.
    Write(Vec<u8>, T),
}

/// What reads a document, if there is one, and says what becomes of it.
type Decide<T> = dyn Fn(Option<&[u8]>) -> Result<Update<T>, ObjectError> + Send + Sync;

/// Turns are shared by keys that fall together, so that their number has a bound.
const TURNS: usize = 64;

/// How often an update is tried before the caller is told to come back.
const UPDATE_ATTEMPTS_MAX: u32 = 16;

/// Our documents are far shorter: more publications than are kept, with the longest cursors.
const DOCUMENT_BYTES_MAX: u64 = 8 * 1024 * 1024;

fn turn_of(path: &Path) -> usize {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let turns = u64::try_from(TURNS).expect("a small number");
    usize::try_from(hasher.finish() % turns).expect("a small number")
}

/// Waits that grow, and differ between writers that met: the address of a future is as good as
/// a die.
fn backoff(attempt: u32, path: &Path) -> Duration {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let here = &raw const hasher;
    here.hash(&mut hasher);
    attempt.hash(&mut hasher);
    let ceiling = 8_u64 << attempt.min(5);
    Duration::from_millis(1 + hasher.finish() % ceiling)
}

pub(crate) fn too_slow(during: &'static str) -> ObjectError {
    ObjectError::new(ObjectErrorKind::Unavailable, during)
        .with_detail("the backend did not answer in time")
}

/// Which of our kinds a backend's failure is.
pub(crate) fn failed(during: &'static str) -> impl Fn(Error) -> ObjectError {
    move |error| {
        let kind = match &error {
            Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::UnknownConfigurationKey { .. } => ObjectErrorKind::Refused,
            _ => ObjectErrorKind::Unavailable,
        };
        ObjectError::new(kind, during).with_source(error)
    }
}

/// Of a file, on its way to one reader. Hundreds may read at once, and each holds two: larger ones
/// save little more time and cost that much memory.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// A range of a file, in pieces of our size: the library's own are a few KiB, and handing each over
/// from a blocking thread costs several times what reading it does.
fn pieces_of(
    during: &'static str,
    file: File,
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes, ObjectError>> {
    let failed =
        move |error| ObjectError::new(ObjectErrorKind::Unavailable, during).with_source(error);
    let start = Some(range.start).filter(|start| *start > 0);
    let left = range.end.saturating_sub(range.start);
    let state = (tokio::fs::File::from_std(file), start, left);
    stream::try_unfold(state, move |(mut file, start, left)| async move {
        if let Some(start) = start {
            file.seek(SeekFrom::Start(start)).await.map_err(failed)?;
        }
        let wanted = usize::try_from(left).unwrap_or(usize::MAX);
        let mut piece = BytesMut::with_capacity(wanted.min(PIECE_BYTES_MAX));
        let read = (&mut file)
            .take(left)
            .read_buf(&mut piece)
            .await
            .map_err(failed)?;
        let read = u64::try_from(read).expect("a length fits in 64 bits");
        Ok((read > 0).then(|| (piece.freeze(), (file, None, left - read))))
    })
    .boxed()
}

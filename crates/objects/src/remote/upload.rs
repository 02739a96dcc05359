//! Writing an object while its content is checked.
//!
//! **Invariant:** an object is visible only after its content has been hashed to the end and is
//! what its address says. What is small is written at once; what is larger goes in parts, and the
//! parts become an object at the end or never.

use bytes::Bytes;
use futures_core::{future::BoxFuture, stream::BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::{Attributes, PutMultipartOptions, PutPayload, WriteMultipart, path::Path};
use tidewater_wire::ContentHasher;

use super::backend::{Backend, failed, too_slow};
use crate::{CHUNK_BYTES_MAX, ObjectError, ObjectErrorKind};

/// Size of a part. Providers want at least 5 MiB, and at most 10,000 of them: 80 GB.
const PART_BYTES: u32 = 8 * 1024 * 1024;

/// Parts on their way at once, beside the one that is being filled.
const PARTS_AT_ONCE: usize = 2;

/// The content of an object to be.
pub(crate) type Body = BoxStream<'static, Result<Bytes, ObjectError>>;

/// What content must be to be accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) id: &'a str,
    pub(crate) bytes_max: u64,
}

/// Reads content to its end and checks it; how long it is.
pub(crate) async fn verify(
    during: &'static str,
    expected: Expected<'_>,
    body: Body,
) -> Result<u64, ObjectError> {
    let mut checked = Checked::new(during, expected);
    let mut body = body;
    while let Some(chunk) = body.try_next().await? {
        checked.take(&chunk).await?;
    }
    checked.finish()
}

/// An object to write.
pub(crate) struct Target<'a> {
    pub(crate) path: &'a Path,
    /// Its metadata, given its length where that is known before it is begun.
    pub(crate) attributes: &'a (dyn Fn(Option<u64>) -> Attributes + Send + Sync),
    /// What is done when the content is right and before anybody sees it.
    pub(crate) before_visible: BoxFuture<'a, Result<(), ObjectError>>,
}

/// Writes an object with this content; how long it is.
pub(crate) async fn upload(
    backend: &Backend,
    during: &'static str,
    target: Target<'_>,
    expected: Expected<'_>,
    body: Body,
) -> Result<u64, ObjectError> {
    let Target {
        path,
        attributes,
        before_visible,
    } = target;
    let mut checked = Checked::new(during, expected);
    let mut body = body;
    let mut first: Vec<Bytes> = Vec::new();
    while checked.length <= u64::from(PART_BYTES) {
        let Some(chunk) = body.try_next().await? else {
            let length = checked.finish()?;
            let payload: PutPayload = first.into_iter().collect();
            before_visible.await?;
            let attributes = attributes(Some(length));
            backend.put(during, path, payload, attributes).await?;
            return Ok(length);
        };
        checked.take(&chunk).await?;
        first.push(chunk);
    }
    let options = PutMultipartOptions {
        attributes: attributes(None),
        ..PutMultipartOptions::default()
    };
    let begun = backend.store().put_multipart_opts(path, options);
    let begun = backend.bounded(during, begun).await?;
    let part_bytes = usize::try_from(PART_BYTES).expect("a part fits in memory");
    let mut parts = Parts {
        backend,
        during,
        writer: Some(WriteMultipart::new_with_chunk_size(begun, part_bytes)),
    };
    for chunk in first {
        parts.put(chunk).await?;
    }
    let checked = fill(&mut parts, checked, body).await;
    let length = match checked.and_then(Checked::finish) {
        Ok(length) => before_visible.await.map(|()| length),
        Err(error) => Err(error),
    };
    match length {
        Ok(length) => parts.finish().await.map(|()| length),
        Err(error) => {
            parts.abort().await;
            Err(error)
        }
    }
}

async fn fill<'a>(
    parts: &mut Parts<'_>,
    mut checked: Checked<'a>,
    mut body: Body,
) -> Result<Checked<'a>, ObjectError> {
    while let Some(chunk) = body.try_next().await? {
        checked.take(&chunk).await?;
        parts.put(chunk).await?;
    }
    Ok(checked)
}

/// Content in memory, in chunks that leave room for others between them.
pub(crate) fn body_of(bytes: Bytes) -> Body {
    crate::ObjectStream::from_bytes(&bytes, None).into_chunks()
}

/// Content of a file. It is read off the async threads.
pub(crate) fn body_of_file(during: &'static str, path: std::path::PathBuf) -> Body {
    use tokio::io::AsyncReadExt;

    let failed =
        move |error| ObjectError::new(ObjectErrorKind::Unavailable, during).with_source(error);
    futures_util::stream::try_unfold(None, move |file| {
        let path = path.clone();
        async move {
            let mut file = match file {
                Some(file) => file,
                None => tokio::fs::File::open(path).await.map_err(failed)?,
            };
            let mut chunk = bytes::BytesMut::with_capacity(CHUNK_BYTES_MAX);
            let read = file.read_buf(&mut chunk).await.map_err(failed)?;
            Ok((read > 0).then(|| (chunk.freeze(), Some(file))))
        }
    })
    .boxed()
}

/// Content as far as it was read.
struct Checked<'a> {
    during: &'static str,
    expected: Expected<'a>,
    hasher: ContentHasher,
    length: u64,
}

impl<'a> Checked<'a> {
    fn new(during: &'static str, expected: Expected<'a>) -> Self {
        Self {
            during,
            expected,
            hasher: ContentHasher::new(),
            length: 0,
        }
    }

    async fn take(&mut self, chunk: &Bytes) -> Result<(), ObjectError> {
        let added = u64::try_from(chunk.len()).expect("a length fits in 64 bits");
        self.length = self.length.saturating_add(added);
        if self.length > self.expected.bytes_max {
            let bytes_max = self.expected.bytes_max;
            return Err(ObjectError::new(ObjectErrorKind::TooLarge, self.during)
                .with_detail(format!("it has more than {bytes_max} bytes")));
        }
        for slice in chunk.chunks(CHUNK_BYTES_MAX) {
            self.hasher.update(slice);
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn finish(self) -> Result<u64, ObjectError> {
        let found = self.hasher.finish();
        if found != self.expected.id {
            return Err(
                ObjectError::new(ObjectErrorKind::ContentMismatch, self.during).with_detail(
                    format!(
                        "{} bytes are {found}, not {}",
                        self.length, self.expected.id
                    ),
                ),
            );
        }
        Ok(self.length)
    }
}

/// Parts of an object that is not there yet. Dropping them gives them up.
struct Parts<'a> {
    backend: &'a Backend,
    during: &'static str,
    writer: Option<WriteMultipart>,
}

impl Parts<'_> {
    async fn put(&mut self, chunk: Bytes) -> Result<(), ObjectError> {
        let timeout = self.backend.limits().call_timeout;
        let writer = self.writer.as_mut().expect("it is not finished");
        tokio::time::timeout(timeout, writer.wait_for_capacity(PARTS_AT_ONCE))
            .await
            .map_err(|_| too_slow(self.during))?
            .map_err(failed(self.during))?;
        writer.put(chunk);
        Ok(())
    }

    async fn finish(mut self) -> Result<(), ObjectError> {
        let writer = self.writer.take().expect("it is not finished");
        self.backend
            .bounded(self.during, writer.finish())
            .await
            .map(drop)
    }

    async fn abort(mut self) {
        let writer = self.writer.take().expect("it is not finished");
        // The caller has a better error, and a provider forgets parts that are never completed.
        drop(self.backend.bounded(self.during, writer.abort()).await);
    }
}

impl Drop for Parts<'_> {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let backend = self.backend.clone();
            let during = self.during;
            runtime.spawn(async move { drop(backend.bounded(during, writer.abort()).await) });
        }
    }
}

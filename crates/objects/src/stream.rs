//! The bytes of an object, on their way out.
//!
//! **Invariant:** a stream never holds a whole object, except where the store is memory itself:
//! its chunks are bounded, and the next one is fetched when somebody takes it.

use std::{fmt, ops::Range};

use bytes::{Bytes, BytesMut};
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};

use crate::{ObjectError, ObjectErrorKind};

/// Largest chunk that our own backends give; a remote one gives what arrives.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;

/// An object that is open for reading.
pub struct ObjectStream {
    total_length: u64,
    range: Range<u64>,
    chunks: BoxStream<'static, Result<Bytes, ObjectError>>,
}

impl ObjectStream {
    /// A stream of `range` of an object of `total_length` bytes.
    ///
    /// The chunks must add up to the range: what is too short or too long becomes an error of
    /// the stream, so that nobody takes a part for the whole.
    pub fn new(
        total_length: u64,
        range: Range<u64>,
        chunks: BoxStream<'static, Result<Bytes, ObjectError>>,
    ) -> Self {
        let chunks = exactly(range.end.saturating_sub(range.start), chunks);
        Self {
            total_length,
            range,
            chunks,
        }
    }

    /// A stream of bytes that are in memory anyway. Nothing is copied.
    pub fn from_bytes(bytes: &Bytes, range: Option<Range<u64>>) -> Self {
        let total_length = u64::try_from(bytes.len()).expect("a length fits in 64 bits");
        let range = clamp(range, total_length);
        let start = usize::try_from(range.start).expect("clamped to a length in memory");
        let end = usize::try_from(range.end).expect("clamped to a length in memory");
        let mut rest = bytes.slice(start..end);
        let chunks = std::iter::from_fn(move || {
            (!rest.is_empty()).then(|| Ok(rest.split_to(rest.len().min(CHUNK_BYTES_MAX))))
        });
        Self::new(total_length, range, stream::iter(chunks).boxed())
    }

    /// Size of the whole object in bytes.
    pub fn total_length(&self) -> u64 {
        self.total_length
    }

    /// Which of its bytes these are: what was asked for, cut at the object's end.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The bytes. After an error there is nothing more.
    pub fn into_chunks(self) -> BoxStream<'static, Result<Bytes, ObjectError>> {
        self.chunks
    }

    /// All bytes at once. More than `bytes_max` are refused before any is read.
    pub async fn collect(self, bytes_max: usize) -> Result<Bytes, ObjectError> {
        let length = self.range.end.saturating_sub(self.range.start);
        if usize::try_from(length).map_or(true, |length| length > bytes_max) {
            return Err(
                ObjectError::new(ObjectErrorKind::TooLarge, "read an object")
                    .with_detail(format!("{length} bytes are more than {bytes_max}")),
            );
        }
        let mut chunks = self.chunks;
        // Most are one chunk, which needs no copy.
        let first = chunks.next().await.transpose()?.unwrap_or_default();
        let Some(second) = chunks.next().await.transpose()? else {
            return Ok(first);
        };
        let mut all = BytesMut::from(&*first);
        all.extend_from_slice(&second);
        while let Some(chunk) = chunks.next().await.transpose()? {
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }
}

impl fmt::Debug for ObjectStream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ObjectStream")
            .field("total_length", &self.total_length)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// The part of a range that an object of this length has.
pub fn clamp(range: Option<Range<u64>>, total_length: u64) -> Range<u64> {
    let Some(range) = range else {
        return 0..total_length;
    };
    let end = range.end.min(total_length);
    range.start.min(end)..end
}

/// Passes on exactly `length` bytes, or ends in an error.
fn exactly(
    length: u64,
    chunks: BoxStream<'static, Result<Bytes, ObjectError>>,
) -> BoxStream<'static, Result<Bytes, ObjectError>> {
    let state = Some((chunks, length));
    stream::unfold(state, |state| async move {
        let (mut chunks, left) = state?;
        let wrong = || ObjectError::new(ObjectErrorKind::Corrupt, "read an object");
        match chunks.next().await {
            Some(Ok(chunk)) => {
                let taken = u64::try_from(chunk.len()).expect("a length fits in 64 bits");
                match left.checked_sub(taken) {
                    Some(left) => Some((Ok(chunk), Some((chunks, left)))),
                    None => Some((Err(wrong().with_detail("it is too long")), None)),
                }
            }
            Some(Err(error)) => Some((Err(error), None)),
            None if left == 0 => None,
            None => {
                let detail = format!("it ends {left} bytes early");
                Some((Err(wrong().with_detail(detail)), None))
            }
        }
    })
    .fuse()
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_clamp(range: Option<Range<u64>>, expected: Range<u64>) {
        assert_eq!(clamp(range, 10), expected);
    }

    #[test]
    fn a_range_ends_where_the_object_ends() {
        check_clamp(None, 0..10);
        check_clamp(Some(2..5), 2..5);
        check_clamp(Some(2..50), 2..10);
        check_clamp(Some(20..50), 10..10);
        let backwards = Range { start: 5, end: 2 };
        check_clamp(Some(backwards), 2..2);
    }

    #[tokio::test]
    async fn bytes_in_memory_come_in_bounded_chunks() {
        let bytes = Bytes::from(vec![7; CHUNK_BYTES_MAX * 2 + 1]);
        let stream = ObjectStream::from_bytes(&bytes, None);
        assert_eq!(stream.total_length(), 524_289);
        let sizes: Vec<usize> = stream
            .into_chunks()
            .map(|chunk| chunk.unwrap().len())
            .collect()
            .await;
        assert_eq!(sizes, [CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 1]);
        let part = ObjectStream::from_bytes(&bytes, Some(1..4));
        assert_eq!(part.range(), 1..4);
        assert_eq!(part.collect(3).await.unwrap(), bytes[1..4]);
        let whole = ObjectStream::from_bytes(&bytes, None);
        assert_eq!(whole.collect(usize::MAX).await.unwrap(), bytes);
    }

    async fn collect(length: u64, chunks: &'static [&'static [u8]]) -> Result<Bytes, ObjectError> {
        let chunks = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk)));
        let stream = ObjectStream::new(length, 0..length, stream::iter(chunks).boxed());
        stream.collect(100).await
    }

    #[tokio::test]
    async fn a_part_is_never_taken_for_the_whole() {
        assert_eq!(collect(0, &[]).await.unwrap(), Bytes::new());
        assert_eq!(&*collect(3, &[b"a", b"", b"bc"]).await.unwrap(), b"abc");
        let corrupt = |result: Result<Bytes, ObjectError>| result.unwrap_err().kind;
        assert_eq!(
            corrupt(collect(4, &[b"a", b"bc"]).await),
            ObjectErrorKind::Corrupt
        );
        assert_eq!(
            corrupt(collect(2, &[b"a", b"bc"]).await),
            ObjectErrorKind::Corrupt
        );
        assert_eq!(
            corrupt(collect(101, &[b"a"]).await),
            ObjectErrorKind::TooLarge
        );
    }
}

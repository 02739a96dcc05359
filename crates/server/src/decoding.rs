//! Request bodies that travel compressed, and what they may grow to (§1.3).
//!
//! **Invariant:** the decoded size is checked before each piece is kept, so a body that expands a
//! thousandfold costs the memory of the cap and no more. The window that a zstd frame asks for is
//! bounded as well: it is memory too.

use std::io;

use flate2::{Decompress, FlushDecompress, Status};
use http::{HeaderMap, header};
use zstd::stream::raw::{DParameter, Decoder as ZstdDecoder, InBuffer, Operation as _, OutBuffer};

use crate::error::ApiError;

/// How a request body is encoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ContentEncoding {
    Identity,
    Gzip,
    Zstd,
}

impl ContentEncoding {
    /// Reads `Content-Encoding`; anything else than one known encoding is refused.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let mut found = Self::Identity;
        for value in headers.get_all(header::CONTENT_ENCODING) {
            for name in value.to_str().unwrap_or("?").split(',').map(str::trim) {
                let encoding = match name {
                    name if name.eq_ignore_ascii_case("identity") => continue,
                    name if name.eq_ignore_ascii_case("gzip") => Self::Gzip,
                    name if name.eq_ignore_ascii_case("x-gzip") => Self::Gzip,
                    name if name.eq_ignore_ascii_case("zstd") => Self::Zstd,
                    _ => return Err(ApiError::unsupported("the content encoding is not known")),
                };
                if found != Self::Identity {
                    return Err(ApiError::unsupported("one content encoding is enough"));
                }
                found = encoding;
            }
        }
        Ok(found)
    }
}

/// Undoes a content encoding, piece by piece.
pub(crate) struct Decoder {
    inner: Inner,
    piece: Box<[u8]>,
    /// Whether the input so far ends where an encoded stream may end.
    complete: bool,
}

enum Inner {
    Gzip(Decompress),
    Zstd(ZstdDecoder<'static>),
}

/// One step of decoding.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    /// How much input was used.
    pub(crate) consumed: usize,
    /// What came out; empty when more input is needed.
    pub(crate) decoded: &'a [u8],
}

impl Decoder {
    /// A decoder for `encoding`, or `None` where there is nothing to undo.
    pub(crate) fn new(encoding: ContentEncoding) -> io::Result<Option<Self>> {
        let inner = match encoding {
            ContentEncoding::Identity => return Ok(None),
            ContentEncoding::Gzip => Inner::Gzip(Decompress::new_gzip(GZIP_WINDOW_BITS)),
            ContentEncoding::Zstd => {
                let mut decoder = ZstdDecoder::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX))?;
                Inner::Zstd(decoder)
            }
        };
        let piece = vec![0; PIECE_BYTES].into_boxed_slice();
        Ok(Some(Self {
            inner,
            piece,
            complete: false,
        }))
    }

    /// Decodes up to one piece from the front of `input`.
    pub(crate) fn step(&mut self, input: &[u8]) -> io::Result<Step<'_>> {
        let (consumed, written) = match &mut self.inner {
            Inner::Gzip(gzip) => {
                if self.complete && !input.is_empty() {
                    // One body, one member: more would have to be counted and says nothing new.
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let before = (gzip.total_in(), gzip.total_out());
                let status = gzip.decompress(input, &mut self.piece, FlushDecompress::None)?;
                self.complete |= status == Status::StreamEnd;
                (
                    distance(before.0, gzip.total_in()),
                    distance(before.1, gzip.total_out()),
                )
            }
            Inner::Zstd(zstd) => {
                let mut input = InBuffer::around(input);
                let mut output = OutBuffer::around(&mut self.piece[..]);
                let left = zstd.run(&mut input, &mut output)?;
                // Calls that neither read nor write do not change where the stream stands.
                if input.pos() > 0 || output.pos() > 0 {
                    self.complete = left == 0;
                }
                (input.pos(), output.pos())
            }
        };
        Ok(Step {
            consumed,
            decoded: &self.piece[..written],
        })
    }

    /// Whether the encoded stream is over, neither cut short nor empty.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }
}

fn distance(before: u64, after: u64) -> usize {
    usize::try_from(after - before).expect("a step works on buffers in memory")
}

/// Decoded between two looks at the cap, and between two chances for other tasks to run.
const PIECE_BYTES: usize = 64 * 1024;
/// The largest window of the format.
const GZIP_WINDOW_BITS: u8 = 15;
/// 8 MiB: what a sender of this content encoding may assume.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use http::HeaderValue;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).unwrap()
    }

    /// Feeds `input` in chunks and stops where the decoder stops making progress.
    fn decode(
        encoding: ContentEncoding,
        input: &[u8],
        chunk: usize,
    ) -> io::Result<(Vec<u8>, bool)> {
        let mut decoder = Decoder::new(encoding)?.unwrap();
        let mut decoded = Vec::new();
        for mut rest in input.chunks(chunk) {
            loop {
                let step = decoder.step(rest)?;
                decoded.extend_from_slice(step.decoded);
                let (consumed, quiet) = (step.consumed, step.decoded.is_empty());
                rest = &rest[consumed..];
                if quiet && (rest.is_empty() || consumed == 0) {
                    break;
                }
            }
            assert!(rest.is_empty());
        }
        Ok((decoded, decoder.is_complete()))
    }

    #[test]
    fn what_was_encoded_comes_back_however_it_is_cut() {
        let bytes: Vec<u8> = (0..300_000u32)
            .flat_map(|n| (n / 7).to_le_bytes())
            .collect();
        for chunk in [1, 7, 4_096, 1_000_000] {
            let gzip = decode(ContentEncoding::Gzip, &gzip(&bytes), chunk).unwrap();
            assert!(gzip == (bytes.clone(), true), "gzip in chunks of {chunk}");
            let zstd = decode(ContentEncoding::Zstd, &zstd(&bytes), chunk).unwrap();
            assert!(zstd == (bytes.clone(), true), "zstd in chunks of {chunk}");
        }
    }

    #[test]
    fn a_stream_that_is_cut_short_is_not_complete() {
        let bytes = b"no shorter than this".repeat(50);
        for (encoding, encoded) in [
            (ContentEncoding::Gzip, gzip(&bytes)),
            (ContentEncoding::Zstd, zstd(&bytes)),
        ] {
            for end in 0..encoded.len() {
                let (_, complete) = decode(encoding, &encoded[..end], 64).unwrap();
                assert!(!complete, "{encoding:?} cut at {end}");
            }
        }
    }

    #[test]
    fn bytes_after_the_stream_or_that_are_no_stream_are_refused() {
        let mut long = gzip(b"abc");
        long.push(0);
        decode(ContentEncoding::Gzip, &long, 100).unwrap_err();
        decode(ContentEncoding::Gzip, b"SSP2 is not gzip", 100).unwrap_err();
        decode(ContentEncoding::Zstd, b"SSP2 is not zstd", 100).unwrap_err();
    }

    #[test]
    fn a_frame_that_asks_for_a_huge_window_is_refused() {
        // Magic, then a descriptor without content size, then a window of 2^31 bytes.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];
        decode(ContentEncoding::Zstd, &frame, 100).unwrap_err();
    }

    #[test]
    fn only_one_known_encoding_is_accepted() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            ContentEncoding::of(&headers).ok()
        };
        assert_eq!(of(&[]), Some(ContentEncoding::Identity));
        assert_eq!(of(&["identity"]), Some(ContentEncoding::Identity));
        assert_eq!(of(&["GZip"]), Some(ContentEncoding::Gzip));
        assert_eq!(of(&["identity, zstd"]), Some(ContentEncoding::Zstd));
        for refused in [
            &["br"][..],
            &["gzip, gzip"],
            &["gzip", "zstd"],
            &["deflate"],
            &[""],
        ] {
            assert_eq!(of(refused), None, "{refused:?}");
        }
    }
}

//! What a segment turns out to be while it streams by: its address, its size, its rows.
//!
//! An image is not opened: that takes SQLite, and its size in memory. Its rows are counted by its
//! pages instead. The key of the table is text, so the image has one b-tree ordered by keys, as
//! the table itself or as the index of its key, and that tree has one cell for each row. Nothing
//! else in an image is ordered by keys.

use std::io::{self, Write};

use tidewater_wire::ContentHasher;

/// A segment that has streamed by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Inspected {
    /// The address of its bytes.
    pub(crate) id: String,
    /// Its size without content encoding.
    pub(crate) byte_length: u64,
    /// Rows in it, as far as it can be told; `None` if it is no image.
    pub(crate) image_rows: Option<u64>,
}

/// Takes a segment's bytes in pieces of any size.
#[derive(Debug)]
pub(crate) struct Inspector {
    /// `None` leaves the address out: it costs the generator more than anything else.
    hasher: Option<ContentHasher>,
    byte_length: u64,
    /// The first bytes, until there are enough for the header.
    header: Vec<u8>,
    pages: Option<Pages>,
}

/// Position in the pages of an image.
#[derive(Debug)]
struct Pages {
    page_bytes: u64,
    /// The last bytes seen at the start of the current page.
    start: Vec<u8>,
    cells: u64,
}

/// Text that a SQLite file begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Size of the header in front of the first page's own.
const HEADER_BYTES: usize = 100;
/// What is needed of a page: its kind, and its number of cells at 3.
const START_BYTES: usize = 5;
const INTERIOR_BY_KEY: u8 = 0x02;
const LEAF_BY_KEY: u8 = 0x0a;

impl Inspector {
    pub(crate) fn new(with_address: bool) -> Self {
        Self {
            hasher: with_address.then(ContentHasher::new),
            byte_length: 0,
            header: Vec::new(),
            pages: None,
        }
    }

    /// What it was. Without an address, the one that was `asked` for is taken on trust.
    pub(crate) fn finish(mut self, asked: &str) -> Inspected {
        let image_rows = self.pages.take().map(|pages| pages.cells);
        Inspected {
            id: match self.hasher {
                Some(hasher) => hasher.finish(),
                None => asked.to_owned(),
            },
            byte_length: self.byte_length,
            image_rows,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut position = self.byte_length;
        self.byte_length += len(bytes);
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        let mut rest = bytes;
        if self.header.len() < HEADER_BYTES {
            let taken = rest.len().min(HEADER_BYTES - self.header.len());
            self.header.extend_from_slice(&rest[..taken]);
            rest = &rest[taken..];
            position += len(&bytes[..taken]);
            if self.header.len() == HEADER_BYTES {
                self.pages = Pages::of(&self.header);
            }
        }
        if let Some(pages) = &mut self.pages {
            pages.take(position, rest);
        }
    }
}

impl Pages {
    fn of(header: &[u8]) -> Option<Self> {
        let size = header
            .strip_prefix(MAGIC)
            .and_then(|rest| rest.first_chunk::<2>())?;
        let page_bytes = match u16::from_be_bytes(*size) {
            1 => 65_536,
            size if size >= 512 && size.is_power_of_two() => u64::from(size),
            _ => return None,
        };
        Some(Self {
            page_bytes,
            start: Vec::new(),
            cells: 0,
        })
    }

    /// Takes bytes at a position of the file, which follow those of the last call.
    fn take(&mut self, mut position: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let in_page = position % self.page_bytes;
            let wanted = len_from(in_page).filter(|&at| at < START_BYTES);
            // The first page is the schema's, and its own header comes after the file's.
            if let Some(at) = wanted.filter(|_| position >= self.page_bytes) {
                if at == 0 {
                    self.start.clear();
                }
                let taken = bytes.len().min(START_BYTES - at);
                self.start.extend_from_slice(&bytes[..taken]);
                if let [INTERIOR_BY_KEY | LEAF_BY_KEY, _, _, high, low] = self.start[..] {
                    self.cells += u64::from(u16::from_be_bytes([high, low]));
                }
                bytes = &bytes[taken..];
                position += u64::try_from(taken).unwrap_or(u64::MAX);
                continue;
            }
            let left = self.page_bytes - in_page;
            let skipped = len_from(left).unwrap_or(usize::MAX).min(bytes.len());
            bytes = &bytes[skipped..];
            position += u64::try_from(skipped).unwrap_or(u64::MAX);
        }
    }
}

impl Write for Inspector {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn len_from(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use tidewater_wire::content_address;

    use super::*;

    /// A file of pages: kind and cells of each after the first.
    fn image(page_bytes: u16, pages: &[(u8, u16)]) -> Vec<u8> {
        let size = usize::from(page_bytes);
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&page_bytes.to_be_bytes());
        file.resize(size, 7);
        for (kind, cells) in pages {
            let start = file.len();
            file.extend_from_slice(&[*kind, 0, 0]);
            file.extend_from_slice(&cells.to_be_bytes());
            file.resize(start + size, 0x0a);
        }
        file
    }

    fn inspect(bytes: &[u8], piece: usize) -> Inspected {
        let mut inspector = Inspector::new(true);
        for piece in bytes.chunks(piece) {
            inspector.write_all(piece).unwrap();
        }
        inspector.finish("?")
    }

    #[test]
    fn the_cells_of_pages_by_key_are_the_rows_however_the_bytes_come() {
        let pages = [
            (0x0a, 30),
            (0x0d, 1),
            (0, 500),
            (0x02, 2),
            (0x0a, 300),
            (0x05, 9),
        ];
        let file = image(512, &pages);
        for piece in [1, 3, 99, 100, 101, 511, 512, 513, 100_000] {
            let inspected = inspect(&file, piece);
            assert_eq!(inspected.image_rows, Some(332), "in pieces of {piece}");
            assert_eq!(inspected.byte_length, 7 * 512);
            assert_eq!(inspected.id, content_address(&file));
        }
    }

    #[test]
    fn what_is_no_image_has_an_address_and_no_rows() {
        for bytes in [&b"SSG2"[..], &[0; 5_000], MAGIC] {
            let inspected = inspect(bytes, 1_000);
            assert_eq!(inspected.image_rows, None);
            assert_eq!(inspected.id, content_address(bytes));
        }
    }

    #[test]
    fn without_an_address_the_one_asked_for_is_given_back() {
        let mut inspector = Inspector::new(false);
        inspector.write_all(b"abc").unwrap();
        assert_eq!(inspector.finish("asked").id, "asked");
    }
}

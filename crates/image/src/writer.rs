//! Writes one image, from the first row to its content address.
//!
//! The file is new, has one writer and is thrown away if anything fails, so nothing is journaled
//! and nothing is synced: a crash leaves a temporary file and no image.

use std::{fs::File, io::Read, path::Path, sync::Arc};

use rusqlite::{Connection, OpenFlags, Statement};
use tempfile::TempPath;
use tidewater_model::CommitSeq;
use tidewater_schema::Table;
use tidewater_wire::{ContentHasher, row::decode_row};

use crate::{
    ImageError, ImageErrorKind,
    columns::{self, Cell},
};

/// Bytes of a page. Larger ones than SQLite's default make a smaller tree of the same rows, and
/// are read by every build of SQLite.
const PAGE_BYTES: u32 = 16 * 1024;

/// Pages in memory while an image is written, in KiB. The rest is in the file.
const CACHE_KIB: u32 = 4 * 1024;

/// Bytes hashed at a time.
const HASH_BYTES: usize = 128 * 1024;

/// Whether the table may be served as an image: one with an encrypted column never is (§5.11).
pub fn is_eligible(table: &Table) -> bool {
    !table.has_encrypted_column()
}

/// What an image says about itself: what its reader compares with the descriptor.
#[derive(Clone, Debug)]
pub struct ImageSpec {
    /// The table.
    pub table: Arc<Table>,
    /// The schema version of the requester.
    pub schema_version: i32,
    /// The pin.
    pub as_of: CommitSeq,
    /// Digest of the effective scopes (§3.5).
    pub scope_digest: String,
}

/// A finished image.
#[derive(Debug)]
pub struct Image {
    /// The database file. It goes away with this value.
    pub file: TempPath,
    /// Its content address.
    pub id: String,
    /// Its size in bytes.
    pub byte_length: u64,
    /// Rows in it.
    pub row_count: u64,
}

/// An image in the making. Dropping it removes what was written.
pub struct ImageWriter {
    // Before the file: a connection is closed before what it has open goes away.
    connection: Connection,
    file: TempPath,
    spec: ImageSpec,
    row_count: u64,
}

impl ImageWriter {
    /// Begins an image in a file of its own, in `directory` or where temporary files go.
    ///
    /// # Errors
    ///
    /// `Unsuited` when the table is not eligible, or has names that SQLite does not take.
    pub fn create(directory: Option<&Path>, spec: ImageSpec) -> Result<Self, ImageError> {
        const DURING: &str = "begin an image";
        if !is_eligible(&spec.table) {
            return Err(ImageError::new(ImageErrorKind::Unsuited, DURING));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix("tidewater-image-");
        let file = match directory {
            Some(directory) => builder.tempfile_in(directory),
            None => builder.tempfile(),
        };
        let file = file.map_err(ImageError::disk(DURING))?.into_temp_path();
        let connection = open(&file).map_err(ImageError::database(DURING))?;
        connection
            .execute_batch(&format!(
                "PRAGMA page_size = {PAGE_BYTES}; PRAGMA cache_size = -{CACHE_KIB}; \
                 PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; \
                 PRAGMA locking_mode = EXCLUSIVE; BEGIN; {}; {METADATA_TABLE}",
                columns::create(&spec.table)
            ))
            .map_err(ImageError::database(DURING))?;
        Ok(Self {
            connection,
            file,
            spec,
            row_count: 0,
        })
    }

    /// Appends rows: version and codec bytes of each. Rows come by bytewise row id, over all
    /// calls; in another order they are the same rows in another image.
    ///
    /// # Errors
    ///
    /// After one, the image can only be dropped.
    pub fn push<'r>(
        &mut self,
        rows: impl IntoIterator<Item = (i64, &'r [u8])>,
    ) -> Result<(), ImageError> {
        const DURING: &str = "write a row";
        let table = &self.spec.table;
        let mut insert = self
            .connection
            .prepare_cached(&columns::insert(table))
            .map_err(ImageError::database(DURING))?;
        for (row_version, payload) in rows {
            let fields = decode_row(&table.columns, payload).map_err(|error| {
                ImageError::new(ImageErrorKind::Corrupt, DURING).with_source(error)
            })?;
            let cells = fields.into_iter().map(Cell);
            write_row(&mut insert, cells, row_version)?;
            self.row_count += 1;
        }
        Ok(())
    }

    /// Rows so far.
    pub fn row_count(&self) -> u64 {
        self.row_count
    }

    /// Completes the image, reads it back and names it.
    pub fn finish(self) -> Result<Image, ImageError> {
        const DURING: &str = "complete an image";
        let Self {
            connection,
            file,
            spec,
            row_count,
        } = self;
        let rows = i64::try_from(row_count).expect("nobody has stored so many rows");
        let metadata = (
            &spec.table.name,
            spec.schema_version,
            spec.as_of.to_i64(),
            &spec.scope_digest,
            rows,
        );
        connection
            .execute(
                "INSERT INTO _syncular_segment VALUES (1, ?1, ?2, ?3, ?4, ?5)",
                metadata,
            )
            .and_then(|_| connection.execute_batch("COMMIT"))
            .map_err(ImageError::database(DURING))?;
        check(&connection)?;
        connection
            .close()
            .map_err(|(_, error)| ImageError::database(DURING)(error))?;
        let (id, byte_length) = hash(&file).map_err(ImageError::disk("hash an image"))?;
        Ok(Image {
            file,
            id,
            byte_length,
            row_count,
        })
    }
}

impl std::fmt::Debug for ImageWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ImageWriter")
            .field("table", &self.spec.table.name)
            .field("row_count", &self.row_count)
            .finish_non_exhaustive()
    }
}

const METADATA_TABLE: &str = "CREATE TABLE _syncular_segment (\
    format INTEGER NOT NULL, \"table\" TEXT NOT NULL, \"schemaVersion\" INTEGER NOT NULL, \
    \"asOfCommitSeq\" INTEGER NOT NULL, \"scopeDigest\" TEXT NOT NULL, \
    \"rowCount\" INTEGER NOT NULL)";

fn open(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(file, flags)
}

fn write_row<'a>(
    insert: &mut Statement<'_>,
    cells: impl Iterator<Item = Cell<'a>>,
    row_version: i64,
) -> Result<(), ImageError> {
    const DURING: &str = "write a row";
    let failed = ImageError::database(DURING);
    let mut place = 0;
    for cell in cells {
        if cell.is_unsuited() {
            return Err(ImageError::new(ImageErrorKind::Unsuited, DURING));
        }
        place += 1;
        insert.raw_bind_parameter(place, cell).map_err(&failed)?;
    }
    insert
        .raw_bind_parameter(place + 1, row_version)
        .map_err(&failed)?;
    insert.raw_execute().map_err(&failed)?;
    Ok(())
}

/// Walks the whole file: a disk that lost a page must not hand out an image.
fn check(connection: &Connection) -> Result<(), ImageError> {
    const DURING: &str = "check an image";
    let found: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(ImageError::database(DURING))?;
    if found == "ok" {
        Ok(())
    } else {
        Err(ImageError::new(ImageErrorKind::Disk, DURING))
    }
}

fn hash(path: &Path) -> std::io::Result<(String, u64)> {
    let mut file = File::open(path)?;
    let mut hasher = ContentHasher::new();
    let mut buffer = vec![0; HASH_BYTES];
    let mut byte_length = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok((hasher.finish(), byte_length));
        }
        hasher.update(&buffer[..read]);
        byte_length += u64::try_from(read).expect("a length fits in 64 bits");
    }
}

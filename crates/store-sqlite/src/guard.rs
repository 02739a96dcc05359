//! Notices that a database was restored by hand (§2.1).
//!
//! A database that went back in time gives out places of its log a second time, and clients that
//! saw the first ones would never see the second. It cannot tell by itself: it looks as it looked
//! then. So a small file beside it, the *mark*, names the database that lives here and counts how
//! far it had come. A database that is behind its mark, or has none, or another's, is refused
//! until an operator rotates its epochs or vouches for it. docs/adr/0008 has the alternatives.
//!
//! **Invariant:** a mark never counts a commit that is not durable: it is written after commits,
//! from what is committed. So a crash is never mistaken for a restore. The mark may be behind by
//! what was written since the last activity was, which is about a second.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OptionalExtension as _};
use tidewater_store::{StorageCode, StoreError};

use crate::error::{corrupt, failed};

const DURING: &str = "look for signs of a restore";

/// Names this database, for good; and whether it is a copy that was made to be restored.
pub(crate) const IDENTIFY: &str = "INSERT OR IGNORE INTO sync_restore_guard (id, database_id, is_backup) \
     VALUES (1, lower(hex(randomblob(16))), 0)";

/// What the database says about itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Identity {
    pub(crate) database_id: String,
    pub(crate) is_backup: bool,
}

/// What the file beside the database says.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Mark {
    database_id: String,
    /// Heads of all partitions, added up.
    commits: i64,
}

/// Why a database is not served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sign {
    Backup,
    NoMark,
    OtherMark,
    Behind { commits: i64, marked: i64 },
}

impl Sign {
    /// For the operator.
    fn sentence(self, path: &Path) -> String {
        let what = match self {
            Self::Backup => "is a backup".to_owned(),
            Self::NoMark => format!(
                "has no file {} beside it: it was moved without it, or restored",
                mark_path(path).display()
            ),
            Self::OtherMark => "is not the one that was served here before".to_owned(),
            Self::Behind { commits, marked } => {
                format!("has {commits} commits and {marked} were served: it was restored")
            }
        };
        format!(
            "the database {} {what}. Run `tidewater epoch rotate --all`, so that devices start over \
             from what it holds; or, if nothing was lost, `tidewater epoch keep`",
            path.display()
        )
    }
}

/// Decides whether the database may be served.
fn judge(identity: Option<&Identity>, commits: i64, mark: Option<&Mark>) -> Result<(), Sign> {
    match (identity, mark) {
        (Some(identity), _) if identity.is_backup => Err(Sign::Backup),
        // Nothing was ever written: whoever was here before cannot be mistaken for it.
        _ if commits == 0 && mark.is_none_or(|mark| !is_of(mark, identity)) => Ok(()),
        // Written by the reference, or before there were marks.
        (None, None) => Ok(()),
        (Some(_), None) => Err(Sign::NoMark),
        (_, Some(mark)) if !is_of(mark, identity) => Err(Sign::OtherMark),
        (_, Some(mark)) if commits < mark.commits => Err(Sign::Behind {
            commits,
            marked: mark.commits,
        }),
        (_, Some(_)) => Ok(()),
    }
}

fn is_of(mark: &Mark, identity: Option<&Identity>) -> bool {
    identity.is_some_and(|identity| identity.database_id == mark.database_id)
}

/// Refuses a database that shows signs of a restore.
pub(crate) fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let identity = read_identity(connection)?;
    let commits = count_commits(connection)?;
    let mark = read_mark(path)?;
    judge(identity.as_ref(), commits, mark.as_ref()).map_err(|sign| {
        StoreError::refused(StorageCode::DatabaseRestored, DURING, sign.sentence(path))
    })
}

/// Takes the database for what lives here from now on.
pub(crate) fn adopt(connection: &Connection) -> Result<(), StoreError> {
    connection
        .execute("UPDATE sync_restore_guard SET is_backup = 0", [])
        .map(drop)
        .map_err(failed(DURING))
}

/// Makes a mark of how far the database has come.
///
/// Only a warning if it cannot be written: a database is served from a disk that is full, too.
pub(crate) fn write_mark(connection: &Connection, path: &Path) {
    let written = read_identity(connection).and_then(|identity| {
        let Some(identity) = identity else {
            return Ok(Ok(()));
        };
        let mark = Mark {
            database_id: identity.database_id,
            commits: count_commits(connection)?,
        };
        if matches!(read_mark(path), Ok(Some(current)) if current == mark) {
            return Ok(Ok(()));
        }
        Ok(replace(&mark_path(path), &mark.to_text()))
    });
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the mark beside the database is not written"),
        Err(error) => tracing::warn!(%error, "the mark beside the database is not written"),
    }
}

/// The name of the database; `None` for one that has none yet.
pub(crate) fn read_identity(connection: &Connection) -> Result<Option<Identity>, StoreError> {
    if !has_table(connection, "sync_restore_guard")? {
        return Ok(None);
    }
    connection
        .query_row(
            "SELECT database_id, is_backup FROM sync_restore_guard WHERE id = 1",
            [],
            |row| {
                Ok(Identity {
                    database_id: row.get(0)?,
                    is_backup: row.get(1)?,
                })
            },
        )
        .optional()
        .map_err(failed(DURING))
}

fn has_table(connection: &Connection, name: &str) -> Result<bool, StoreError> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    connection
        .query_row(exists, [name], |row| row.get(0))
        .map_err(failed(DURING))
}

fn count_commits(connection: &Connection) -> Result<i64, StoreError> {
    if !has_table(connection, "sync_partitions")? {
        return Ok(0);
    }
    let sum = "SELECT coalesce(sum(max_commit_seq), 0) FROM sync_partitions";
    connection
        .query_row(sum, [], |row| row.get(0))
        .map_err(failed(DURING))
}

fn read_mark(path: &Path) -> Result<Option<Mark>, StoreError> {
    let path = mark_path(path);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(corrupt(DURING, format!("read {}: {error}", path.display()))),
    };
    let unreadable = || {
        corrupt(
            DURING,
            format!("{} is not a mark of this server", path.display()),
        )
    };
    Mark::parse(&text).map(Some).ok_or_else(unreadable)
}

impl Mark {
    fn to_text(&self) -> String {
        let Self {
            database_id,
            commits,
        } = self;
        format!("tidewater-mark 1\n{database_id}\n{commits}\n")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (kind, database_id, commits) = (lines.next()?, lines.next()?, lines.next()?);
        (kind == "tidewater-mark 1" && lines.next().is_none()).then_some(())?;
        Some(Self {
            database_id: database_id.to_owned(),
            commits: commits.parse().ok()?,
        })
    }
}

/// Where the mark of a database is.
fn mark_path(database: &Path) -> PathBuf {
    beside(database, ".mark")
}

/// A file beside the database, named after it.
pub(crate) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(suffix);
    PathBuf::from(name)
}

/// Replaces a file: after a crash there is the old one or the new one, whole.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(database_id: &str) -> Identity {
        Identity {
            database_id: database_id.to_owned(),
            is_backup: false,
        }
    }

    fn mark(database_id: &str, commits: i64) -> Mark {
        Mark {
            database_id: database_id.to_owned(),
            commits,
        }
    }

    #[test]
    fn a_database_is_served_when_it_is_where_its_mark_says_or_further() {
        let here = identity("a");
        let behind = Sign::Behind {
            commits: 5,
            marked: 6,
        };
        let backup = Identity {
            is_backup: true,
            ..here.clone()
        };
        for (identity, commits, mark, expected) in [
            // New, or of the reference.
            (None, 0, None, Ok(())),
            (None, 5, None, Ok(())),
            (Some(&here), 5, Some(mark("a", 5)), Ok(())),
            // The server was killed before it could write the mark again.
            (Some(&here), 7, Some(mark("a", 5)), Ok(())),
            (Some(&here), 5, Some(mark("a", 6)), Err(behind)),
            (
                Some(&here),
                0,
                Some(mark("a", 6)),
                Err(Sign::Behind {
                    commits: 0,
                    marked: 6,
                }),
            ),
            (Some(&here), 5, Some(mark("b", 1)), Err(Sign::OtherMark)),
            (Some(&here), 5, None, Err(Sign::NoMark)),
            // From before there were marks, where there has been one since.
            (None, 5, Some(mark("b", 1)), Err(Sign::OtherMark)),
            // Somebody began anew: epochs of its own keep it apart.
            (None, 0, Some(mark("b", 9)), Ok(())),
            (Some(&here), 0, None, Ok(())),
            (Some(&backup), 5, Some(mark("a", 5)), Err(Sign::Backup)),
            (Some(&backup), 0, None, Err(Sign::Backup)),
        ] {
            let case = format!("{identity:?} {commits} {mark:?}");
            assert_eq!(judge(identity, commits, mark.as_ref()), expected, "{case}");
        }
    }

    #[test]
    fn a_mark_comes_back_as_it_was_written_and_nothing_else_is_one() {
        let mark = mark("0a", 12);
        assert_eq!(Mark::parse(&mark.to_text()), Some(mark));
        for text in [
            "",
            "tidewater-mark 1\na\n",
            "tidewater-mark 2\na\n1\n",
            "tidewater-mark 1\na\nx\n",
        ] {
            assert_eq!(Mark::parse(text), None, "{text:?}");
        }
    }
}

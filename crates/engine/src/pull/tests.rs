//! Whole rounds that pull, on the memory store (§4).

mod bootstrap;
mod catch_up;
mod converge;
mod gates;
mod images;
mod log;
mod reads;
mod record;
mod refusals;
mod window;

use tidewater_wire::{SubStatus, Subscription};

use crate::testing::{SeenSection, TestServer, subscription};

/// The notes of team `t1`.
fn notes(cursor: i64) -> Subscription {
    subscription("s", "notes", &[("team_id", &["t1"])], cursor)
}

fn resumed(token: Option<&str>, cursor: i64) -> Subscription {
    Subscription {
        bootstrap_state: token.map(Into::into),
        ..notes(cursor)
    }
}

/// The commits of a section: place, author, changes.
fn commits(server: &TestServer, section: &SeenSection) -> Vec<String> {
    let text = |commit: &tidewater_wire::CommitFrame| {
        let table = commit.tables[0].as_ref();
        let mut text = format!("{} by {}:", commit.commit_seq, commit.actor_id);
        for change in &commit.changes {
            match &change.row {
                Some(row) => {
                    let values = server.text(table, &row.row);
                    text.push_str(&format!(" {values}@{}", row.row_version));
                }
                None => text.push_str(&format!(" -{}", change.row_id)),
            }
        }
        text
    };
    section.commits.iter().map(text).collect()
}

/// The rows of inline pages: one list a page.
fn pages(server: &TestServer, section: &SeenSection) -> Vec<Vec<String>> {
    section
        .pages
        .iter()
        .map(|page| {
            let segment = page.inline();
            let row = |row: &tidewater_wire::SegmentRow| {
                format!(
                    "{}@{}",
                    server.text(&segment.table, &row.row),
                    row.server_version
                )
            };
            segment.blocks.iter().flatten().map(row).collect()
        })
        .collect()
}

/// What an image says about itself, between bars, and its rows as [`pages`] writes them.
fn image_rows(bytes: &[u8]) -> (String, Vec<String>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let image = rusqlite::Connection::open(file.path()).unwrap();
    let lines = |sql: &str, columns: usize| -> Vec<String> {
        let mut read = image.prepare(sql).unwrap();
        let line = read.query_map([], |row| {
            let cells: rusqlite::Result<Vec<Option<String>>> =
                (0..columns).map(|at| row.get(at)).collect();
            let cells = cells?.into_iter();
            let cells: Vec<String> = cells.map(|cell| cell.unwrap_or_default()).collect();
            Ok(cells.join("|"))
        });
        line.unwrap().map(Result::unwrap).collect()
    };
    let metadata = "SELECT CAST(format AS TEXT), \"table\", CAST(\"schemaVersion\" AS TEXT), \
        CAST(\"asOfCommitSeq\" AS TEXT), \"scopeDigest\", CAST(\"rowCount\" AS TEXT) \
        FROM _syncular_segment";
    let rows = "SELECT id, team_id, coalesce(body, '-') || '@' || _syncular_version FROM notes \
        ORDER BY id";
    (lines(metadata, 6).remove(0), lines(rows, 3))
}

/// An active section has a reason, a body and a cursor of its own; others have none.
#[track_caller]
fn check_inactive(section: &SeenSection, status: SubStatus, reason: &str, cursor: i64) {
    assert_eq!(section.start.status, status);
    assert_eq!(section.start.reason_code, reason);
    assert!(section.start.effective_scopes.is_empty());
    assert!(!section.start.bootstrap);
    assert!(section.commits.is_empty() && section.pages.is_empty());
    assert_eq!(section.next_cursor(), cursor);
    assert_eq!(section.token(), None);
}

#[track_caller]
fn check_reset(section: &SeenSection, cursor: i64) {
    check_inactive(section, SubStatus::Reset, "sync.cursor_expired", cursor);
}

#[track_caller]
fn check_revoked(section: &SeenSection, cursor: i64) {
    check_inactive(section, SubStatus::Revoked, "sync.scope_revoked", cursor);
}

#[track_caller]
fn check_active(section: &SeenSection, bootstrap: bool) {
    assert_eq!(section.start.status, SubStatus::Active);
    assert_eq!(section.start.reason_code, "");
    assert_eq!(section.start.bootstrap, bootstrap);
}

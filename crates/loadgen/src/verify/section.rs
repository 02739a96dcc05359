//! Holds one incremental section against the cursor and the scopes it was asked with.

use tidewater_model::ScopeFilter;

use super::{ProblemKind, Problems};
use crate::round::Section;

/// Checks the order of commits, the cursor, and that every row was asked for.
pub(crate) fn check_section(
    section: &Section,
    cursor: i64,
    asked: &ScopeFilter,
    problems: &mut Problems,
) {
    if section.start.bootstrap {
        problems.add(
            ProblemKind::WrongReply,
            format!("a bootstrap answers cursor {cursor}"),
        );
    }
    let mut last = cursor;
    for commit in &section.commits {
        if commit.commit_seq <= last {
            let text = format!("{} comes after {last}", commit.commit_seq);
            problems.add(ProblemKind::OutOfOrder, text);
        }
        last = commit.commit_seq;
        for change in &commit.changes {
            let is_asked = asked.entries().iter().all(|entry| {
                change.scopes.iter().any(|(variable, value)| {
                    *variable == entry.variable && entry.values.iter().any(|v| *value == **v)
                })
            });
            if !is_asked {
                let text = format!("{} in commit {}", change.row_id, commit.commit_seq);
                problems.add(ProblemKind::ForeignRow, text);
            }
        }
    }
    if section.end.next_cursor < last {
        let text = format!("cursor {} after commit {last}", section.end.next_cursor);
        problems.add(ProblemKind::WrongReply, text);
    }
}

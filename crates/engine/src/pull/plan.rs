//! Decides what one subscription's section is (§4.5, §4.7). Pure.
//!
//! **Invariant:** a bootstrap is answered only to a client that will clear its old rows. Every
//! known client clears the rows of a scope when it asked with cursor −1 and without a token, and
//! at no other time; a bootstrap answered to any other question leaves rows behind that were
//! deleted in the part of the log that it skips. So where the original text starts over, this
//! answers `reset`: the client comes back with −1, one round later (OQ-1).

use tidewater_model::{CommitSeq, Cursor, HorizonSeq, limits};
use tidewater_store::ScopeSize;
use tidewater_wire::{PullHeader, Subscription};

use super::bootstrap::ResumeToken;

/// What decides a subscription's section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// Whether the actor still has the scopes.
    pub(super) active: bool,
    pub(super) table: &'a str,
    /// As sent.
    pub(super) cursor: i64,
    /// As sent: not trusted.
    pub(super) resume_token: Option<&'a str>,
}

/// What a subscription is answered with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Section {
    /// The grant is gone.
    Revoked,
    /// The client's position is of no use: it starts over.
    Reset,
    /// Current rows, from the first one, with a pin of now.
    Bootstrap,
    /// Current rows, from where an earlier response stopped, at the pin of that bootstrap.
    Resume(ResumeToken),
    /// The log after a place.
    Incremental(CommitSeq),
}

/// Decides; the first line that matches wins.
pub(super) fn section(asked: &Asked<'_>, head: CommitSeq, horizon: HorizonSeq) -> Section {
    if !asked.active {
        return Section::Revoked;
    }
    if let Some(text) = asked.resume_token {
        return match ResumeToken::parse(text, asked.table, head) {
            Some(token) if token.pin >= horizon.seq() => Section::Resume(token),
            _ => Section::Reset,
        };
    }
    match Cursor::from_i64(asked.cursor) {
        Some(Cursor::Never) => Section::Bootstrap,
        Some(Cursor::At(after)) if horizon.seq() <= after && after <= head => {
            Section::Incremental(after)
        }
        Some(Cursor::At(_)) | None => Section::Reset,
    }
}

/// The furthest place in the log that a request claims to have seen. None of it is trusted: a
/// node that knows less looks again before it says that there is no such place.
pub(crate) fn furthest(subscriptions: &[Subscription]) -> CommitSeq {
    let seen = subscriptions.iter().flat_map(|subscription| {
        let token = subscription.bootstrap_state.as_deref();
        let pin = token.and_then(|text| {
            let token = ResumeToken::parse(text, &subscription.table, CommitSeq::MAX)?;
            Some(token.pin)
        });
        [CommitSeq::from_i64(subscription.cursor), pin]
    });
    seen.flatten().max().unwrap_or(CommitSeq::START)
}

/// Whether a client starts over instead of walking the log (§8.4): its scope was written by more
/// commits than the host lets it walk, and has so few rows that sending them is clearly cheaper.
/// It is told to reset, and comes back with a bootstrap that clears its rows (OQ-1).
pub(super) fn is_far_behind(size: ScopeSize, commits_max: u64) -> bool {
    size.commits > commits_max && size.rows <= commits_max / 2
}

/// How much one section may carry (§4.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Limits {
    /// Changes of an incremental section.
    pub(super) changes: usize,
    /// Rows of a snapshot page.
    pub(super) rows: usize,
    /// Snapshot pages.
    pub(super) pages: usize,
}

impl Limits {
    /// Zero asks for the default; everything else is moved into the legal range, silently.
    pub(super) fn of(header: &PullHeader) -> Self {
        Self {
            changes: clamp(
                header.limit_commits,
                limits::PULL_CHANGES_MAX,
                limits::PULL_CHANGES_MAX,
            ),
            rows: clamp(
                header.limit_snapshot_rows,
                limits::SNAPSHOT_ROWS_DEFAULT,
                limits::SNAPSHOT_ROWS_MAX,
            ),
            pages: clamp(
                header.max_snapshot_pages,
                limits::SNAPSHOT_PAGES_DEFAULT,
                limits::SNAPSHOT_PAGES_MAX,
            ),
        }
    }
}

fn clamp(asked: i32, default: i32, most: i32) -> usize {
    let granted = if asked == 0 {
        default
    } else {
        asked.clamp(1, most)
    };
    usize::try_from(granted).expect("at least 1")
}

#[cfg(test)]
mod tests {
    use tidewater_wire::Accept;

    use super::*;

    fn seq(raw: u64) -> CommitSeq {
        CommitSeq::new(raw).unwrap()
    }

    const HEAD: u64 = 20;
    const HORIZON: u64 = 10;

    #[track_caller]
    fn check(cursor: i64, resume_token: Option<&str>, expected: Section) {
        let asked = Asked {
            active: true,
            table: "notes",
            cursor,
            resume_token,
        };
        let horizon = HorizonSeq::at(seq(HORIZON));
        assert_eq!(section(&asked, seq(HEAD), horizon), expected);
        // Whatever else is true, a lost grant comes first.
        let asked = Asked {
            active: false,
            ..asked
        };
        assert_eq!(section(&asked, seq(HEAD), horizon), Section::Revoked);
    }

    fn token(pin: u64) -> String {
        ResumeToken {
            pin: seq(pin),
            row_cursor: Some("r7".to_owned()),
        }
        .format("notes")
    }

    fn resumed(pin: u64) -> Section {
        Section::Resume(ResumeToken {
            pin: seq(pin),
            row_cursor: Some("r7".to_owned()),
        })
    }

    #[test]
    fn a_cursor_between_horizon_and_head_reads_the_log() {
        check(10, None, Section::Incremental(seq(10)));
        check(15, None, Section::Incremental(seq(15)));
        check(20, None, Section::Incremental(seq(20)));
    }

    #[test]
    fn a_subscription_that_never_synced_bootstraps() {
        check(-1, None, Section::Bootstrap);
        check(i64::MIN, None, Section::Bootstrap);
    }

    #[test]
    fn a_cursor_behind_the_horizon_is_reset() {
        check(9, None, Section::Reset);
        check(0, None, Section::Reset);
    }

    // The original text bootstraps here; see OQ-1 above.
    #[test]
    fn a_cursor_from_the_future_is_reset() {
        check(21, None, Section::Reset);
        check(i64::MAX, None, Section::Reset);
    }

    #[test]
    fn a_usable_token_resumes_whatever_the_cursor_is() {
        for cursor in [-1, 0, 15, 99] {
            check(cursor, Some(&token(10)), resumed(10));
            check(cursor, Some(&token(20)), resumed(20));
        }
    }

    // The original text starts the bootstrap over here; see OQ-1 above.
    #[test]
    fn a_token_that_is_of_no_use_is_reset_even_without_a_cursor() {
        for cursor in [-1, 15] {
            check(cursor, Some(&token(9)), Section::Reset);
            check(cursor, Some(&token(21)), Section::Reset);
            check(cursor, Some("null"), Section::Reset);
            check(cursor, Some("{}"), Section::Reset);
        }
    }

    #[test]
    fn a_client_far_behind_starts_over_if_that_is_clearly_cheaper() {
        let is_far = |commits, rows| is_far_behind(ScopeSize { rows, commits }, 10);
        assert!(!is_far(10, 0));
        assert!(is_far(11, 0));
        assert!(is_far(11, 5));
        assert!(!is_far(11, 6));
        assert!(!is_far_behind(
            ScopeSize {
                rows: 0,
                commits: u64::MAX
            },
            u64::MAX
        ));
    }

    #[track_caller]
    fn check_limits(asked: (i32, i32, i32), granted: (usize, usize, usize)) {
        let header = PullHeader {
            limit_commits: asked.0,
            limit_snapshot_rows: asked.1,
            max_snapshot_pages: asked.2,
            accept: Accept::from_bits(1).unwrap(),
        };
        let limits = Limits::of(&header);
        assert_eq!((limits.changes, limits.rows, limits.pages), granted);
    }

    #[test]
    fn limits_have_defaults_and_bounds() {
        check_limits((0, 0, 0), (1_000, 1_000, 4));
        check_limits((7, 7, 7), (7, 7, 7));
        check_limits((1_000, 50_000, 50), (1_000, 50_000, 50));
        check_limits((1_001, 50_001, 51), (1_000, 50_000, 50));
        check_limits((i32::MAX, i32::MAX, i32::MAX), (1_000, 50_000, 50));
        check_limits((-1, i32::MIN, -5), (1, 1, 1));
    }
}

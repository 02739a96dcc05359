//! A device as the protocol expects one: an outbox, rows, cursors and resume tokens.
//!
//! It believes every section and complains about what no device may ever be sent: a row outside
//! of what was asked for and allowed, an active section that skips over pruned history.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use bytestring::ByteString;
use serde_json::{Map, Value};
use tidewater_model::ScopeFilter;
use tidewater_schema::Schema;
use tidewater_testkit::{
    message::{Author, Section, subscription},
    rows::row_to_json,
};
use tidewater_wire::{CommitFrame, PushCommit, RowsSegment, SubStatus, Subscription};

use super::model::{Key, Write};

/// A commit that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) commit: PushCommit,
    pub(super) writes: Vec<Write>,
}

pub(super) struct Replica {
    pub(super) author: Author,
    pub(super) actor: usize,
    pub(super) outbox: Vec<Waiting>,
    pub(super) commits_written: usize,
    subscriptions: Vec<Registered>,
    pub(super) rows: BTreeMap<Key, (i64, Map<String, Value>)>,
}

/// A subscription and how far it has come.
struct Registered {
    id: String,
    table: &'static str,
    teams: &'static [&'static str],
    cursor: i64,
    token: Option<ByteString>,
    is_revoked: bool,
}

/// What was true at the server when it answered.
pub(super) struct Truth<'a> {
    pub(super) allowed: Option<&'a BTreeSet<String>>,
    pub(super) head: i64,
    pub(super) horizon: i64,
}

impl Replica {
    pub(super) fn new(
        author: Author,
        actor: usize,
        subscriptions: &[(&'static str, &'static [&'static str])],
    ) -> Self {
        let subscriptions = subscriptions
            .iter()
            .enumerate()
            .map(|(index, &(table, teams))| Registered {
                id: format!("s{index}"),
                table,
                teams,
                cursor: -1,
                token: None,
                is_revoked: false,
            })
            .collect();
        Self {
            author,
            actor,
            outbox: Vec::new(),
            commits_written: 0,
            subscriptions,
            rows: BTreeMap::new(),
        }
    }

    /// What it asks for now.
    pub(super) fn asks(&self) -> Vec<Subscription> {
        let active = self
            .subscriptions
            .iter()
            .filter(|registered| !registered.is_revoked);
        active
            .map(|registered| {
                let Registered {
                    id,
                    table,
                    teams,
                    cursor,
                    token,
                    ..
                } = registered;
                let mut ask = subscription(id, table, "team_id", teams, *cursor);
                ask.bootstrap_state = token.clone();
                ask
            })
            .collect()
    }

    /// Asks again for what was revoked and is allowed now.
    pub(super) fn subscribe_again(&mut self, allowed: &BTreeSet<String>) {
        for registered in &mut self.subscriptions {
            if registered.is_revoked && registered.teams.iter().any(|team| allowed.contains(*team))
            {
                registered.is_revoked = false;
                registered.cursor = -1;
                registered.token = None;
            }
        }
    }

    /// Begins anew in another epoch. What waits in the outbox is all that stays.
    pub(super) fn begin_epoch(&mut self, log_epoch: ByteString) {
        self.author.log_epoch = Some(log_epoch);
        self.rows.clear();
        for registered in &mut self.subscriptions {
            registered.cursor = -1;
            registered.token = None;
        }
    }

    /// The rows it should have, of all there are.
    pub(super) fn is_interested(&self, key: &Key, team: &str) -> bool {
        self.subscriptions.iter().any(|registered| {
            !registered.is_revoked && registered.table == key.0 && registered.teams.contains(&team)
        })
    }

    /// Takes a section in. Returns whether there may be more to come.
    pub(super) fn take(
        &mut self,
        section: &Section,
        segments: &[Bytes],
        truth: &Truth<'_>,
    ) -> bool {
        let schema = self.author.schema.clone();
        let registered = self
            .subscriptions
            .iter_mut()
            .find(|registered| registered.id == section.start.id[..])
            .expect("the section is of a subscription");
        check_status(registered, section, truth);
        let end = section.end.as_ref().expect("no error came");
        match section.start.status {
            SubStatus::Revoked => {
                registered.is_revoked = true;
                self.rows.retain(|key, row| !registered.covers(key, &row.1));
                return false;
            }
            SubStatus::Reset => {
                registered.cursor = -1;
                registered.token = None;
                return true;
            }
            SubStatus::Active => {}
        }
        let begins = registered.cursor < 0 && registered.token.is_none();
        if section.start.bootstrap && begins {
            self.rows.retain(|key, row| !registered.covers(key, &row.1));
        }
        let mut rows = Vec::new();
        for segment in segments {
            read_segment(&schema, registered, segment, &mut rows);
        }
        for commit in &section.commits {
            assert!(registered.cursor < commit.commit_seq && commit.commit_seq <= truth.head);
            read_commit(&schema, registered, commit, &mut rows);
        }
        let more = !section.commits.is_empty() || end.bootstrap_state.is_some();
        registered.cursor = end.next_cursor;
        registered.token = end.bootstrap_state.clone();
        for (key, row) in rows {
            match row {
                Some(row) => {
                    check_allowed(&row.1, truth);
                    self.rows.insert(key, row);
                }
                None => {
                    self.rows.remove(&key);
                }
            }
        }
        more
    }
}

impl Registered {
    fn covers(&self, key: &Key, values: &Map<String, Value>) -> bool {
        key.0 == self.table
            && values["team_id"]
                .as_str()
                .is_some_and(|team| self.teams.contains(&team))
    }
}

/// The status follows from what is allowed, the cursor and the horizon, and from nothing else.
fn check_status(registered: &Registered, section: &Section, truth: &Truth<'_>) {
    let start = &section.start;
    let allows = |team: &&str| truth.allowed.is_some_and(|allowed| allowed.contains(*team));
    let expected = if !registered.teams.iter().any(allows) {
        SubStatus::Revoked
    } else if registered.token.is_some() {
        // The pin is the cursor of an unfinished bootstrap.
        if registered.cursor < truth.horizon {
            SubStatus::Reset
        } else {
            SubStatus::Active
        }
    } else if (0..truth.horizon).contains(&registered.cursor) {
        SubStatus::Reset
    } else {
        SubStatus::Active
    };
    assert_eq!(
        start.status, expected,
        "{start:?}, cursor {}",
        registered.cursor
    );
    let begins = registered.cursor < 0 || registered.token.is_some();
    assert_eq!(start.bootstrap, expected == SubStatus::Active && begins);
    if expected == SubStatus::Active {
        let asked = subscription("", registered.table, "team_id", registered.teams, 0).scopes;
        assert_eq!(start.effective_scopes, asked);
    } else {
        assert_eq!(start.effective_scopes, ScopeFilter::default());
    }
}

/// Rows in the order they are to be applied, `None` for a delete.
type Rows = Vec<(Key, Option<(i64, Map<String, Value>)>)>;

fn read_segment(schema: &Schema, registered: &Registered, segment: &Bytes, rows: &mut Rows) {
    let segment = RowsSegment::decode(segment).unwrap();
    assert_eq!(segment.table, registered.table);
    let table = schema.table(schema.find(&segment.table).unwrap());
    for row in segment.blocks.concat() {
        let values = row_to_json(table, &row.row).unwrap();
        let key = (
            segment.table.clone(),
            values["id"].as_str().unwrap().to_owned(),
        );
        assert!(
            registered.covers(&key, &values),
            "{key:?} was not asked for"
        );
        rows.push((key, Some((row.server_version, values))));
    }
}

fn read_commit(schema: &Schema, registered: &Registered, commit: &CommitFrame, rows: &mut Rows) {
    assert_eq!(commit.tables, [registered.table]);
    let table = schema.table(schema.find(registered.table).unwrap());
    for change in &commit.changes {
        let key = (registered.table.to_owned(), change.row_id.to_string());
        let team = &change.scopes[0].1;
        assert!(
            registered.teams.contains(&&team[..]),
            "{key:?} was not asked for"
        );
        let row = change.row.as_ref().map(|row| {
            let values = row_to_json(table, &row.row).unwrap();
            assert!(
                registered.covers(&key, &values),
                "{key:?} was not asked for"
            );
            (row.row_version, values)
        });
        rows.push((key, row));
    }
}

/// Nobody is sent a row that the resolver does not allow at this moment.
fn check_allowed(values: &Map<String, Value>, truth: &Truth<'_>) {
    let team = values["team_id"].as_str().unwrap();
    assert!(
        truth.allowed.is_some_and(|allowed| allowed.contains(team)),
        "{values:?}"
    );
}

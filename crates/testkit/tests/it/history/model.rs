//! The rules of a push, written down a second time (§2.2, §2.3, §6.2, §6.3, §4.6).
//!
//! Rows are JSON and everything is a map: slow, obvious, and sharing nothing with the engine but
//! the schema. What a pull delivers is not here; devices find out whether it adds up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use tidewater_schema::{Schema, Table};
use tidewater_testkit::rows::full_row;
use tidewater_wire::{OpResult, PushOutcome, PushResult, WireVersion, row::presence_bitmap};

/// Table and row id.
pub(super) type Key = (String, String);

/// A row as the model keeps it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) version: i64,
    pub(super) values: Map<String, Value>,
    /// The version of each column's last write.
    columns: BTreeMap<String, i64>,
}

impl Row {
    pub(super) fn team(&self) -> &str {
        self.values["team_id"].as_str().unwrap()
    }
}

/// One write, as its author meant it.
#[derive(Clone, Debug)]
pub(super) enum Intent {
    /// The columns present; all of them before wire version 3.
    Upsert {
        values: Map<String, Value>,
        base: Option<i64>,
    },
    Delete,
    UnknownTable,
    /// Not a row of the table.
    Unreadable,
}

#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) key: Key,
    pub(super) intent: Intent,
}

/// What is to become of a commit.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    Applied {
        place: i64,
        operations: usize,
    },
    Conflict {
        op_index: usize,
        version: i64,
        row: Vec<u8>,
        columns: Vec<u8>,
    },
    Error {
        op_index: usize,
        code: &'static str,
    },
}

#[derive(Clone, Debug)]
struct Tombstone {
    place: i64,
    team: String,
}

/// What is known about a client: its cursor and when it was last here.
#[derive(Clone, Copy, Debug)]
struct Seen {
    cursor: Option<i64>,
    at_ms: i64,
}

/// Who asks, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker<'a> {
    pub(super) client: usize,
    pub(super) version: WireVersion,
    /// The teams allowed; `None` when the resolver fails.
    pub(super) allowed: Option<&'a BTreeSet<String>>,
}

/// The server, as the protocol describes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) rows: BTreeMap<Key, Row>,
    pub(super) head: i64,
    pub(super) horizon: i64,
    /// When each commit was made, from the first on.
    created_at_ms: Vec<i64>,
    tombstones: BTreeMap<Key, Tombstone>,
    outcomes: BTreeMap<(usize, String), Outcome>,
    clients: BTreeMap<usize, Seen>,
}

impl Model {
    /// Decides one commit, or replays it. Returns the outcome and whether it is a replay.
    pub(super) fn push(
        &mut self,
        schema: &Schema,
        asker: Asker<'_>,
        id: &str,
        writes: &[Write],
        now_ms: i64,
    ) -> (Outcome, bool) {
        let key = (asker.client, id.to_owned());
        if let Some(outcome) = self.outcomes.get(&key) {
            return (outcome.clone(), true);
        }
        let outcome = self.decide(schema, asker, writes, now_ms);
        self.outcomes.insert(key, outcome.clone());
        (outcome, false)
    }

    fn decide(
        &mut self,
        schema: &Schema,
        asker: Asker<'_>,
        writes: &[Write],
        now_ms: i64,
    ) -> Outcome {
        let mut rows = self.rows.clone();
        let mut touched = BTreeSet::new();
        // The team of each row that the commit deleted, the last time it did.
        let mut deleted = BTreeMap::new();
        for (op_index, write) in writes.iter().enumerate() {
            let before = rows.get(&write.key).cloned();
            match self.decide_one(schema, asker, write, before.as_ref(), &touched) {
                Ok(None) => {
                    if let Some(row) = rows.remove(&write.key) {
                        deleted.insert(write.key.clone(), row.team().to_owned());
                        touched.insert(write.key.clone());
                    }
                }
                Ok(Some(row)) => {
                    rows.insert(write.key.clone(), row);
                    touched.insert(write.key.clone());
                }
                Err(Refused::Code(code)) => return Outcome::Error { op_index, code },
                Err(Refused::Conflict(columns)) => {
                    let row = before.expect("only a row that exists conflicts");
                    let table = schema.table(schema.find(&write.key.0).unwrap());
                    let payload = full_row(table, &Value::Object(row.values)).unwrap();
                    let bitmap = if asker.version.is_sparse() {
                        presence_bitmap(table.columns.len(), columns)
                    } else {
                        Vec::new()
                    };
                    return Outcome::Conflict {
                        op_index,
                        version: row.version,
                        row: payload,
                        columns: bitmap,
                    };
                }
            }
        }
        self.head += 1;
        self.created_at_ms.push(now_ms);
        for key in touched {
            if rows.contains_key(&key) {
                self.tombstones.remove(&key);
            } else if let Some(team) = deleted.remove(&key) {
                // Also when the commit itself had inserted the row (§2.2).
                let place = self.head;
                self.tombstones.insert(key, Tombstone { place, team });
            }
        }
        self.rows = rows;
        Outcome::Applied {
            place: self.head,
            operations: writes.len(),
        }
    }

    /// The row after one operation, `None` if there is none, or why it is refused.
    fn decide_one(
        &self,
        schema: &Schema,
        asker: Asker<'_>,
        write: &Write,
        before: Option<&Row>,
        touched: &BTreeSet<Key>,
    ) -> Result<Option<Row>, Refused> {
        if matches!(write.intent, Intent::UnknownTable) {
            return Err(Refused::Code("sync.unknown_table"));
        }
        let Some(allowed) = asker.allowed else {
            return Err(Refused::Code("sync.forbidden"));
        };
        let table = schema.table(schema.find(&write.key.0).unwrap());
        match (&write.intent, before) {
            (Intent::UnknownTable | Intent::Unreadable, _) => {
                Err(Refused::Code("sync.invalid_request"))
            }
            (Intent::Delete, None) => Ok(None),
            (_, Some(row)) if !allowed.contains(row.team()) => Err(Refused::Code("sync.forbidden")),
            (Intent::Delete, Some(_)) => Ok(None),
            (Intent::Upsert { values, base }, Some(row)) if asker.version.is_sparse() => {
                update_columns(table, row, values, *base).map(Some)
            }
            (Intent::Upsert { values, base }, Some(row)) => replace(row, values, *base).map(Some),
            (Intent::Upsert { values, base }, None) => {
                // A delete of the same commit is not yet a tombstone.
                let tombstone = self
                    .tombstones
                    .get(&write.key)
                    .filter(|found| found.place > self.horizon);
                let tombstone = tombstone.filter(|_| !touched.contains(&write.key));
                insert(asker.version, table, allowed, values, *base, tombstone).map(Some)
            }
        }
    }

    /// The server after it was put back to this state: it has never seen a client (§2.1).
    pub(super) fn restored(&self) -> Self {
        Self {
            clients: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Notes that a client was here; `cursor` is that of its pull, if it had an active section.
    pub(super) fn note_client(&mut self, client: usize, cursor: Option<i64>, at_ms: i64) {
        let before = self.clients.get(&client).and_then(|seen| seen.cursor);
        self.clients.insert(
            client,
            Seen {
                cursor: cursor.or(before),
                at_ms,
            },
        );
    }

    /// Prunes, with the default windows, and returns the horizon.
    pub(super) fn prune(&mut self, retained: u64, now_ms: i64) -> i64 {
        const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
        let retained = (self.head - i64::try_from(retained).unwrap()).max(0);
        let active = self
            .clients
            .values()
            .filter(|seen| seen.at_ms >= now_ms - 14 * DAY_MS);
        let floor = active.filter_map(|seen| seen.cursor).min();
        let old = |at_ms: &&i64| **at_ms < now_ms - 30 * DAY_MS;
        let forced = self.created_at_ms.iter().take_while(old).count();
        let wanted = match floor {
            Some(floor) => floor.max(i64::try_from(forced).unwrap()).min(retained),
            None => retained,
        };
        self.horizon = self.horizon.max(wanted);
        self.tombstones
            .retain(|_, tombstone| tombstone.place > self.horizon);
        self.horizon
    }
}

/// Why an operation ends its commit.
enum Refused {
    Code(&'static str),
    /// The columns at these positions conflict.
    Conflict(Vec<usize>),
}

/// Wire version 3 on a row that exists: the columns present are compared and written.
fn update_columns(
    table: &Table,
    row: &Row,
    values: &Map<String, Value>,
    base: Option<i64>,
) -> Result<Row, Refused> {
    if values
        .get("team_id")
        .is_some_and(|team| *team != row.values["team_id"])
    {
        return Err(Refused::Code("sync.invalid_request"));
    }
    let written = values.keys().filter(|name| *name != "id");
    if let Some(base) = base {
        if base > row.version {
            return Err(Refused::Code("sync.invalid_request"));
        }
        let moved = written
            .clone()
            .filter(|name| base == 0 || row.columns[*name] > base);
        let moved: Vec<usize> = moved.map(|name| table.column(name).unwrap()).collect();
        if base == 0 || !moved.is_empty() {
            return Err(Refused::Conflict(moved));
        }
    }
    let mut row = row.clone();
    row.version += 1;
    for name in written {
        row.values[name] = values[name].clone();
        row.columns.insert(name.clone(), row.version);
    }
    Ok(row)
}

/// Wire versions 1 and 2 on a row that exists: the row is compared and replaced.
fn replace(row: &Row, values: &Map<String, Value>, base: Option<i64>) -> Result<Row, Refused> {
    if base.is_some_and(|base| base != row.version) {
        return Err(Refused::Conflict(Vec::new()));
    }
    let mut row = row.clone();
    row.version += 1;
    for (name, value) in values {
        if name != "id" && name != "team_id" && row.values[name] != *value {
            row.values[name] = value.clone();
            row.columns.insert(name.clone(), row.version);
        }
    }
    Ok(row)
}

/// A row that does not exist.
fn insert(
    version: WireVersion,
    table: &Table,
    allowed: &BTreeSet<String>,
    values: &Map<String, Value>,
    base: Option<i64>,
    tombstone: Option<&Tombstone>,
) -> Result<Row, Refused> {
    let team = values.get("team_id").and_then(Value::as_str);
    let permitted = team.is_some_and(|team| allowed.contains(team));
    if base.is_some_and(|base| base != 0) {
        let code = if permitted {
            "sync.row_missing"
        } else {
            "sync.forbidden"
        };
        return Err(Refused::Code(code));
    }
    if version.is_sparse()
        && base.is_none()
        && let Some(tombstone) = tombstone
    {
        let known = allowed.contains(&tombstone.team);
        let code = if known {
            "sync.row_deleted"
        } else {
            "sync.forbidden"
        };
        return Err(Refused::Code(code));
    }
    if values.len() < table.columns.len() {
        return Err(Refused::Code("sync.row_missing"));
    }
    if !permitted {
        return Err(Refused::Code("sync.forbidden"));
    }
    let columns = values.keys().map(|name| (name.clone(), 1)).collect();
    Ok(Row {
        version: 1,
        values: values.clone(),
        columns,
    })
}

/// Compares what the server said with what the model says.
#[track_caller]
pub(super) fn assert_result(result: &PushResult, expected: &Outcome, is_replay: bool) {
    let seen = match (&result.outcome, &result.results[..]) {
        (PushOutcome::Applied(place) | PushOutcome::Cached(place), results) => {
            let is_cached = matches!(result.outcome, PushOutcome::Cached(_));
            assert_eq!(is_cached, is_replay, "{result:?}");
            for (index, record) in results.iter().enumerate() {
                let op_index = i32::try_from(index).unwrap();
                assert_eq!(*record, OpResult::Applied { op_index });
            }
            Outcome::Applied {
                place: *place,
                operations: results.len(),
            }
        }
        (
            PushOutcome::Rejected,
            [
                OpResult::Conflict {
                    op_index,
                    code,
                    server_version,
                    server_row,
                    conflict_columns,
                    ..
                },
            ],
        ) => {
            assert_eq!(code, "sync.version_conflict");
            Outcome::Conflict {
                op_index: usize::try_from(*op_index).unwrap(),
                version: *server_version,
                row: server_row.to_vec(),
                columns: conflict_columns.to_vec(),
            }
        }
        (
            PushOutcome::Rejected,
            [
                OpResult::Error {
                    op_index,
                    code,
                    retryable,
                    ..
                },
            ],
        ) => {
            assert!(!retryable);
            let op_index = usize::try_from(*op_index).unwrap();
            let Outcome::Error { code: expected, .. } = expected else {
                panic!("{result:?} and not {expected:?}")
            };
            assert_eq!(code, expected, "{result:?}");
            Outcome::Error {
                op_index,
                code: expected,
            }
        }
        (PushOutcome::Rejected, other) => panic!("a rejection has one record: {other:?}"),
    };
    assert_eq!(seen, *expected);
}

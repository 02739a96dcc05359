//! What a push does, written down once more and as plainly as possible (§2.2, §2.3, §6).
//!
//! One commit after another on maps of rows, references by looking at every row. Shares no code
//! with the engine but the merger of Yjs documents.

use std::collections::{BTreeMap, BTreeSet};

use tidewater_engine::{CrdtMerger, YjsMerger};

use super::plan::{Cell, Intent, Kind, Payload, Rule, Shape, Slot};

/// A row's place: table and key.
pub(crate) type Key = (usize, String);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) version: i64,
    pub(crate) team: String,
    pub(crate) cells: Vec<Option<Cell>>,
    pub(crate) column_versions: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Upsert(Key, Row),
    Delete(Key, String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Applied(u64),
    Rejected(Box<Refusal>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) op_index: usize,
    pub(crate) code: &'static str,
    pub(crate) details: Option<String>,
    pub(crate) conflict: Option<Conflict>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Conflict {
    pub(crate) row: Row,
    pub(crate) columns: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Partition {
    pub(crate) rows: BTreeMap<Key, Row>,
    pub(crate) tombstones: BTreeMap<Key, (u64, String)>,
    pub(crate) log: Vec<Vec<Change>>,
    outcomes: BTreeMap<(String, String), Outcome>,
    clients: BTreeMap<String, String>,
}

/// Everything a commit did to its partition before it is recorded.
struct Effect {
    rows: BTreeMap<Key, Row>,
    changes: Vec<Change>,
}

/// Who pushes, and how.
pub(crate) struct Author<'a> {
    pub(crate) actor: &'a str,
    pub(crate) client: &'a str,
    /// `None` is every team.
    pub(crate) team: Option<&'a str>,
    pub(crate) sparse: bool,
}

impl Author<'_> {
    fn may(&self, team: &str) -> bool {
        self.team.is_none_or(|own| own == team)
    }
}

fn refusal(op_index: usize, code: &'static str) -> Box<Refusal> {
    Box::new(Refusal {
        op_index,
        code,
        details: None,
        conflict: None,
    })
}

impl Partition {
    /// Pushes the commits of one request; an error is one of the request.
    pub(crate) fn push(
        &mut self,
        schema: &[Shape],
        limit: usize,
        author: &Author<'_>,
        commits: &[(String, Vec<Intent>)],
    ) -> Result<Vec<Outcome>, &'static str> {
        if self
            .clients
            .get(author.client)
            .is_some_and(|actor| actor != author.actor)
        {
            return Err("sync.invalid_client_id");
        }
        self.clients
            .insert(author.client.to_owned(), author.actor.to_owned());
        let mut outcomes = Vec::new();
        for (id, intents) in commits {
            let key = (author.client.to_owned(), id.clone());
            let outcome = match self.outcomes.get(&key) {
                Some(outcome) => outcome.clone(),
                None => self.commit(schema, limit, author, intents),
            };
            self.outcomes.insert(key, outcome.clone());
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    fn commit(
        &mut self,
        schema: &[Shape],
        limit: usize,
        author: &Author<'_>,
        intents: &[Intent],
    ) -> Outcome {
        let mut run = Run {
            schema,
            limit,
            author,
            before: &self.rows,
            rows: self.rows.clone(),
            tombstones: self.tombstones.clone(),
            changes: Vec::new(),
            touched: Vec::new(),
            blame: BTreeMap::new(),
        };
        let done = intents
            .iter()
            .enumerate()
            .try_for_each(|(index, intent)| run.operation(index, intent))
            .and_then(|()| run.references());
        if let Err(refusal) = done {
            return Outcome::Rejected(refusal);
        }
        let Run { rows, changes, .. } = run;
        self.record(Effect { rows, changes })
    }

    fn record(&mut self, effect: Effect) -> Outcome {
        self.rows = effect.rows;
        let seq = u64::try_from(self.log.len()).unwrap() + 1;
        for change in &effect.changes {
            match change {
                Change::Upsert(key, _) => self.tombstones.remove(key),
                Change::Delete(key, team) => {
                    self.tombstones.insert(key.clone(), (seq, team.clone()))
                }
            };
        }
        self.log.push(effect.changes);
        Outcome::Applied(seq)
    }
}

struct Run<'a> {
    schema: &'a [Shape],
    limit: usize,
    author: &'a Author<'a>,
    before: &'a BTreeMap<Key, Row>,
    rows: BTreeMap<Key, Row>,
    /// Of earlier commits, as far as no insert of this one cleared them.
    tombstones: BTreeMap<Key, (u64, String)>,
    changes: Vec<Change>,
    touched: Vec<Key>,
    /// The last operation that did something to a row.
    blame: BTreeMap<Key, usize>,
}

impl Run<'_> {
    fn operation(&mut self, index: usize, intent: &Intent) -> Result<(), Box<Refusal>> {
        let Some(table) = intent.table else {
            return Err(refusal(index, "sync.unknown_table"));
        };
        let key = (table, intent.row_id.clone());
        if !self.touched.contains(&key) {
            self.touched.push(key.clone());
        }
        let stored = self.rows.get(&key).cloned();
        let (id, slots) = match &intent.payload {
            Payload::Delete => return self.delete(index, key, stored),
            Payload::Garbage => return Err(refusal(index, "sync.invalid_request")),
            Payload::Row(id, slots) => (id, slots),
        };
        let shape = &self.schema[table];
        let undecodable = shape
            .columns
            .iter()
            .zip(slots)
            .skip(1)
            .any(|(column, slot)| {
                let is_null = match slot {
                    Slot::Absent => !self.author.sparse,
                    Slot::Null => true,
                    Slot::Value(_) => false,
                };
                is_null && !column.nullable
            });
        if undecodable || *id != intent.row_id {
            return Err(refusal(index, "sync.invalid_request"));
        }
        let row = match &stored {
            Some(stored) if self.author.sparse => {
                self.patch(index, shape, stored, slots, intent.base)
            }
            Some(stored) => self.replace(index, shape, stored, slots, intent.base),
            None => self.insert(index, &key, shape, slots, intent.base),
        }?;
        if stored.is_none() {
            self.tombstones.remove(&key);
        }
        self.blame.insert(key.clone(), index);
        self.write(index, key, row)
    }

    fn delete(&mut self, index: usize, key: Key, stored: Option<Row>) -> Result<(), Box<Refusal>> {
        let Some(stored) = stored else { return Ok(()) };
        if !self.author.may(&stored.team) {
            return Err(refusal(index, "sync.forbidden"));
        }
        self.blame.insert(key.clone(), index);
        self.rows.remove(&key);
        self.changes.push(Change::Delete(key, stored.team));
        Ok(())
    }

    /// Writes a row and looks at every other for what must be unique.
    fn write(&mut self, index: usize, key: Key, row: Row) -> Result<(), Box<Refusal>> {
        for columns in &self.schema[key.0].unique {
            let taken = self.rows.iter().any(|(other, stored)| {
                other.0 == key.0
                    && other.1 != key.1
                    && columns.iter().all(|&column| {
                        row.cells[column].is_some() && row.cells[column] == stored.cells[column]
                    })
            });
            if taken {
                return Err(refusal(index, "sync.constraint_violation"));
            }
        }
        self.changes.push(Change::Upsert(key.clone(), row.clone()));
        self.rows.insert(key, row);
        Ok(())
    }

    /// Wire version 3, the row exists.
    fn patch(
        &self,
        index: usize,
        shape: &Shape,
        stored: &Row,
        slots: &[Slot],
        base: Option<i64>,
    ) -> Result<Row, Box<Refusal>> {
        if !self.author.may(&stored.team) {
            return Err(refusal(index, "sync.forbidden"));
        }
        if let Slot::Value(team) = &slots[1]
            && *team != Cell::Text(stored.team.clone())
        {
            return Err(refusal(index, "sync.invalid_request"));
        }
        if let Some(base) = base {
            if base > stored.version {
                return Err(refusal(index, "sync.invalid_request"));
            }
            let columns: Vec<usize> = (1..slots.len())
                .filter(|&column| slots[column] != Slot::Absent)
                .filter(|&column| !shape.columns[column].kind.is_crdt())
                .filter(|&column| base == 0 || stored.column_versions[column] > base)
                .collect();
            if base == 0 || !columns.is_empty() {
                return Err(conflict(index, stored, columns));
            }
        }
        let mut row = stored.clone();
        row.version += 1;
        for (column, slot) in slots.iter().enumerate().skip(1) {
            let cell = match slot {
                Slot::Absent => continue,
                Slot::Null => None,
                Slot::Value(cell) => Some(cell),
            };
            row.cells[column] = self.merged(index, shape, column, &stored.cells[column], cell)?;
            row.column_versions[column] = row.version;
        }
        Ok(row)
    }

    /// Wire versions 1 and 2, the row exists.
    fn replace(
        &self,
        index: usize,
        shape: &Shape,
        stored: &Row,
        slots: &[Slot],
        base: Option<i64>,
    ) -> Result<Row, Box<Refusal>> {
        if !self.author.may(&stored.team) {
            return Err(refusal(index, "sync.forbidden"));
        }
        if base.is_some_and(|base| base != stored.version) {
            let columns = (1..slots.len())
                .filter(|&column| !shape.columns[column].kind.is_crdt())
                .collect();
            return Err(conflict(index, stored, columns));
        }
        let mut row = stored.clone();
        row.version += 1;
        for (column, slot) in slots.iter().enumerate().skip(2) {
            let cell = match slot {
                Slot::Absent | Slot::Null => None,
                Slot::Value(cell) => Some(cell),
            };
            row.cells[column] = self.merged(index, shape, column, &stored.cells[column], cell)?;
            if row.cells[column] != stored.cells[column] {
                row.column_versions[column] = row.version;
            }
        }
        Ok(row)
    }

    fn insert(
        &self,
        index: usize,
        key: &Key,
        shape: &Shape,
        slots: &[Slot],
        base: Option<i64>,
    ) -> Result<Row, Box<Refusal>> {
        let team = match &slots[1] {
            Slot::Value(Cell::Text(team)) => Some(team.clone()),
            _ => None,
        };
        let may = team.as_ref().is_some_and(|team| self.author.may(team));
        if base.is_some_and(|base| base != 0) {
            let code = if may {
                "sync.row_missing"
            } else {
                "sync.forbidden"
            };
            return Err(refusal(index, code));
        }
        if self.author.sparse {
            if let (None, Some((_, team))) = (base, self.tombstones.get(key)) {
                let known = self.author.may(team);
                return Err(refusal(
                    index,
                    if known {
                        "sync.row_deleted"
                    } else {
                        "sync.forbidden"
                    },
                ));
            }
            if slots.contains(&Slot::Absent) {
                return Err(refusal(index, "sync.row_missing"));
            }
        }
        let Some(team) = team.filter(|_| may) else {
            return Err(refusal(index, "sync.forbidden"));
        };
        let mut cells = Vec::new();
        for (column, slot) in slots.iter().enumerate() {
            let cell = match slot {
                Slot::Absent | Slot::Null => None,
                Slot::Value(cell) => Some(cell),
            };
            cells.push(self.merged(index, shape, column, &None, cell)?);
        }
        let column_versions = vec![1; cells.len()];
        Ok(Row {
            version: 1,
            team,
            cells,
            column_versions,
        })
    }

    fn merged(
        &self,
        index: usize,
        shape: &Shape,
        column: usize,
        stored: &Option<Cell>,
        incoming: Option<&Cell>,
    ) -> Result<Option<Cell>, Box<Refusal>> {
        let Some(incoming) = incoming else {
            return Ok(None);
        };
        let Cell::Bytes(incoming) = incoming else {
            return Ok(Some(incoming.clone()));
        };
        let stored = match stored {
            Some(Cell::Bytes(bytes)) => Some(bytes.as_slice()),
            _ => None,
        };
        let merged = match shape.columns[column].kind {
            Kind::Set => union(stored.unwrap_or_default(), incoming),
            _ => YjsMerger.merge(stored, incoming).ok(),
        };
        match merged {
            Some(merged) => Ok(Some(Cell::Bytes(merged))),
            None => Err(refusal(index, "sync.crdt_merge_failed")),
        }
    }

    fn parent_of(&self, key: &Key, row: &Row, reference: usize) -> Option<Key> {
        let (column, parent, _) = self.schema[key.0].references[reference];
        let cell = row.cells[column].as_ref()?;
        Some((parent, cell.text()))
    }

    fn references(&mut self) -> Result<(), Box<Refusal>> {
        let mut gone: Vec<Key> = Vec::new();
        for key in &self.touched {
            if self.before.contains_key(key) && !self.rows.contains_key(key) {
                gone.push(key.clone());
            }
        }
        self.check_parents(&gone)?;
        let mut origin: BTreeMap<Key, usize> = gone
            .iter()
            .map(|key| (key.clone(), self.blame[key]))
            .collect();
        let cascaded = self.cascade(&mut gone, &mut origin)?;
        self.check_restricted(&gone, &origin)?;
        let nulled = self.lose(&gone, &origin, cascaded.len())?;
        for key in cascaded {
            let row = self.rows.remove(&key).unwrap();
            self.changes.push(Change::Delete(key, row.team));
        }
        for (key, columns) in nulled {
            let mut row = self.rows[&key].clone();
            row.version += 1;
            for column in columns {
                row.cells[column] = None;
                row.column_versions[column] = row.version;
            }
            self.changes.push(Change::Upsert(key.clone(), row.clone()));
            self.rows.insert(key, row);
        }
        Ok(())
    }

    fn check_parents(&self, gone: &[Key]) -> Result<(), Box<Refusal>> {
        for key in &self.touched {
            let Some(row) = self.rows.get(key) else {
                continue;
            };
            for reference in 0..self.schema[key.0].references.len() {
                let Some(parent) = self.parent_of(key, row, reference) else {
                    continue;
                };
                let was = self
                    .before
                    .get(key)
                    .and_then(|row| self.parent_of(key, row, reference));
                let counts = was.as_ref() != Some(&parent) || gone.contains(&parent);
                if counts && !self.rows.contains_key(&parent) {
                    let (column, table, _) = self.schema[key.0].references[reference];
                    let details = format!(
                        r#"{{"fieldPaths":["{}"],"reason":"missing_parent","references":{{"parent":"{}","row":"{}"}}}}"#,
                        self.schema[key.0].columns[column].name, self.schema[table].name, parent.1
                    );
                    return Err(violation(self.blame[key], details));
                }
            }
        }
        Ok(())
    }

    /// Children of these rows through references with this rule, in the order they are visited.
    fn children(&self, parents: &[Key], rule: Rule) -> Vec<(Key, usize, Key)> {
        let mut found = Vec::new();
        for (table, shape) in self.schema.iter().enumerate() {
            for (reference, (column, _, on_delete)) in shape.references.iter().enumerate() {
                if *on_delete != rule {
                    continue;
                }
                for parent in parents {
                    for (key, row) in &self.rows {
                        if key.0 == table
                            && self.parent_of(key, row, reference).as_ref() == Some(parent)
                        {
                            found.push((key.clone(), *column, parent.clone()));
                        }
                    }
                }
            }
        }
        found
    }

    fn cascade(
        &self,
        gone: &mut Vec<Key>,
        origin: &mut BTreeMap<Key, usize>,
    ) -> Result<Vec<Key>, Box<Refusal>> {
        let mut cascaded = Vec::new();
        let mut level = gone.clone();
        while !level.is_empty() {
            let mut next = Vec::new();
            for (child, _, parent) in self.children(&level, Rule::Cascade) {
                if gone.contains(&child) {
                    continue;
                }
                let blamed = origin[&parent];
                if cascaded.len() == self.limit {
                    return Err(too_many(blamed));
                }
                origin.insert(child.clone(), blamed);
                gone.push(child.clone());
                cascaded.push(child.clone());
                next.push(child);
            }
            level = next;
        }
        Ok(cascaded)
    }

    fn check_restricted(
        &self,
        gone: &[Key],
        origin: &BTreeMap<Key, usize>,
    ) -> Result<(), Box<Refusal>> {
        for (child, _, parent) in self.children(gone, Rule::Restrict) {
            if !gone.contains(&child) {
                let name = &self.schema[child.0].name;
                let details = format!(
                    r#"{{"reason":"restricted_delete","references":{{"child":"{name}"}}}}"#
                );
                return Err(violation(origin[&parent], details));
            }
        }
        Ok(())
    }

    fn lose(
        &self,
        gone: &[Key],
        origin: &BTreeMap<Key, usize>,
        already: usize,
    ) -> Result<Vec<(Key, BTreeSet<usize>)>, Box<Refusal>> {
        let mut nulled: Vec<(Key, BTreeSet<usize>)> = Vec::new();
        for (child, column, parent) in self.children(gone, Rule::SetNull) {
            if gone.contains(&child) {
                continue;
            }
            if let Some((_, columns)) = nulled.iter_mut().find(|(key, _)| *key == child) {
                columns.insert(column);
                continue;
            }
            if already + nulled.len() == self.limit {
                return Err(too_many(origin[&parent]));
            }
            nulled.push((child, BTreeSet::from([column])));
        }
        Ok(nulled)
    }
}

fn violation(op_index: usize, details: String) -> Box<Refusal> {
    let mut refusal = refusal(op_index, "sync.reference_violation");
    refusal.details = Some(details);
    refusal
}

fn too_many(op_index: usize) -> Box<Refusal> {
    violation(op_index, r#"{"reason":"cascade_limit"}"#.to_owned())
}

fn conflict(op_index: usize, stored: &Row, columns: Vec<usize>) -> Box<Refusal> {
    let mut refusal = refusal(op_index, "sync.version_conflict");
    refusal.conflict = Some(Conflict {
        row: stored.clone(),
        columns,
    });
    refusal
}

/// The union of two sets of words.
fn union(left: &[u8], right: &[u8]) -> Option<Vec<u8>> {
    let mut words = BTreeSet::new();
    for set in [left, right] {
        words.extend(
            str::from_utf8(set)
                .ok()?
                .split(',')
                .filter(|word| !word.is_empty()),
        );
    }
    Some(words.into_iter().collect::<Vec<_>>().join(",").into_bytes())
}

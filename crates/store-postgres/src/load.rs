//! Loads what a write transaction decides from: every question is sent at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidewater_model::PartitionId;
use tidewater_store::{
    ClientRecord, LoadRequest, Loaded, PushKey, RowKey, StoreError, StoredResult, StoredRow,
    Tombstone, outcome,
};
use tokio_postgres::Row;

use crate::{
    clients,
    error::{corrupt, get},
    gate::{self, place},
    layout::Layout,
    params::{Param, Step},
    scopes::ScopesReader,
};

const DURING: &str = "load rows";

/// The least that is not before it, as in `statements`.
const TOMBSTONES: &str = "SELECT q.place, t.commit_seq, t.scopes::text \
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY \
    AS q (partition, tbl, row_id, place) \
    CROSS JOIN LATERAL (SELECT * FROM sync_tombstones s WHERE s.partition = q.partition \
    AND s.tbl = q.tbl AND s.row_id >= q.row_id ORDER BY s.row_id LIMIT 1) t \
    WHERE t.row_id = q.row_id AND t.commit_seq > coalesce((SELECT horizon_seq FROM sync_partitions p \
    WHERE p.partition = q.partition), 0)";

const RESULTS: &str = "SELECT q.place, r.result::text \
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY \
    AS q (partition, client_id, client_commit_id, place) \
    JOIN sync_push_results r ON r.partition = q.partition AND r.client_id = q.client_id \
    AND r.client_commit_id = q.client_commit_id";

/// The questions of a request, and how to read the answers.
pub(crate) struct Questions<'a> {
    wanted: &'a LoadRequest,
    /// For each table, the places of its keys.
    tables: BTreeMap<usize, Vec<usize>>,
}

impl<'a> Questions<'a> {
    pub(crate) fn new(wanted: &'a LoadRequest) -> Self {
        Self {
            wanted,
            tables: by_table(&wanted.rows),
        }
    }

    /// The steps, without those that lock.
    pub(crate) fn steps(&self, layout: &'a Layout) -> Vec<Step<'a>> {
        let wanted = self.wanted;
        let mut steps = Vec::new();
        if !wanted.partitions.is_empty() {
            let names: Vec<&PartitionId> = wanted.partitions.iter().collect();
            steps.push(gate::read(&names));
        }
        steps.extend(row_steps(layout, &wanted.rows, &self.tables));
        if !wanted.rows.is_empty() {
            let keys = held(&wanted.rows);
            let names = keys.iter().map(|key| layout.table(key.table).name());
            let names = names.collect();
            steps.push(Step::new(
                TOMBSTONES,
                vec![
                    Param::texts(keys.iter().map(|key| key.partition.as_str()).collect()),
                    Param::texts(names),
                    Param::texts(keys.iter().map(|key| &*key.row_id).collect()),
                ],
            ));
        }
        if !wanted.push_results.is_empty() {
            steps.push(results(&wanted.push_results));
        }
        if !wanted.clients.is_empty() {
            steps.push(clients::find(&wanted.clients));
        }
        steps
    }

    /// Reads the answers to the steps.
    pub(crate) fn read(&self, answers: Vec<Vec<Row>>) -> Result<Loaded, StoreError> {
        let wanted = self.wanted;
        let mut answers = answers.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let mut loaded = Loaded::default();
        if !wanted.partitions.is_empty() {
            loaded.gates = gate::gates(&next(), DURING)?;
        }
        let mut reader = ScopesReader::default();
        loaded.rows = vec![None; wanted.rows.len()];
        for places in self.tables.values() {
            read_rows(&next(), places, &mut loaded.rows, &mut reader)?;
        }
        loaded.tombstones = vec![None; wanted.rows.len()];
        if !wanted.rows.is_empty() {
            let places = held_places(&wanted.rows);
            for row in next() {
                let at = nth(&row, &places)?;
                let scopes: Option<&str> = get(&row, 2, DURING)?;
                let tombstone = Tombstone {
                    commit_seq: place(get(&row, 1, DURING)?, DURING)?,
                    scopes: scopes.map(|text| reader.read(text, DURING)).transpose()?,
                };
                loaded.tombstones[at] = Some(tombstone);
            }
        }
        loaded.push_results = vec![None; wanted.push_results.len()];
        if !wanted.push_results.is_empty() {
            for row in next() {
                let at = index(&row, wanted.push_results.len())?;
                loaded.push_results[at] = Some(outcome::decode(get(&row, 1, DURING)?));
            }
        }
        loaded.clients = vec![None; wanted.clients.len()];
        if !wanted.clients.is_empty() {
            for row in next() {
                let at = index(&row, wanted.clients.len())?;
                let record: ClientRecord = clients::record(&row, 1, DURING)?;
                loaded.clients[at] = Some(record);
            }
        }
        Ok(loaded)
    }
}

/// The questions for rows alone.
pub(crate) struct RowQuestions<'a> {
    keys: &'a [RowKey],
    tables: BTreeMap<usize, Vec<usize>>,
}

impl<'a> RowQuestions<'a> {
    pub(crate) fn new(keys: &'a [RowKey]) -> Self {
        Self {
            keys,
            tables: by_table(keys),
        }
    }

    pub(crate) fn steps(&self, layout: &'a Layout) -> Vec<Step<'a>> {
        row_steps(layout, self.keys, &self.tables)
    }

    pub(crate) fn read(&self, answers: &[Vec<Row>]) -> Result<Vec<Option<StoredRow>>, StoreError> {
        let mut rows = vec![None; self.keys.len()];
        let mut reader = ScopesReader::default();
        for (places, answer) in self.tables.values().zip(answers) {
            read_rows(answer, places, &mut rows, &mut reader)?;
        }
        Ok(rows)
    }
}

/// Asks for recorded outcomes.
pub(crate) fn results(keys: &[PushKey]) -> Step<'_> {
    Step::new(
        RESULTS,
        vec![
            Param::texts(keys.iter().map(|key| key.partition.as_str()).collect()),
            Param::texts(keys.iter().map(|key| key.client.as_str()).collect()),
            Param::texts(keys.iter().map(|key| &*key.client_commit_id).collect()),
        ],
    )
}

/// The only outcome of [`results`].
pub(crate) fn only_result(
    rows: &[Row],
    during: &'static str,
) -> Result<Option<StoredResult>, StoreError> {
    let row = rows.first();
    row.map(|row| Ok(outcome::decode(get(row, 1, during)?)))
        .transpose()
}

/// A row whose version, scopes, payload and column versions are in the columns from 1 on.
pub(crate) fn stored_row(
    row: &Row,
    reader: &mut ScopesReader,
    during: &'static str,
) -> Result<StoredRow, StoreError> {
    let payload: &[u8] = get(row, 3, during)?;
    let column_versions: Option<&[u8]> = get(row, 4, during)?;
    Ok(StoredRow {
        row_version: get(row, 1, during)?,
        scopes: reader.read(get(row, 2, during)?, during)?,
        payload: Bytes::copy_from_slice(payload),
        column_versions: column_versions.map(Bytes::copy_from_slice),
    })
}

/// Keys by table, without those that no row can have.
fn by_table(keys: &[RowKey]) -> BTreeMap<usize, Vec<usize>> {
    let mut tables: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, key) in keys.iter().enumerate() {
        if !key.row_id.contains('\0') {
            tables.entry(key.table.0).or_default().push(at);
        }
    }
    tables
}

fn held_places(keys: &[RowKey]) -> Vec<usize> {
    let places = 0..keys.len();
    places
        .filter(|at| !keys[*at].row_id.contains('\0'))
        .collect()
}

fn held(keys: &[RowKey]) -> Vec<&RowKey> {
    keys.iter()
        .filter(|key| !key.row_id.contains('\0'))
        .collect()
}

fn row_steps<'a>(
    layout: &'a Layout,
    keys: &'a [RowKey],
    tables: &BTreeMap<usize, Vec<usize>>,
) -> Vec<Step<'a>> {
    tables
        .iter()
        .map(|(table, places)| {
            let keys = || places.iter().map(|at| &keys[*at]);
            Step::new(
                layout.tables[*table].sql.load.as_str(),
                vec![
                    Param::texts(keys().map(|key| key.partition.as_str()).collect()),
                    Param::texts(keys().map(|key| &*key.row_id).collect()),
                ],
            )
        })
        .collect()
}

fn read_rows(
    answer: &[Row],
    places: &[usize],
    rows: &mut [Option<StoredRow>],
    reader: &mut ScopesReader,
) -> Result<(), StoreError> {
    for row in answer {
        let at = nth(row, places)?;
        rows[at] = Some(stored_row(row, reader, DURING)?);
    }
    Ok(())
}

/// The place that the ordinal of a row stands for.
fn nth(row: &Row, places: &[usize]) -> Result<usize, StoreError> {
    Ok(places[index(row, places.len())?])
}

fn index(row: &Row, length: usize) -> Result<usize, StoreError> {
    let ordinal: i64 = get(row, 0, DURING)?;
    usize::try_from(ordinal - 1)
        .ok()
        .filter(|index| *index < length)
        .ok_or_else(|| corrupt(DURING, "an answer to no question"))
}

//! Random histories on random schemas, pushed in groups and held against a naive model.
//!
//! After each group: the same answers, rows, versions, column versions and tombstones; in the
//! end the same log. Some commits are read by a validator, which must see what the model has and
//! change nothing; some calls to the database are lost to another transaction, which nobody must
//! notice.

mod naive;
mod plan;

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use proptest::{prelude::*, test_runner::Config};
use tidewater_engine::{CrdtMergers, EngineConfig, Hooks};
use tidewater_store::{ChangeKind, StoreErrorKind};
use tidewater_wire::{OpResult, WireVersion, row::presence_bitmap};

use self::{
    naive::{Author, Change, Outcome, Partition, Row},
    plan::{Batch, History, Request, Shape},
};
use super::{
    asking::{Answer, Ask, Told, all_teams, row_text},
    crdt::SetMerger,
    host::with_commits,
    server::{Server, Setup},
    watched::{Fault, When},
};

/// What validators saw of the first table, by commit.
type Seen = Arc<Mutex<BTreeMap<String, Vec<String>>>>;

fn hooks(seen: &Seen) -> Hooks {
    let seen = Arc::clone(seen);
    let mergers = CrdtMergers::default().with("set", Arc::new(SetMerger::default()));
    let hooks = Hooks {
        mergers,
        ..Hooks::default()
    };
    with_commits(hooks, move |commit, reader| {
        let seen = Arc::clone(&seen);
        Box::pin(async move {
            if !is_read(commit.client_commit_id) {
                return Ok(());
            }
            let rows = reader.scan_rows("tb0", all_teams(), None, 1_000).await?;
            let rows = rows
                .iter()
                .map(|row| format!("{}@{}", row.row_id, row.row_version));
            let commit = format!(
                "{} {} {}",
                commit.partition.as_str(),
                commit.client.as_str(),
                commit.client_commit_id
            );
            seen.lock().insert(commit, rows.collect());
            Ok(())
        })
    })
}

/// Whether a validator reads this commit.
fn is_read(id: &str) -> bool {
    id.ends_with(['1', '4', '7'])
}

fn text(row: &Row) -> String {
    let cells = row.cells.iter();
    let cells = cells.map(|cell| {
        cell.as_ref()
            .map_or_else(|| "-".to_owned(), plan::Cell::text)
    });
    cells.collect::<Vec<_>>().join("|")
}

struct Checker {
    server: Arc<Server>,
    schema: Vec<Shape>,
    limit: usize,
    partitions: BTreeMap<&'static str, Partition>,
    seen: Seen,
}

impl Checker {
    async fn start(history: &History) -> Self {
        let seen = Seen::default();
        let mut setup = Setup::of(&plan::document(&history.schema)).with_hooks(hooks(&seen));
        setup.config = EngineConfig {
            appended_operations_max: history.limit,
            ..EngineConfig::default()
        };
        let server = Arc::new(setup.start().await);
        server.resolver.allow("bob", &["t1"]);
        server.resolver.allow("eve", &["t2"]);
        Self {
            server,
            schema: history.schema.clone(),
            limit: history.limit,
            partitions: BTreeMap::from([
                ("p1", Partition::default()),
                ("p2", Partition::default()),
            ]),
            seen,
        }
    }

    async fn run(&mut self, batch: &Batch) {
        let asks = batch
            .requests
            .iter()
            .map(|request| self.ask(request))
            .collect();
        // The first two calls are those of the plug.
        let fault = batch.lost.map(|(call, late)| Fault {
            from: call + 2,
            times: 1,
            kind: StoreErrorKind::Contention,
            when: if late { When::After } else { When::Before },
        });
        self.server.store.fail(fault);
        let answers = self.server.batch(asks).await;
        self.server.store.fail(None);
        for (request, answer) in batch.requests.iter().zip(answers) {
            let expected = self.model(request);
            match (answer, expected) {
                (Ok(answer), Ok(expected)) => self.check_answer(request, &answer, &expected),
                (Err(error), Err(code)) => assert_eq!(error.code.as_str(), code),
                (answer, expected) => panic!("{answer:?}\ninstead of\n{expected:?}"),
            }
        }
        self.check_rows().await;
    }

    fn ask(&self, request: &Request) -> Ask {
        let mut ask = Ask::new()
            .in_partition(request.partition)
            .by(request.actor)
            .of_client(request.client)
            .in_version(request.version);
        for (id, intents) in &request.commits {
            let operations = intents
                .iter()
                .map(|intent| plan::operation(&self.schema, intent));
            ask = ask.push(id, operations.collect());
        }
        ask
    }

    /// Pushes commit by commit, so that what validators saw can be held against each state.
    fn model(&mut self, request: &Request) -> Result<Vec<Outcome>, &'static str> {
        let author = Author {
            actor: request.actor,
            client: request.client,
            team: match request.actor {
                "bob" => Some("t1"),
                "eve" => Some("t2"),
                _ => None,
            },
            sparse: request.version.is_sparse(),
        };
        let partition = self.partitions.get_mut(request.partition).unwrap();
        let mut outcomes = Vec::new();
        for commit in &request.commits {
            let before = partition.log.len();
            let one = std::slice::from_ref(commit);
            outcomes.extend(partition.push(&self.schema, self.limit, &author, one)?);
            let key = format!("{} {} {}", request.partition, request.client, commit.0);
            if partition.log.len() > before && is_read(&commit.0) {
                let rows = partition.rows.iter().filter(|((table, _), _)| *table == 0);
                let rows: Vec<_> = rows
                    .map(|((_, id), row)| format!("{id}@{}", row.version))
                    .collect();
                assert_eq!(self.seen.lock().get(&key), Some(&rows), "{key}");
            }
        }
        Ok(outcomes)
    }

    fn check_answer(&self, request: &Request, answer: &Answer, expected: &[Outcome]) {
        assert_eq!(answer.told.len(), expected.len());
        for (told, expected) in answer.told.iter().zip(expected) {
            match expected {
                Outcome::Applied(seq) => {
                    // A lost call makes a commit find itself.
                    let outcome = told.outcome().replace("cached", "applied");
                    assert_eq!(outcome, format!("applied {seq}"), "{:?}", told.result);
                }
                Outcome::Rejected(refusal) => {
                    let outcome = format!("rejected {}:{}", refusal.op_index, refusal.code);
                    assert_eq!(told.outcome(), outcome, "{:?}", told.result);
                    assert_eq!(told.details(), refusal.details.as_deref());
                    self.check_conflict(request, told, refusal.conflict.as_ref());
                }
            }
        }
    }

    fn check_conflict(&self, request: &Request, told: &Told, expected: Option<&naive::Conflict>) {
        let [
            OpResult::Conflict {
                server_version,
                server_row,
                conflict_columns,
                ..
            },
        ] = &told.result.results[..]
        else {
            assert!(expected.is_none());
            return;
        };
        let expected = expected.expect("a conflict");
        let id = expected.row.cells[0].as_ref().unwrap().text();
        let shape = |shape: &&Shape| shape.columns.len() == expected.row.cells.len();
        assert_eq!(*server_version, expected.row.version);
        let candidates: Vec<String> = self
            .schema
            .iter()
            .filter(shape)
            .filter_map(|shape| {
                let table = self
                    .server
                    .schema
                    .table(self.server.schema.find(&shape.name)?);
                tidewater_wire::row::decode_row(&table.columns, server_row).ok()?;
                Some(row_text(table, server_row))
            })
            .collect();
        assert!(
            candidates.contains(&text(&expected.row)),
            "{id}: {candidates:?}"
        );
        let bitmap = match request.version {
            WireVersion::V3 => presence_bitmap(expected.row.cells.len(), expected.columns.clone()),
            _ => Vec::new(),
        };
        assert_eq!(conflict_columns[..], bitmap);
    }

    async fn check_rows(&self) {
        for (name, partition) in &self.partitions {
            for (place, shape) in self.schema.iter().enumerate() {
                let keys: Vec<String> = (0..plan::ROWS)
                    .map(|row| plan::key(shape, row).text())
                    .collect();
                let stored = self.server.look(name, &shape.name, &keys).await;
                let table = self
                    .server
                    .schema
                    .table(self.server.schema.find(&shape.name).unwrap());
                for (id, (row, tombstone)) in keys.iter().zip(stored) {
                    let key = (place, id.clone());
                    let row = row.map(|row| Row {
                        version: row.row_version,
                        team: row.scopes.value("team").unwrap().to_owned(),
                        column_versions: super::server::column_versions(&row, shape.columns.len()),
                        cells: read(table, &row.payload),
                    });
                    assert_eq!(
                        row.as_ref(),
                        partition.rows.get(&key),
                        "{} {id}",
                        shape.name
                    );
                    let tombstone = tombstone.map(|tombstone| {
                        let team = tombstone.scopes.unwrap().value("team").unwrap().to_owned();
                        (tombstone.commit_seq.get(), team)
                    });
                    assert_eq!(
                        tombstone.as_ref(),
                        partition.tombstones.get(&key),
                        "{} {id}",
                        shape.name
                    );
                }
            }
        }
    }

    async fn check_log(&self) {
        let mut told: BTreeMap<String, Vec<Vec<Change>>> = BTreeMap::new();
        for event in self.server.events() {
            let applied = event.commit.applied.as_ref().unwrap();
            let log = told
                .entry(event.partition().as_str().to_owned())
                .or_default();
            // Observers are not told of commits without changes.
            log.resize(
                usize::try_from(event.commit_seq().get()).unwrap() - 1,
                Vec::new(),
            );
            log.push(
                applied
                    .changes
                    .iter()
                    .map(|change| self.change(change))
                    .collect(),
            );
        }
        for (name, partition) in &self.partitions {
            let mut told = told.remove(*name).unwrap_or_default();
            told.resize(partition.log.len(), Vec::new());
            assert_eq!(told, partition.log);
            for (place, shape) in self.schema.iter().enumerate() {
                let mut expected = Vec::new();
                for (number, changes) in partition.log.iter().enumerate() {
                    let seq = number + 1;
                    for change in changes {
                        match change {
                            Change::Upsert((table, id), row) if *table == place => expected
                                .push(format!("{seq} upsert {id}@{} {}", row.version, row.team)),
                            Change::Delete((table, id), team) if *table == place => {
                                expected.push(format!("{seq} delete {id} {team}"));
                            }
                            _ => {}
                        }
                    }
                }
                assert_eq!(self.server.log_of(name, &shape.name).await, expected);
            }
            let head = u64::try_from(partition.log.len()).unwrap();
            assert_eq!(self.server.head_of(name).await, head);
        }
    }

    fn change(&self, change: &tidewater_store::ChangeWrite) -> Change {
        let key = (change.table.0, change.row_id.to_string());
        match &change.kind {
            ChangeKind::Delete { scopes } => {
                Change::Delete(key, scopes.value("team").unwrap().to_owned())
            }
            ChangeKind::Upsert { row, .. } => {
                let table = self.server.schema.table(change.table);
                let stored = tidewater_store::StoredRow {
                    row_version: row.row_version,
                    scopes: row.scopes.clone(),
                    payload: row.payload.clone(),
                    column_versions: row.column_versions.clone(),
                };
                let row = Row {
                    version: row.row_version,
                    team: row.scopes.value("team").unwrap().to_owned(),
                    column_versions: super::server::column_versions(&stored, table.columns.len()),
                    cells: read(table, &row.payload),
                };
                Change::Upsert(key, row)
            }
        }
    }
}

fn read(table: &tidewater_schema::Table, payload: &[u8]) -> Vec<Option<plan::Cell>> {
    use tidewater_wire::row::Value;
    let fields = tidewater_wire::row::decode_row(&table.columns, payload).unwrap();
    let cell = |value: Value<'_>| match value {
        Value::Integer(number) => plan::Cell::Number(number),
        Value::Crdt(bytes) => plan::Cell::Bytes(bytes.to_vec()),
        value => plan::Cell::Text(match value {
            Value::String(text) => text.to_owned(),
            other => panic!("{other:?}"),
        }),
    };
    fields
        .into_iter()
        .map(|field| field.map(|field| cell(field.value)))
        .collect()
}

/// `PROPTEST_CASES` runs more of them.
fn config() -> Config {
    let asked = Config::default().cases;
    let usual = 256;
    Config {
        cases: if asked == usual {
            crate::home::CASES
        } else {
            asked
        },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn groups_of_commits_do_what_one_commit_after_another_would(history in plan::history()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut checker = Checker::start(&history).await;
            for batch in &history.batches {
                checker.run(batch).await;
            }
            checker.check_log().await;
        });
    }
}

//! What the store costs: wall and CPU time of whole operations, through the contract, on a file.
//!
//! `cargo bench -p tidewater-store-sqlite --bench store` prints a table, and with `-- TEXT` after
//! it only the lines that contain the text. CPU time is that of the process, with
//! the writer's and the readers' threads, and is the steadier figure on a machine that is shared.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::{
    env, fs,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::{
    ActorId, ClientId, CommitSeq, LogEpoch, PartitionId, ScopeFilter, ScopeValues, StoredScopes,
};
use tidewater_schema::{Schema, TableIndex};
use tidewater_store::{
    AppliedCommit, ChangeKind, ChangeWrite, CommitWrite, Finished, LoadRequest, PartitionTouch,
    PushKey, PushResultRecord, PushStatus, ResultRecord, RowKey, RowScan, RowState,
    RowStreamRequest, Store, WindowRequest,
};
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};
use tidewater_wire::row::{RowWriter, Value};

const TASKS: TableIndex = TableIndex(0);
const PROJECTS: usize = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Bench::open(&directory).await;
    println!("{:<48} {:>10} {:>10}", "", "wall µs", "CPU µs");
    bench.fill(500, 500).await;
    bench
        .commits("small: 1-operation commits", 4_000, 1, 1)
        .await;
    let name = "small: 1-operation commits, 16 a transaction";
    bench.commits(name, 48_000, 16, 1).await;
    let name = "small: 500-operation commit, per row";
    bench.commits(name, 100, 1, 500).await;
    if !wanted().is_some_and(|wanted| wanted.starts_with("small")) {
        large(&mut bench).await;
    }
}

/// With a table of 100,000 rows.
async fn large(bench: &mut Bench) {
    bench.fill(100_000, 500).await;
    bench
        .commits("large: 1-operation commits", 4_000, 1, 1)
        .await;
    let name = "large: 1-operation commits, 16 a transaction";
    bench.commits(name, 32_000, 16, 1).await;
    let name = "large: 500-operation commit, per row";
    bench.commits(name, 60, 1, 500).await;
    let one = ["p0"];
    let all: Vec<String> = (0..PROJECTS).map(|project| format!("p{project}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    bench
        .scans("large: scan of a tenth of the rows, per row", &one, 10_000)
        .await;
    bench
        .scans("large: the same in pages of 1000", &one, 1_000)
        .await;
    bench
        .scans("large: scan of all rows, per row", &all, 50_000)
        .await;
    bench
        .scans("large: the same in pages of 1000", &all, 1_000)
        .await;
    bench
        .streams("large: stream of all rows, as for an image, per row", &all)
        .await;
    bench.fill_log(1_000).await;
    bench
        .window("window of 1000 commits, one value", &one)
        .await;
    bench
        .window("window of 1000 commits, ten values", &all)
        .await;
    bench.prune("prune the log, per commit").await;
}

/// What the lines to print contain, if not all are.
fn wanted() -> Option<String> {
    env::args().skip(1).find(|text| !text.starts_with('-'))
}

struct Bench {
    store: SqliteStore,
    partition: PartitionId,
    rows: usize,
    head: CommitSeq,
    random: u64,
}

impl Bench {
    async fn open(directory: &tempfile::TempDir) -> Self {
        let path = directory.path().join("database");
        let store = SqliteStore::open(SqliteConfig::file(path)).unwrap();
        store.prepare(&schema()).await.unwrap();
        let partition = PartitionId::new("part-1");
        let touch = PartitionTouch {
            partition: partition.clone(),
            initial_epoch: LogEpoch::new("epoch"),
            at_ms: 1,
        };
        store.touch_partition(touch).await.unwrap();
        Self {
            store,
            partition,
            rows: 0,
            head: CommitSeq::START,
            random: 1,
        }
    }

    /// Inserts rows until there are this many, in an order without meaning.
    async fn fill(&mut self, rows: usize, per_commit: usize) {
        let mut ids: Vec<usize> = (self.rows..rows).collect();
        for at in (1..ids.len()).rev() {
            let other = self.below(at + 1);
            ids.swap(at, other);
        }
        for ids in ids.chunks(per_commit) {
            let commit = self.commit(ids, None);
            self.write(vec![commit]).await;
        }
        self.rows = rows;
    }

    /// Commits of one row of one project.
    async fn fill_log(&mut self, commits: usize) {
        for _ in 0..commits {
            let id = self.below(self.rows / PROJECTS) * PROJECTS;
            let commit = self.commit(&[id], Some(1));
            self.write(vec![commit]).await;
        }
    }

    async fn commits(&mut self, name: &str, commits: usize, group: usize, operations: usize) {
        let Some(timer) = Timer::start(name) else {
            return;
        };
        for _ in 0..commits / group {
            let group: Vec<_> = (0..group)
                .map(|_| {
                    let ids: Vec<usize> = (0..operations)
                        .map(|at| match operations {
                            1 => self.below(self.rows),
                            // One commit names a row once.
                            _ => (self.place() * 7919 + at * 199) % self.rows,
                        })
                        .collect();
                    self.commit(&ids, Some(1))
                })
                .collect();
            self.write(group).await;
        }
        timer.print(name, commits * operations);
    }

    async fn scans(&self, name: &str, values: &[&str], rows_max: usize) {
        let Some(timer) = Timer::start(name) else {
            return;
        };
        let mut rows = 0;
        for _ in 0..3 {
            let mut after = None;
            loop {
                let scan = RowScan {
                    partition: self.partition.clone(),
                    table: TASKS,
                    filter: filter(values),
                    after,
                    rows_max,
                    bytes_max: 1 << 30,
                };
                let page = self.store.scan_rows(scan).await.unwrap();
                rows += page.rows().len();
                after = page.rows().next_back().map(|row| row.row_id.to_owned());
                if !page.has_more {
                    break;
                }
            }
        }
        timer.print(name, rows);
    }

    async fn streams(&self, name: &str, values: &[&str]) {
        let Some(timer) = Timer::start(name) else {
            return;
        };
        let mut rows = 0;
        for _ in 0..3 {
            let request = RowStreamRequest {
                partition: self.partition.clone(),
                table: TASKS,
                filter: filter(values),
                rows_max: 5_000,
                bytes_max: 1 << 20,
            };
            let mut stream = self.store.stream_rows(request).await.unwrap();
            while let Some(piece) = stream.next().await.unwrap() {
                rows += piece.rows().len();
            }
        }
        timer.print(name, rows);
    }

    async fn window(&self, name: &str, values: &[&str]) {
        let Some(timer) = Timer::start(name) else {
            return;
        };
        let times = 200;
        for _ in 0..times {
            let request = WindowRequest {
                partition: self.partition.clone(),
                table: TASKS,
                filter: filter(values),
                after: CommitSeq::new(self.head.get() - 1_000).unwrap(),
                through: self.head,
                changes_max: 1_000,
                bytes_max: 1 << 30,
            };
            let window = self.store.read_window(request).await.unwrap();
            assert_eq!(window.commits().len(), 1_000);
        }
        timer.print(name, times);
    }

    async fn prune(&self, name: &str) {
        let Some(timer) = Timer::start(name) else {
            return;
        };
        let horizon = tidewater_model::HorizonSeq::at(self.head);
        let epoch = LogEpoch::new("epoch");
        let pruned = self.store.prune(&self.partition, &epoch, horizon).await;
        let removed = pruned.unwrap().removed_commits;
        timer.print(name, usize::try_from(removed).unwrap());
    }

    /// Writes commits as a lane does: load, then apply and finish.
    async fn write(&self, commits: Vec<Arc<CommitWrite>>) {
        let mut wanted = LoadRequest {
            partitions: vec![self.partition.clone()],
            ..LoadRequest::default()
        };
        for commit in &commits {
            wanted.push_results.push(commit.key.clone());
            let changes = &commit.applied.as_ref().unwrap().changes;
            wanted.rows.extend(changes.iter().map(|change| RowKey {
                partition: self.partition.clone(),
                table: change.table,
                row_id: change.row_id.clone(),
            }));
        }
        let (txn, _) = self.store.begin_write(wanted).await.unwrap();
        let finished = txn.finish(commits).await.unwrap();
        assert!(matches!(finished, Finished::Committed));
    }

    fn commit(&mut self, ids: &[usize], version_before: Option<i64>) -> Arc<CommitWrite> {
        self.head = self.head.next();
        let place = self.head.get();
        let changes = ids.iter().enumerate().map(|(index, id)| {
            let project = format!("p{}", id % PROJECTS);
            let scopes = StoredScopes::new(vec![("project".to_owned(), project.clone())]);
            let scopes = scopes.unwrap();
            ChangeWrite {
                table: TASKS,
                row_id: row_id(*id),
                op_index: i32::try_from(index).unwrap(),
                kind: ChangeKind::Upsert {
                    scopes_before: version_before.map(|_| scopes.clone()),
                    row: RowState {
                        row_version: version_before.unwrap_or(0) + 1,
                        scopes,
                        payload: payload(&row_id(*id), &project, place),
                        column_versions: Some(Bytes::from_static(b"\x02\x05")),
                        blob_ids: None,
                    },
                },
            }
        });
        Arc::new(CommitWrite {
            key: PushKey {
                partition: self.partition.clone(),
                client: ClientId::new("client-aaaaaaaa-1"),
                client_commit_id: ByteString::from(format!("{:016x}", mix(place))),
            },
            actor: ActorId::new("actor-1"),
            result: PushResultRecord {
                status: PushStatus::Applied(self.head),
                results: (0..ids.len())
                    .map(|index| ResultRecord::Applied {
                        op_index: i32::try_from(index).unwrap(),
                    })
                    .collect(),
                recorded_at_ms: Some(1_700_000_000_000),
                actor: Some(ActorId::new("actor-1")),
                schema_version: Some(1),
                content_digest: None,
            },
            applied: Some(AppliedCommit {
                commit_seq: self.head,
                created_at_ms: 1_700_000_000_000 + i64::try_from(place).unwrap(),
                changes: changes.collect(),
                tombstones: Vec::new(),
                tombstones_cleared: Vec::new(),
                reactions: Vec::new(),
            }),
            bind_client_at_ms: None,
        })
    }

    fn place(&self) -> usize {
        usize::try_from(self.head.get()).unwrap()
    }

    fn below(&mut self, end: usize) -> usize {
        self.random = mix(self.random);
        usize::try_from(self.random % u64::try_from(end).unwrap()).unwrap()
    }
}

fn schema() -> Arc<Schema> {
    let text = r#"{
        "irVersion": 1, "schemaVersion": 1,
        "tables": [{
            "name": "tasks", "primaryKey": "id",
            "columns": [
                {"name": "id", "type": "string", "nullable": false},
                {"name": "project", "type": "string", "nullable": false},
                {"name": "title", "type": "string", "nullable": false},
                {"name": "done", "type": "boolean", "nullable": false},
                {"name": "rank", "type": "integer", "nullable": true}
            ],
            "scopes": [{"pattern": "project:{project}", "variable": "project", "column": "project"}]
        }]
    }"#;
    Arc::new(Schema::from_json(text).unwrap())
}

fn row_id(id: usize) -> ByteString {
    ByteString::from(format!("{:08x}-task", id * PROJECTS + id % PROJECTS))
}

fn payload(id: &str, project: &str, place: u64) -> Bytes {
    let mut row = RowWriter::new(5);
    row.value(&Value::String(id));
    row.value(&Value::String(project));
    row.value(&Value::String("water the plants again"));
    row.value(&Value::Boolean(false));
    row.value(&Value::Integer(i64::try_from(place).unwrap()));
    Bytes::from(row.finish())
}

fn filter(values: &[&str]) -> ScopeFilter {
    let values = ScopeValues {
        variable: "project".to_owned(),
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    ScopeFilter::new(vec![values]).unwrap()
}

fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

struct Timer {
    wall: Instant,
    cpu: Option<Duration>,
}

impl Timer {
    /// Starts, unless this line is not wanted.
    fn start(name: &str) -> Option<Self> {
        if wanted().is_some_and(|wanted| !name.contains(&wanted)) {
            return None;
        }
        Some(Self {
            wall: Instant::now(),
            cpu: cpu_time(),
        })
    }

    fn print(&self, name: &str, times: usize) {
        let times = u32::try_from(times).unwrap();
        let each = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e6 / f64::from(times));
        let wall = each(self.wall.elapsed());
        let cpu = match (self.cpu, cpu_time()) {
            (Some(before), Some(after)) => each(after - before),
            _ => "-".to_owned(),
        };
        println!("{name:<48} {wall:>10} {cpu:>10}");
    }
}

/// User and system time of the process, where the system tells it in ticks of 10 ms.
fn cpu_time() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

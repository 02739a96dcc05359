//! Two servers that live through the same history, the model beside them, and the devices.
//!
//! Every request goes to both servers. They have the same clock and the same ids, so they must
//! answer with the same bytes.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use bytestring::ByteString;
use futures_util::StreamExt;
use serde_json::{Map, Value, json};
use tidewater_engine::{Engine, Identity, Retention, RoundError};
use tidewater_model::ErrorCode;
use tidewater_testkit::{
    Instance, InstanceLimits, InstanceSpec, ResolverMode, StoreKind,
    message::{Answer, Author, EXTERNAL_ROWS, ROWS, commit, delete, pull_header},
    schema::{SchemaDoc, TableDoc},
};
use tidewater_wire::{Operation, OperationAction, PushResult, WireVersion, canonical_scopes};
use tokio::runtime::Runtime;

use super::{
    model::{Asker, Intent, Model, Write, assert_result},
    replica::{Replica, Truth, Waiting},
    steps::{Base, Garbage, KindStep, OperationStep, ROWS_PER_TEAM, Step, SyncStep},
};

/// What a device asks for: tables with teams.
type Asks = &'static [(&'static str, &'static [&'static str])];

/// The devices: actor, wire version, subscriptions. Some overlap.
pub(super) const CLIENTS: [(usize, WireVersion, Asks); 5] = [
    (
        0,
        WireVersion::V1,
        &[("notes", &["t1", "t2"]), ("tags", &["t3"])],
    ),
    (
        0,
        WireVersion::V2,
        &[("notes", &["t1"]), ("notes", &["t3"])],
    ),
    (
        1,
        WireVersion::V3,
        &[
            ("notes", &["t1", "t2"]),
            ("notes", &["t1"]),
            ("tags", &["t1", "t2"]),
        ],
    ),
    (
        1,
        WireVersion::V3,
        &[
            ("notes", &["t3"]),
            ("tags", &["t1", "t2"]),
            ("tags", &["t3"]),
        ],
    ),
    (
        2,
        WireVersion::V3,
        &[
            ("notes", &["t3"]),
            ("notes", &["t1", "t2"]),
            ("tags", &["t1", "t2"]),
        ],
    ),
];

/// Teams that are granted together: what is asked for is granted whole or not at all.
const GROUPS: [&[&str]; 2] = [&["t1", "t2"], &["t3"]];
const TEAMS: [&str; 3] = ["t1", "t2", "t3"];
const TABLES: [&str; 2] = ["notes", "tags"];
const ACTORS: usize = 3;

/// Rounds after which a device that finds no end is broken.
const ROUNDS_MAX: usize = 500;

pub(super) struct World {
    runtime: Runtime,
    /// On two stores.
    servers: [Arc<Instance>; 2],
    model: Model,
    replicas: Vec<Replica>,
    /// The model as it was at the last backup.
    backup: Option<Model>,
    /// The epoch of the log; the first one until a restore.
    log_epoch: Option<ByteString>,
    /// Whether there was a restore: wire version 1 is over.
    is_rotated: bool,
    /// Requests that were sent, by client.
    sent: Vec<Vec<Sent>>,
    allowed: Vec<BTreeSet<String>>,
    is_failing: bool,
}

/// A request that was sent.
#[derive(Clone)]
struct Sent {
    request: Bytes,
    /// The epoch in it.
    log_epoch: Option<ByteString>,
    /// The commits in it.
    waiting: Vec<Waiting>,
}

/// Notes of five columns and tags of nine, whose bitmaps take two bytes.
fn schema() -> SchemaDoc {
    let notes = TableDoc::new("notes")
        .column("id", "string")
        .column("team_id", "string")
        .nullable("title", "string")
        .nullable("stars", "integer")
        .nullable("meta", "json")
        .scope("team", "team_id");
    let tags = TableDoc::new("tags")
        .column("id", "string")
        .column("team_id", "string");
    let tags = (1..=7).fold(tags, |tags, n| tags.nullable(&format!("c{n}"), "string"));
    SchemaDoc::new(1)
        .table(notes)
        .table(tags.scope("team", "team_id"))
}

impl World {
    pub(super) fn new(kinds: [StoreKind; 2]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let limits = InstanceLimits {
            // Some pages come inline and some by reference.
            inline_segment_max_bytes: Some(240),
            ..InstanceLimits::default()
        };
        let spec = InstanceSpec {
            limits,
            ..InstanceSpec::new(schema().json())
        };
        let open = |kind| runtime.block_on(Instance::open(&spec, kind)).unwrap();
        let servers = kinds.map(open);
        let schema = runtime.block_on(servers[0].schema());
        let replicas = CLIENTS
            .iter()
            .enumerate()
            .map(|(number, &(actor, version, asks))| {
                let author = Author::new(&format!("client-{number}"), version, &schema);
                Replica::new(author, actor, asks)
            });
        let mut world = Self {
            runtime,
            servers,
            model: Model::default(),
            backup: None,
            log_epoch: None,
            is_rotated: false,
            replicas: replicas.collect(),
            sent: vec![Vec::new(); CLIENTS.len()],
            allowed: vec![BTreeSet::new(); ACTORS],
            is_failing: false,
        };
        for actor in 0..ACTORS {
            world.grant(actor, 0b11);
        }
        for client in 0..CLIENTS.len() {
            world.acquire_epoch(client);
        }
        world.fill();
        world
    }

    /// Most rows exist from the start, written by an old client.
    fn fill(&mut self) {
        let kind = KindStep::Upsert {
            present: u16::MAX,
            values: 0b0101_1011,
            base: Base::Absent,
        };
        for (table, team) in
            (0..TABLES.len()).flat_map(|table| [(table, 0), (table, 1), (table, 2)])
        {
            let rows = 1..ROWS_PER_TEAM;
            let operation = |row| OperationStep {
                table,
                team,
                row,
                kind: kind.clone(),
            };
            let operations: Vec<_> = rows.map(operation).collect();
            self.write(0, &operations);
        }
        let commits = self.replicas[0].outbox.len();
        let limits = (0, 0, 0);
        self.sync(&SyncStep {
            client: 0,
            commits,
            limits,
            ..SyncStep::default()
        });
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Write { client, operations } => self.write(client, &operations),
            Step::Sync(sync) => {
                self.sync(&sync);
            }
            Step::Duplicate { client, back } => self.duplicate(client, back),
            Step::Reuse {
                client,
                back,
                operations,
            } => self.reuse(client, back, &operations),
            Step::Grant { actor, groups } => self.grant(actor, groups),
            Step::Wait { days } => {
                for server in &self.servers {
                    server.clock().advance(days * 24 * 60 * 60 * 1_000);
                }
            }
            Step::Prune { retained } => self.prune(retained),
            Step::Restart => {
                for server in &self.servers {
                    self.runtime.block_on(server.restart()).unwrap();
                }
            }
            Step::BackUp => {
                self.backup = Some(self.model.clone());
                for server in &self.servers {
                    self.runtime.block_on(server.back_up()).unwrap();
                }
            }
            Step::Restore => self.restore(),
        }
    }

    /// Lets every device come to rest, and compares all of them with the model.
    pub(super) fn settle(&mut self) {
        // Twice: the outbox of the last device is news to the first.
        for _ in 0..2 {
            for client in 0..CLIENTS.len() {
                self.sync_until_idle(client);
            }
        }
        self.check_rows();
        for replica in &self.replicas {
            if self.is_refused(replica) {
                continue;
            }
            assert!(replica.outbox.is_empty());
            let expected = self.model.rows.iter().filter(|(key, row)| {
                let team = row.team();
                self.allowed[replica.actor].contains(team) && replica.is_interested(key, team)
            });
            let expected: Vec<_> = expected
                .map(|(key, row)| (key, row.version, &row.values))
                .collect();
            let held: Vec<_> = replica
                .rows
                .iter()
                .map(|(key, row)| (key, row.0, &row.1))
                .collect();
            assert_eq!(held, expected, "{}", replica.author.client_id);
        }
    }

    /// Whether the server refuses everything the device sends.
    fn is_refused(&self, replica: &Replica) -> bool {
        self.is_rotated && !replica.author.version.has_epoch()
    }

    fn restore(&mut self) {
        let Some(backup) = &self.backup else { return };
        self.model = backup.restored();
        self.is_rotated = true;
        let epochs = self.servers.each_ref().map(|server| {
            self.runtime.block_on(server.restore()).unwrap();
            self.runtime.block_on(server.log_epoch()).unwrap().unwrap()
        });
        assert_eq!(epochs[0], epochs[1]);
        let log_epoch = Some(ByteString::from(epochs[0].as_str()));
        assert_ne!(log_epoch, self.log_epoch);
        self.log_epoch = log_epoch;
    }

    fn sync_until_idle(&mut self, client: usize) {
        let actor = self.replicas[client].actor;
        self.replicas[client].subscribe_again(&self.allowed[actor]);
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "the device does not come to rest");
            let commits = self.replicas[client].outbox.len();
            let limits = (0, 0, 0);
            let sync = SyncStep {
                client,
                commits,
                pull: true,
                lost: false,
                limits,
                external: false,
                failing: false,
            };
            if !self.sync(&sync) {
                return;
            }
        }
    }

    /// Both databases hold the rows of the model.
    fn check_rows(&self) {
        for (server, table) in self
            .servers
            .iter()
            .flat_map(|s| TABLES.map(|table| (s, table)))
        {
            let rows = self.runtime.block_on(server.rows(table)).unwrap();
            let rows: Vec<_> = rows
                .iter()
                .map(|row| (&row.row_id, row.version, &row.values))
                .collect();
            let expected = self.model.rows.iter().filter(|(key, _)| key.0 == table);
            let expected: Vec<_> = expected
                .map(|(key, row)| (&key.1, row.version, &row.values))
                .collect();
            assert_eq!(rows, expected);
            let head = self.runtime.block_on(server.head()).unwrap();
            assert_eq!(i64::try_from(head.get()).unwrap(), self.model.head);
        }
    }

    fn grant(&mut self, actor: usize, groups: u8) {
        let granted = GROUPS
            .iter()
            .enumerate()
            .filter(|(bit, _)| groups & (1 << bit) != 0);
        let teams = granted.flat_map(|(_, teams)| teams.iter());
        self.allowed[actor] = teams.map(|&team| team.to_owned()).collect();
        let lists = [(
            "team_id".to_owned(),
            self.allowed[actor].iter().cloned().collect(),
        )];
        for server in &self.servers {
            server
                .resolver()
                .allow(&actor_name(actor), lists.clone().into());
        }
    }

    fn set_failing(&mut self, is_failing: bool) {
        self.is_failing = is_failing;
        let mode = if is_failing {
            ResolverMode::Failing
        } else {
            ResolverMode::Ok
        };
        for server in &self.servers {
            server.resolver().set_mode(mode);
        }
    }

    fn prune(&mut self, retained: u64) {
        let expected = self.model.prune(retained, self.now_ms());
        let retention = Retention {
            retained_commits: retained,
            ..Retention::default()
        };
        for server in &self.servers {
            let horizon = self.runtime.block_on(server.prune(retention)).unwrap();
            assert_eq!(horizon.to_i64(), expected);
        }
    }

    fn now_ms(&self) -> i64 {
        tidewater_engine::Clock::now_ms(self.servers[0].clock())
    }

    fn write(&mut self, client: usize, operations: &[OperationStep]) {
        let waiting = self.author_commit(client, None, operations);
        self.replicas[client].outbox.push(waiting);
    }

    /// Makes a commit under a new id or the given one.
    fn author_commit(
        &mut self,
        client: usize,
        id: Option<String>,
        operations: &[OperationStep],
    ) -> Waiting {
        let replica = &mut self.replicas[client];
        let id = id.unwrap_or_else(|| {
            replica.commits_written += 1;
            format!("commit-{}", replica.commits_written)
        });
        let made = operations.iter().map(|step| operation(replica, step));
        let (operations, writes) = made.unzip();
        Waiting {
            commit: commit(&id, operations),
            writes,
        }
    }

    fn acquire_epoch(&mut self, client: usize) {
        let replica = &self.replicas[client];
        if !replica.author.version.has_epoch() {
            return;
        }
        let request = replica.author.request(Vec::new(), Some(Vec::new()));
        let answer = self.exchange(client, &request).unwrap();
        assert!(answer.header.reset_required);
        self.log_epoch = Some(answer.header.log_epoch.clone());
        self.replicas[client].author.log_epoch = Some(answer.header.log_epoch);
    }

    /// One round. Returns whether another one may bring more.
    fn sync(&mut self, sync: &SyncStep) -> bool {
        let replica = &mut self.replicas[sync.client];
        let count = sync.commits.min(replica.outbox.len());
        if count == 0 && !sync.pull {
            return false;
        }
        let limits = &mut replica.author.limits;
        *limits = pull_header(if sync.external { EXTERNAL_ROWS } else { ROWS });
        let (changes, rows, pages) = sync.limits;
        limits.limit_commits = changes;
        limits.limit_snapshot_rows = rows;
        limits.max_snapshot_pages = pages;
        let waiting: Vec<Waiting> = replica.outbox[..count].to_vec();
        let commits = waiting
            .iter()
            .map(|waiting| waiting.commit.clone())
            .collect();
        let sent = Sent {
            request: replica
                .author
                .request(commits, sync.pull.then(|| replica.asks())),
            log_epoch: replica.author.log_epoch.clone(),
            waiting,
        };
        self.sent[sync.client].push(sent.clone());
        self.set_failing(sync.failing);
        let answered = self.deliver(sync.client, &sent);
        let more = match answered {
            // Wire version 1 after a restore: nothing will ever come.
            None => {
                self.set_failing(false);
                return false;
            }
            Some(_) if sync.lost => true,
            Some(answer) if answer.header.reset_required => {
                self.replicas[sync.client].begin_epoch(answer.header.log_epoch);
                true
            }
            Some(answer) => {
                self.replicas[sync.client].outbox.drain(..count);
                self.take(sync.client, &answer)
            }
        };
        self.set_failing(false);
        more || !self.replicas[sync.client].outbox.is_empty()
    }

    /// Takes an answer in, segments by reference included.
    fn take(&mut self, client: usize, answer: &Answer) -> bool {
        let mut more = false;
        for section in &answer.sections {
            let mut segments = section.inline.clone();
            for reference in &section.references {
                let scopes = canonical_scopes(&section.start.effective_scopes);
                segments.push(self.download(client, &reference.segment_id, &scopes));
            }
            let actor = self.replicas[client].actor;
            let truth = Truth {
                allowed: (!self.is_failing).then_some(&self.allowed[actor]),
                head: self.model.head,
                horizon: self.model.horizon,
            };
            more |= self.replicas[client].take(section, &segments, &truth);
        }
        more
    }

    fn duplicate(&mut self, client: usize, back: usize) {
        let sent = &self.sent[client];
        let Some(index) = sent.len().checked_sub(back + 1) else {
            return;
        };
        let sent = sent[index].clone();
        self.deliver(client, &sent);
    }

    fn reuse(&mut self, client: usize, back: usize, operations: &[OperationStep]) {
        let commits = self.sent[client].iter().flat_map(|sent| &sent.waiting);
        let Some(earlier) = commits.rev().nth(back) else {
            return;
        };
        let id = earlier.commit.client_commit_id.to_string();
        let waiting = self.author_commit(client, Some(id), operations);
        let commits = vec![waiting.commit.clone()];
        let author = &self.replicas[client].author;
        let sent = Sent {
            request: author.request(commits, None),
            log_epoch: author.log_epoch.clone(),
            waiting: vec![waiting],
        };
        self.deliver(client, &sent);
    }

    /// Brings a request to both servers and checks what it did against the model. `None` when
    /// it is refused for its wire version.
    fn deliver(&mut self, client: usize, sent: &Sent) -> Option<Answer> {
        let is_refused = self.is_refused(&self.replicas[client]);
        let answer = match self.exchange(client, &sent.request) {
            Ok(answer) => answer,
            Err(refusal) => {
                assert!(is_refused && refusal.code == ErrorCode::ClientWireUnsupported);
                return None;
            }
        };
        let has_epoch = self.replicas[client].author.version.has_epoch();
        let is_current = !has_epoch || sent.log_epoch == self.log_epoch;
        assert_eq!(answer.header.reset_required, !is_current, "{answer:?}");
        assert!(!is_refused && answer.error.is_none(), "{answer:?}");
        if !is_current {
            assert!(answer.results.is_empty() && answer.sections.is_empty());
            return Some(answer);
        }
        let waiting = &sent.waiting;
        assert_eq!(answer.results.len(), waiting.len());
        for (waiting, result) in waiting.iter().zip(&answer.results) {
            self.check_result(client, waiting, result);
        }
        let ends = answer
            .sections
            .iter()
            .filter(|section| section.start.status == tidewater_wire::SubStatus::Active);
        let cursor = ends
            .filter_map(|section| section.end.as_ref())
            .map(|end| end.next_cursor);
        self.model.note_client(client, cursor.min(), self.now_ms());
        Some(answer)
    }

    fn check_result(&mut self, client: usize, waiting: &Waiting, result: &PushResult) {
        let replica = &self.replicas[client];
        let allowed = (!self.is_failing).then_some(&self.allowed[replica.actor]);
        let version = replica.author.version;
        let id = &waiting.commit.client_commit_id;
        assert_eq!(result.client_commit_id, *id);
        let now_ms = self.now_ms();
        let (expected, is_replay) = self.model.push(
            &replica.author.schema,
            Asker {
                client,
                version,
                allowed,
            },
            id,
            &waiting.writes,
            now_ms,
        );
        assert_result(result, &expected, is_replay);
    }

    /// Sends bytes to both servers; they answer alike.
    fn exchange(&self, client: usize, request: &Bytes) -> Result<Answer, RoundError> {
        let identity = self.identity(client);
        let [one, other] = self.servers.each_ref().map(|server| {
            self.runtime.block_on(async {
                round(&server.engine().await, identity.clone(), request.clone()).await
            })
        });
        assert_eq!(one, other, "the stores answer differently");
        one.map(|bytes| Answer::read(&bytes).unwrap())
    }

    fn download(&self, client: usize, id: &str, scopes: &str) -> Bytes {
        let identity = self.identity(client);
        let bytes = self.servers.each_ref().map(|server| {
            self.runtime.block_on(async {
                let engine = server.engine().await;
                let grant = engine.segment(&identity, id, scopes).await.unwrap();
                let bytes = grant.open(None).await.unwrap().unwrap();
                bytes.collect(usize::MAX).await.unwrap()
            })
        });
        assert_eq!(bytes[0], bytes[1]);
        bytes[0].clone()
    }

    fn identity(&self, client: usize) -> Identity {
        let partition = self.servers[0].partition().as_str();
        Identity::new(partition, actor_name(self.replicas[client].actor))
    }
}

/// All bytes of a response.
async fn round(
    engine: &Arc<Engine>,
    identity: Identity,
    request: Bytes,
) -> Result<Bytes, RoundError> {
    let body = engine.round(identity, request).await?;
    let pieces: Vec<Bytes> = body.collect().await;
    Ok(pieces.concat().into())
}

fn actor_name(actor: usize) -> String {
    format!("actor-{actor}")
}

/// One operation as it travels and as it is meant.
fn operation(replica: &Replica, step: &OperationStep) -> (Operation, Write) {
    let (table, team) = (TABLES[step.table], TEAMS[step.team]);
    let id = format!("{team}-{}", step.row);
    let key = (table.to_owned(), id.clone());
    let seen = replica.rows.get(&key).map(|row| row.0);
    let upsert = |values: Map<String, Value>, base: Option<i64>| {
        let operation = replica
            .author
            .upsert(table, &Value::Object(values.clone()), base);
        (operation, Intent::Upsert { values, base })
    };
    let (operation, intent) = match step.kind {
        KindStep::Delete => (delete(table, &id), Intent::Delete),
        KindStep::Move { base } => {
            let mut values = row(replica, table, &id, team, u16::MAX, 0);
            let other = TEAMS[(step.team + 1) % TEAMS.len()];
            values.insert("team_id".to_owned(), json!(other));
            upsert(values, Some(base))
        }
        KindStep::Upsert {
            present,
            values,
            base,
        } => {
            let base = match base {
                Base::Absent => None,
                Base::Seen => seen,
                Base::Exactly(base) => Some(base),
            };
            upsert(row(replica, table, &id, team, present, values), base)
        }
        KindStep::Garbage(garbage) => {
            let values = row(replica, table, &id, team, u16::MAX, 0);
            let (mut operation, _) = upsert(values, None);
            let intent = spoil(garbage, &mut operation);
            (operation, intent)
        }
    };
    (operation, Write { key, intent })
}

fn spoil(garbage: Garbage, operation: &mut Operation) -> Intent {
    match garbage {
        Garbage::UnknownTable => {
            operation.table = "unheard_of".into();
            return Intent::UnknownTable;
        }
        Garbage::OtherKey => operation.row_id = "another".into(),
        Garbage::Truncated => {
            if let OperationAction::Upsert(payload) = &mut operation.action {
                payload.truncate(payload.len() - 1);
            }
        }
    }
    Intent::Unreadable
}

/// The columns of a row that the author presents: all of them before wire version 3.
fn row(
    replica: &Replica,
    table: &str,
    id: &str,
    team: &str,
    present: u16,
    values: u8,
) -> Map<String, Value> {
    let schema = &replica.author.schema;
    let columns = &schema.table(schema.find(table).unwrap()).columns;
    let is_sparse = replica.author.version.is_sparse();
    let present = columns
        .iter()
        .enumerate()
        .filter(|(index, column)| !is_sparse || column.name == "id" || present & (1 << index) != 0);
    present
        .map(|(index, column)| {
            // Few values, so that writes of an equal value happen.
            let number = values.rotate_left(u32::try_from(index).unwrap()) % 3;
            let value = match &column.name[..] {
                "id" => json!(id),
                "team_id" => json!(team),
                _ if number == 0 => Value::Null,
                "stars" => json!(number),
                "meta" => json!(format!("{{\"n\": {number}}}")),
                _ => json!(format!("v{number}")),
            };
            (column.name.clone(), value)
        })
        .collect()
}

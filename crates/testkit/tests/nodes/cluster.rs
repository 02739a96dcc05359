//! Nodes as processes, on a PostgreSQL server of their own.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use tempfile::NamedTempFile;
use tidewater_pgtest::{Database, Server};
use tidewater_testkit::schema::notes;

use crate::{device::Device, nats, party::Truth};

/// A database and the nodes that share it. Everything ends with the test's process at the latest.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    /// What every node is started with.
    arguments: Vec<String>,
    _nats: Option<nats::Server>,
    /// The file that says who is in which teams.
    teams: NamedTempFile,
    database: Database<'static>,
    server: &'static Server,
}

/// A node: where it listens, and its process while it runs.
struct Node {
    port: u16,
    process: Mutex<Option<Child>>,
}

impl Cluster {
    pub(crate) fn start(nodes: usize) -> Self {
        Self::start_with(nodes, None)
    }

    /// Nodes that hear of one another over NATS.
    pub(crate) fn start_with(nodes: usize, nats: Option<nats::Server>) -> Self {
        let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
        // It ends when this process does; a test has one.
        let server: &'static Server = Box::leak(Box::new(server));
        let database = server.database();
        let mut arguments = vec!["--database".to_owned(), database.url()];
        let teams = NamedTempFile::new().unwrap();
        arguments.extend(["--teams".to_owned(), teams.path().display().to_string()]);
        if let Some(nats) = &nats {
            arguments.extend(["--nats".to_owned(), nats.address()]);
        }
        let nodes = (0..nodes).map(|_| Node::start(&arguments));
        Self {
            nodes: nodes.collect(),
            arguments,
            _nats: nats,
            teams,
            database,
            server,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn url(&self, node: usize) -> String {
        format!("http://127.0.0.1:{}", self.nodes[node].port)
    }

    pub(crate) fn database(&self) -> &Database<'static> {
        &self.database
    }

    /// Puts actors in teams; the others are in t1. Nodes see it when they next have to know.
    pub(crate) fn put_in_teams(&self, teams: &Value) {
        std::fs::write(self.teams.path(), teams.to_string()).unwrap();
    }

    /// Has an operator tell a node to look at an actor's scopes again.
    pub(crate) fn refresh_scopes(&self, node: usize, actor: &str) {
        let url = format!("{}/admin/refresh-scopes", self.url(node));
        let wish = json!({ "partition": "p1", "actorId": actor }).to_string();
        let asked = ureq::post(&url).header("authorization", "Bearer admin");
        asked.send(wish).unwrap();
    }

    /// Kills a node, which cannot do anything about it.
    pub(crate) fn kill(&self, node: usize) {
        let process = self.nodes[node].process.lock().unwrap().take();
        let mut process = process.expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Starts a node again, where it was.
    pub(crate) fn restart(&self, node: usize) {
        let node = &self.nodes[node];
        let (process, _) = spawn(&self.arguments, node.port);
        *node.process.lock().unwrap() = Some(process);
    }

    /// Stops a node without ending it, or lets it go on.
    pub(crate) fn signal(&self, node: usize, signal: &str) {
        let process = self.nodes[node].process.lock().unwrap();
        let id = process.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Cuts the connections that nodes hear of one another by.
    pub(crate) fn cut_signals(&self) {
        self.database.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name LIKE '% signals'",
        );
    }

    /// Ends the database as a crash does, and starts it again.
    pub(crate) fn crash_database(&self) {
        self.server.crash_and_restart();
    }

    /// Waits until a query gives this number.
    #[track_caller]
    pub(crate) fn until(&self, sql: &str, wanted: impl Fn(i64) -> bool) {
        let since = Instant::now();
        while !wanted(self.database.number(sql)) {
            assert!(since.elapsed() < PATIENCE, "{sql} does not become true");
        }
    }
}

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

impl Truth for Cluster {
    fn schema(&self) -> Value {
        notes(1).json()
    }

    /// What a new device is given by the first node.
    fn notes(&self) -> Vec<(String, i64, Map<String, Value>)> {
        static JUDGES: AtomicU64 = AtomicU64::new(0);
        let number = JUDGES.fetch_add(1, Ordering::Relaxed);
        let mut judge = Device::new(self, &format!("judge-{number}"));
        // The first round is for the epoch of the log.
        let is_answered = judge.round(0) && judge.round(0);
        assert!(is_answered, "the first node does not answer");
        let rows = judge.client.read_rows("notes").unwrap().into_iter();
        rows.map(|row| (row.row_id, row.version, row.values))
            .collect()
    }
}

impl Node {
    fn start(arguments: &[String]) -> Self {
        let (process, port) = spawn(arguments, 0);
        Self {
            port,
            process: Mutex::new(Some(process)),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.get_mut().unwrap().take() {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// Starts a node and returns it with its port.
fn spawn(arguments: &[String], port: u16) -> (Child, u16) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_testnode"))
        .args(arguments)
        .args(["--port", &port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = process.stdout.as_mut().expect("it is piped");
    BufReader::new(out).read_line(&mut line).unwrap();
    let port = line.trim_end().parse();
    (process, port.expect("a node prints its port"))
}

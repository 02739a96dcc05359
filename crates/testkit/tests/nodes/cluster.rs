//! Nodes as processes, on a PostgreSQL server of their own.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use tidewater_pgtest::{Database, Server};

/// A database and the nodes that share it. Everything ends with the test's process at the latest.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
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
        let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
        // It ends when this process does; a test has one.
        let server: &'static Server = Box::leak(Box::new(server));
        let database = server.database();
        let url = database.url();
        let nodes = (0..nodes).map(|_| Node::start(&url)).collect();
        Self {
            nodes,
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
        let (process, _) = spawn(&self.database.url(), node.port);
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

impl Node {
    fn start(database: &str) -> Self {
        let (process, port) = spawn(database, 0);
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
fn spawn(database: &str, port: u16) -> (Child, u16) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_testnode"))
        .args(["--database", database, "--port", &port.to_string()])
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

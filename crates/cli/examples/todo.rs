//! A to-do list in the terminal that works with and without a network.
//!
//! A real offline-first client: the published `syncular-client` with a replica in a SQLite file.
//! Every command works on that file at once; what changed here is sent, and what changed elsewhere
//! is fetched, every second while the list is online. Run two of them beside
//! `tidewater quickstart`, take one offline, go on typing in both, and bring it back.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    path::PathBuf,
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, anyhow, ensure};
use clap::Parser;
use serde_json::{Map, Value, json};
use syncular_client::{
    ClientError, ClientLimits, Mutation, RowState, SyncClient, SyncOutcome,
    native_transport::HostTransport,
};

/// A to-do list in the terminal.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Who you are: alice or bob.
    #[arg(long)]
    pub(crate) name: String,
    /// The server.
    #[arg(long, default_value = "http://127.0.0.1:8787")]
    pub(crate) server: String,
    /// The list.
    #[arg(long, default_value = "home")]
    pub(crate) list: String,
    /// The folder of the replica; without one, the system's temporary folder.
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Start offline.
    #[arg(long)]
    pub(crate) offline: bool,
}

const HELP: &str = "list, add TEXT, done N, rm N, offline, online, sync, quit";
/// How often to sync while nothing is typed.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut list = TodoList::open(&options)?;
    say(&format!("Hello {}. Commands: {HELP}", options.name));
    list.sync();
    list.show();
    let lines = read_lines();
    loop {
        match lines.recv_timeout(SYNC_INTERVAL) {
            Ok(line) if line.trim() == "quit" => break,
            Ok(line) => {
                if let Err(error) = list.obey(&line) {
                    say(&format!("! {error:#}"));
                }
                write("", "\r> ");
            }
            Err(RecvTimeoutError::Timeout) => list.sync(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    list.sync();
    Ok(())
}

/// The list, as this device has it.
pub(crate) struct TodoList {
    client: SyncClient,
    transport: HostTransport,
    name: String,
    list: String,
    is_online: bool,
    /// The last complaint, which is not repeated.
    trouble: Option<String>,
    rejections_shown: usize,
}

#[derive(Clone, PartialEq)]
pub(crate) struct Todo {
    id: String,
    pub(crate) title: String,
    pub(crate) is_done: bool,
    added_by: String,
    added_at_ms: i64,
    /// Changed here, and not heard of from the server yet.
    pub(crate) is_waiting: bool,
}

impl TodoList {
    pub(crate) fn open(options: &Options) -> anyhow::Result<Self> {
        let folder = options.data.clone().unwrap_or_else(std::env::temp_dir);
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let file = folder.join(format!("tidewater-todo-{}.db", options.name));
        let schema: Value = serde_json::from_str(include_str!("../assets/todo.schema.json"))?;
        let path = file.to_str().context("the folder's name is not text")?;
        let mut client =
            SyncClient::open_path_with_identity(None, &schema, ClientLimits::default(), path)
                .map_err(|error| anyhow!("open {path}: {error}"))?;
        for table in ["lists", "todos"] {
            let scopes = vec![("list_id".to_owned(), vec![options.list.clone()])];
            let id = format!("{table}-{}", options.list);
            client
                .subscribe(id, table.to_owned(), scopes, None)
                .map_err(|error| anyhow!(error))?;
        }
        let transport = HostTransport::from_config(&json!({
            "baseUrl": options.server,
            "headers": { "authorization": format!("Bearer demo-{}", options.name) },
            "requestTimeoutMs": 5_000,
        }));
        Ok(Self {
            client,
            transport: transport.map_err(|error| anyhow!(error))?,
            name: options.name.clone(),
            list: options.list.clone(),
            is_online: !options.offline,
            trouble: None,
            rejections_shown: 0,
        })
    }

    pub(crate) fn obey(&mut self, line: &str) -> anyhow::Result<()> {
        let (command, rest) = line
            .trim()
            .split_once(' ')
            .unwrap_or_else(|| (line.trim(), ""));
        match (command, rest.trim()) {
            ("", "") => {}
            ("list", "") => self.show(),
            ("add", title) => self.add(title)?,
            ("done", number) => self.toggle(number)?,
            ("rm", number) => self.remove(number)?,
            ("offline", "") => {
                self.is_online = false;
                say("Offline. Go on: everything is kept here.");
            }
            ("online", "") => {
                self.is_online = true;
                self.trouble = None;
                say("Online.");
                self.sync();
            }
            ("sync", "") => {
                self.trouble = None;
                self.sync();
                self.show();
            }
            _ => say(&format!("Commands: {HELP}")),
        }
        Ok(())
    }

    fn add(&mut self, title: &str) -> anyhow::Result<()> {
        ensure!(!title.is_empty(), "add what?");
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let mut mutations = Vec::new();
        if self.rows("lists")?.is_empty() {
            mutations.push(upsert(
                "lists",
                json!({ "id": self.list, "title": self.list }),
            ));
        }
        let todo = json!({
            // The replica's id keeps two devices from making the same one.
            "id": format!("{}-{now_ms}", self.client.client_id()),
            "list_id": self.list,
            "title": title,
            "done": false,
            "added_by": self.name,
            "added_at_ms": u64::try_from(now_ms)?,
        });
        mutations.push(upsert("todos", todo));
        self.client.mutate(mutations).map_err(explain)?;
        self.sync();
        Ok(())
    }

    fn toggle(&mut self, number: &str) -> anyhow::Result<()> {
        let todo = self.numbered(number)?;
        let change = Map::from_iter([("done".to_owned(), json!(!todo.is_done))]);
        self.client
            .patch("todos", &todo.id, change, None)
            .map_err(explain)?;
        self.sync();
        Ok(())
    }

    fn remove(&mut self, number: &str) -> anyhow::Result<()> {
        let todo = self.numbered(number)?;
        let table = "todos".to_owned();
        let delete = Mutation::Delete {
            table,
            row_id: todo.id,
            base_version: None,
        };
        self.client.mutate(vec![delete]).map_err(explain)?;
        self.sync();
        Ok(())
    }

    /// Sends and fetches, if online, and tells what others did.
    fn sync(&mut self) {
        if !self.is_online {
            return;
        }
        let before = self.todos().unwrap_or_default();
        let trouble = match self.client.sync_until_idle(&mut self.transport, None) {
            SyncOutcome::Failed {
                error_code,
                message,
                ..
            } => Some(format!("{message} ({error_code})")),
            _ => None,
        };
        match (&trouble, &self.trouble) {
            (Some(now), before) if before.as_ref() != Some(now) => {
                say(&format!("! Not synced, trying on: {now}"));
            }
            (None, Some(_)) => say("Synced again."),
            _ => {}
        }
        self.trouble = trouble;
        tell(&before, &self.todos().unwrap_or_default());
        for rejection in &self.client.rejections()[self.rejections_shown..] {
            say(&format!(
                "! The server refused a change: {}",
                rejection.message
            ));
        }
        self.rejections_shown = self.client.rejections().len();
    }

    fn show(&self) {
        let todos = self.todos().unwrap_or_default();
        let place = if self.is_online { "" } else { ", offline" };
        say(&format!("{} ({}{place})", self.list, todos.len()));
        for (index, todo) in todos.iter().enumerate() {
            let mark = if todo.is_done { "x" } else { " " };
            let state = if todo.is_waiting {
                "  … not sent yet"
            } else {
                ""
            };
            let Todo {
                title, added_by, ..
            } = todo;
            say(&format!(
                "{:>3}. [{mark}] {title}  ({added_by}){state}",
                index + 1
            ));
        }
    }

    fn numbered(&self, number: &str) -> anyhow::Result<Todo> {
        let index: usize = number.parse().ok().context("which number?")?;
        let todo = self.todos()?.into_iter().nth(index.wrapping_sub(1));
        todo.with_context(|| format!("there is no number {index}"))
    }

    pub(crate) fn todos(&self) -> anyhow::Result<Vec<Todo>> {
        let text = |row: &Map<String, Value>, column: &str| {
            row.get(column)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let mut todos: Vec<Todo> = self
            .rows("todos")?
            .into_iter()
            .map(
                |RowState {
                     row_id,
                     version,
                     values: row,
                 }| Todo {
                    id: row_id,
                    title: text(&row, "title"),
                    is_done: row.get("done").and_then(Value::as_bool).unwrap_or_default(),
                    added_by: text(&row, "added_by"),
                    added_at_ms: row
                        .get("added_at_ms")
                        .and_then(Value::as_i64)
                        .unwrap_or_default(),
                    is_waiting: version < 0,
                },
            )
            .collect();
        todos.sort_by_key(|todo| todo.added_at_ms);
        Ok(todos)
    }

    fn rows(&self, table: &str) -> anyhow::Result<Vec<RowState>> {
        self.client.read_rows(table).map_err(|error| anyhow!(error))
    }
}

fn upsert(table: &str, values: Value) -> Mutation {
    let Value::Object(values) = values else {
        unreachable!("rows are objects");
    };
    Mutation::Upsert {
        table: table.to_owned(),
        values,
        base_version: None,
    }
}

fn explain(error: ClientError) -> anyhow::Error {
    anyhow!("{}", error.message)
}

/// Says what a sync brought.
fn tell(before: &[Todo], after: &[Todo]) {
    let find = |todos: &[Todo], id: &str| todos.iter().find(|todo| todo.id == id).cloned();
    for todo in after {
        match find(before, &todo.id) {
            None => say(&format!("+ {} added: {}", todo.added_by, todo.title)),
            Some(old) if old.is_done != todo.is_done => {
                let what = if todo.is_done {
                    "done"
                } else {
                    "to be done again"
                };
                say(&format!("* {what}: {}", todo.title));
            }
            Some(old) if old.title != todo.title => say(&format!("* now called {}", todo.title)),
            Some(_) => {}
        }
    }
    for todo in before.iter().filter(|todo| find(after, &todo.id).is_none()) {
        say(&format!("- removed: {}", todo.title));
    }
}

/// Reads what is typed, beside the syncing.
fn read_lines() -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(16);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(line: &str) {
    // Over the prompt, which comes again below.
    write(&format!("{line}\n"), &format!("\r{line}\n> "));
}

/// Writes one text for programs or another for people.
fn write(plain: &str, terminal: &str) {
    let text = if io::stdin().is_terminal() {
        terminal
    } else {
        plain
    };
    let mut out = io::stdout().lock();
    // Without an output there is nobody to tell.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

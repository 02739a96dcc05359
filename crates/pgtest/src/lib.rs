//! A real PostgreSQL server for tests, started by the test run and gone with it.
//!
//! One server serves all tests of a process; each test has a database of its own. The server runs
//! as an unprivileged user, as it insists on, listens on a Unix socket in its own folder only, and
//! does not wait for disks. Its default collation sorts as people do and not bytewise, so that a
//! comparison that should have said `COLLATE "C"` shows.
//!
//! **Invariant:** the server ends when the process does, however that ends. A shell keeps it and
//! reads from a pipe whose other end is here; when the pipe closes, it stops the server and
//! removes the folder.
//!
//! Without PostgreSQL's programs tests fail and say what to install. They do not skip: a skip
//! would hide that nothing was tested.

mod programs;

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What keeps the server: run by `sh` with the programs' folder as its first argument.
const KEEPER: &str = include_str!("keeper.sh");

/// A running server.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    folder: String,
    keeper: Mutex<Keeper>,
}

#[derive(Debug)]
struct Keeper {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    /// The server that all tests of this process share.
    ///
    /// # Panics
    ///
    /// When there is no PostgreSQL, or it does not start.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| match Self::start() {
            Ok(server) => server,
            Err(why) => panic!("{why}"),
        })
    }

    /// Starts a server of its own: for a test that stops it.
    ///
    /// # Errors
    ///
    /// A sentence for people.
    pub fn start() -> Result<Self, String> {
        let programs = programs::find()?;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", KEEPER, "keeper"])
            .arg(&programs)
            .current_dir("/")
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            // An interrupt from the terminal ends the tests; the closing pipe ends the server.
            .process_group(0);
        if let Some((user, group)) = programs::unprivileged_user()? {
            command.gid(group).uid(user);
        }
        let mut shell = command
            .spawn()
            .map_err(|error| format!("no shell could be started for PostgreSQL: {error}"))?;
        let orders = shell.stdin.take();
        let Some(answers) = shell.stdout.take() else {
            return Err("the shell has no output".to_owned());
        };
        let mut keeper = Keeper {
            shell,
            orders,
            answers: BufReader::new(answers),
        };
        let folder = keeper.answer()?;
        Ok(Self {
            programs,
            folder,
            keeper: Mutex::new(keeper),
        })
    }

    /// Creates an empty database.
    ///
    /// # Panics
    ///
    /// When the server does not.
    pub fn database(&self) -> Database<'_> {
        self.create("")
    }

    fn create(&self, rest: &str) -> Database<'_> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let database = Database {
            server: self,
            name: format!("test_{number}"),
        };
        let sql = format!("CREATE DATABASE {} {rest}", database.name);
        self.run("postgres", &sql);
        database
    }

    /// Stops the server at once, as a crash does, and starts it again.
    ///
    /// # Panics
    ///
    /// When it does not come back.
    pub fn crash_and_restart(&self) {
        self.order("restart");
    }

    /// Stops the server at once until [`Self::crash_and_restart`].
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn crash(&self) {
        self.order("stop");
    }

    /// Stops the server, has it recover as one that was restored does, and begin a new timeline
    /// with that. Nothing is lost.
    ///
    /// # Panics
    ///
    /// When it does not come back.
    pub fn recover(&self) {
        self.order("recover");
    }

    fn order(&self, order: &str) {
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let written = keeper
            .orders
            .as_mut()
            .map(|orders| writeln!(orders, "{order}"));
        assert!(
            matches!(written, Some(Ok(()))),
            "the shell that keeps PostgreSQL is gone"
        );
        if let Err(why) = keeper.answer() {
            panic!("{why}");
        }
    }

    /// Runs statements with `psql` and returns what it prints.
    ///
    /// # Panics
    ///
    /// At the first statement that fails.
    pub fn run(&self, database: &str, sql: &str) -> String {
        let mut psql = Command::new(self.programs.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"])
            .args(["-h", &self.folder, "-U", "postgres", "-d", database])
            .args(["-f", "-"])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("PGOPTIONS", "--client-min-messages=warning")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("psql was found");
        let mut input = psql.stdin.take().expect("it is piped");
        // A statement that fails ends psql, and with it the pipe.
        drop(input.write_all(sql.as_bytes()));
        drop(input);
        let output = psql.wait_with_output().expect("psql ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}\n{sql}");
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim_end_matches('\n').to_owned()
    }

    fn disconnect(&self, database: &str) {
        self.run(
            "postgres",
            &format!(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
                 WHERE datname = '{database}'"
            ),
        );
    }

    /// Where a database is, as a URL.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.replace('/', "%2F");
        format!("postgresql:///{database}?host={folder}&user=postgres")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let keeper = self
            .keeper
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        keeper.orders = None;
        drop(keeper.shell.wait());
    }
}

impl Keeper {
    /// The next line of the shell, which is an answer or says what went wrong.
    fn answer(&mut self) -> Result<String, String> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        if let Some(answer) = line.trim_end().strip_prefix("ok ") {
            return Ok(answer.to_owned());
        }
        let mut rest = String::new();
        while matches!(self.answers.read_line(&mut rest), Ok(1..)) {}
        Err(format!(
            "PostgreSQL could not be started for the tests ({read:?}):\n{line}{rest}"
        ))
    }
}

/// A database of a test, dropped with its handle.
#[derive(Debug)]
pub struct Database<'s> {
    server: &'s Server,
    name: String,
}

impl<'s> Database<'s> {
    /// Another database with all that is in this one. Connections to this one are closed: nobody
    /// may use what is copied.
    ///
    /// # Panics
    ///
    /// When it cannot be copied.
    pub fn copy(&self) -> Self {
        self.server.disconnect(&self.name);
        self.server
            .create(&format!("TEMPLATE {} STRATEGY file_copy", self.name))
    }

    /// Puts what is in another database in the place of this one. Connections to both are closed.
    ///
    /// # Panics
    ///
    /// When it cannot be copied.
    pub fn replace_with(&self, other: &Database<'_>) {
        self.server.disconnect(&other.name);
        let (name, other) = (&self.name, &other.name);
        self.server
            .run("postgres", &format!("DROP DATABASE {name} WITH (FORCE)"));
        self.server.run(
            "postgres",
            &format!("CREATE DATABASE {name} TEMPLATE {other} STRATEGY file_copy"),
        );
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Runs statements and returns what they print, a line for each row.
    ///
    /// # Panics
    ///
    /// At the first statement that fails.
    pub fn run(&self, sql: &str) -> String {
        self.server.run(&self.name, sql)
    }

    /// The rows of a query, each as text.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn texts(&self, sql: &str) -> Vec<String> {
        let printed = self.run(sql);
        if printed.is_empty() {
            return Vec::new();
        }
        printed.split('\n').map(str::to_owned).collect()
    }

    /// The only number of a query.
    ///
    /// # Panics
    ///
    /// When it fails, or gives no number.
    pub fn number(&self, sql: &str) -> i64 {
        let text = self.run(sql);
        text.parse().expect("a query of one number")
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its server keeps its files and its socket.
    pub fn folder(&self) -> &Path {
        Path::new(&self.server.folder)
    }
}

impl Drop for Database<'_> {
    fn drop(&mut self) {
        // A server that a test stopped has nothing to drop, and a test that failed says why.
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let dropped = Command::new(self.server.programs.join("psql"))
            .args(["-X", "-q", "-h", &self.server.folder, "-U", "postgres"])
            .args(["-d", "postgres", "-c", &sql])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        drop(dropped);
    }
}

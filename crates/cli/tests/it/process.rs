//! Runs the binary.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

/// Runs a command to its end.
pub(crate) fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = tidewater(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// The command, with nothing of this process's environment that it would read.
pub(crate) fn tidewater(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidewater"));
    command.args(arguments).env_remove("TIDEWATER_CONFIG");
    command
}

/// A server process that is stopped when it is dropped.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    /// Starts a server. The text of standard error is only for people who look at a failure.
    pub(crate) fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let child = tidewater(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    /// The first URL of standard output.
    pub(crate) fn url_from_output(&mut self) -> String {
        let out = self.child.stdout.take().unwrap();
        first_url(out, |line| line.contains("http://").then(|| url(line)))
    }

    /// The address in the log line that says that the server listens.
    pub(crate) fn url_from_log(&mut self) -> String {
        let errors = self.child.stderr.take().unwrap();
        first_url(errors, |line| {
            let (_, address) = line.split_once("listening address=")?;
            Some(format!("http://{}", address.trim()))
        })
    }

    /// Asks the process to stop and waits for it; gives its exit code.
    pub(crate) fn stop(mut self, signal: &str) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What `find` makes of the first line it knows. The rest is read and forgotten, or the process
/// would block on its output.
fn first_url(
    output: impl Read + Send + 'static,
    find: impl Fn(&str) -> Option<String> + Send + 'static,
) -> String {
    let (sender, found) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // Nobody listens after the first one.
            let _ = find(&line).map(|url| sender.send(url));
        }
    });
    found
        .recv_timeout(PATIENCE)
        .expect("the process says where it listens")
}

fn url(line: &str) -> String {
    let start = line.find("http://").unwrap();
    line[start..].trim().to_owned()
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a file and gives its path as text.
pub(crate) fn file(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

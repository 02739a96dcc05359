//! The binary is killed in the middle of its work and has kept everything it acknowledged.

use std::{fmt::Write as _, path::PathBuf};

use anyhow::Result;
use tidewater_testkit::{
    crash::{self, CrashPlan, Victim},
    schema::notes,
};

use crate::process::{Running, file};

/// `tidewater serve` on a database.
struct Binary {
    _folder: tempfile::TempDir,
    config: PathBuf,
    running: Option<Running>,
}

const CLIENTS: usize = 6;

impl Binary {
    /// With these lines for the section of the store.
    fn new(store: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "schema.json", &notes(1).json().to_string());
        let mut text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\n{store}[schema]\npath = \"schema.json\"\n\
             [scopes.actors.\"*\"]\nteam_id = [\"t1\"]\n",
        );
        for client in 0..CLIENTS {
            writeln!(
                text,
                "[[auth.tokens]]\ntoken = \"{}\"\nactor = \"actor-{client}\"\npartition = \"p\"",
                token(client)
            )
            .unwrap();
        }
        let config = file(folder.path(), "tidewater.toml", &text).into();
        Self {
            _folder: folder,
            config,
            running: None,
        }
    }
}

impl Victim for Binary {
    fn start(&mut self) -> Result<String> {
        let config = self.config.to_str().unwrap();
        let mut running = Running::start(&["serve", "--config", config], &[]);
        let url = running.url_from_log();
        self.running = Some(running);
        Ok(url)
    }

    fn kill(&mut self) -> Result<()> {
        // Dropping it kills it with SIGKILL and waits.
        self.running = None;
        Ok(())
    }

    fn token(&self, client: usize) -> String {
        token(client)
    }
}

fn token(client: usize) -> String {
    format!("token-{client}")
}

#[track_caller]
fn check(seed: u64, store: &str) {
    let plan = CrashPlan {
        seed,
        kills: 5,
        clients: CLIENTS,
        acknowledgements_max: 80,
    };
    let report = crash::run(plan, &mut Binary::new(store));
    let report = report.unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
    assert!(
        report.commits > plan.kills && report.rows > 0,
        "{plan:?}: {report:?}"
    );
}

#[test]
fn acknowledged_commits_survive_a_kill_and_none_is_there_twice() {
    for seed in [1, 2] {
        check(seed, "");
    }
}

/// The database goes on, and what the dead server held in it is let go.
#[test]
fn acknowledged_commits_on_postgresql_survive_a_kill_of_the_server() {
    for seed in [3, 4] {
        let database = tidewater_pgtest::Server::shared().database();
        let url = database.url();
        check(
            seed,
            &format!("url = \"{url}\"\npostgres.single_node = true\n"),
        );
    }
}

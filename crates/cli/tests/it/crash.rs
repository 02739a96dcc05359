//! The binary is killed in the middle of its work and has kept everything it acknowledged.

use std::{fmt::Write as _, path::PathBuf};

use anyhow::Result;
use tidewater_testkit::{
    crash::{self, CrashPlan, Victim},
    schema::notes,
};

use crate::process::{Running, file};

/// `tidewater serve` on a SQLite file.
struct Binary {
    _folder: tempfile::TempDir,
    config: PathBuf,
    running: Option<Running>,
}

const CLIENTS: usize = 6;

impl Binary {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "schema.json", &notes(1).json().to_string());
        let mut text = String::from(
            "[server]\nlisten = \"127.0.0.1:0\"\n[schema]\npath = \"schema.json\"\n\
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
fn check(seed: u64) {
    let plan = CrashPlan {
        seed,
        kills: 5,
        clients: CLIENTS,
        acknowledgements_max: 80,
    };
    let report = crash::run(plan, &mut Binary::new());
    let report = report.unwrap_or_else(|error| panic!("{plan:?}: {error:#}"));
    assert!(
        report.commits > plan.kills && report.rows > 0,
        "{plan:?}: {report:?}"
    );
}

#[test]
fn acknowledged_commits_survive_a_kill_and_none_is_there_twice() {
    for seed in [1, 2] {
        check(seed);
    }
}

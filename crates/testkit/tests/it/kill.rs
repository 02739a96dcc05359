//! A server that is killed in the middle of its work has kept everything it acknowledged.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tidewater_testkit::{
    crash::{self, CrashPlan, Victim},
    schema::notes,
};

/// `testhost` with one instance in a folder.
struct Testhost {
    folder: tempfile::TempDir,
    process: Option<Child>,
    mount: Option<String>,
}

impl Victim for Testhost {
    fn start(&mut self) -> Result<String> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_testhost"))
            .args(["--store", "sqlite", "--data"])
            .arg(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = process
            .stdout
            .as_mut()
            .context("it has a standard output")?;
        BufReader::new(out).read_line(&mut line)?;
        self.process = Some(process);
        let base = format!("http://127.0.0.1:{}", line.trim_end());
        let mount = match &self.mount {
            Some(mount) => mount.clone(),
            None => {
                let made = post(
                    &format!("{base}/instances"),
                    &json!({ "schema": notes(1).json() }),
                )?;
                format!(
                    "/i/{}",
                    made["id"].as_str().context("an instance has an id")?
                )
            }
        };
        let url = format!("{base}{mount}");
        self.mount = Some(mount);
        for client in 0..CLIENTS {
            let allowed = json!({ "team_id": ["t1"] });
            let wish = json!({ "actorId": self.token(client), "allowed": allowed });
            post(&format!("{url}/control/allowed-scopes"), &wish)?;
        }
        Ok(url)
    }

    fn kill(&mut self) -> Result<()> {
        let process = self.process.as_mut().context("it runs")?;
        process.kill()?;
        process.wait()?;
        Ok(())
    }

    fn token(&self, client: usize) -> String {
        format!("actor-{client}")
    }
}

impl Drop for Testhost {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.kill();
    }
}

fn post(url: &str, body: &Value) -> Result<Value> {
    let text = ureq::post(url)
        .send(body.to_string())?
        .into_body()
        .read_to_string()?;
    Ok(serde_json::from_str(&text)?)
}

const CLIENTS: usize = 6;

#[track_caller]
fn check(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Testhost {
        folder,
        process: None,
        mount: None,
    };
    let plan = CrashPlan {
        seed,
        kills: 6,
        clients: CLIENTS,
        acknowledgements_max: 80,
    };
    let report = crash::run(plan, &mut victim);
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

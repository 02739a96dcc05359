//! `cargo xtask ci`: everything a change must pass, cheapest first.
//!
//! Every step runs even if one before it failed, so that one run shows all that is wrong. A step
//! whose tool is missing on this machine is skipped and says so; on a build machine (`CI` is
//! set) tools that cargo can install are installed.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::Context as _;

use crate::{
    say, tidy,
    workspace::{cargo, root},
};

/// Pinned, so that a release of the tool cannot break a build.
const CARGO_DENY_VERSION: &str = "0.20.2";

/// How long each fuzz target runs. Long runs are made by hand.
const FUZZ_SECONDS: u32 = 15;

/// Lines of failed tests that the summary repeats.
const REPEATED_LINES_MAX: usize = 400;

/// What became of a step.
enum Outcome {
    Passed,
    /// With what the summary should repeat of its output.
    Failed(Vec<String>),
    Skipped(String),
}

struct Step {
    name: &'static str,
    run: fn() -> anyhow::Result<Outcome>,
}

const STEPS: &[Step] = &[
    Step {
        name: "tidy",
        run: || Ok(from_success(tidy::run()? == ExitCode::SUCCESS)),
    },
    Step {
        name: "fmt",
        run: || cargo_step(&["fmt", "--all", "--check"], &[]),
    },
    Step {
        name: "clippy",
        run: || {
            let arguments = ["clippy", "--workspace", "--all-targets", "--all-features"];
            cargo_step(&arguments, &["--", "-D", "warnings"])
        },
    },
    Step {
        name: "test",
        run: test,
    },
    Step {
        name: "doc",
        run: doc,
    },
    Step {
        name: "deny",
        run: deny,
    },
    Step {
        name: "fuzz",
        run: fuzz,
    },
];

/// Whether each of these names a step.
pub(crate) fn are_steps(names: &[&str]) -> bool {
    names
        .iter()
        .all(|name| STEPS.iter().any(|step| step.name == *name))
}

/// Runs the steps named, or every step, and reports.
pub(crate) fn run(names: &[&str]) -> anyhow::Result<ExitCode> {
    let (mut report, mut failures) = (Vec::new(), Vec::new());
    let mut failed = false;
    let wanted = |step: &&Step| names.is_empty() || names.contains(&step.name);
    for step in STEPS.iter().filter(wanted) {
        say(format_args!("== {}", step.name));
        let started = Instant::now();
        let outcome = (step.run)().with_context(|| format!("run step {}", step.name))?;
        let seconds = started.elapsed().as_secs();
        failed |= matches!(outcome, Outcome::Failed(_));
        report.push(match outcome {
            Outcome::Passed => format!("{}: passed ({seconds} s)", step.name),
            Outcome::Failed(lines) => {
                failures.extend(lines);
                format!("{}: FAILED ({seconds} s)", step.name)
            }
            Outcome::Skipped(reason) => format!("{}: skipped, {reason}", step.name),
        });
    }
    if !failures.is_empty() {
        say("== failures, again");
    }
    let summary = ["== summary".to_owned()].into_iter().chain(report);
    for line in failures.into_iter().chain(summary) {
        say(line);
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn from_success(success: bool) -> Outcome {
    if success {
        Outcome::Passed
    } else {
        Outcome::Failed(Vec::new())
    }
}

fn run_to_end(command: &mut Command) -> anyhow::Result<Outcome> {
    Ok(from_success(command.status()?.success()))
}

fn cargo_step(arguments: &[&str], rest: &[&str]) -> anyhow::Result<Outcome> {
    run_to_end(cargo().args(arguments).args(rest))
}

/// What failed tests printed, picked from the output of the test harness.
#[derive(Debug, Default)]
struct Failures {
    lines: Vec<String>,
    is_inside: bool,
}

impl Failures {
    fn note(&mut self, line: &str) {
        // Between these two the harness repeats what the failed tests of a program printed.
        self.is_inside |= line == "failures:";
        if self.is_inside && self.lines.len() < REPEATED_LINES_MAX {
            self.lines.push(line.to_owned());
        }
        self.is_inside &= !line.starts_with("test result:");
    }
}

/// All tests, also those of crates after one that failed. What failed is repeated in the summary,
/// since thousands of lines follow it.
fn test() -> anyhow::Result<Outcome> {
    let mut child = cargo()
        .args(["test", "--workspace", "--all-features", "--no-fail-fast"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(child.stdout.take().context("no output")?);
    let mut failures = Failures::default();
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(line.trim_ascii_end());
        say(&text);
        failures.note(&text);
        line.clear();
    }
    Ok(if child.wait()?.success() {
        Outcome::Passed
    } else {
        Outcome::Failed(failures.lines)
    })
}

fn doc() -> anyhow::Result<Outcome> {
    run_to_end(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--all-features"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Licenses, bans and sources need nothing but the crates. Advisories need the advisory
/// database, see `deny.toml`.
fn deny() -> anyhow::Result<Outcome> {
    if !is_installed(&["deny", "--version"]) {
        if !is_build_machine() {
            return Ok(Outcome::Skipped(
                "install it with `cargo install --locked cargo-deny`".to_owned(),
            ));
        }
        let arguments = ["install", "--locked", "--version", CARGO_DENY_VERSION];
        if let failed @ Outcome::Failed(_) = cargo_step(&arguments, &["cargo-deny"])? {
            return Ok(failed);
        }
    }
    cargo_step(
        &["deny", "--all-features", "check"],
        &["--hide-inclusion-graph", "licenses", "bans", "sources"],
    )
}

fn is_installed(arguments: &[&str]) -> bool {
    cargo()
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}

fn is_build_machine() -> bool {
    std::env::var_os("CI").is_some()
}

/// Builds the fuzz targets and gives each a moment: enough to notice that one is broken.
fn fuzz() -> anyhow::Result<Outcome> {
    if !root().join("fuzz/Cargo.toml").exists() {
        return Ok(Outcome::Skipped("there are no fuzz targets".to_owned()));
    }
    if !is_installed(&["+nightly", "fuzz", "--version"]) {
        return Ok(Outcome::Skipped(
            "it needs a nightly toolchain and `cargo install --locked cargo-fuzz`".to_owned(),
        ));
    }
    let listing = cargo().args(["+nightly", "fuzz", "list"]).output()?;
    let targets = String::from_utf8(listing.stdout)?;
    let mut outcome = cargo_step(&["+nightly", "fuzz", "build"], &[])?;
    for target in targets.lines() {
        if let Outcome::Failed(_) = outcome {
            break;
        }
        say(format_args!("-- fuzz {target}"));
        let seconds = format!("-max_total_time={FUZZ_SECONDS}");
        outcome = cargo_step(
            &["+nightly", "fuzz", "run", target],
            &["--", &seconds, "-verbosity=0"],
        )?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_tests_printed_is_repeated_and_nothing_else() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\n\
                      failures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed\ntest c ... ok\n";
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.note(line));
        assert_eq!(
            failures.lines.first().map(String::as_str),
            Some("failures:")
        );
        assert!(failures.lines.contains(&"why".to_owned()));
        assert!(
            failures
                .lines
                .last()
                .unwrap()
                .starts_with("test result: FAILED")
        );
        assert_eq!(failures.lines.len(), 9);
    }
}

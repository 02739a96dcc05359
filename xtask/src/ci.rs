//! `cargo xtask ci`: everything a change must pass, cheapest first.
//!
//! Every step runs even if one before it failed, so that one run shows all that is wrong. A step
//! whose tool is missing on this machine is skipped and says so; on a build machine (`CI` is
//! set) tools that cargo can install are installed.

use std::{
    process::{Command, ExitCode},
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

/// What became of a step.
enum Outcome {
    Passed,
    Failed,
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
        run: || cargo_step(&["test", "--workspace", "--all-features"], &[]),
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
    let mut report = Vec::new();
    let mut failed = false;
    let wanted = |step: &&Step| names.is_empty() || names.contains(&step.name);
    for step in STEPS.iter().filter(wanted) {
        say(format_args!("== {}", step.name));
        let started = Instant::now();
        let outcome = (step.run)().with_context(|| format!("run step {}", step.name))?;
        let seconds = started.elapsed().as_secs();
        failed |= matches!(outcome, Outcome::Failed);
        report.push(match outcome {
            Outcome::Passed => format!("{}: passed ({seconds} s)", step.name),
            Outcome::Failed => format!("{}: FAILED ({seconds} s)", step.name),
            Outcome::Skipped(reason) => format!("{}: skipped, {reason}", step.name),
        });
    }
    say("== summary");
    for line in report {
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
        Outcome::Failed
    }
}

fn run_to_end(command: &mut Command) -> anyhow::Result<Outcome> {
    Ok(from_success(command.status()?.success()))
}

fn cargo_step(arguments: &[&str], rest: &[&str]) -> anyhow::Result<Outcome> {
    run_to_end(cargo().args(arguments).args(rest))
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
        if let failed @ Outcome::Failed = cargo_step(&arguments, &["cargo-deny"])? {
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
        if let Outcome::Failed = outcome {
            break;
        }
        say(format_args!("-- fuzz {target}"));
        let seconds = format!("-max_total_time={FUZZ_SECONDS}");
        outcome = cargo_step(&["+nightly", "fuzz", "run", target], &["--", &seconds])?;
    }
    Ok(outcome)
}

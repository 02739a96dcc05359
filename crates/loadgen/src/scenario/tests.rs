//! What each scenario asks for and how it checks the answers, against a server that misbehaves.

use clap::Parser;

use super::*;
use crate::{stub::Stub, verify::ProblemKind};

mod fake;

use fake::{FakeServer, Fault};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: crate::Args,
}

fn run_against(fault: Fault, command: &str) -> Box<crate::RunReport> {
    let stub = Stub::start(move || {
        let mut server = FakeServer::new(fault);
        move |path: &str, body| server.answer(path, &body)
    })
    .unwrap();
    let line = format!(
        "load {command} --url {} --quiet --warmup 10ms --duration 10s",
        stub.url()
    );
    let args = Cli::parse_from(line.split(' ')).args;
    match crate::run(args).unwrap() {
        Report::Run { run, .. } => run,
        Report::Schema(_) => panic!("this is no run"),
    }
}

const COMMANDS: [&str; 13] = [
    "push --count 300 --clients 3 --lists 2 --operations 5",
    "push --count 100 --clients 2 --inserts 50 --commits 4 --wire 2",
    "push --count 100 --update patch --scopes 3 --columns 10 --rows 20",
    "pull-idle --count 100 --clients 2",
    "pull-window --count 20 --window 250",
    "bootstrap --count 5 --rows 2500 --page-rows 400 --pages 3",
    "bootstrap --count 5 --rows 2500 --lane external --clients 2",
    "bootstrap --count 5 --rows 2500 --cold",
    "mixed --count 500 --clients 4 --lists 3 --push 50 --pull 45 --bootstrap 5",
    "storm --clients 20 --rows 2500 --lane rows",
    "storm --clients 20 --rows 2500 --lane external --cold",
    "storm --clients 8 --rows 2500 --lane external --signed",
    "storm --clients 8 --rows 2500 --lists 3 --others 5 --others-rate 300 --cold --lane rows",
];

#[test]
fn a_server_that_does_right_passes() {
    for command in COMMANDS {
        let report = run_against(Fault::None, command);
        assert!(report.is_ok(), "{command}\n{report}");
        assert_eq!(report.checked.found, report.checked.acknowledged);
    }
}

#[test]
fn every_count_is_exact() {
    let report = run_against(
        Fault::None,
        "push --count 300 --clients 3 --operations 5 --commits 2",
    );
    let push = &report.operations[&crate::OperationKind::Push];
    assert_eq!((push.count, push.commits, push.rows), (300, 600, 3000));
    // The warm-up's commits are not measured, and are checked.
    assert!(report.checked.acknowledged > 600);
    assert!(report.checked.replayed >= 45);
}

#[test]
fn commits_that_the_server_does_not_give_out_any_more_are_no_fault_and_not_found() {
    let push = "push --count 600 --clients 3";
    let report = run_against(Fault::Resets { behind: 200 }, push);
    assert!(report.is_ok(), "{report}");
    let checked = &report.checked;
    assert!(checked.found >= 100, "{report}");
    assert_eq!(checked.found + checked.out_of_reach, checked.acknowledged);
    // One that gives out nothing at all cannot be checked.
    check_fault(
        Fault::Resets { behind: 0 },
        push,
        &[ProblemKind::Unfinished],
    );
}

#[track_caller]
fn check_fault(fault: Fault, command: &str, expected: &[ProblemKind]) {
    let report = run_against(fault, command);
    assert!(!report.is_ok(), "{fault:?}: {report}");
    let found: Vec<ProblemKind> = report.problems.counts().map(|(kind, _)| kind).collect();
    assert_eq!(found, expected, "{fault:?}: {report}");
}

const PUSH: &str = "push --count 200 --operations 2 --lists 2";

#[test]
fn a_lost_commit_is_found() {
    // Its place stays empty, so the log has a gap too; its rows are older than they should be.
    let kinds = [ProblemKind::LostCommit, ProblemKind::Gap];
    check_fault(Fault::LosesCommit, PUSH, &kinds);
}

#[test]
fn a_commit_that_takes_the_place_of_another_is_found() {
    // Of the two that share a place only one is in the log, and its row versions jump.
    check_fault(
        Fault::OverwritesCommit,
        "push --count 200 --operations 2 --rows 4",
        &[ProblemKind::LostCommit, ProblemKind::WrongVersion],
    );
}

#[test]
fn a_gap_in_the_log_is_found() {
    check_fault(Fault::SkipsPlace, PUSH, &[ProblemKind::Gap]);
}

#[test]
fn a_row_of_somebody_else_is_found() {
    let mixed = "mixed --count 500 --clients 4 --lists 4 --push 50 --pull 50 --bootstrap 0";
    check_fault(Fault::LeaksRows, mixed, &[ProblemKind::ForeignRow]);
    let bootstraps = "mixed --count 50 --clients 4 --lists 4 --push 0 --pull 0 --bootstrap 1";
    check_fault(Fault::LeaksRows, bootstraps, &[ProblemKind::ForeignRow]);
}

#[test]
fn a_commit_that_is_applied_again_when_it_is_replayed_is_found() {
    let report = run_against(Fault::ForgetsResults, PUSH);
    let found: Vec<ProblemKind> = report.problems.counts().map(|(kind, _)| kind).collect();
    assert!(found.contains(&ProblemKind::NotCached), "{report}");
}

#[test]
fn a_row_that_is_not_what_was_written_is_found() {
    let kinds = [ProblemKind::WrongContent];
    check_fault(Fault::CorruptsLog, PUSH, &kinds);
    check_fault(Fault::CorruptsRows, PUSH, &kinds);
    check_fault(Fault::CorruptsRows, "bootstrap --count 1", &kinds);
    check_fault(Fault::CorruptsLog, "pull-window --count 5", &kinds);
}

#[test]
fn a_row_that_is_missing_in_a_bootstrap_is_found() {
    let kinds = [ProblemKind::MissingRow];
    check_fault(Fault::HidesRow, "push --count 2000 --rows 100", &kinds);
    check_fault(Fault::HidesRow, "bootstrap --count 1 --rows 100", &kinds);
}

#[test]
fn a_storm_finds_what_a_device_did_not_get() {
    let storm = "storm --clients 3 --rows 100 --lane rows";
    check_fault(Fault::HidesRow, storm, &[ProblemKind::MissingRow]);
    check_fault(Fault::CorruptsRows, storm, &[ProblemKind::WrongContent]);
    let storm = "storm --clients 3 --rows 100 --lane external";
    check_fault(Fault::SwapsSegments, storm, &[ProblemKind::BadSegment]);
}

#[test]
fn a_segment_with_other_bytes_than_its_address_is_found() {
    check_fault(
        Fault::SwapsSegments,
        "bootstrap --count 1 --lane external",
        &[ProblemKind::MissingRow, ProblemKind::BadSegment],
    );
}

#[test]
fn a_window_that_ends_early_is_found() {
    let report = run_against(Fault::SkipsPlace, "pull-window --count 3");
    assert!(!report.is_ok(), "{report}");
}

#[test]
fn errors_are_counted_and_make_a_run_fail() {
    let report = run_against(Fault::Refuses, "push --count 100");
    assert!(!report.is_ok());
    assert!(report.errors["status 429 sync.rate_limited"] > 0);
    assert!(report.problems.is_empty(), "{report}");
}

#[test]
fn a_run_without_checks_reports_none() {
    let report = run_against(Fault::LosesCommit, "push --count 100 --no-verify");
    assert!(report.is_ok());
    assert_eq!(report.checked.found, 0);
}

#[test]
fn an_open_loop_is_not_faster_than_its_rate() {
    let report = run_against(Fault::None, "push --rate 200 --count 41 --clients 4");
    assert!(report.is_ok(), "{report}");
    let push = &report.operations[&crate::OperationKind::Push];
    assert_eq!(push.count, 41);
    // The last of them is meant to start 40 distances after the first.
    assert!(report.elapsed_seconds >= 0.2, "{report}");
}

#[test]
fn the_schema_is_json() {
    let args = Cli::parse_from(["load", "schema", "--columns", "30", "--scopes", "10"]).args;
    let report = crate::run(args).unwrap();
    let json: serde_json::Value = serde_json::from_str(&report.to_string()).unwrap();
    assert_eq!(json["tables"][0]["columns"].as_array().unwrap().len(), 30);
}

#[test]
fn the_floor_is_measured_without_a_server() {
    let args = Cli::parse_from(["load", "floor", "--duration", "50ms", "--json"]).args;
    let report = crate::run(args).unwrap();
    assert!(report.is_ok());
    let json: serde_json::Value = serde_json::from_str(&report.to_string()).unwrap();
    assert!(json["operations"]["push"]["count"].as_u64().unwrap() > 0);
}

#[test]
fn a_remote_server_is_refused() {
    let args = Cli::parse_from(["load", "push", "--url", "http://192.0.2.1:80"]).args;
    let error = crate::run(args).unwrap_err();
    assert!(error.to_string().contains("--allow-remote"), "{error}");
}

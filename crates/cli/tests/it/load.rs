//! `tidewater load` drives the server that the same binary runs.

use std::{path::Path, process::Output};

use crate::process::{Running, file, run};

#[track_caller]
fn text(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    text
}

/// A configuration for the printed schema, with `more` of it.
fn config(folder: &Path, more: &str) -> String {
    let schema = text(&run(&["load", "schema"], b""), 0);
    file(folder, "schema.json", &schema);
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[schema]\npath = \"schema.json\"\n\
         [[auth.tokens]]\ntoken = \"actor-0\"\nactor = \"a\"\npartition = \"p\"\n\
         [scopes.actors.\"*\"]\nlist_id = [\"*\"]\n{more}"
    );
    file(folder, "tidewater.toml", &config)
}

#[test]
fn a_server_of_the_printed_schema_is_driven_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "");
    let mut server = Running::start(&["serve", "--config", &config], &[]);
    let url = server.url_from_log();
    let arguments = [
        "load",
        "push",
        "--url",
        &url,
        "--clients",
        "1",
        "--actors",
        "1",
        "--warmup",
        "0s",
        "--duration",
        "1s",
    ];
    let report = text(&run(&arguments, b""), 0);
    assert!(report.contains("push"), "{report}");
    assert_eq!(server.stop("-TERM"), Some(0));
    // Nobody is there any more: that is no verdict on a server.
    let output = run(&arguments, b"");
    assert!(text(&output, 2).is_empty());
}

#[test]
fn sockets_are_driven_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let liveness = "[realtime]\nheartbeat = \"500ms\"\nidle_timeout = \"3s\"\n";
    let config = config(folder.path(), liveness);
    let mut server = Running::start(&["serve", "--config", &config], &[]);
    let url = server.url_from_log();
    for scenario in [
        "fan-out --sockets 5 --acknowledge --rate 50 --duration 1s",
        "sockets --sockets 5 --duration 100ms",
        "reconnect --sockets 5 --health /ready",
        "slow-readers --sockets 2 --stuck 3 --rate 50 --duration 1s --patience 5s",
    ] {
        let mut arguments = vec!["load"];
        arguments.extend(scenario.split(' '));
        let common = "--rows 10 --clients 1 --actors 1 --warmup 100ms --url";
        arguments.extend(common.split(' '));
        arguments.push(&url);
        let report = text(&run(&arguments, b""), 0);
        assert!(report.contains("sockets"), "{report}");
    }
    assert_eq!(server.stop("-TERM"), Some(0));
}

#[test]
fn a_remote_address_is_refused() {
    let output = run(&["load", "push", "--url", "http://192.0.2.1:1"], b"");
    assert!(text(&output, 2).is_empty());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("--allow-remote"), "{errors}");
}

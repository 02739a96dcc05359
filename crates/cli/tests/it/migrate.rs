//! A migration is shown before it is made.

use std::{
    fmt::Write as _,
    io::{BufRead as _, BufReader},
    path::Path,
    process::Stdio,
};

use serde_json::{Value, json};

use crate::process::{file, run, tidewater};

const SCHEMA: &str = include_str!("../../assets/todo.schema.json");

fn config(folder: &Path, schema: &Value) -> String {
    file(folder, "schema.json", &schema.to_string());
    file(
        folder,
        "tidewater.toml",
        "[schema]\npath = \"schema.json\"\n\
         [[auth.tokens]]\ntoken = \"t\"\nactor = \"a\"\npartition = \"p\"\n",
    )
}

#[track_caller]
fn migrate(what: &str, config: &str, code: i32) -> (String, String) {
    let output = run(&["migrate", what, "--config", config], b"");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    (text, errors)
}

/// The sample schema at version 2, with another column in its first table.
fn widened(column: Value) -> Value {
    let mut schema: Value = serde_json::from_str(SCHEMA).unwrap();
    schema["schemaVersion"] = json!(2);
    let versions = schema["schemaVersions"].as_array_mut().unwrap();
    versions.push(json!({ "version": 2, "migrations": ["0002_more"] }));
    let columns = schema["tables"][0]["columns"].as_array_mut().unwrap();
    columns.push(column);
    schema
}

#[test]
fn a_migration_is_planned_without_a_change_and_applied_once() {
    let folder = tempfile::tempdir().unwrap();
    let first = serde_json::from_str(SCHEMA).unwrap();
    let path = config(folder.path(), &first);
    assert!(!migrate("--apply", &path, 0).0.is_empty());
    assert_eq!(migrate("--plan", &path, 0).0, "");

    let color = json!({ "name": "color", "type": "string", "nullable": true });
    config(folder.path(), &widened(color));
    let (planned, _) = migrate("--plan", &path, 0);
    assert!(planned.contains("color"), "{planned}");
    assert_eq!(migrate("--plan", &path, 0).0, planned, "nothing was done");
    assert_eq!(migrate("--apply", &path, 0).0, planned);
    assert_eq!(migrate("--plan", &path, 0).0, "");
}

#[test]
fn a_migration_that_stored_rows_cannot_follow_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let first = serde_json::from_str(SCHEMA).unwrap();
    let path = config(folder.path(), &first);
    migrate("--apply", &path, 0);
    let color = json!({ "name": "color", "type": "string", "nullable": false });
    config(folder.path(), &widened(color));
    let (_, errors) = migrate("--plan", &path, 1);
    assert!(
        errors.contains("sync.storage.schema_incompatible"),
        "{errors}"
    );
    assert!(errors.contains("color"), "{errors}");
}

#[test]
fn planning_for_a_database_that_is_not_there_leaves_none_behind() {
    let folder = tempfile::tempdir().unwrap();
    let first = serde_json::from_str(SCHEMA).unwrap();
    let path = config(folder.path(), &first);
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let before = names();
    let (planned, _) = migrate("--plan", &path, 0);
    assert!(planned.contains("CREATE TABLE"), "{planned}");
    assert_eq!(names(), before);
    assert_eq!(migrate("--apply", &path, 0).0, planned);
}

/// A database at version 1 with so many rows, and a configuration of version 2 beside it.
fn large(folder: &Path, rows: usize) -> String {
    let first = serde_json::from_str(SCHEMA).unwrap();
    let path = config(folder, &first);
    let mut lines = String::new();
    for number in 0..rows {
        writeln!(lines, r#"{{"id":"l{number}","title":"t"}}"#).unwrap();
    }
    let lines = file(folder, "rows.jsonl", &lines);
    let import = [
        "import",
        "--config",
        &path,
        "--partition",
        "p",
        "--table",
        "lists",
        &lines,
    ];
    let output = run(&import, b"");
    assert!(output.status.success(), "{output:?}");
    let color = json!({ "name": "color", "type": "string", "nullable": true });
    config(folder, &widened(color))
}

/// The rows of the database, in a schema that has colors.
fn exported(folder: &Path, path: &str) -> String {
    let out = folder.join("out.jsonl");
    let out = out.to_str().unwrap();
    let export = [
        "export",
        "--config",
        path,
        "--partition",
        "p",
        "--table",
        "lists",
        out,
    ];
    let output = run(&export, b"");
    assert!(output.status.success(), "{output:?}");
    std::fs::read_to_string(out).unwrap()
}

#[test]
fn an_upgrade_that_is_killed_is_completed_by_the_next_one() {
    const ROWS: usize = 25_000;
    let folder = tempfile::tempdir().unwrap();
    let path = large(folder.path(), ROWS);
    let mut upgrade = tidewater(&["migrate", "--apply", "--config", &path])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(upgrade.stderr.take().unwrap());
    let progress = log
        .lines()
        .find(|line| line.as_ref().unwrap().contains("rewriting"));
    upgrade.kill().unwrap();
    upgrade.wait().unwrap();
    assert!(progress.is_some(), "an upgrade says how far it is");
    migrate("--apply", &path, 0);
    assert_eq!(migrate("--plan", &path, 0).0, "");
    let rows = exported(folder.path(), &path);
    assert_eq!(rows.lines().count(), ROWS);
    assert!(rows.lines().all(|row| row.contains(r#""color":null"#)));
}

#[test]
fn of_two_that_upgrade_at_once_one_does_it_and_nothing_is_done_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = large(folder.path(), 500);
    let planned = migrate("--plan", &path, 0).0;
    let upgrades: Vec<_> = (0..2)
        .map(|_| {
            tidewater(&["migrate", "--apply", "--config", &path])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut done = 0;
    for upgrade in upgrades {
        let output = upgrade.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            // The other one waited for its turn and found nothing left to do.
            assert!(text == planned || text.is_empty(), "{text}");
            done += usize::from(text == planned);
        } else {
            assert!(errors.contains("sync.storage.database_in_use"), "{errors}");
        }
    }
    assert_eq!(done, 1);
    assert_eq!(migrate("--plan", &path, 0).0, "");
    assert_eq!(exported(folder.path(), &path).lines().count(), 500);
}

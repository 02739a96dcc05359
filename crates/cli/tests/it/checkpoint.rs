//! Backfills are followed from the command line, and a fence stops an older server.

use std::path::Path;

use serde_json::{Value, json};

use crate::process::{file, run};

const SCHEMA: &str = include_str!("../../assets/todo.schema.json");

fn config(folder: &Path, schema: &Value, more: &str) -> String {
    file(folder, "schema.json", &schema.to_string());
    let text = format!(
        "[schema]\npath = \"schema.json\"\n{more}\n\
         [scopes.actors.\"*\"]\nlist_id = [\"*\"]\n\
         [[auth.tokens]]\ntoken = \"t\"\nactor = \"a\"\npartition = \"p\"\n"
    );
    file(folder, "tidewater.toml", &text)
}

#[track_caller]
fn check(arguments: &[&str], code: i32) -> (String, String) {
    let output = run(arguments, b"");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {text}{errors}"
    );
    (text, errors)
}

/// `checkpoint WHAT` about `titles` in the partition `p`.
#[track_caller]
fn checkpoint(config: &str, what: &str, more: &[&str], code: i32) -> (String, String) {
    let mut arguments = vec!["checkpoint", what, "--config", config];
    if !["list", "fence"].contains(&what) {
        arguments.extend(["--name", "titles"]);
    }
    if !["list"].contains(&what) && !more.contains(&"--all") {
        arguments.extend(["--partition", "p"]);
    }
    arguments.extend(more);
    check(&arguments, code)
}

fn import(config: &str, folder: &Path, id: &str, code: i32) -> (String, String) {
    let row = format!("{{\"id\":\"{id}\",\"title\":\"t\"}}\n");
    let rows = file(folder, &format!("{id}.jsonl"), &row);
    let arguments = [
        "import",
        "--config",
        config,
        "--partition",
        "p",
        "--table",
        "lists",
        &rows,
    ];
    check(&arguments, code)
}

#[test]
fn a_backfill_is_declared_claimed_advanced_and_activated() {
    let folder = tempfile::tempdir().unwrap();
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let path = config(folder.path(), &schema, "");
    let (_, errors) = checkpoint(&path, "list", &[], 1);
    assert!(errors.contains("there is no database"), "{errors}");
    import(&path, folder.path(), "a", 0);

    let (_, errors) = checkpoint(&path, "claim", &[], 1);
    assert!(errors.contains("checkpoint_not_declared"), "{errors}");
    let (line, _) = checkpoint(&path, "declare", &["--all"], 0);
    assert_eq!(line, "p\ttitles\t1\tdeclared\t0\t0\t0\t-\n");
    // A server that does not complete it refuses the partition, one that does serves it.
    let (_, errors) = import(&path, folder.path(), "b", 1);
    assert!(errors.contains("sync.schema_not_ready"), "{errors}");
    config(folder.path(), &schema, "checkpoints = [\"titles\"]");
    import(&path, folder.path(), "b", 0);
    config(folder.path(), &schema, "");

    let (line, _) = checkpoint(&path, "claim", &["--lease", "1h"], 0);
    assert!(
        line.starts_with("p\ttitles\t1\tbackfilling\t2\t1\t0\t"),
        "{line}"
    );
    let (_, errors) = checkpoint(&path, "claim", &[], 1);
    assert!(errors.contains("held by another owner"), "{errors}");
    let (line, _) = checkpoint(&path, "claim", &["--force"], 0);
    assert!(
        line.starts_with("p\ttitles\t1\tbackfilling\t2\t2\t0\t"),
        "{line}"
    );
    let advance = ["--owner-epoch", "1", "--watermark", "2", "--rows", "2"];
    let (_, errors) = checkpoint(&path, "advance", &advance, 1);
    assert!(errors.contains("another owner now"), "{errors}");
    let advance = ["--owner-epoch", "2", "--watermark", "2", "--rows", "2"];
    checkpoint(&path, "advance", &advance, 0);

    let (_, errors) = checkpoint(&path, "activate", &["--owner-epoch", "2"], 1);
    assert!(errors.contains("checkpoint_fence_missing"), "{errors}");
    assert_eq!(checkpoint(&path, "fence", &[], 0).0, "p\t1\n");
    let (line, _) = checkpoint(&path, "activate", &["--owner-epoch", "2"], 0);
    assert_eq!(line, "p\ttitles\t1\tactivated\t2\t2\t2\t-\n");
    assert_eq!(checkpoint(&path, "list", &[], 0).0, line);
    import(&path, folder.path(), "c", 0);
}

#[test]
fn a_fence_above_its_version_stops_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let path = config(folder.path(), &schema, "");
    import(&path, folder.path(), "a", 0);
    assert_eq!(
        checkpoint(&path, "fence", &["--version", "2"], 0).0,
        "p\t2\n"
    );
    assert_eq!(
        checkpoint(&path, "fence", &[], 0).0,
        "p\t2\n",
        "it never falls"
    );
    let (_, errors) = import(&path, folder.path(), "b", 1);
    assert!(errors.contains("sync.schema_not_ready"), "{errors}");
}

#[test]
fn an_older_server_does_not_open_a_database_that_a_newer_one_has_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let older: Value = serde_json::from_str(SCHEMA).unwrap();
    let mut newer = older.clone();
    newer["schemaVersion"] = json!(2);
    let versions = newer["schemaVersions"].as_array_mut().unwrap();
    versions.push(json!({ "version": 2, "migrations": ["0002_more"] }));
    let column = json!({ "name": "color", "type": "string", "nullable": true });
    newer["tables"][0]["columns"]
        .as_array_mut()
        .unwrap()
        .push(column);
    let path = config(folder.path(), &older, "");
    import(&path, folder.path(), "a", 0);
    // The new one upgrades the old database by itself and raises the fence.
    config(folder.path(), &newer, "");
    import(&path, folder.path(), "b", 0);
    assert_eq!(checkpoint(&path, "fence", &[], 0).0, "p\t2\n");
    config(folder.path(), &older, "");
    let (_, errors) = import(&path, folder.path(), "c", 1);
    assert!(errors.contains("sync.storage.schema_newer"), "{errors}");
}

#[test]
fn a_window_that_is_none_is_refused_when_the_configuration_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let older: Value = serde_json::from_str(SCHEMA).unwrap();
    let mut newer = older.clone();
    newer["schemaVersion"] = json!(2);
    let versions = newer["schemaVersions"].as_array_mut().unwrap();
    versions.push(json!({ "version": 2, "migrations": ["0002_more"] }));
    file(folder.path(), "older.json", &older.to_string());
    let path = config(folder.path(), &newer, "window = [\"older.json\"]");
    let (text, _) = check(&["config", "check", &path], 0);
    assert!(text.contains("older.json"), "{text}");
    newer["tables"][0]["columns"][1]["name"] = json!("caption");
    config(folder.path(), &newer, "window = [\"older.json\"]");
    let (_, errors) = check(&["config", "check", &path], 2);
    assert!(
        errors.contains("schema version 1 cannot be served beside version 2"),
        "{errors}"
    );
}

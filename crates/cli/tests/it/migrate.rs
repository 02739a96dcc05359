//! A migration is shown before it is made.

use std::path::Path;

use serde_json::{Value, json};

use crate::process::{file, run};

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

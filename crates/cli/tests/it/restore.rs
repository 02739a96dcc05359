//! Backups are made, put back, and noticed when somebody does it by hand.

use std::{fs, path::Path};

use crate::process::{Running, file, run};

const SCHEMA: &str = include_str!("../../assets/todo.schema.json");

fn config(folder: &Path) -> String {
    file(folder, "schema.json", SCHEMA);
    file(
        folder,
        "tidewater.toml",
        "[server]\nlisten = \"127.0.0.1:0\"\n[schema]\npath = \"schema.json\"\n\
         [scopes.actors.\"*\"]\nlist_id = [\"*\"]\n\
         [[auth.tokens]]\ntoken = \"t\"\nactor = \"a\"\npartition = \"p\"\n",
    )
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

fn import(config: &str, folder: &Path, id: &str) {
    let row = format!("{{\"id\":\"{id}\",\"title\":\"t\"}}\n");
    let rows = file(folder, &format!("{id}.jsonl"), &row);
    check(
        &[
            "import",
            "--config",
            config,
            "--partition",
            "p",
            "--table",
            "lists",
            &rows,
        ],
        0,
    );
}

fn export(config: &str, folder: &Path) -> String {
    let path = folder.join("out.jsonl");
    let out = path.to_str().unwrap();
    check(
        &[
            "export",
            "--config",
            config,
            "--partition",
            "p",
            "--table",
            "lists",
            out,
        ],
        0,
    );
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    text
}

#[test]
fn a_database_put_back_by_hand_is_not_served_until_its_epochs_are_rotated() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    import(&config, folder.path(), "one");
    let database = folder.path().join("tidewater.db");
    let copy = folder.path().join("copy");
    fs::copy(&database, &copy).unwrap();
    import(&config, folder.path(), "two");
    fs::copy(&copy, &database).unwrap();

    let (_, errors) = check(&["serve", "--config", &config], 1);
    assert!(
        errors.contains("sync.storage.database_restored"),
        "{errors}"
    );
    assert!(errors.contains("tidewater epoch rotate --all"), "{errors}");
    let (rotated, _) = check(&["epoch", "rotate", "--all", "--config", &config], 0);
    assert!(rotated.starts_with("p\t"), "{rotated}");
    let mut running = Running::start(&["serve", "--config", &config], &[]);
    running.url_from_log();
    assert_eq!(running.stop("-TERM"), Some(0));
    let rows = export(&config, folder.path());
    assert!(
        rows.contains("\"one\"") && !rows.contains("\"two\""),
        "{rows}"
    );
}

#[test]
fn a_database_that_lost_nothing_is_kept_with_its_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    import(&config, folder.path(), "one");
    fs::remove_file(folder.path().join("tidewater.db.mark")).unwrap();
    let (_, errors) = check(
        &["epoch", "rotate", "--partition", "p", "--config", &config],
        1,
    );
    assert!(errors.contains("has no file"), "{errors}");
    check(&["epoch", "keep", "--config", &config], 0);
    import(&config, folder.path(), "two");
    check(
        &["epoch", "rotate", "--partition", "p", "--config", &config],
        0,
    );
    check(
        &["epoch", "rotate", "--partition", "q", "--config", &config],
        2,
    );
    check(&["epoch", "rotate", "--config", &config], 2);
}

#[test]
fn a_backup_beside_the_running_server_is_restored_with_new_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    import(&config, folder.path(), "one");
    let mut running = Running::start(&["serve", "--config", &config], &[]);
    running.url_from_log();
    let backup = folder.path().join("backup.db");
    let backup = backup.to_str().unwrap();
    let (text, _) = check(&["backup", "--config", &config, backup], 0);
    assert_eq!(text, format!("{backup}\n"));
    let restore = ["restore", "--config", &config, "--replace", backup];
    let (_, errors) = check(&restore, 1);
    assert!(errors.contains("is open already"), "{errors}");
    assert_eq!(running.stop("-TERM"), Some(0));
    import(&config, folder.path(), "two");

    let (_, errors) = check(&["restore", "--config", &config, backup], 1);
    assert!(errors.contains("exists"), "{errors}");
    let (rotated, _) = check(&restore, 0);
    assert!(rotated.starts_with("p\t"), "{rotated}");
    let rows = export(&config, folder.path());
    assert!(
        rows.contains("\"one\"") && !rows.contains("\"two\""),
        "{rows}"
    );
    assert!(folder.path().join("tidewater.db.old").exists());
}

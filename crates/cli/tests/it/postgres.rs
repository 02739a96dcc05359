//! A server, its commands and its devices on PostgreSQL: what an operator does on SQLite, too.

use std::{fs, path::Path};

use tidewater_pgtest::{Database, Server};

use crate::{
    process::{Running, file, run},
    sample::{list, titles},
};

const SCHEMA: &str = include_str!("../../assets/todo.schema.json");

fn config(folder: &Path, url: &str) -> String {
    file(folder, "schema.json", SCHEMA);
    file(
        folder,
        "tidewater.toml",
        &format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\
             [store]\nurl = \"{url}\"\npostgres.single_node = true\n\
             [schema]\npath = \"schema.json\"\n[scopes.actors.\"*\"]\nlist_id = [\"*\"]\n\
             [[auth.tokens]]\ntoken = \"demo-alice\"\nactor = \"alice\"\npartition = \"home\"\n\
             [[auth.tokens]]\ntoken = \"demo-bob\"\nactor = \"bob\"\npartition = \"home\"\n"
        ),
    )
}

fn database() -> Database<'static> {
    Server::shared().database()
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

#[track_caller]
fn import(config: &str, folder: &Path, id: &str) {
    let row = format!("{{\"id\":\"{id}\",\"title\":\"t\"}}\n");
    let rows = file(folder, &format!("{id}.jsonl"), &row);
    let selection = ["--partition", "home", "--table", "lists", &rows];
    check(
        &[&["import", "--config", config], &selection[..]].concat(),
        0,
    );
}

#[track_caller]
fn export(config: &str, folder: &Path) -> String {
    let path = folder.join("out.jsonl");
    let out = path.to_str().unwrap();
    let selection = ["--partition", "home", "--table", "lists", out];
    check(
        &[&["export", "--config", config], &selection[..]].concat(),
        0,
    );
    fs::read_to_string(&path).unwrap()
}

#[test]
fn devices_meet_through_a_server_on_postgresql_and_find_it_again_after_a_restart() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    let mut server = Running::start(&["serve", "--config", &config], &[]);
    let url = server.url_from_log();
    let mut alice = list("alice", &url, folder.path());
    alice.obey("add milk").unwrap();
    assert!(!alice.todos().unwrap()[0].is_waiting);
    assert_eq!(server.stop("-TERM"), Some(0));
    let mut server = Running::start(&["serve", "--config", &config], &[]);
    let url = server.url_from_log();
    let mut bob = list("bob", &url, folder.path());
    bob.obey("sync").unwrap();
    assert_eq!(titles(&bob), ["milk"]);
    check(&["verify", "--config", &config], 0);
    assert_eq!(server.stop("-TERM"), Some(0));
}

#[test]
fn rows_go_in_and_out_beside_a_server_that_is_running() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    // Files of blobs belong to one process.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}[blobs]\nenabled = false\n")).unwrap();
    let mut server = Running::start(&["serve", "--config", &config], &[]);
    server.url_from_log();
    import(&config, folder.path(), "one");
    import(&config, folder.path(), "two");
    let rows = export(&config, folder.path());
    assert!(
        rows.contains("\"one\"") && rows.contains("\"two\""),
        "{rows}"
    );
    assert_eq!(server.stop("-TERM"), Some(0));
}

#[test]
fn a_migration_is_planned_without_a_change_and_applied_once() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    let (planned, _) = check(&["migrate", "--plan", "--config", &config], 0);
    assert!(planned.contains("CREATE TABLE"), "{planned}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(database.number(tables), 0);
    check(&["migrate", "--apply", "--config", &config], 0);
    assert!(database.number(tables) > 10);
    let (planned, _) = check(&["migrate", "--plan", "--config", &config], 0);
    assert_eq!(planned, "");
}

#[test]
fn a_restored_database_is_not_served_until_its_epochs_are_rotated() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    import(&config, folder.path(), "one");
    let backup = database.copy();
    import(&config, folder.path(), "two");
    database.replace_with(&backup);
    let (_, errors) = check(&["serve", "--config", &config], 1);
    assert!(errors.contains("epoch rotate --all"), "{errors}");
    check(&["verify", "--config", &config], 0);
    let (rotated, _) = check(&["epoch", "rotate", "--all", "--config", &config], 0);
    assert!(rotated.starts_with("home\t"), "{rotated}");
    let rows = export(&config, folder.path());
    assert!(
        rows.contains("\"one\"") && !rows.contains("\"two\""),
        "{rows}"
    );
    // Vouching keeps the epoch.
    let epoch = "SELECT log_epoch FROM sync_partition_registry";
    let before = database.run(epoch);
    let backup = database.copy();
    database.replace_with(&backup);
    check(&["serve", "--config", &config], 1);
    check(&["epoch", "keep", "--config", &config], 0);
    export(&config, folder.path());
    assert_eq!(database.run(epoch), before);
}

#[test]
fn a_database_that_does_not_agree_with_itself_is_told_so() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    import(&config, folder.path(), "one");
    database.run("DELETE FROM sync_commits");
    let (faults, _) = check(&["verify", "--config", &config], 1);
    assert!(faults.contains("gaps"), "{faults}");
}

#[test]
fn what_is_not_for_postgresql_says_what_is() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    let (_, errors) = check(&["backup", "--config", &config, "copy"], 2);
    assert!(errors.contains("pg_basebackup"), "{errors}");
    let (_, errors) = check(&["restore", "--config", &config, "copy"], 2);
    assert!(errors.contains("pg_dump"), "{errors}");
}

#[test]
fn an_assertion_is_asked_in_the_dialect_of_postgresql() {
    let (folder, database) = (tempfile::tempdir().unwrap(), database());
    let config = config(folder.path(), &database.url());
    let text = fs::read_to_string(&config).unwrap();
    let rule = "[[rules.assert]]\nname = \"short\"\n\
         sql = \"SELECT id FROM lists WHERE length([title]) > 3 AND title NOT LIKE 'T%'\"\n\
         code = \"lists.long\"\nmessage = \"too long\"\n";
    fs::write(&config, format!("{text}{rule}")).unwrap();
    import(&config, folder.path(), "fits");
    let row = "{\"id\":\"long\",\"title\":\"tttt\"}\n";
    let rows = file(folder.path(), "long.jsonl", row);
    let arguments = [
        "import",
        "--config",
        &config,
        "--partition",
        "home",
        "--table",
        "lists",
        &rows,
    ];
    let (_, errors) = check(&arguments, 1);
    assert!(errors.contains("lists.long"), "{errors}");
    // Upper and lower case differ to it.
    let row = "{\"id\":\"upper\",\"title\":\"Tttt\"}\n";
    let rows = file(folder.path(), "long.jsonl", row);
    let arguments = [
        "import",
        "--config",
        &config,
        "--partition",
        "home",
        "--table",
        "lists",
        &rows,
    ];
    check(&arguments, 0);
}

//! `segments` and `blobs`: what a server left behind, looked at and cleaned up.

use std::path::Path;

use serde_json::Value;
use tidewater_schema::Schema;
use tidewater_testkit::{
    HttpClient,
    message::{Author, commit, pull_header, teams},
};
use tidewater_wire::{WireVersion, content_address};

use crate::process::{Running, file, run};

const SCHEMA: &str = r#"{"irVersion": 1, "schemaVersion": 1, "tables": [
    {"name": "notes", "primaryKey": "id", "scopes": ["team:{team_id}"], "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team_id", "type": "string", "nullable": false},
        {"name": "content", "type": "blob_ref", "nullable": true}]}]}"#;

/// A configuration whose segments and blobs are of this kind.
fn configure(folder: &Path, kind: &str) -> String {
    file(folder, "schema.json", SCHEMA);
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[schema]\npath = \"schema.json\"\n\
         [segments]\nkind = \"{kind}\"\n[blobs]\nkind = \"{kind}\"\n\
         [engine]\ninline_segment_bytes_max = \"0B\"\n\
         [[auth.tokens]]\ntoken = \"alice\"\nactor = \"alice\"\npartition = \"p\"\n\
         [scopes.actors.\"*\"]\nteam_id = [\"t1\"]\n"
    );
    file(folder, "tidewater.toml", &text)
}

/// Lets a server publish a segment, and take a blob that a row references and one that none does.
fn leave_something(config: &str) {
    let mut server = Running::start(&["serve", "--config", config], &[]);
    let url = server.url_from_log();
    let schema = std::sync::Arc::new(Schema::from_json(SCHEMA).unwrap());
    let author = Author::new("device", WireVersion::V3, &schema);
    let mut client = HttpClient::new(&url, "alice", author);
    client.acquire_epoch().unwrap();
    for content in [&b"kept"[..], b"orphan"] {
        let put = ureq::put(format!("{url}/blobs/{}", content_address(content)));
        let put = put.header("authorization", "Bearer alice");
        put.header("content-type", "text/plain")
            .send(content)
            .unwrap();
    }
    let reference = format!(
        r#"{{"blobId":"{}","byteLength":4}}"#,
        content_address(b"kept")
    );
    let note = serde_json::json!({ "id": "n1", "team_id": "t1", "content": reference });
    let write = client.author.upsert("notes", &note, None);
    let request = client.author.request(vec![commit("k1", vec![write])], None);
    client.send(request).unwrap();
    client.author.limits = pull_header(0b0010);
    let pull = client
        .author
        .request(Vec::new(), Some(vec![teams("s1", &["t1"], -1)]));
    let mut answer = client.send(pull).unwrap();
    assert_eq!(answer.sections.remove(0).references.len(), 1);
    assert_eq!(server.stop("-TERM"), Some(0));
}

/// What a command prints, as JSON lines.
#[track_caller]
fn json(arguments: &[&str], code: i32) -> Vec<Value> {
    let output = run(arguments, b"");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[track_caller]
fn text(arguments: &[&str]) -> String {
    let output = run(arguments, b"");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn segments_are_listed_and_pruned_wherever_they_are() {
    for kind in ["files", "sqlite"] {
        let folder = tempfile::tempdir().unwrap();
        let config = configure(folder.path(), kind);
        leave_something(&config);
        let list = ["segments", "list", "--config", &config, "--json"];
        let listed = json(&list, 0);
        assert_eq!(listed.len(), 1, "{kind}: {listed:?}");
        let one = &listed[0];
        assert_eq!(
            (&one["partition"], &one["table"]),
            (&"p".into(), &"notes".into())
        );
        assert_eq!(
            (&one["kind"], &one["rowCount"]),
            (&"rows".into(), &1.into())
        );
        assert_eq!(one["expired"], false);
        let shown = text(&list[..4]);
        assert!(
            shown.contains("1 segments, ") && shown.contains(" notes "),
            "{shown}"
        );
        let other = [&list[..], &["--partition", "other"]].concat();
        assert_eq!(json(&other, 0), Vec::<Value>::new());

        let prune = ["segments", "prune", "--config", &config, "--json"];
        assert_eq!(json(&prune, 0)[0]["segments"], 0);
        let all = [&prune[..], &["--all"]].concat();
        assert_eq!(json(&all, 0)[0]["segments"], 1);
        assert_eq!(json(&list, 0), Vec::<Value>::new());
    }
}

#[test]
fn blobs_are_listed_verified_and_swept_wherever_they_are() {
    for kind in ["files", "sqlite"] {
        let folder = tempfile::tempdir().unwrap();
        let config = configure(folder.path(), kind);
        leave_something(&config);
        let of = |command| {
            [
                "blobs",
                command,
                "--config",
                &config,
                "--partition",
                "p",
                "--json",
            ]
        };
        let mut listed = json(&of("list"), 0);
        listed.sort_by_key(|blob| blob["byteLength"].as_i64());
        let references: Vec<&Value> = listed.iter().map(|blob| &blob["referenced"]).collect();
        assert_eq!(references, [true, false], "{kind}");
        let orphans = [&of("list")[..], &["--orphans"]].concat();
        let orphans = json(&orphans, 0);
        assert_eq!(orphans.len(), 1);
        assert_eq!(orphans[0]["blobId"], content_address(b"orphan"));
        let shown = text(&of("list")[..6]);
        assert!(shown.contains("2 blobs, 10 bytes"), "{shown}");
        assert!(shown.contains("1 without a reference"), "{shown}");

        let verified = json(&of("verify"), 0);
        assert_eq!(
            (&verified[0]["right"], &verified[0]["wrong"]),
            (&2.into(), &0.into())
        );
        // What was uploaded today is left alone.
        let swept = json(&of("sweep"), 0);
        assert_eq!(
            (&swept[0]["lookedAt"], &swept[0]["removed"]),
            (&2.into(), &0.into())
        );
    }
}

#[test]
fn a_blob_that_was_damaged_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), "files");
    leave_something(&config);
    let hash = content_address(b"orphan").replace("sha256:", "");
    let damaged = find(&folder.path().join("tidewater.blobs"), &hash).unwrap();
    std::fs::write(&damaged, b"orphaN").unwrap();
    let verify = [
        "blobs",
        "verify",
        "--config",
        &config,
        "--partition",
        "p",
        "--json",
    ];
    let found = json(&verify, 1);
    assert_eq!(found[0]["blobId"], content_address(b"orphan"));
    assert_eq!(
        (&found[1]["right"], &found[1]["wrong"]),
        (&1.into(), &1.into())
    );
}

/// The file of this name somewhere in a folder.
fn find(folder: &Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if path.file_name().unwrap().to_string_lossy() == name {
            return Some(path);
        }
    }
    None
}

#[test]
fn what_only_the_server_itself_can_see_is_not_listed() {
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), "files");
    let text = std::fs::read_to_string(&config).unwrap();
    let memory = text.replace(
        "[segments]\nkind = \"files\"",
        "[segments]\nkind = \"memory\"",
    );
    let config = file(folder.path(), "memory.toml", &memory);
    let output = run(&["segments", "list", "--config", &config], b"");
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("segments.kind is memory"), "{errors}");
}

//! Commands that look at something and end.

use std::process::Output;

use tidewater_wire::{
    Accept, PullHeader, Request, RequestFrame, RequestHeader, RowsSegment, SegmentRow, WireVersion,
    row::Column,
};

use crate::process::{file, run};

const SCHEMA: &str = include_str!("../../assets/todo.schema.json");

#[track_caller]
fn check(output: &Output, code: i32, out: &str, error: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    assert!(text.contains(out), "{text}");
    assert!(errors.contains(error), "{errors}");
}

fn config(folder: &std::path::Path, more: &str) -> String {
    file(folder, "schema.json", SCHEMA);
    let text = format!(
        "[schema]\npath = \"schema.json\"\n\
         [[auth.tokens]]\ntoken = \"hunter2\"\nactor = \"a\"\npartition = \"p\"\n{more}"
    );
    file(folder, "tidewater.toml", &text)
}

#[test]
fn the_version_is_data_and_a_wrong_command_is_not() {
    check(&run(&["--version"], b""), 0, "tidewater 0.0.0\n", "");
    let wrong = run(&["swim"], b"");
    check(&wrong, 2, "", "unrecognized subcommand 'swim'");
    assert!(wrong.stdout.is_empty());
}

#[test]
fn config_check_prints_what_is_in_effect_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&["config", "check", &config(folder.path(), "")], b"");
    check(&output, 0, "[server]\nlisten = \"127.0.0.1:8787\"\n", "");
    check(&output, 0, "request_bytes_max = \"32.0 MiB\"", "");
    check(&output, 0, "token = \"[secret]\"", "");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("hunter2"));
}

#[test]
fn config_check_says_what_is_wrong_and_where() {
    let folder = tempfile::tempdir().unwrap();
    for (more, error) in [
        (
            "[server]\nport = 1\n",
            "tidewater.toml:8:1: unknown field `port`",
        ),
        (
            "[scopes.actors.\"*\"]\nteam = [\"t1\"]\n",
            "declares the scope variable \"team\"",
        ),
        (
            "[console]\nenabled = true\n",
            "console.admin_token is not set",
        ),
        (
            "[server]\nbuffered_bytes_max = \"1MiB\"\n",
            "server.buffered_bytes_max is smaller",
        ),
        ("[server]\nrounds_max = 0\n", "server.rounds_max is 0"),
        (
            "[retention]\noutcome_age = \"29days\"\n",
            "retention.outcome_age is shorter than retention.forced_age",
        ),
        (
            "[auth.trusted_header]\nactor_header = \"a b\"\npartition = \"p\"\nproxies = [\"::1/128\"]\n",
            "\"a b\" is no header name",
        ),
        (
            "[[auth.tokens]]\ntoken = \"hunter2\"\nactor = \"b\"\npartition = \"p\"\n",
            "actors \"a\" and \"b\" have the same token",
        ),
    ] {
        let output = run(&["config", "check", &config(folder.path(), more)], b"");
        check(&output, 2, "", error);
        assert!(output.stdout.is_empty());
    }
    check(
        &run(&["config", "check", "/nowhere.toml"], b""),
        2,
        "",
        "read /nowhere.toml",
    );
    let empty = file(folder.path(), "empty.toml", "");
    check(
        &run(&["config", "check", &empty], b""),
        2,
        "",
        "schema.path is not set",
    );
    check(
        &run(&["serve", "--config", &empty], b""),
        2,
        "",
        "schema.path is not set",
    );
}

/// A section of a bucket.
fn bucket(section: &str, more: &str) -> String {
    format!(
        "[{section}]\nkind = \"s3\"\n[{section}.s3]\nbucket = \"b\"\n\
         access_key_id = \"id\"\nsecret_access_key = \"hunter2\"\n{more}"
    )
}

/// URLs that the server signs.
fn signed(more: &str) -> String {
    format!("[signed_urls]\nsegments = \"server\"\n{more}\n")
}

const KEY: &str = "a-key-of-more-than-thirty-two-bytes-of-text";
const BASE: &str = "base_url = \"https://sync.example\"";

#[test]
fn config_check_says_what_is_wrong_with_segments_and_blobs() {
    let folder = tempfile::tempdir().unwrap();
    let no_id = bucket("blobs", "").replace("access_key_id = \"id\"\n", "");
    let http = bucket("blobs", "endpoint = \"http://127.0.0.1:9000\"\n");
    for (more, error) in [
        ("[segments]\nkind = \"s3\"\n", "segments.s3 is not set"),
        (
            "[blobs.s3]\nbucket = \"b\"\n",
            "blobs.s3 is set and blobs.kind is not s3",
        ),
        (
            &*bucket("blobs", "prefix = \"x\"\n"),
            "blobs.s3.prefix must end in a slash",
        ),
        (&*http, "blobs.s3.endpoint does not begin with https://"),
        (&*no_id, "one of them is missing"),
        ("[blobs]\nkind = \"memory\"\n", "blobs.kind is memory"),
        (
            "[blobs]\nsweep_grace = \"1h\"\n",
            "blobs.sweep_grace must be at least 120 minutes",
        ),
        (
            "[blobs]\npath = \"x\"\n[segments]\npath = \"x\"\n",
            "are the same",
        ),
    ] {
        let output = run(&["config", "check", &config(folder.path(), more)], b"");
        check(&output, 2, "", error);
    }
}

#[test]
fn config_check_says_what_is_wrong_with_signed_urls() {
    let folder = tempfile::tempdir().unwrap();
    for (more, error) in [
        (
            "[signed_urls]\nsegments = \"backend\"\n",
            "set segments.kind to s3",
        ),
        ("[signed_urls]\nuploads = true\n", "set blobs.kind to s3"),
        (
            "[signed_urls]\nttl = \"16m\"\n",
            "signed_urls.ttl must be between",
        ),
        (&*signed(BASE), "signed URLs need a key"),
        (
            &*signed(&format!("{BASE}\nkeys = [\"{KEY}\", \"short\"]")),
            "needs at least 32 bytes",
        ),
        (
            &*signed(&format!("keys = [\"{KEY}\"]")),
            "signed_urls.base_url is not set",
        ),
    ] {
        let output = run(&["config", "check", &config(folder.path(), more)], b"");
        check(&output, 2, "", error);
    }
}

#[test]
fn the_secrets_of_buckets_and_urls_are_read_from_files_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    // The second key still verifies what it signed before it was replaced.
    file(
        folder.path(),
        "keys.toml",
        &format!("keys = [\"old-{KEY}\"]\n"),
    );
    let more = signed(&format!(
        "{BASE}\nkeys = [\"{KEY}\"]\nkeys_file = \"keys.toml\""
    ));
    let more = format!("{more}{}", bucket("blobs", "prefix = \"x/\"\n"));
    let output = run(&["config", "check", &config(folder.path(), &more)], b"");
    check(&output, 0, "keys = [\"[secret]\"]", "");
    check(&output, 0, "secret_access_key = \"[secret]\"", "");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains(KEY) && !text.contains("hunter2"), "{text}");
    file(folder.path(), "keys.toml", "keys = [\"short\"]\n");
    let output = run(&["config", "check", &config(folder.path(), &more)], b"");
    check(&output, 2, "", "needs at least 32 bytes");
}

const RULE: &str = "[[rules.validate]]\ntable = \"todos\"\nexpr = \"size(row.title) < 100\"\n\
                    code = \"todos.title\"\nmessage = \"Too long.\"\n";
const ASSERTION: &str = "[[rules.assert]]\nname = \"few\"\ncode = \"todos.many\"\n\
                         message = \"Too many.\"\n\
                         sql = \"SELECT 1 FROM todos GROUP BY list_id HAVING count(*) > 9\"\n";

#[test]
fn rules_are_compiled_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let check_config = |more: &str, code: i32, out: &str, error: &str| {
        let output = run(&["config", "check", &config(folder.path(), more)], b"");
        check(&output, code, out, error);
    };
    let rules = format!("{RULE}{ASSERTION}");
    check_config(&rules, 0, "[[rules.validate]]\ntable = \"todos\"\n", "");
    let wrong = format!("{RULE}{}", RULE.replace("row.title", "row.titel"));
    let fault = "rules.validate[1].expr: table `todos` has no column `titel`";
    check_config(&wrong, 2, "", fault);
    let wrong = ASSERTION.replace("FROM todos", "FROM sync_commits");
    check_config(
        &wrong,
        2,
        "",
        "rules.assert[0].sql: `sync_commits` belongs to the server",
    );
    let memory = format!("{rules}[store]\nkind = \"memory\"\n");
    check_config(&memory, 2, "", "rules.assert is SQL");
    check_config(&format!("{RULE}[store]\nkind = \"memory\"\n"), 0, "", "");
}

#[test]
fn schema_check_compiles_the_rules_of_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), RULE);
    let next = SCHEMA.replace("\"title\"", "\"name\"");
    let next = file(folder.path(), "next.json", &next);
    check(
        &run(&["schema", "check", &next], b""),
        0,
        "schema version 1",
        "",
    );
    let output = run(&["schema", "check", &next, "--config", &config], b"");
    check(
        &output,
        2,
        "",
        "rules.validate[0].expr: table `todos` has no column `title`",
    );
}

#[test]
fn tokens_may_be_in_a_file_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), "schema.json", SCHEMA);
    let text = "[schema]\npath = \"schema.json\"\n[auth]\ntokens_file = \"tokens.toml\"\n";
    let config = file(folder.path(), "tidewater.toml", text);
    check(
        &run(&["config", "check", &config], b""),
        2,
        "",
        "tokens.toml",
    );
    file(
        folder.path(),
        "tokens.toml",
        "[[tokens]]\ntoken = \"hunter2\"\nactr = \"a\"\n",
    );
    check(
        &run(&["config", "check", &config], b""),
        2,
        "",
        "tokens.toml:3:1: unknown field",
    );
    let good = "[[tokens]]\ntoken = \"hunter2\"\nactor = \"a\"\npartition = \"p\"\n";
    file(folder.path(), "tokens.toml", good);
    check(
        &run(&["config", "check", &config], b""),
        0,
        "tokens_file",
        "",
    );
}

#[test]
fn schema_check_shows_the_tables_or_the_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let schema = file(folder.path(), "schema.json", SCHEMA);
    let output = run(&["schema", "check", &schema], b"");
    check(&output, 0, "schema version 1\n\nlists\n  id ", "");
    check(
        &output,
        0,
        "string    primary key, scope list:{list_id}\n",
        "",
    );
    let broken = file(folder.path(), "broken.json", "{\"irVersion\": 1}");
    check(
        &run(&["schema", "check", &broken], b""),
        2,
        "",
        "broken.json",
    );
}

fn request() -> Vec<u8> {
    let header = RequestHeader {
        client_id: "d1".into(),
        schema_version: 1,
        log_epoch: Some("e1".into()),
    };
    let pull = PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept: Accept::from_bits(3).unwrap(),
    };
    let frames = vec![RequestFrame::Header(header), RequestFrame::PullHeader(pull)];
    Request {
        version: WireVersion::V3,
        frames,
    }
    .encode()
    .unwrap()
    .to_vec()
}

#[test]
fn wire_render_prints_a_message_as_json() {
    let output = run(&["wire", "render"], &request());
    check(&output, 0, "\"clientId\": \"d1\"", "");
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    check(&run(&["wire", "render", "-"], b"SSP2"), 2, "", "decode: ");
}

#[test]
fn wire_render_prints_a_segment() {
    let column = Column {
        name: "id".to_owned(),
        kind: tidewater_model::ColumnType::Integer,
        nullable: false,
    };
    let row = SegmentRow {
        server_version: 1,
        row: tidewater_wire::row::encode_row(&[Some(&7i64.to_le_bytes()[..])]),
    };
    let segment = RowsSegment {
        table: "notes".to_owned(),
        schema_version: 1,
        columns: vec![column],
        blocks: vec![vec![row]],
    };
    let output = run(&["wire", "render", "--segment"], &segment.encode());
    check(&output, 0, "\"notes\"", "");
}

#[test]
fn wire_recode_gives_back_the_same_bytes() {
    let output = run(&["wire", "recode", "-"], &request());
    check(&output, 0, "", "");
    assert_eq!(output.stdout, request());
    let output = run(&["wire", "recode"], b"nonsense");
    check(&output, 2, "", "decode: ");
    assert!(output.stdout.is_empty());
}

//! The host as a harness in another language sees it: JSON over HTTP, and the program itself.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tidewater_testkit::{
    StoreKind,
    message::{commit, delete, pull_header, teams},
    schema,
};
use tidewater_wire::{Operation, PushOutcome, WireVersion, content_address};

use crate::{raw::Raw, support::World};

on_every_store!(
    time_and_places_in_the_log_can_be_read_and_moved,
    grants_failures_and_unreadable_outcomes_can_be_switched,
    a_database_can_be_put_back_and_a_schema_replaced,
    rows_are_listed_with_their_scopes_in_bytewise_order,
    urls_and_blobs_can_be_switched_and_are_counted,
    what_cannot_be_done_is_refused_with_a_reason,
);

pub(crate) fn call(method: &str, url: &str, body: &Value) -> (u16, Value) {
    let request = http::Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        .body(body.to_string())
        .unwrap();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .build()
        .into();
    let mut response = agent.run(request).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (
        response.status().as_u16(),
        serde_json::from_str(&text).unwrap(),
    )
}

#[track_caller]
pub(crate) fn check(method: &str, url: &str, body: Value, expected: Value) {
    assert_eq!(call(method, url, &body), (200, expected));
}

/// An instance made over HTTP; the address of its mount.
fn make(base: &str) -> String {
    let spec = json!({
        "schema": schema::notes(1).json(), "partition": "p9", "nowMs": 1_000,
        "limits": { "maxOperationsPerRequest": 2, "somethingElse": 7 }, "leases": false,
        "comment": "tolerated",
    });
    let (status, made) = call("POST", &format!("{base}/instances"), &spec);
    assert_eq!(status, 200, "{made}");
    format!("{base}/i/{}", made["id"].as_str().unwrap())
}

/// A client of an instance made over HTTP.
fn client(world: &World, mount: &str) -> Raw {
    let mut raw = Raw::new(world, "alice", "c1", WireVersion::V3);
    mount.clone_into(&mut raw.url);
    raw.acquire_epoch().unwrap();
    raw
}

fn base(world: &World) -> String {
    world.url.rsplit_once("/i/").unwrap().0.to_owned()
}

fn time_and_places_in_the_log_can_be_read_and_moved(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mount = make(&base(&world));
    let at = |action: &str| format!("{mount}/control/{action}");
    check("GET", &at("clock"), json!({}), json!({ "nowMs": 1_000 }));
    check(
        "POST",
        &at("clock"),
        json!({ "advanceMs": 500 }),
        json!({ "nowMs": 1_500 }),
    );
    check(
        "GET",
        &at("head"),
        json!({}),
        json!({ "head": 0, "maxCommitSeq": 0 }),
    );
    check("GET", &at("horizon"), json!({}), json!({ "horizonSeq": 0 }));
    check("GET", &at("epoch"), json!({}), json!({ "logEpoch": null }));
    check("POST", &at("prune"), json!({}), json!({ "horizonSeq": 0 }));
    let raw = client(&world, &mount);
    let epoch = raw.author.log_epoch.as_deref();
    check("GET", &at("epoch"), json!({}), json!({ "logEpoch": epoch }));
    allow(&mount);
    raw.apply(commit("k1", vec![put(&raw, "n1")]));
    raw.apply(commit("k2", vec![put(&raw, "n2")]));
    check(
        "GET",
        &at("head"),
        json!({}),
        json!({ "head": 2, "maxCommitSeq": 2 }),
    );
    let prune = json!({ "activeWindowMs": 0, "ageForceMs": 0, "minRetainedCommits": 1 });
    check("POST", &at("prune"), prune, json!({ "horizonSeq": 1 }));
    check("GET", &at("horizon"), json!({}), json!({ "horizonSeq": 1 }));
}

fn grants_failures_and_unreadable_outcomes_can_be_switched(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mount = make(&base(&world));
    let at = |action: &str| format!("{mount}/control/{action}");
    let raw = client(&world, &mount);
    assert_eq!(
        raw.reject(commit("k0", vec![put(&raw, "n0")])),
        "sync.forbidden"
    );
    allow(&mount);
    assert_eq!(raw.apply(commit("k1", vec![put(&raw, "n1")])), 1);

    check(
        "POST",
        &at("fail-next-idempotency-lookup"),
        json!({}),
        json!({}),
    );
    let replay = || commit("k1", vec![put(&raw, "n1")]);
    assert_eq!(raw.reject(replay()), "sync.idempotency_cache_miss");
    assert_eq!(raw.push(replay()).outcome, PushOutcome::Cached(1));

    check(
        "POST",
        &at("resolver"),
        json!({ "mode": "failing" }),
        json!({}),
    );
    assert_eq!(
        raw.reject(commit("k2", vec![put(&raw, "n2")])),
        "sync.forbidden"
    );
    check(
        "POST",
        &at("resolver"),
        json!({ "mode": "outage" }),
        json!({}),
    );
    let refusal = raw.refused(raw.author.request(vec![], Some(vec![])));
    assert_eq!(
        (refusal.status, refusal.code()),
        (401, "sync.auth_lease_required")
    );
    check("POST", &at("resolver"), json!({ "mode": "ok" }), json!({}));
    raw.apply(commit("k3", vec![put(&raw, "n3")]));
}

fn a_database_can_be_put_back_and_a_schema_replaced(kind: StoreKind) {
    let world = World::of_notes(kind);
    let base = base(&world);
    let mount = make(&base);
    let at = |action: &str| format!("{mount}/control/{action}");
    let raw = client(&world, &mount);
    allow(&mount);
    raw.apply(commit("k1", vec![put(&raw, "n1")]));
    check("POST", &at("backup"), json!({}), json!({}));
    raw.apply(commit("k2", vec![delete("notes", "n1")]));
    let (status, restored) = call("POST", &at("restore"), &json!({}));
    assert_eq!(status, 200, "{restored}");
    assert_ne!(
        restored["logEpoch"].as_str(),
        raw.author.log_epoch.as_deref()
    );
    check(
        "GET",
        &at("head"),
        json!({}),
        json!({ "head": 1, "maxCommitSeq": 1 }),
    );

    let next = schema::SchemaDoc::new(2).table(schema::notes_table().nullable("color", "string"));
    let wish = json!({ "schema": next.json() });
    check("POST", &at("schema"), wish, json!({ "schemaVersion": 2 }));
    let (_, rows) = call("GET", &at("rows?table=notes"), &json!({}));
    assert_eq!(rows["rows"][0]["values"]["color"], Value::Null);

    let id = mount.rsplit_once('/').unwrap().1;
    let other = client(&world, &make(&base));
    assert_ne!(other.author.log_epoch, raw.author.log_epoch);
    check(
        "DELETE",
        &format!("{base}/instances/{id}"),
        json!({}),
        json!({}),
    );
    assert_eq!(call("GET", &at("head"), &json!({})).0, 404);
}

/// Lets alice see and write team t1.
fn allow(mount: &str) {
    let allowed = json!({ "actorId": "alice", "allowed": { "team_id": ["t1"] } });
    check(
        "POST",
        &format!("{mount}/control/allowed-scopes"),
        allowed,
        json!({}),
    );
}

fn put(raw: &Raw, id: &str) -> Operation {
    raw.author.upsert("notes", &whole(id), None)
}

fn whole(id: &str) -> Value {
    json!({
        "id": id, "team_id": "t1", "title": "x", "stars": 1, "done": true, "meta": "[1]",
        "body": { "$bytes": "0a0b" },
    })
}

fn rows_are_listed_with_their_scopes_in_bytewise_order(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mount = make(&base(&world));
    let rows = format!("{mount}/control/rows?table=notes");
    check("GET", &rows, json!({}), json!({ "rows": [] }));
    allow(&mount);
    let raw = client(&world, &mount);
    for id in ["b", "B", "é", "a"] {
        raw.apply(commit(
            id,
            vec![raw.author.upsert("notes", &whole(id), None)],
        ));
    }
    let expected: Vec<Value> = ["B", "a", "b", "é"]
        .into_iter()
        .map(|id| {
            let scopes = json!({ "team_id": "t1" });
            json!({ "rowId": id, "version": 1, "values": whole(id), "scopes": scopes })
        })
        .collect();
    check("GET", &rows, json!({}), json!({ "rows": expected }));
}

fn urls_and_blobs_can_be_switched_and_are_counted(kind: StoreKind) {
    let world = World::of_notes(kind);
    let base = base(&world);
    let spec = json!({
        "schema": schema::notes(1).json(), "signedUrls": { "ttlSeconds": 5 },
        "limits": { "inlineSegmentMaxBytes": 0, "maxBlobBytes": 10 },
    });
    let (status, made) = call("POST", &format!("{base}/instances"), &spec);
    assert_eq!(status, 200, "{made}");
    let mount = format!("{base}/i/{}", made["id"].as_str().unwrap());
    let at = |action: &str| format!("{mount}/control/{action}");
    let mut raw = Raw::new(&world, "alice", "c1", WireVersion::V3);
    mount.clone_into(&mut raw.url);
    raw.acquire_epoch().unwrap();
    allow(&mount);
    raw.author.limits = pull_header(0b1010);
    let url = |raw: &Raw| {
        let mut answer = raw.pull(vec![teams("s1", &["t1"], -1)]);
        answer.sections.remove(0).references.remove(0).url
    };
    let now_ms = |mount: &str| {
        let (_, clock) = call("GET", &format!("{mount}/control/clock"), &json!({}));
        clock["nowMs"].as_i64().unwrap()
    };
    let (first, ends_at_ms) = url(&raw).unwrap();
    assert!(
        first.starts_with(&format!("{mount}/signed/segments/")),
        "{first}"
    );
    assert_eq!(ends_at_ms, now_ms(&mount) + 5_000);
    let ttl = |seconds: Value| json!({ "ttlSeconds": seconds });
    check("POST", &at("signed-url-ttl"), ttl(json!(60)), json!({}));
    assert_eq!(url(&raw).unwrap().1, now_ms(&mount) + 60_000);
    assert_eq!(ureq::get(&*first).call().unwrap().status(), 200);
    check("POST", &at("signed-url-ttl"), ttl(json!(null)), json!({}));
    assert_eq!(url(&raw), None);

    let grant = |length: u32| {
        let url = format!("{mount}/blobs/{}/upload-grant", content_address(b"abc"));
        let request = ureq::post(url).header("authorization", "Bearer alice");
        let mut response = request
            .send(format!("{{\"byteLength\":{length}}}"))
            .unwrap();
        response.body_mut().read_to_string().unwrap()
    };
    assert_eq!(grant(3), "{}");
    check(
        "POST",
        &at("blob-presign"),
        json!({ "enabled": true }),
        json!({}),
    );
    let granted: Value = serde_json::from_str(&grant(3)).unwrap();
    let put = |body: &[u8]| ureq::put(granted["url"].as_str().unwrap()).send(body);
    assert!(put(b"abd").is_err() && put(b"abcd").is_err());
    assert_eq!(put(b"abc").unwrap().status(), 200);
    assert_eq!(grant(3), r#"{"present":true}"#);
    let swept = json!({ "lookedAt": 1, "referenced": 0, "removed": 0, "removedBytes": 0 });
    check("POST", &at("sweep-blobs"), json!({}), swept);
    let (_, counts) = call("GET", &at("transfers"), &json!({}));
    for (name, count) in [
        ("signedDownloads", 1),
        ("segmentDownloads", 0),
        ("uploadGrants", 3),
        ("blobUploads", 0),
        ("bucketUploads", 1),
        ("imageBuilds", 0),
    ] {
        assert_eq!(counts[name], count, "{name} of {counts}");
    }
}

fn what_cannot_be_done_is_refused_with_a_reason(kind: StoreKind) {
    let world = World::of_notes(kind);
    let base = base(&world);
    let mount = make(&base);
    let refused = |method: &str, url: String, body: Value, expected: u16| {
        let (status, answer) = call(method, &url, &body);
        assert_eq!(status, expected, "{method} {url}: {answer}");
        assert!(
            answer["error"]
                .as_str()
                .is_some_and(|error| !error.is_empty()),
            "{answer}"
        );
    };
    refused("POST", format!("{base}/instances"), json!({}), 400);
    refused(
        "POST",
        format!("{base}/instances"),
        json!({ "schema": {} }),
        400,
    );
    let leases = json!({ "schema": schema::notes(1).json(), "leases": { "ttlMs": 1 } });
    refused("POST", format!("{base}/instances"), leases, 400);
    for urls in [json!(5), json!({ "ttlSeconds": -1 })] {
        let spec = json!({ "schema": schema::notes(1).json(), "signedUrls": urls });
        refused("POST", format!("{base}/instances"), spec, 400);
    }
    refused("DELETE", format!("{base}/instances/none"), json!({}), 404);
    refused("POST", format!("{base}/i/none/sync"), json!({}), 404);
    refused(
        "POST",
        format!("{mount}/control/unheard-of"),
        json!({}),
        404,
    );
    refused("GET", format!("{mount}/control/backup"), json!({}), 404);
    refused(
        "POST",
        format!("{mount}/control/resolver"),
        json!({ "mode": "odd" }),
        400,
    );
    refused("POST", format!("{mount}/control/clock"), json!({}), 400);
    refused("POST", format!("{mount}/control/restore"), json!({}), 500);
    refused("GET", format!("{mount}/control/rows"), json!({}), 400);
    refused(
        "GET",
        format!("{mount}/control/rows?table=none"),
        json!({}),
        400,
    );
    refused("GET", format!("{base}/elsewhere"), json!({}), 404);
}

/// The program, until it is dropped.
struct Program(Child);

impl Program {
    fn start(arguments: &[&str]) -> (Self, String) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_testhost"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = process.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let port: u16 = line.trim_end().parse().unwrap();
        (Self(process), format!("http://127.0.0.1:{port}"))
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_program_prints_its_port_and_ends_with_its_standard_input() {
    let (program, base) = Program::start(&[]);
    let mount = make(&base);
    check(
        "GET",
        &format!("{mount}/control/clock"),
        json!({}),
        json!({ "nowMs": 1_000 }),
    );
    program.end();
}

#[test]
fn kept_instances_are_there_again_and_deleted_ones_are_not() {
    let world = World::of_notes(StoreKind::Memory);
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "--store",
        "sqlite",
        "--data",
        folder.path().to_str().unwrap(),
    ];
    let (program, base) = Program::start(&arguments);
    let (kept, deleted) = (make(&base), make(&base));
    let broken = json!({ "schema": {} });
    assert_eq!(call("POST", &format!("{base}/instances"), &broken).0, 400);
    allow(&kept);
    let raw = client(&world, &kept);
    raw.apply(commit("k1", vec![put(&raw, "n1")]));
    let next = schema::SchemaDoc::new(2).table(schema::notes_table().nullable("color", "string"));
    let wish = json!({ "schema": next.json() });
    check(
        "POST",
        &format!("{kept}/control/schema"),
        wish,
        json!({ "schemaVersion": 2 }),
    );
    let id = deleted.rsplit_once('/').unwrap().1;
    check(
        "DELETE",
        &format!("{base}/instances/{id}"),
        json!({}),
        json!({}),
    );
    drop(program);

    let (program, base) = Program::start(&arguments);
    let at = |mount: &str, action: &str| {
        format!(
            "{base}/i/{}/control/{action}",
            mount.rsplit_once('/').unwrap().1
        )
    };
    check(
        "GET",
        &at(&kept, "head"),
        json!({}),
        json!({ "head": 1, "maxCommitSeq": 1 }),
    );
    let (_, rows) = call("GET", &at(&kept, "rows?table=notes"), &json!({}));
    assert_eq!(rows["rows"][0]["values"]["color"], Value::Null);
    assert_eq!(call("GET", &at(&deleted, "head"), &json!({})).0, 404);
    let epoch = raw.author.log_epoch.as_deref();
    check(
        "GET",
        &at(&kept, "epoch"),
        json!({}),
        json!({ "logEpoch": epoch }),
    );
    program.end();
}

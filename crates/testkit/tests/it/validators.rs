//! Rules about writes as a harness sets them (§6.7, §6.8), and the details they send (§6.3.1).

use serde_json::{Value, json};
use syncular_client::Mutation;
use tidewater_testkit::{
    StoreKind,
    message::{Answer, commit, delete},
    schema,
};
use tidewater_wire::{OpResult, Operation, PushCommit, PushOutcome, WireVersion};

use crate::{
    control::{call, check},
    raw::Raw,
    support::{World, note, whole_note},
};

on_every_store!(
    a_string_may_be_as_long_as_its_rule_says,
    a_column_is_immutable_while_the_stored_row_is_guarded,
    a_commit_carries_the_sibling_that_its_row_needs,
    a_refusal_is_replayed_as_recorded_whatever_the_rules_are_then,
    rules_outlive_a_restart_and_hold_for_the_tables_of_another_schema,
    the_published_client_reads_code_and_details_of_a_refusal,
    a_rule_that_cannot_be_set_leaves_those_before,
);

#[track_caller]
fn set(world: &World, action: &str, rules: Value) {
    let url = format!("{}/control/{action}", world.url);
    check("POST", &url, rules, json!({}));
}

/// One rule for notes.
#[track_caller]
fn set_row_rule(world: &World, rule: &Value) {
    set(
        world,
        "validators",
        json!([{ "table": "notes", "rule": rule }]),
    );
}

fn short_titles() -> Value {
    json!({ "kind": "maxLength", "column": "title", "max": 5, "code": "notes.title_too_long" })
}

/// A note that is a debit has its credit in the same commit.
fn balanced() -> Value {
    json!({
        "table": "notes", "column": "title", "equals": "debit", "siblingRowIdSuffix": "-credit",
        "code": "notes.unbalanced",
    })
}

fn put(raw: &Raw, id: &str, title: &str) -> Operation {
    raw.author
        .upsert("notes", &whole_note(id, "t1", title), None)
}

fn patch(raw: &Raw, values: &Value) -> Operation {
    raw.author.upsert("notes", values, None)
}

#[track_caller]
fn push(raw: &Raw, commit: PushCommit) -> Answer {
    raw.round(vec![commit], None)
}

/// Pushes a commit that a rule refuses: which operation, the code, and the details as they are
/// sent.
#[track_caller]
fn refuse(raw: &Raw, commit: PushCommit, op_index: i32, code: &str, details: &str) {
    assert_refused(&push(raw, commit), op_index, code, details);
}

#[track_caller]
fn assert_refused(answer: &Answer, op_index: i32, code: &str, details: &str) {
    let [result] = &answer.results[..] else {
        panic!("not one result: {answer:?}")
    };
    assert_eq!(result.outcome, PushOutcome::Rejected);
    let [
        OpResult::Error {
            op_index: blamed,
            code: sent,
            retryable,
            ..
        },
    ] = &result.results[..]
    else {
        panic!("not one error: {result:?}")
    };
    assert_eq!((*blamed, &sent[..], *retryable), (op_index, code, false));
    let [companion] = &answer.details[..] else {
        panic!("not one companion: {answer:?}")
    };
    assert_eq!(companion.client_commit_id, result.client_commit_id);
    let [entry] = &companion.entries[..] else {
        panic!("not one entry: {companion:?}")
    };
    assert_eq!((entry.op_index, &entry.details[..]), (op_index, details));
}

const TOO_LONG: &str = r#"{"fieldPaths":["title"],"reason":"max_length"}"#;
const IMMUTABLE: &str = r#"{"fieldPaths":["title"],"reason":"immutable"}"#;
const UNBALANCED: &str = r#"{"fieldPaths":["title"],"reason":"missing_sibling"}"#;

fn a_string_may_be_as_long_as_its_rule_says(kind: StoreKind) {
    let world = World::of_notes(kind);
    let raw = Raw::ready(&world, "alice", "c1", WireVersion::V3);
    set_row_rule(&world, &short_titles());
    // Characters, not bytes.
    raw.apply(commit("k1", vec![put(&raw, "n1", "ééééé")]));
    let long = vec![put(&raw, "n2", "short"), put(&raw, "n3", "longer")];
    let code = "notes.title_too_long";
    refuse(&raw, commit("k2", long), 1, code, TOO_LONG);
    let longer = patch(&raw, &json!({ "id": "n1", "title": "longer" }));
    refuse(&raw, commit("k3", vec![longer]), 0, code, TOO_LONG);
    raw.apply(commit(
        "k4",
        vec![patch(&raw, &json!({ "id": "n1", "title": null }))],
    ));
    raw.apply(commit("k5", vec![delete("notes", "n1")]));
    assert_eq!(world.rows("notes").len(), 0);

    set(&world, "validators", json!([]));
    raw.apply(commit("k6", vec![put(&raw, "n3", "longer")]));
    // A row that was stored before its rule stays as it is, until it is written.
    set_row_rule(
        &world,
        &json!({ "maxLength": { "column": "title", "max": 5, "code": code } }),
    );
    let stars = patch(&raw, &json!({ "id": "n3", "stars": 2 }));
    refuse(&raw, commit("k7", vec![stars]), 0, code, TOO_LONG);
}

fn a_column_is_immutable_while_the_stored_row_is_guarded(kind: StoreKind) {
    let world = World::of_notes(kind);
    let raw = Raw::ready(&world, "alice", "c1", WireVersion::V3);
    let code = "notes.done";
    set_row_rule(
        &world,
        &json!({
            "type": "immutableWhen", "column": "title", "guardColumn": "done", "guardValue": true,
            "code": code,
        }),
    );
    let change = |id: &str, values: Value| commit(id, vec![patch(&raw, &values)]);
    let mut values = whole_note("n1", "t1", "first");
    values["done"] = json!(true);
    // An insert is not an update.
    raw.apply(commit("k1", vec![patch(&raw, &values)]));
    let title = json!({ "id": "n1", "title": "second" });
    refuse(&raw, change("k2", title.clone()), 0, code, IMMUTABLE);
    // The stored value guards, not the one that is written beside.
    let both = json!({ "id": "n1", "title": "second", "done": false });
    refuse(&raw, change("k3", both), 0, code, IMMUTABLE);
    raw.apply(change(
        "k4",
        json!({ "id": "n1", "title": "first", "stars": 9 }),
    ));
    raw.apply(change("k5", json!({ "id": "n1", "done": false })));
    raw.apply(change("k6", title));
    raw.apply(commit("k7", vec![delete("notes", "n1")]));

    set(&world, "validators", json!([]));
    raw.apply(commit("k8", vec![put(&raw, "n2", "first")]));
    // NULL guards, too.
    set_row_rule(
        &world,
        &json!({
            "immutableWhen": {
                "column": "title", "guardColumn": "done", "guardValue": null, "code": code,
            },
        }),
    );
    let title = json!({ "id": "n2", "title": "second" });
    refuse(&raw, change("k9", title), 0, code, IMMUTABLE);
}

fn a_commit_carries_the_sibling_that_its_row_needs(kind: StoreKind) {
    let world = World::of_notes(kind);
    let raw = Raw::ready(&world, "alice", "c1", WireVersion::V3);
    let code = "notes.unbalanced";
    set(
        &world,
        "commit-validator",
        json!({ "requireSiblingWhen": balanced() }),
    );
    raw.apply(commit("k1", vec![put(&raw, "n1", "other")]));
    let alone = vec![put(&raw, "n2", "other"), put(&raw, "n3", "debit")];
    refuse(&raw, commit("k2", alone), 1, code, UNBALANCED);
    assert_eq!(world.rows("notes").len(), 1);
    let both = || vec![put(&raw, "n3", "debit"), put(&raw, "n3-credit", "credit")];
    raw.apply(commit("k3", both()));
    // Having the sibling is not enough: the commit must carry it. A delete carries it as well.
    let alone = patch(&raw, &json!({ "id": "n3", "stars": 5 }));
    refuse(&raw, commit("k4", vec![alone]), 0, code, UNBALANCED);
    let swapped = vec![delete("notes", "n3-credit"), put(&raw, "n3", "debit")];
    raw.apply(commit("k5", swapped));

    for (id, nothing) in [("k6", Value::Null), ("k7", json!({}))] {
        let mut rule = balanced();
        rule["kind"] = json!("requireSiblingWhen");
        set(&world, "commit-validator", rule);
        let alone = || vec![put(&raw, id, "debit")];
        refuse(&raw, commit(id, alone()), 0, code, UNBALANCED);
        set(&world, "commit-validator", nothing);
        raw.apply(commit(&format!("{id}-again"), alone()));
    }
}

fn a_refusal_is_replayed_as_recorded_whatever_the_rules_are_then(kind: StoreKind) {
    let world = World::of_notes(kind);
    let raw = Raw::ready(&world, "alice", "c1", WireVersion::V3);
    set_row_rule(&world, &short_titles());
    let mut rule = balanced();
    rule["type"] = json!("requireSiblingWhen");
    set(&world, "commit-validator", rule);
    let commits = [("k1", "longer"), ("k2", "debit")];
    let send = || commits.map(|(id, title)| push(&raw, commit(id, vec![put(&raw, id, title)])));
    let first = send();
    assert_refused(&first[0], 0, "notes.title_too_long", TOO_LONG);
    assert_refused(&first[1], 0, "notes.unbalanced", UNBALANCED);
    let assert_same = || {
        for (before, after) in first.iter().zip(send()) {
            assert_eq!(before.results, after.results);
            assert_eq!(before.details, after.details);
        }
    };
    assert_same();
    set(&world, "validators", json!([]));
    set(&world, "commit-validator", Value::Null);
    assert_same();
    assert_eq!(world.head(), 0);
    raw.apply(commit(
        "k3",
        vec![put(&raw, "k1", "longer"), put(&raw, "k2", "debit")],
    ));
}

fn rules_outlive_a_restart_and_hold_for_the_tables_of_another_schema(kind: StoreKind) {
    let world = World::of_notes(kind);
    set_row_rule(&world, &short_titles());
    let clock = world.instance.clock().advance(500);
    let tags = schema::TableDoc::new("tags")
        .column("id", "string")
        .column("team_id", "string")
        .scope("team", "team_id");
    let next = schema::SchemaDoc::new(2)
        .table(schema::notes_table())
        .table(tags);
    let url = format!("{}/control/schema", world.url);
    check(
        "POST",
        &url,
        json!({ "schema": next.json() }),
        json!({ "schemaVersion": 2 }),
    );
    assert_eq!(world.instance.clock().advance(0), clock);
    let raw = Raw::ready(&world, "alice", "c1", WireVersion::V3);
    let code = "notes.title_too_long";
    refuse(
        &raw,
        commit("k1", vec![put(&raw, "n1", "longer")]),
        0,
        code,
        TOO_LONG,
    );

    let rule = json!({ "maxLength": { "column": "id", "max": 2, "code": "tags.id" } });
    set(
        &world,
        "validators",
        json!([{ "table": "tags", "rule": rule }]),
    );
    let tag = |id: &str| {
        raw.author
            .upsert("tags", &json!({ "id": id, "team_id": "t1" }), None)
    };
    raw.apply(commit("k2", vec![tag("ab"), put(&raw, "n1", "longer")]));
    let details = r#"{"fieldPaths":["id"],"reason":"max_length"}"#;
    refuse(&raw, commit("k3", vec![tag("abc")]), 0, "tags.id", details);
}

fn the_published_client_reads_code_and_details_of_a_refusal(kind: StoreKind) {
    let world = World::of_notes(kind);
    set_row_rule(&world, &short_titles());
    set(
        &world,
        "commit-validator",
        json!({ "requireSiblingWhen": balanced() }),
    );
    let mut alice = world.replica("alice");
    alice.sync();
    let long = alice.put("n1", "longer");
    let upsert = |id: &str, title: &str| Mutation::Upsert {
        table: "notes".to_owned(),
        values: note(id, "t1", title),
        base_version: None,
    };
    let mutations = vec![upsert("n2", "other"), upsert("n3", "debit")];
    let alone = alice.client.mutate(mutations).unwrap();
    let report = alice.sync();
    assert_eq!(report.rejected, [long.clone(), alone.clone()]);
    let rejections = alice.client.rejections();
    for (commit, op_index, code, reason) in [
        (long, 0, "notes.title_too_long", "max_length"),
        (alone, 1, "notes.unbalanced", "missing_sibling"),
    ] {
        let mut found = rejections.iter();
        let found = found.find(|rejection| rejection.client_commit_id == commit);
        let found = found.unwrap();
        assert_eq!((found.op_index, found.code.as_str()), (op_index, code));
        let details = found.details.as_ref().unwrap();
        let paths = details.field_paths.as_deref();
        assert_eq!(paths, Some(&["title".to_owned()][..]));
        assert_eq!(details.reason.as_deref(), Some(reason));
    }
    assert_eq!(world.rows("notes").len(), 0);

    set(&world, "validators", json!([]));
    alice.put("n1", "longer");
    assert!(alice.sync().rejected.is_empty());
    alice.assert_agrees(&world);
}

fn a_rule_that_cannot_be_set_leaves_those_before(kind: StoreKind) {
    let world = World::of_notes(kind);
    let raw = Raw::ready(&world, "alice", "c1", WireVersion::V3);
    set_row_rule(&world, &short_titles());
    set(
        &world,
        "commit-validator",
        json!({ "requireSiblingWhen": balanced() }),
    );
    let refused = |action: &str, body: Value| {
        let (status, answer) = call("POST", &format!("{}/control/{action}", world.url), &body);
        assert_eq!(status, 400, "{action} {body}: {answer}");
        let error = answer["error"].as_str();
        assert!(error.is_some_and(|error| !error.is_empty()), "{answer}");
    };
    let at = |table: &str, rule: Value| json!([{ "table": table, "rule": rule }]);
    let reserved = json!({ "maxLength": { "column": "title", "max": 5, "code": "sync.mine" } });
    let strange = json!({ "maxLength": { "column": "none", "max": 5, "code": "a" } });
    for rules in [
        json!({}),
        json!([{}]),
        at("none", short_titles()),
        at("notes", json!({ "kind": "odd" })),
        at("notes", reserved),
        at("notes", strange),
        at("notes", json!({ "requireSiblingWhen": balanced() })),
    ] {
        refused("validators", rules);
    }
    refused("commit-validator", short_titles());
    refused("commit-validator", json!({ "requireSiblingWhen": {} }));
    refused("commit-validator", json!([]));
    let code = "notes.title_too_long";
    refuse(
        &raw,
        commit("k1", vec![put(&raw, "n1", "longer")]),
        0,
        code,
        TOO_LONG,
    );
    let code = "notes.unbalanced";
    refuse(
        &raw,
        commit("k2", vec![put(&raw, "n1", "debit")]),
        0,
        code,
        UNBALANCED,
    );
}

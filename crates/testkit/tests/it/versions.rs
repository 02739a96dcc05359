//! One server, three wire versions, on the same rows (§0.3 of our reference, §6.2).

use serde_json::{Value, json};
use tidewater_testkit::{
    StoreKind,
    message::{Answer, commit, delete, teams},
    rows::row_to_json,
    scopes,
};
use tidewater_wire::{OpResult, Operation, PushOutcome, PushResult, WireVersion};

use crate::{
    raw::Raw,
    support::{World, whole_note},
};

on_every_store!(
    a_response_has_the_version_and_the_epoch_fields_of_its_request,
    a_push_without_an_epoch_is_refused_from_version_2_on,
    another_epoch_is_answered_with_a_reset_and_the_push_is_not_tried,
    a_full_row_replaces_and_a_sparse_row_touches_what_it_names,
    versions_1_and_2_compare_the_row_and_version_3_the_columns,
    a_scope_column_in_an_update_is_ignored_or_must_be_equal,
    a_base_version_above_the_row_is_a_conflict_or_a_bad_request,
    an_upsert_on_a_deleted_row_creates_it_again_or_is_told_so,
    a_partial_row_that_does_not_exist_is_missing,
    version_1_is_refused_once_the_epoch_was_rotated,
    a_replay_is_answered_in_the_version_that_asks,
    an_unknown_version_is_refused_with_the_known_ones,
    all_versions_read_the_same_rows,
);

const ALL: [WireVersion; 3] = WireVersion::ALL;

fn whole(id: &str, title: &str) -> Value {
    whole_note(id, "t1", title)
}

/// One client of each version, ready to push.
fn clients(world: &World) -> [Raw; 3] {
    ALL.map(|version| {
        Raw::ready(
            world,
            "alice",
            &format!("client-{}", version.number()),
            version,
        )
    })
}

/// Inserts a note at version 1 and brings it to version 2.
fn insert_twice(raw: &Raw, id: &str) {
    for title in ["first", "second"] {
        let operation = raw.author.upsert("notes", &whole(id, title), None);
        raw.apply(commit(&format!("{id}-{title}"), vec![operation]));
    }
}

fn one(raw: &Raw, id: &str, operation: Operation) -> PushResult {
    raw.push(commit(id, vec![operation]))
}

#[track_caller]
fn code_of(result: &PushResult) -> &str {
    match &result.results[..] {
        [OpResult::Error { code, .. } | OpResult::Conflict { code, .. }] => code,
        other => panic!("not one rejection: {other:?}"),
    }
}

/// The columns of the only note.
fn stored(world: &World) -> (i64, Value) {
    let rows = world.rows("notes");
    assert_eq!(rows.len(), 1);
    (rows[0].version, Value::Object(rows[0].values.clone()))
}

fn a_response_has_the_version_and_the_epoch_fields_of_its_request(kind: StoreKind) {
    let world = World::of_notes(kind);
    for raw in clients(&world) {
        let answer = raw.pull(vec![]);
        let version = raw.author.version;
        assert_eq!(answer.version, version);
        assert!(!answer.header.reset_required);
        assert_eq!(!answer.header.log_epoch.is_empty(), version.has_epoch());
        assert_eq!(answer.header.latest_schema_version, Some(1));
        assert_eq!(answer.header.required_schema_version, None);
    }
}

fn a_push_without_an_epoch_is_refused_from_version_2_on(kind: StoreKind) {
    let world = World::of_notes(kind);
    for version in ALL {
        let raw = Raw::new(&world, "alice", &format!("c{}", version.number()), version);
        let operation = raw.author.upsert("notes", &whole("n1", "x"), None);
        let request = raw
            .author
            .request(vec![commit("k1", vec![operation])], None);
        if version.has_epoch() {
            let refusal = raw.refused(request);
            assert_eq!(
                (refusal.status, refusal.code()),
                (400, "sync.invalid_request")
            );
        } else {
            let answer = raw.send(request).unwrap();
            assert_eq!(answer.results[0].outcome, PushOutcome::Applied(1));
        }
    }
    assert_eq!(world.head(), 1);
}

fn another_epoch_is_answered_with_a_reset_and_the_push_is_not_tried(kind: StoreKind) {
    let world = World::of_notes(kind);
    for version in [WireVersion::V2, WireVersion::V3] {
        let mut raw = Raw::ready(&world, "alice", &format!("c{}", version.number()), version);
        let epoch = raw.author.log_epoch.replace("another".into());
        let operation = raw.author.upsert("notes", &whole("n1", "x"), None);
        let answer = raw.round(vec![commit("k1", vec![operation])], Some(vec![]));
        assert!(answer.header.reset_required);
        assert_eq!(Some(answer.header.log_epoch), epoch);
        assert_eq!((answer.results.len(), answer.sections.len()), (0, 0));
    }
    assert_eq!(world.head(), 0);
}

fn a_full_row_replaces_and_a_sparse_row_touches_what_it_names(kind: StoreKind) {
    for (index, version) in ALL.into_iter().enumerate() {
        let world = World::of_notes(kind);
        let clients = clients(&world);
        insert_twice(&clients[0], "n1");
        let raw = &clients[index];
        // Version 3 names two columns; a full row has NULL for the others.
        let values = json!({ "id": "n1", "title": "changed" });
        let values = if version.is_sparse() {
            values
        } else {
            json!({ "id": "n1", "team_id": "t1", "title": "changed" })
        };
        one(raw, "k1", raw.author.upsert("notes", &values, None));
        let (row_version, row) = stored(&world);
        assert_eq!((row_version, &row["title"]), (3, &json!("changed")));
        assert_eq!(row["stars"].is_null(), !version.is_sparse());
    }
}

fn versions_1_and_2_compare_the_row_and_version_3_the_columns(kind: StoreKind) {
    let world = World::of_notes(kind);
    let [v1, v2, v3] = clients(&world);
    // Title is at version 2; stars never changed.
    insert_twice(&v1, "n1");
    let stars = json!({ "id": "n1", "team_id": "t1", "title": "second", "stars": 5 });
    for raw in [&v1, &v2] {
        let result = one(raw, "k1", raw.author.upsert("notes", &stars, Some(1)));
        let [
            OpResult::Conflict {
                code,
                server_version,
                server_row,
                conflict_columns,
                ..
            },
        ] = &result.results[..]
        else {
            panic!("not a conflict: {result:?}")
        };
        assert_eq!((&code[..], *server_version), ("sync.version_conflict", 2));
        assert!(conflict_columns.is_empty());
        let table = raw.author.schema.find("notes").unwrap();
        let row = row_to_json(raw.author.schema.table(table), server_row).unwrap();
        assert_eq!(row["title"], "second");
    }
    // Version 3 may change a column that nobody touched since.
    let patch = v3
        .author
        .upsert("notes", &json!({ "id": "n1", "stars": 5 }), Some(1));
    assert_eq!(one(&v3, "k1", patch).outcome, PushOutcome::Applied(3));
    // And not one that moved: the title, third column, is named.
    let patch = json!({ "id": "n1", "title": "third", "stars": 6 });
    let result = one(&v3, "k2", v3.author.upsert("notes", &patch, Some(1)));
    let [
        OpResult::Conflict {
            conflict_columns,
            server_version,
            ..
        },
    ] = &result.results[..]
    else {
        panic!("not a conflict: {result:?}")
    };
    assert_eq!(
        (&conflict_columns[..], *server_version),
        (&[0b000_1100][..], 3)
    );
    // The row's own version is fine everywhere.
    for (raw, base) in [(&v1, 3), (&v2, 4)] {
        let result = one(raw, "k3", raw.author.upsert("notes", &stars, Some(base)));
        assert!(
            matches!(result.outcome, PushOutcome::Applied(_)),
            "{result:?}"
        );
    }
}

fn a_scope_column_in_an_update_is_ignored_or_must_be_equal(kind: StoreKind) {
    let world = World::of_notes(kind);
    world.allow("alice", scopes([("team_id", &["*"])]));
    let [v1, v2, v3] = clients(&world);
    insert_twice(&v1, "n1");
    for raw in [&v1, &v2] {
        let moved = json!({ "id": "n1", "team_id": "t2", "title": "moved" });
        one(raw, "k1", raw.author.upsert("notes", &moved, None));
        let row = &world.rows("notes")[0];
        assert_eq!(
            (&row.values["team_id"], &row.scopes["team_id"]),
            (&json!("t1"), &json!("t1"))
        );
    }
    let moved = json!({ "id": "n1", "team_id": "t2", "title": "moved" });
    let result = one(&v3, "k1", v3.author.upsert("notes", &moved, None));
    assert_eq!(code_of(&result), "sync.invalid_request");
    let stays = json!({ "id": "n1", "team_id": "t1", "title": "stays" });
    let result = one(&v3, "k2", v3.author.upsert("notes", &stays, None));
    assert!(matches!(result.outcome, PushOutcome::Applied(_)));
}

fn a_base_version_above_the_row_is_a_conflict_or_a_bad_request(kind: StoreKind) {
    let world = World::of_notes(kind);
    let [v1, v2, v3] = clients(&world);
    insert_twice(&v1, "n1");
    for (raw, expected) in [
        (&v1, "sync.version_conflict"),
        (&v2, "sync.version_conflict"),
        (&v3, "sync.invalid_request"),
    ] {
        let operation = raw.author.upsert("notes", &whole("n1", "x"), Some(3));
        assert_eq!(raw.reject(commit("k1", vec![operation])), expected);
    }
    assert_eq!(stored(&world).0, 2);
}

fn an_upsert_on_a_deleted_row_creates_it_again_or_is_told_so(kind: StoreKind) {
    let world = World::of_notes(kind);
    let [v1, v2, v3] = clients(&world);
    insert_twice(&v1, "n1");
    v1.apply(commit("gone", vec![delete("notes", "n1")]));
    let again = v3.author.upsert("notes", &whole("n1", "again"), None);
    assert_eq!(v3.reject(commit("k1", vec![again])), "sync.row_deleted");
    // Base version 0 says that a new row is meant.
    let again = v3.author.upsert("notes", &whole("n1", "again"), Some(0));
    v3.apply(commit("k2", vec![again]));
    assert_eq!(stored(&world).0, 1);
    for raw in [&v1, &v2] {
        raw.apply(commit("gone-2", vec![delete("notes", "n1")]));
        let again = raw.author.upsert("notes", &whole("n1", "again"), None);
        raw.apply(commit("k1", vec![again]));
        assert_eq!(stored(&world).0, 1);
    }
}

fn a_partial_row_that_does_not_exist_is_missing(kind: StoreKind) {
    let world = World::of_notes(kind);
    let [v1, v2, v3] = clients(&world);
    for base in [None, Some(0), Some(4)] {
        let values = json!({ "id": "n1", "team_id": "t1", "title": "x" });
        let operation = v3.author.upsert("notes", &values, base);
        let id = format!("k-{base:?}");
        assert_eq!(v3.reject(commit(&id, vec![operation])), "sync.row_missing");
    }
    for raw in [&v1, &v2] {
        let operation = raw.author.upsert("notes", &whole("n1", "x"), Some(4));
        assert_eq!(
            raw.reject(commit("k1", vec![operation])),
            "sync.row_missing"
        );
    }
    // A row of another team is not told to be missing.
    let values = json!({ "id": "n1", "team_id": "t2", "title": "x" });
    let operation = v3.author.upsert("notes", &values, Some(4));
    assert_eq!(v3.reject(commit("k9", vec![operation])), "sync.forbidden");
    assert_eq!(world.head(), 0);
}

fn version_1_is_refused_once_the_epoch_was_rotated(kind: StoreKind) {
    let world = World::of_notes(kind);
    let [v1, mut v2, mut v3] = clients(&world);
    v1.pull(vec![]);
    world.block_on(world.instance.back_up()).unwrap();
    world.block_on(world.instance.restore()).unwrap();
    let refusal = v1.refused(v1.author.request(vec![], Some(vec![])));
    assert_eq!(
        (refusal.status, refusal.code()),
        (400, "sync.client_wire_unsupported")
    );
    assert_eq!(refusal.body["recommendedAction"], "upgradeClient");
    for raw in [&mut v2, &mut v3] {
        let answer = raw.pull(vec![]);
        assert!(answer.header.reset_required);
        raw.author.log_epoch = Some(answer.header.log_epoch);
        assert!(!raw.pull(vec![]).header.reset_required);
    }
}

fn a_replay_is_answered_in_the_version_that_asks(kind: StoreKind) {
    let world = World::of_notes(kind);
    let clients = clients(&world);
    insert_twice(&clients[0], "n1");
    // A conflict recorded by version 2, replayed by the same client after its upgrade to 3, and
    // the other way round (OQ-10, OQ-11).
    for (from, to) in [(1, 2), (2, 1)] {
        let mut raw = Raw::ready(&world, "alice", "upgraded", clients[from].author.version);
        let id = format!("k{from}");
        let operation = raw.author.upsert("notes", &whole("n1", "x"), Some(1));
        assert_eq!(
            raw.reject(commit(&id, vec![operation])),
            "sync.version_conflict"
        );
        raw.author.version = ALL[to];
        let operation = raw.author.upsert("notes", &whole("n1", "x"), Some(1));
        let result = one(&raw, &id, operation);
        let [
            OpResult::Conflict {
                conflict_columns,
                server_version,
                ..
            },
        ] = &result.results[..]
        else {
            panic!("not a conflict: {result:?}")
        };
        assert_eq!(*server_version, 2);
        assert_eq!(conflict_columns.is_empty(), !ALL[to].is_sparse());
    }
}

fn an_unknown_version_is_refused_with_the_known_ones(kind: StoreKind) {
    let world = World::of_notes(kind);
    let raw = Raw::new(&world, "alice", "c", WireVersion::V3);
    let mut request = raw.author.request(vec![], Some(vec![])).to_vec();
    request[4] = 9;
    let refusal = raw.refused(request.into());
    assert_eq!(
        (refusal.status, refusal.code()),
        (400, "sync.invalid_request")
    );
    assert_eq!(
        refusal.body["details"],
        json!({ "supportedWireVersions": [1, 2, 3] })
    );
}

fn all_versions_read_the_same_rows(kind: StoreKind) {
    let world = World::of_notes(kind);
    let clients = clients(&world);
    for (raw, id) in clients.iter().zip(["n1", "n2", "n3"]) {
        insert_twice(raw, id);
    }
    let bootstrap = clients
        .each_ref()
        .map(|raw| raw.pull(vec![teams("s1", &["t1"], -1)]));
    let log = clients
        .each_ref()
        .map(|raw| raw.pull(vec![teams("s1", &["t1"], 0)]));
    for answers in [&bootstrap, &log] {
        for answer in answers {
            assert_eq!(content(answer), content(&answers[0]));
        }
    }
    assert_eq!(log[0].sections[0].commits.len(), 6);
    assert_eq!(bootstrap[0].sections[0].inline.len(), 1);
}

/// What a section delivers, without what differs between versions.
fn content(answer: &Answer) -> impl PartialEq + std::fmt::Debug + use<'_> {
    let section = &answer.sections[0];
    (
        &section.start,
        &section.commits,
        &section.inline,
        &section.end,
    )
}

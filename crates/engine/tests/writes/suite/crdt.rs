//! CRDT columns end to end (§5.10): merged once, never overwritten, whole or not at all.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value as Json, json};
use tidewater_engine::{CrdtMerger, CrdtMergers, EngineConfig, Hooks, MergeError};
use tidewater_wire::{OpResult, WireVersion, row::decode_row};
use yrs::updates::decoder::Decode;
use yrs::{ClientID, Doc, GetString, Options, ReadTxn, StateVector, Text, Transact, Update};

use super::{
    asking::{Ask, Op, delete, put, row_text},
    server::{Server, Setup},
};

const VERSIONS: [WireVersion; 3] = [WireVersion::V1, WireVersion::V2, WireVersion::V3];

const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "docs", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "title", "type": "string", "nullable": true},
               {"name": "tags", "type": "crdt", "crdtType": "set", "nullable": true},
               {"name": "body", "type": "crdt", "crdtType": "yjs-doc", "nullable": true}]},
  {"name": "strict", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "tags", "type": "crdt", "crdtType": "set", "nullable": false},
               {"name": "other", "type": "crdt", "crdtType": "nobody-merges-this", "nullable": true}]}
]}"#;

/// Sets of words: `a,b` and `c` make `a,b,c`. Refuses what is no text, and panics at `!`.
#[derive(Default)]
pub(crate) struct SetMerger {
    pub(crate) calls: AtomicU64,
}

impl CrdtMerger for SetMerger {
    fn merge(&self, stored: Option<&[u8]>, incoming: &[u8]) -> Result<Vec<u8>, MergeError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut words = BTreeSet::new();
        for set in [stored.unwrap_or_default(), incoming] {
            let text = str::from_utf8(set).map_err(|error| MergeError(error.to_string()))?;
            assert!(!text.contains('!'), "as told");
            words.extend(text.split(',').filter(|word| !word.is_empty()));
        }
        let words: Vec<&str> = words.into_iter().collect();
        Ok(words.join(",").into_bytes())
    }
}

fn hooks() -> (Hooks, Arc<SetMerger>) {
    let merger = Arc::new(SetMerger::default());
    let mergers = CrdtMergers::default().with("set", Arc::<SetMerger>::clone(&merger));
    (
        Hooks {
            mergers,
            ..Hooks::default()
        },
        merger,
    )
}

async fn start() -> Server {
    Setup::of(SCHEMA).with_hooks(hooks().0).start().await
}

fn tags(id: &str, tags: Json) -> Op {
    put(
        "docs",
        json!({"id": id, "team": "t1", "title": "x", "tags": tags, "body": null}),
    )
}

/// Only the key and the tags, in wire version 3.
fn patch(id: &str, tags: Json) -> Op {
    put("docs", json!({"id": id, "tags": tags}))
}

/// A replica's document.
struct Replica(Doc);

impl Replica {
    fn new(id: u64) -> Self {
        Self(Doc::with_options(Options::with_client_id(ClientID::new(
            id,
        ))))
    }

    /// Types at the front and gives the update, as the list of its bytes.
    fn types(&self, text: &str) -> Json {
        let body = self.0.get_or_insert_text("body");
        let mut txn = self.0.transact_mut();
        body.insert(&mut txn, 0, text);
        Json::from(txn.encode_update_v1())
    }

    fn erases(&self) -> Json {
        let body = self.0.get_or_insert_text("body");
        let mut txn = self.0.transact_mut();
        let length = body.len(&txn);
        body.remove_range(&mut txn, 0, length);
        Json::from(txn.encode_update_v1())
    }

    fn state(&self) -> Vec<u8> {
        self.0
            .transact()
            .encode_state_as_update_v1(&StateVector::default())
    }

    fn reads(&self, state: &[u8]) -> String {
        let body = self.0.get_or_insert_text("body");
        let mut txn = self.0.transact_mut();
        txn.apply_update(Update::decode_v1(state).unwrap()).unwrap();
        body.get_string(&txn)
    }
}

fn body(id: &str, update: &Json) -> Op {
    put(
        "docs",
        json!({"id": id, "team": "t1", "title": "x", "tags": null, "body": update}),
    )
}

impl Server {
    /// The bytes of the only `body`.
    async fn body(&self, id: &str) -> Vec<u8> {
        let row = self.stored("docs", id).await.unwrap();
        let table = self.schema.table(self.schema.find("docs").unwrap());
        let fields = decode_row(&table.columns, &row.payload).unwrap();
        let encoded = fields[4].unwrap().encoded;
        encoded[4..].to_vec()
    }
}

#[tokio::test]
async fn stored_and_incoming_are_merged_and_never_overwritten_in_every_wire_version() {
    for version in VERSIONS {
        let server = start().await;
        assert_eq!(
            server.push_in(version, vec![tags("d", json!("b,a"))]).await,
            "applied 1"
        );
        assert_eq!(
            server.rows("docs").await,
            ["d|t1|x|a,b|-@1"],
            "an insert is merged too"
        );
        assert_eq!(
            server.push_in(version, vec![tags("d", json!("c"))]).await,
            "applied 2"
        );
        assert_eq!(server.rows("docs").await, ["d|t1|x|a,b,c|-@2"]);
    }
}

#[tokio::test]
async fn concurrent_edits_converge_in_both_orders_in_every_wire_version() {
    for version in VERSIONS {
        let (left, right) = (Replica::new(7), Replica::new(9));
        let edits = [
            left.types("left"),
            right.types("right"),
            left.erases(),
            left.types("again"),
        ];
        let mut states = Vec::new();
        for order in [[0, 1, 2, 3], [1, 0, 2, 3], [3, 2, 1, 0]] {
            let server = start().await;
            for edit in order {
                let outcome = server.push_in(version, vec![body("d", &edits[edit])]).await;
                assert!(outcome.starts_with("applied"), "{outcome}");
            }
            states.push(server.body("d").await);
        }
        assert_eq!((&states[0], &states[0]), (&states[1], &states[2]));
        let text = Replica::new(11).reads(&states[0]);
        assert!(text == "againright" || text == "rightagain", "{text}");
    }
}

#[tokio::test]
async fn edits_of_one_batch_are_merged_one_after_another() {
    let server = Arc::new(start().await);
    let (left, right) = (Replica::new(7), Replica::new(9));
    let ask = |actor, edits: [Json; 2]| {
        let [one, two] = edits;
        Ask::new()
            .by(actor)
            .push("k1", vec![body("d", &one)])
            .push("k2", vec![body("d", &two)])
    };
    let asks = vec![
        ask("ann", [left.types("a"), left.types("b")]),
        ask("bob", [right.types("c"), right.types("d")]),
    ];
    for answer in server.batch(asks).await {
        assert!(
            answer
                .unwrap()
                .outcomes()
                .iter()
                .all(|told| told.starts_with("applied"))
        );
    }
    assert_eq!(
        server
            .store
            .calls()
            .iter()
            .filter(|call| **call == "finish")
            .count(),
        2
    );
    let text = Replica::new(11).reads(&server.body("d").await);
    assert!(text == "badc" || text == "dcba", "{text}");
    assert_eq!(server.stored("docs", "d").await.unwrap().row_version, 4);
}

#[tokio::test]
async fn two_operations_of_one_commit_on_one_document_are_both_kept() {
    let server = start().await;
    let operations = vec![
        tags("d", json!("a")),
        patch("d", json!("b")),
        patch("d", json!("c")),
    ];
    assert_eq!(server.push(operations).await, "applied 1");
    assert_eq!(server.rows("docs").await, ["d|t1|x|a,b,c|-@3"]);
}

#[tokio::test]
async fn a_patch_of_crdt_columns_alone_never_conflicts_except_with_base_0() {
    let server = start().await;
    server.push(vec![tags("d", json!("a"))]).await;
    server.push(vec![tags("d", json!("b"))]).await;
    assert_eq!(
        server.push(vec![patch("d", json!("c")).based_on(1)]).await,
        "applied 3"
    );
    assert_eq!(server.push(vec![patch("d", json!("d"))]).await, "applied 4");
    assert_eq!(
        server.push(vec![patch("d", json!("e")).based_on(-5)]).await,
        "applied 5"
    );
    let told = server.tell(vec![patch("d", json!("f")).based_on(0)]).await;
    let [
        OpResult::Conflict {
            conflict_columns,
            server_row,
            ..
        },
    ] = &told.result.results[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(
        conflict_columns[..],
        [0],
        "no column that counts was presented"
    );
    let table = server.schema.table(server.schema.find("docs").unwrap());
    assert_eq!(row_text(table, server_row), "d|t1|x|a,b,c,d,e|-");
    let above = server.push(vec![patch("d", json!("f")).based_on(9)]).await;
    assert_eq!(above, "rejected 0:sync.invalid_request");
    assert_eq!(server.rows("docs").await, ["d|t1|x|a,b,c,d,e|-@5"]);
}

#[tokio::test]
async fn a_full_row_without_a_base_never_conflicts_and_with_one_it_does() {
    for version in [WireVersion::V1, WireVersion::V2] {
        let server = start().await;
        server.push_in(version, vec![tags("d", json!("a"))]).await;
        server.push_in(version, vec![tags("d", json!("b"))]).await;
        assert_eq!(
            server.push_in(version, vec![tags("d", json!("c"))]).await,
            "applied 3"
        );
        let stale = tags("d", json!("lost")).based_on(2);
        let answer = server
            .round(Ask::new().in_version(version).push("k", vec![stale]))
            .await;
        let [
            OpResult::Conflict {
                server_row,
                server_version: 3,
                ..
            },
        ] = &answer.told[0].result.results[..]
        else {
            panic!("{answer:?}")
        };
        let table = server.schema.table(server.schema.find("docs").unwrap());
        assert_eq!(
            row_text(table, server_row),
            "d|t1|x|a,b,c|-",
            "the merged row, not more"
        );
        assert_eq!(server.rows("docs").await, ["d|t1|x|a,b,c|-@3"]);
    }
}

#[tokio::test]
async fn a_conflict_on_another_column_merges_nothing_and_shows_the_merged_row() {
    let (hooks, merger) = hooks();
    let server = Setup::of(SCHEMA).with_hooks(hooks).start().await;
    server.push(vec![tags("d", json!("a"))]).await;
    server
        .push(vec![put(
            "docs",
            json!({"id": "d", "title": "y", "tags": "b"}),
        )])
        .await;
    let merges = merger.calls.load(Ordering::SeqCst);
    let stale = put("docs", json!({"id": "d", "title": "z", "tags": "lost"})).based_on(1);
    let told = server.tell(vec![stale]).await;
    let [
        OpResult::Conflict {
            conflict_columns,
            server_row,
            ..
        },
    ] = &told.result.results[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(
        conflict_columns[..],
        [0b00100],
        "the title and nothing else"
    );
    let table = server.schema.table(server.schema.find("docs").unwrap());
    assert_eq!(row_text(table, server_row), "d|t1|y|a,b|-");
    assert_eq!(merger.calls.load(Ordering::SeqCst), merges);
}

#[tokio::test]
async fn a_replay_does_not_merge_again() {
    let (hooks, merger) = hooks();
    let server = Arc::new(Setup::of(SCHEMA).with_hooks(hooks).start().await);
    let ask = |tag: &str| Ask::new().push("k1", vec![tags("d", json!(tag))]);
    assert_eq!(server.round(ask("a")).await.outcomes(), ["applied 1"]);
    assert_eq!(
        server.round(ask("b")).await.outcomes(),
        ["cached 1"],
        "whatever it contains"
    );
    let twice = Ask::new()
        .push("k2", vec![patch("d", json!("c"))])
        .push("k2", vec![patch("d", json!("d"))]);
    assert_eq!(
        server.round(twice).await.outcomes(),
        ["applied 2", "cached 2"]
    );
    assert_eq!(server.rows("docs").await, ["d|t1|x|a,c|-@2"]);
    assert_eq!(merger.calls.load(Ordering::SeqCst), 2);

    let overlapping = || Ask::new().push("k3", vec![patch("d", json!("e"))]);
    let answers = server.batch(vec![overlapping(), overlapping()]).await;
    let outcomes: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.unwrap().outcomes())
        .collect();
    assert_eq!(outcomes, [["applied 3"], ["cached 3"]]);
    assert_eq!(merger.calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn an_update_that_cannot_be_merged_changes_nothing_in_every_wire_version() {
    for version in VERSIONS {
        for (broken, column) in [
            (json!([0xff, 0xfe]), "tags"),
            (json!("!"), "tags"),
            (json!([1, 2, 3, 200, 200]), "body"),
        ] {
            let server = start().await;
            server
                .push(vec![tags("d", json!("a")), tags("e", json!("a"))])
                .await;
            let mut row =
                json!({"id": "e", "team": "t1", "title": "z", "tags": null, "body": null});
            row[column] = broken;
            let ask = || {
                let operations = vec![tags("d", json!("b")), put("docs", row.clone())];
                Ask::new().in_version(version).push("k1", operations)
            };
            let answer = server.round(ask()).await;
            assert_eq!(answer.outcomes(), ["rejected 1:sync.crdt_merge_failed"]);
            assert_eq!(answer.told[0].message(), "CRDT merger failed");
            assert_eq!(server.rows("docs").await, ["d|t1|x|a|-@1", "e|t1|x|a|-@1"]);
            assert_eq!(server.head().await, 1);
            assert_eq!(
                server.round(ask()).await.bytes,
                answer.bytes,
                "it is recorded"
            );
            // An insert is merged with nothing, which finds the damage as well.
            let mut fresh = row.clone();
            fresh["id"] = json!("new");
            let outcome = server.push_in(version, vec![put("docs", fresh)]).await;
            assert_eq!(outcome, "rejected 0:sync.crdt_merge_failed");
        }
    }
}

#[tokio::test]
async fn a_type_without_a_merger_takes_no_value_but_null() {
    let server = start().await;
    let strict = |other: Json| {
        put(
            "strict",
            json!({"id": "s", "team": "t1", "tags": "a", "other": other}),
        )
    };
    assert_eq!(
        server.push(vec![strict(json!("x"))]).await,
        "rejected 0:sync.crdt_merge_failed"
    );
    assert_eq!(server.push(vec![strict(json!(null))]).await, "applied 1");
    assert_eq!(
        server.push(vec![strict(json!(""))]).await,
        "rejected 0:sync.crdt_merge_failed"
    );
    assert_eq!(server.push(vec![strict(json!(null))]).await, "applied 2");
}

#[tokio::test]
async fn null_clears_without_merging_in_every_wire_version() {
    for version in VERSIONS {
        let (hooks, merger) = hooks();
        let server = Setup::of(SCHEMA).with_hooks(hooks).start().await;
        server.push(vec![tags("d", json!("a"))]).await;
        assert_eq!(
            server.push_in(version, vec![tags("d", json!(null))]).await,
            "applied 2"
        );
        assert_eq!(server.rows("docs").await, ["d|t1|x|-|-@2"]);
        assert_eq!(merger.calls.load(Ordering::SeqCst), 1);
        assert_eq!(
            server.push_in(version, vec![tags("d", json!("b"))]).await,
            "applied 3"
        );
        assert_eq!(
            server.rows("docs").await,
            ["d|t1|x|b|-@3"],
            "NULL counts as nothing stored"
        );
    }
}

#[tokio::test]
async fn null_is_refused_where_the_column_is_not_nullable() {
    let server = start().await;
    let row = json!({"id": "s", "team": "t1", "tags": null, "other": null});
    assert_eq!(
        server.push(vec![put("strict", row)]).await,
        "rejected 0:sync.invalid_request"
    );
}

#[tokio::test]
async fn an_absent_column_keeps_its_document() {
    let (hooks, merger) = hooks();
    let server = Setup::of(SCHEMA).with_hooks(hooks).start().await;
    server.push(vec![tags("d", json!("a"))]).await;
    server
        .push(vec![put("docs", json!({"id": "d", "title": "y"}))])
        .await;
    assert_eq!(server.rows("docs").await, ["d|t1|y|a|-@2"]);
    assert_eq!(merger.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_document_ends_with_its_row() {
    let server = start().await;
    server.push(vec![tags("d", json!("a"))]).await;
    server.push(vec![delete("docs", "d")]).await;
    assert_eq!(
        server.push(vec![tags("d", json!("b")).based_on(0)]).await,
        "applied 3"
    );
    assert_eq!(server.rows("docs").await, ["d|t1|x|b|-@1"]);
    let anew = vec![delete("docs", "d"), tags("d", json!("c"))];
    assert_eq!(server.push(anew).await, "applied 4");
    assert_eq!(server.rows("docs").await, ["d|t1|x|c|-@1"]);
}

#[tokio::test]
async fn documents_end_at_the_limit() {
    let mut setup = Setup::of(SCHEMA).with_hooks(hooks().0);
    setup.config = EngineConfig {
        crdt_bytes_max: 8,
        ..EngineConfig::default()
    };
    let server = setup.start().await;
    let refused = "rejected 0:sync.constraint_violation";
    assert_eq!(
        server.push(vec![tags("d", json!("abcdefghi"))]).await,
        refused
    );
    assert_eq!(
        server.push(vec![tags("d", json!("abcdefgh"))]).await,
        "applied 1"
    );
    let told = server.tell(vec![patch("d", json!("z"))]).await;
    assert_eq!(told.outcome(), refused);
    assert_eq!(
        told.details(),
        Some(r#"{"fieldPaths":["tags"],"reason":"crdt_too_large"}"#)
    );
    assert_eq!(server.rows("docs").await, ["d|t1|x|abcdefgh|-@1"]);
    // The row itself stays editable, and so does the document by clearing it.
    let title = put("docs", json!({"id": "d", "title": "y"}));
    assert_eq!(
        server
            .push(vec![title, patch("d", json!(null)), patch("d", json!("z"))])
            .await,
        "applied 2"
    );
    assert_eq!(server.rows("docs").await, ["d|t1|y|z|-@4"]);
}

#[tokio::test]
async fn the_version_of_a_document_moves_when_it_is_presented_or_its_bytes_change() {
    let server = start().await;
    server.push(vec![tags("d", json!("a"))]).await;
    server.push(vec![patch("d", json!("a"))]).await;
    assert_eq!(server.column_versions("docs", "d").await, [1, 1, 1, 2, 1]);
    // A full row that brings nothing new changes no bytes.
    server
        .push_in(WireVersion::V1, vec![tags("d", json!("a"))])
        .await;
    assert_eq!(server.column_versions("docs", "d").await, [1, 1, 1, 2, 1]);
    server
        .push_in(WireVersion::V1, vec![tags("d", json!("b"))])
        .await;
    assert_eq!(server.column_versions("docs", "d").await, [1, 1, 1, 4, 1]);
    // Only what another replica had: the incoming bytes differ, the merged ones do not.
    server
        .push_in(WireVersion::V2, vec![tags("d", json!("b"))])
        .await;
    assert_eq!(server.column_versions("docs", "d").await, [1, 1, 1, 4, 1]);
}

#[tokio::test]
async fn a_document_of_a_replica_that_was_away_lands_each_edit_once() {
    let server = start().await;
    let away = Replica::new(7);
    let edits = [away.types("one"), away.types("two"), away.types("three")];
    let mut ask = Ask::new();
    for (number, edit) in edits.iter().enumerate() {
        ask = ask.push(&format!("k{number}"), vec![body("d", edit)]);
    }
    let first = server.round(ask.clone()).await;
    assert_eq!(first.outcomes(), ["applied 1", "applied 2", "applied 3"]);
    assert_eq!(
        server.round(ask).await.outcomes(),
        ["cached 1", "cached 2", "cached 3"]
    );
    assert_eq!(server.body("d").await, away.state());
    assert_eq!(Replica::new(9).reads(&away.state()), "threetwoone");
}

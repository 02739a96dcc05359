//! Declared references end to end (§6.11): what a commit must name, what a delete takes along.

use std::sync::Arc;

use serde_json::json;
use tidewater_engine::EngineConfig;
use tidewater_store::{ChangeKind, StoredResult};
use tidewater_wire::WireVersion;

use super::{
    asking::{Ask, Op, delete, put},
    server::{Server, Setup},
};

const VERSIONS: [WireVersion; 3] = [WireVersion::V1, WireVersion::V2, WireVersion::V3];

/// `mid` refers to `top` in four ways and `leaf` to `mid`; `tree`, `peer` and `lock` refer to
/// themselves; `ring_a` and `ring_b` to each other; the scope column of `member` is a reference.
pub(crate) const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "top", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "name", "type": "string", "nullable": true}]},
  {"name": "mid", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "owner", "type": "string", "nullable": true},
               {"name": "guard", "type": "string", "nullable": true},
               {"name": "hint", "type": "string", "nullable": true},
               {"name": "hint2", "type": "string", "nullable": true},
               {"name": "body", "type": "string", "nullable": true}],
   "indexes": [{"name": "i1", "columns": ["owner"]}, {"name": "i2", "columns": ["guard"]},
               {"name": "i3", "columns": ["hint"]}, {"name": "i4", "columns": ["hint2"]}],
   "references": [{"column": "owner", "parentTable": "top", "onDelete": "CASCADE"},
                  {"column": "guard", "parentTable": "top"},
                  {"column": "hint", "parentTable": "top", "onDelete": "SET NULL"},
                  {"column": "hint2", "parentTable": "top", "onDelete": "SET NULL"}]},
  {"name": "leaf", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "mid", "type": "string", "nullable": true}],
   "indexes": [{"name": "i5", "columns": ["mid"]}],
   "references": [{"column": "mid", "parentTable": "mid", "onDelete": "CASCADE"}]},
  {"name": "tree", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "up", "type": "string", "nullable": true}],
   "indexes": [{"name": "i6", "columns": ["up"]}],
   "references": [{"column": "up", "parentTable": "tree", "onDelete": "CASCADE"}]},
  {"name": "peer", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "peer", "type": "string", "nullable": true}],
   "indexes": [{"name": "i7", "columns": ["peer"]}],
   "references": [{"column": "peer", "parentTable": "peer", "onDelete": "SET NULL"}]},
  {"name": "lock", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "held_by", "type": "string", "nullable": true}],
   "indexes": [{"name": "i8", "columns": ["held_by"]}],
   "references": [{"column": "held_by", "parentTable": "lock"}]},
  {"name": "ring_a", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "b", "type": "string", "nullable": true}],
   "indexes": [{"name": "i9", "columns": ["b"]}],
   "references": [{"column": "b", "parentTable": "ring_b", "onDelete": "CASCADE"}]},
  {"name": "ring_b", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "a", "type": "string", "nullable": true}],
   "indexes": [{"name": "i10", "columns": ["a"]}],
   "references": [{"column": "a", "parentTable": "ring_a", "onDelete": "CASCADE"}]},
  {"name": "teams", "primaryKey": "id",
   "scopes": [{"pattern": "team:{team}", "column": "id"}],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "name", "type": "string", "nullable": true}]},
  {"name": "member", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": true},
               {"name": "name", "type": "string", "nullable": true}],
   "indexes": [{"name": "i11", "columns": ["team"]}],
   "references": [{"column": "team", "parentTable": "teams", "onDelete": "SET NULL"}]},
  {"name": "number", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "integer", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "next", "type": "integer", "nullable": true},
               {"name": "back", "type": "integer", "nullable": true}],
   "indexes": [{"name": "i12", "columns": ["next"], "unique": true},
               {"name": "i13", "columns": ["back"]}],
   "references": [{"column": "next", "parentTable": "number", "onDelete": "SET NULL"},
                  {"column": "back", "parentTable": "number", "onDelete": "SET NULL"}]}
]}"#;

fn top(id: &str) -> Op {
    put("top", json!({"id": id, "team": "t1", "name": "n"}))
}

/// A row of `mid` with its four references: owner, guard, hint, hint2.
fn mid(id: &str, references: [Option<&str>; 4]) -> Op {
    let [owner, guard, hint, hint2] = references;
    let row = json!({"id": id, "team": "t1", "owner": owner, "guard": guard, "hint": hint,
        "hint2": hint2, "body": "b"});
    put("mid", row)
}

fn leaf(id: &str, mid: Option<&str>) -> Op {
    put("leaf", json!({"id": id, "team": "t1", "mid": mid}))
}

const OWNED: [Option<&str>; 4] = [Some("a"), None, None, None];
const GUARDED: [Option<&str>; 4] = [None, Some("a"), None, None];
const HINTED: [Option<&str>; 4] = [None, None, Some("a"), None];
const FREE: [Option<&str>; 4] = [None; 4];

impl Server {
    /// Applies these operations as one commit.
    async fn has(&self, operations: Vec<Op>) {
        let outcome = self.push(operations).await;
        assert!(outcome.starts_with("applied"), "{outcome}");
    }

    #[track_caller]
    fn is_refused(told: &super::asking::Told, op_index: i32, details: &str) {
        assert_eq!(
            told.outcome(),
            format!("rejected {op_index}:sync.reference_violation")
        );
        assert_eq!(told.details(), Some(details));
    }
}

mod parents {
    use super::*;

    #[tokio::test]
    async fn a_missing_parent_refuses_the_commit_in_every_wire_version() {
        for version in VERSIONS {
            let server = Server::start(SCHEMA).await;
            let ask = || {
                let operations = vec![top("b"), mid("m1", OWNED)];
                Ask::new().in_version(version).push("k1", operations)
            };
            let answer = server.round(ask()).await;
            let details = r#"{"fieldPaths":["owner"],"reason":"missing_parent","references":{"parent":"top","row":"a"}}"#;
            Server::is_refused(&answer.told[0], 1, details);
            assert_eq!(server.rows("top").await, [""; 0], "all or nothing");
            assert_eq!((server.head().await, server.events().len()), (0, 0));

            let replayed = server.round(ask()).await;
            assert_eq!(
                replayed.bytes, answer.bytes,
                "the companion is recorded with the result"
            );
        }
    }

    #[tokio::test]
    async fn parent_and_child_may_come_in_any_order_within_a_commit() {
        for version in VERSIONS {
            for operations in [
                vec![top("a"), mid("m1", OWNED), leaf("l1", Some("m1"))],
                vec![leaf("l1", Some("m1")), mid("m1", OWNED), top("a")],
            ] {
                let server = Server::start(SCHEMA).await;
                assert_eq!(server.push_in(version, operations).await, "applied 1");
            }
        }
    }

    #[tokio::test]
    async fn a_parent_written_by_an_earlier_commit_of_the_request_is_there() {
        let server = Server::start(SCHEMA).await;
        let ask = Ask::new()
            .push("k1", vec![top("a")])
            .push("k2", vec![mid("m1", OWNED)])
            .push("k3", vec![leaf("l1", Some("m1")), leaf("l2", Some("m2"))])
            .push("k4", vec![leaf("l1", Some("m1"))]);
        assert_eq!(
            server.round(ask).await.outcomes(),
            [
                "applied 1",
                "applied 2",
                "rejected 1:sync.reference_violation",
                "applied 3"
            ]
        );
    }

    #[tokio::test]
    async fn a_parent_deleted_by_an_earlier_commit_of_the_request_is_gone() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![top("a"), mid("m1", FREE)]).await;
        let ask = Ask::new()
            .push("k1", vec![delete("top", "a")])
            .push("k2", vec![mid("m2", OWNED)])
            .push("k3", vec![mid("m1", HINTED)])
            .push(
                "k4",
                vec![put("top", json!({"id": "a", "team": "t1", "name": null})).based_on(0)],
            )
            .push("k5", vec![mid("m1", HINTED)]);
        assert_eq!(
            server.round(ask).await.outcomes(),
            [
                "applied 2",
                "rejected 0:sync.reference_violation",
                "rejected 0:sync.reference_violation",
                "applied 3",
                "applied 4"
            ]
        );
    }

    #[tokio::test]
    async fn the_last_operation_on_the_row_is_blamed() {
        let server = Server::start(SCHEMA).await;
        let told = server
            .tell(vec![mid("m1", OWNED), top("b"), mid("m1", OWNED)])
            .await;
        assert_eq!(told.outcome(), "rejected 2:sync.reference_violation");
    }

    #[tokio::test]
    async fn only_the_final_state_of_a_row_counts() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![mid("m1", OWNED), mid("m1", FREE)]).await;
        server
            .has(vec![mid("m2", OWNED), delete("mid", "m2")])
            .await;
        assert_eq!(server.rows("mid").await, ["m1|t1|-|-|-|-|b@2"]);
    }

    #[tokio::test]
    async fn a_patch_that_leaves_a_reference_alone_does_not_look_for_its_parent() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![top("a"), mid("m1", HINTED)]).await;
        let patch = put("mid", json!({"id": "m1", "body": "c"}));
        assert_eq!(server.push(vec![patch.clone()]).await, "applied 2");
        // The same patch beside a delete of the parent would leave the row without it.
        let told = server.tell(vec![patch, delete("top", "a")]).await;
        let details = r#"{"fieldPaths":["hint"],"reason":"missing_parent","references":{"parent":"top","row":"a"}}"#;
        Server::is_refused(&told, 0, details);
        // Giving the parent up in the same commit is fine.
        let given_up = put("mid", json!({"id": "m1", "hint": null}));
        assert_eq!(
            server.push(vec![delete("top", "a"), given_up]).await,
            "applied 3"
        );
        assert_eq!(server.rows("mid").await, ["m1|t1|-|-|-|-|c@3"]);
    }

    #[tokio::test]
    async fn a_key_that_is_not_fit_to_be_shown_is_left_out_of_the_details() {
        let server = Server::start(SCHEMA).await;
        let cases = [
            (" padded", false),
            ("\u{feff}marked", false),
            ("control\u{7f}", false),
            (&*"x".repeat(257), false),
            (&*"x".repeat(256), true),
            ("inner space", true),
        ];
        for (key, shown) in cases {
            let told = server.tell(vec![leaf("l1", Some(key))]).await;
            let details = told.details().unwrap();
            assert_eq!(details.contains(r#""row""#), shown, "{key:?}: {details}");
            assert!(details.contains(r#""parent":"mid""#), "{details}");
        }
    }

    #[tokio::test]
    async fn an_empty_text_names_no_parent() {
        let server = Server::start(SCHEMA).await;
        assert_eq!(server.push(vec![leaf("l1", Some(""))]).await, "applied 1");
    }

    #[tokio::test]
    async fn a_row_may_be_its_own_parent() {
        let server = Server::start(SCHEMA).await;
        server
            .has(vec![put(
                "tree",
                json!({"id": "r", "team": "t1", "up": "r"}),
            )])
            .await;
        server
            .has(vec![put(
                "lock",
                json!({"id": "k", "team": "t1", "held_by": "k"}),
            )])
            .await;
        server
            .has(vec![put(
                "peer",
                json!({"id": "p", "team": "t1", "peer": "p"}),
            )])
            .await;
        server
            .has(vec![
                delete("tree", "r"),
                delete("lock", "k"),
                delete("peer", "p"),
            ])
            .await;
        assert_eq!(
            server
                .events()
                .last()
                .unwrap()
                .commit
                .applied
                .as_ref()
                .unwrap()
                .changes
                .len(),
            3
        );
    }

    #[tokio::test]
    async fn parents_of_another_partition_do_not_count() {
        let server = Server::start(SCHEMA).await;
        server
            .round(Ask::new().in_partition("p2").push("k1", vec![top("a")]))
            .await;
        let outcome = server.push(vec![mid("m1", OWNED)]).await;
        assert_eq!(outcome, "rejected 0:sync.reference_violation");
    }
}

mod deletes {
    use super::*;

    #[tokio::test]
    async fn a_restriction_holds_the_parent_back_in_every_wire_version() {
        for version in VERSIONS {
            let server = Server::start(SCHEMA).await;
            server
                .has(vec![top("a"), top("b"), mid("m1", GUARDED)])
                .await;
            let ask = || {
                let operations = vec![delete("top", "b"), delete("top", "a")];
                Ask::new().in_version(version).push("k1", operations)
            };
            let answer = server.round(ask()).await;
            let details = r#"{"reason":"restricted_delete","references":{"child":"mid"}}"#;
            Server::is_refused(&answer.told[0], 1, details);
            assert_eq!(server.rows("top").await.len(), 2);
            assert_eq!(server.round(ask()).await.bytes, answer.bytes);
        }
    }

    #[tokio::test]
    async fn a_cascade_is_part_of_its_commit_in_every_wire_version() {
        for version in VERSIONS {
            let server = Server::start(SCHEMA).await;
            server
                .has(vec![
                    top("a"),
                    mid("m1", OWNED),
                    mid("m2", OWNED),
                    leaf("l1", Some("m2")),
                ])
                .await;
            server.events();
            let ask = || {
                let operations = vec![delete("top", "a"), top("z")];
                Ask::new().in_version(version).push("k1", operations)
            };
            let answer = server.round(ask()).await;
            assert_eq!(answer.outcomes(), ["applied 2"]);
            assert_eq!(
                answer.told[0].result.results.len(),
                2,
                "one per operation of the client"
            );
            for (table, expected) in [
                ("top", &["2 delete a t1", "2 upsert z@1 t1"][..]),
                ("mid", &["2 delete m1 t1", "2 delete m2 t1"]),
                ("leaf", &["2 delete l1 t1"]),
            ] {
                let log = server.log(table).await;
                let log: Vec<_> = log.iter().filter(|line| line.starts_with("2 ")).collect();
                assert_eq!(log, expected);
            }
            let [event] = &server.events()[..] else {
                panic!("one commit")
            };
            let applied = event.commit.applied.as_ref().unwrap();
            let order: Vec<&str> = applied
                .changes
                .iter()
                .map(|change| &*change.row_id)
                .collect();
            assert_eq!(
                order,
                ["a", "z", "m1", "m2", "l1"],
                "after all client changes"
            );
            for (table, row_id) in [("top", "a"), ("mid", "m1"), ("mid", "m2"), ("leaf", "l1")] {
                let tombstone = server.tombstone(table, row_id).await.unwrap();
                assert_eq!(tombstone.commit_seq.get(), 2);
                assert_eq!(tombstone.scopes.unwrap().value("team"), Some("t1"));
            }
            assert_eq!(server.round(ask()).await.outcomes(), ["cached 2"]);
        }
    }

    #[tokio::test]
    async fn a_lost_reference_becomes_null_and_moves_nothing_else_in_every_wire_version() {
        for version in VERSIONS {
            let server = Server::start(SCHEMA).await;
            let both = [None, None, Some("a"), Some("a")];
            server.has(vec![top("a"), top("b"), mid("m1", both)]).await;
            server
                .has(vec![mid("m2", [None, None, Some("a"), Some("b")])])
                .await;
            server
                .has(vec![put("mid", json!({"id": "m1", "body": "c"}))])
                .await;
            assert_eq!(
                server.push_in(version, vec![delete("top", "a")]).await,
                "applied 4"
            );
            assert_eq!(
                server.rows("mid").await,
                ["m1|t1|-|-|-|-|c@3", "m2|t1|-|-|-|b|b@2"]
            );
            assert_eq!(
                server.column_versions("mid", "m1").await,
                [1, 1, 1, 1, 3, 3, 2]
            );
            assert_eq!(
                server.column_versions("mid", "m2").await,
                [1, 1, 1, 1, 2, 1, 1]
            );
            let log = server.log("mid").await;
            assert_eq!(log[3..], ["4 upsert m1@3 t1", "4 upsert m2@2 t1"]);
            // Whoever wrote another column meanwhile is not in conflict.
            let patch = put("mid", json!({"id": "m1", "body": "d"})).based_on(2);
            assert_eq!(server.push(vec![patch]).await, "applied 5");
            let stale = put("mid", json!({"id": "m1", "hint": "b"})).based_on(2);
            assert_eq!(
                server.push(vec![stale]).await,
                "rejected 0:sync.version_conflict"
            );
        }
    }

    #[tokio::test]
    async fn parent_and_restricted_child_go_together_in_any_order() {
        for operations in [
            vec![delete("top", "a"), delete("mid", "m1")],
            vec![delete("mid", "m1"), delete("top", "a")],
        ] {
            let server = Server::start(SCHEMA).await;
            server.has(vec![top("a"), mid("m1", GUARDED)]).await;
            assert_eq!(server.push(operations).await, "applied 2");
            assert_eq!(server.log("mid").await.len(), 2, "deleted once");
        }
    }

    #[tokio::test]
    async fn a_child_that_changes_its_parent_in_the_commit_is_no_longer_its_child() {
        let server = Server::start(SCHEMA).await;
        server
            .has(vec![
                top("a"),
                top("b"),
                mid("m1", GUARDED),
                mid("m2", OWNED),
            ])
            .await;
        let moved = [
            put("mid", json!({"id": "m1", "guard": "b"})),
            put("mid", json!({"id": "m2", "owner": "b"})),
        ];
        let [one, two] = moved;
        assert_eq!(
            server.push(vec![delete("top", "a"), one, two]).await,
            "applied 2"
        );
        assert_eq!(
            server.rows("mid").await,
            ["m1|t1|-|b|-|-|b@2", "m2|t1|b|-|-|-|b@2"]
        );
    }

    #[tokio::test]
    async fn a_child_written_by_an_earlier_commit_of_the_batch_is_found() {
        let server = Server::start(SCHEMA).await;
        let ask = Ask::new()
            .push("k1", vec![top("a"), top("b")])
            .push(
                "k2",
                vec![mid("m1", GUARDED), mid("m2", [Some("b"), None, None, None])],
            )
            .push("k3", vec![delete("top", "a")])
            .push("k4", vec![leaf("l1", Some("m2"))])
            .push("k5", vec![delete("top", "b")])
            .push("k6", vec![delete("mid", "m1")])
            .push("k7", vec![delete("top", "a")]);
        let expected = [
            "applied 1",
            "applied 2",
            "rejected 0:sync.reference_violation",
            "applied 3",
            "applied 4",
            "applied 5",
            "applied 6",
        ];
        assert_eq!(server.round(ask).await.outcomes(), expected);
        assert_eq!(
            server.log("leaf").await,
            ["3 upsert l1@1 t1", "4 delete l1 t1"]
        );
        assert_eq!(server.rows("mid").await, [""; 0]);
    }

    #[tokio::test]
    async fn a_child_deleted_by_an_earlier_commit_of_the_batch_is_not() {
        let server = Server::start(SCHEMA).await;
        server
            .has(vec![top("a"), mid("m1", GUARDED), mid("m2", OWNED)])
            .await;
        let ask = Ask::new()
            .push("k1", vec![delete("mid", "m1"), delete("mid", "m2")])
            .push("k2", vec![delete("top", "a")]);
        assert_eq!(
            server.round(ask).await.outcomes(),
            ["applied 2", "applied 3"]
        );
        assert_eq!(server.log("mid").await.len(), 4);
    }

    #[tokio::test]
    async fn what_a_refused_commit_of_the_batch_would_have_done_is_not_seen() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![top("a"), mid("m1", OWNED)]).await;
        let ask = Ask::new()
            // Cascades to m1, and is then refused.
            .push("k1", vec![delete("top", "a"), mid("m9", HINTED)])
            .push(
                "k2",
                vec![put("mid", json!({"id": "m1", "body": "c"})).based_on(1)],
            )
            .push("k3", vec![leaf("l1", Some("m1"))]);
        let expected = [
            "rejected 1:sync.reference_violation",
            "applied 2",
            "applied 3",
        ];
        assert_eq!(server.round(ask).await.outcomes(), expected);
    }

    #[tokio::test]
    async fn children_of_other_actors_and_scopes_go_without_their_authors_permission() {
        let server = Arc::new(Server::start(SCHEMA).await);
        server.has(vec![top("a")]).await;
        server
            .has(vec![put(
                "mid",
                json!({"id": "m1", "team": "t2", "owner": "a", "guard": null,
            "hint": null, "hint2": null, "body": null}),
            )])
            .await;
        server.resolver.allow("bob", &["t1"]);
        let ask = Ask::new().by("bob").push("k1", vec![delete("top", "a")]);
        assert_eq!(server.round(ask).await.outcomes(), ["applied 3"]);
        assert_eq!(
            server.log("mid").await,
            ["2 upsert m1@1 t2", "3 delete m1 t2"]
        );
    }

    #[tokio::test]
    async fn a_deleted_child_cannot_be_written_again_without_a_version() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![top("a"), mid("m1", OWNED)]).await;
        server.has(vec![delete("top", "a")]).await;
        let again = || mid("m1", FREE);
        assert_eq!(
            server.push(vec![again()]).await,
            "rejected 0:sync.row_deleted"
        );
        assert_eq!(server.push(vec![again().based_on(0)]).await, "applied 3");
        assert_eq!(server.tombstone("mid", "m1").await, None);
    }

    #[tokio::test]
    async fn a_cascade_wins_over_a_lost_reference_and_over_a_restriction() {
        let every = [Some("a"), Some("a"), Some("a"), Some("a")];
        let server = Server::start(SCHEMA).await;
        server
            .has(vec![top("a"), mid("m1", every), leaf("l1", Some("m1"))])
            .await;
        assert_eq!(server.push(vec![delete("top", "a")]).await, "applied 2");
        assert_eq!(
            server.log("mid").await,
            ["1 upsert m1@1 t1", "2 delete m1 t1"]
        );
        assert_eq!(
            server.log("leaf").await,
            ["1 upsert l1@1 t1", "2 delete l1 t1"]
        );
    }

    #[tokio::test]
    async fn a_row_that_only_loses_a_reference_keeps_its_children() {
        let server = Server::start(SCHEMA).await;
        server
            .has(vec![top("a"), mid("m1", HINTED), leaf("l1", Some("m1"))])
            .await;
        assert_eq!(server.push(vec![delete("top", "a")]).await, "applied 2");
        assert_eq!(server.rows("leaf").await, ["l1|t1|m1@1"]);
    }

    #[tokio::test]
    async fn cycles_and_trees_of_one_table_go_whole() {
        let server = Server::start(SCHEMA).await;
        let tree = |id: &str, up: &str| put("tree", json!({"id": id, "team": "t1", "up": up}));
        server
            .has(vec![
                tree("a", "c"),
                tree("b", "a"),
                tree("c", "b"),
                tree("d", "d"),
            ])
            .await;
        assert_eq!(server.push(vec![delete("tree", "b")]).await, "applied 2");
        assert_eq!(server.rows("tree").await, ["d|t1|d@1"]);
        assert_eq!(
            server.log("tree").await[4..],
            ["2 delete b t1", "2 delete c t1", "2 delete a t1"]
        );

        let ring_a = put("ring_a", json!({"id": "x", "team": "t1", "b": "y"}));
        let ring_b = put("ring_b", json!({"id": "y", "team": "t1", "a": "x"}));
        server.has(vec![ring_a, ring_b]).await;
        assert_eq!(server.push(vec![delete("ring_b", "y")]).await, "applied 4");
        assert_eq!(server.rows("ring_a").await, [""; 0]);
    }

    #[tokio::test]
    async fn a_ring_of_lost_references_loses_them_once() {
        let server = Server::start(SCHEMA).await;
        let peer =
            |id: &str, peer: &str| put("peer", json!({"id": id, "team": "t1", "peer": peer}));
        server
            .has(vec![
                peer("a", "b"),
                peer("b", "c"),
                peer("c", "a"),
                peer("d", "a"),
            ])
            .await;
        assert_eq!(server.push(vec![delete("peer", "a")]).await, "applied 2");
        assert_eq!(
            server.rows("peer").await,
            ["b|t1|c@1", "c|t1|-@2", "d|t1|-@2"]
        );
    }

    #[tokio::test]
    async fn a_chain_of_restrictions_goes_only_as_a_whole() {
        let server = Server::start(SCHEMA).await;
        let lock = |id: &str, by: Option<&str>| {
            put("lock", json!({"id": id, "team": "t1", "held_by": by}))
        };
        server
            .has(vec![
                lock("a", None),
                lock("b", Some("a")),
                lock("c", Some("b")),
            ])
            .await;
        let refused = server
            .push(vec![delete("lock", "a"), delete("lock", "b")])
            .await;
        assert_eq!(refused, "rejected 1:sync.reference_violation");
        let all = vec![
            delete("lock", "a"),
            delete("lock", "c"),
            delete("lock", "b"),
        ];
        assert_eq!(server.push(all).await, "applied 2");
    }

    #[tokio::test]
    async fn numbers_as_keys_are_found_by_their_text() {
        let server = Server::start(SCHEMA).await;
        let number = |id: i64, next: Option<i64>, back: Option<i64>| {
            put(
                "number",
                json!({"id": id, "team": "t1", "next": next, "back": back}),
            )
        };
        server
            .has(vec![
                number(-7, None, None),
                number(10, Some(-7), Some(-7)),
                number(9, None, Some(10)),
            ])
            .await;
        let missing = server.tell(vec![number(11, Some(12), None)]).await;
        let details = r#"{"fieldPaths":["next"],"reason":"missing_parent","references":{"parent":"number","row":"12"}}"#;
        Server::is_refused(&missing, 0, details);
        assert_eq!(server.push(vec![delete("number", "-7")]).await, "applied 2");
        assert_eq!(server.rows("number").await, ["10|t1|-|-@2", "9|t1|-|10@1"]);
    }

    #[tokio::test]
    async fn the_scope_column_can_be_the_reference_that_is_lost() {
        let server = Server::start(SCHEMA).await;
        let member =
            |team: Option<&str>| put("member", json!({"id": "m", "team": team, "name": "x"}));
        let team = put("teams", json!({"id": "t1", "name": "red"}));
        assert_eq!(
            server.push(vec![member(Some("t1"))]).await,
            "rejected 0:sync.reference_violation"
        );
        server.has(vec![team, member(Some("t1"))]).await;
        assert_eq!(server.push(vec![delete("teams", "t1")]).await, "applied 2");
        // No reference moves a row: its scopes stay what they were.
        assert_eq!(server.rows("member").await, ["m|-|x@2"]);
        assert_eq!(
            server.log("member").await,
            ["1 upsert m@1 t1", "2 upsert m@2 t1"]
        );
        let stored = server.stored("member", "m").await.unwrap();
        assert_eq!(stored.scopes.value("team"), Some("t1"));

        let patch = |values| server.push(vec![put("member", values)]);
        assert_eq!(patch(json!({"id": "m", "name": "y"})).await, "applied 3");
        assert_eq!(
            patch(json!({"id": "m", "team": null, "name": "z"})).await,
            "applied 4"
        );
        assert_eq!(
            patch(json!({"id": "m", "team": "t1"})).await,
            "rejected 0:sync.invalid_request"
        );
        // Older versions never write scope columns.
        assert_eq!(
            server
                .push_in(WireVersion::V1, vec![member(Some("t3"))])
                .await,
            "applied 5"
        );
        assert_eq!(server.rows("member").await, ["m|-|x@5"]);
        server.resolver.allow("bob", &["t2"]);
        let ask = Ask::new().by("bob").push("k1", vec![delete("member", "m")]);
        assert_eq!(
            server.round(ask).await.outcomes(),
            ["rejected 0:sync.forbidden"]
        );
        assert_eq!(server.push(vec![delete("member", "m")]).await, "applied 6");
        assert_eq!(server.log("member").await[5..], ["6 delete m t1"]);
    }

    #[tokio::test]
    async fn the_delete_that_removed_the_row_is_blamed_and_not_one_of_nothing_after_it() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![top("a"), mid("m1", GUARDED)]).await;
        let told = server
            .tell(vec![delete("top", "a"), delete("top", "a")])
            .await;
        assert_eq!(told.outcome(), "rejected 0:sync.reference_violation");
        let again = vec![
            delete("top", "a"),
            top("a"),
            delete("top", "a"),
            delete("top", "a"),
        ];
        assert_eq!(
            server.tell(again).await.outcome(),
            "rejected 2:sync.reference_violation"
        );
    }

    #[tokio::test]
    async fn a_row_deleted_and_written_again_in_one_commit_was_never_gone() {
        for version in VERSIONS {
            let server = Server::start(SCHEMA).await;
            server
                .has(vec![top("a"), mid("m1", GUARDED), mid("m2", OWNED)])
                .await;
            let operations = vec![delete("top", "a"), top("a")];
            assert_eq!(server.push_in(version, operations).await, "applied 2");
            assert_eq!(server.rows("top").await, ["a|t1|n@1"]);
            assert_eq!(server.rows("mid").await.len(), 2);
            assert_eq!(server.tombstone("top", "a").await, None);
        }
    }
}

mod limits {
    use super::*;

    /// A server that appends at most three operations, with `children` rows under `a`.
    async fn server_with(operations: Vec<Op>) -> Server {
        let mut setup = Setup::of(SCHEMA);
        setup.config = EngineConfig {
            appended_operations_max: 3,
            ..EngineConfig::default()
        };
        let server = setup.start().await;
        server.has(operations).await;
        server
    }

    #[tokio::test]
    async fn exactly_the_limit_is_appended() {
        let server = server_with(vec![
            top("a"),
            mid("m1", OWNED),
            mid("m2", HINTED),
            leaf("l1", Some("m1")),
        ])
        .await;
        assert_eq!(server.push(vec![delete("top", "a")]).await, "applied 2");
    }

    #[tokio::test]
    async fn one_more_than_the_limit_is_refused_wherever_it_comes_from() {
        let more: [Vec<Op>; 3] = [
            vec![
                mid("m1", OWNED),
                mid("m2", OWNED),
                mid("m3", OWNED),
                mid("m4", OWNED),
            ],
            vec![
                mid("m1", HINTED),
                mid("m2", HINTED),
                mid("m3", HINTED),
                mid("m4", HINTED),
            ],
            vec![
                mid("m1", OWNED),
                mid("m2", HINTED),
                leaf("l1", Some("m1")),
                leaf("l2", Some("m1")),
            ],
        ];
        for children in more {
            let mut operations = vec![top("a"), top("b")];
            operations.extend(children);
            let server = server_with(operations).await;
            let told = server
                .tell(vec![delete("top", "b"), delete("top", "a")])
                .await;
            Server::is_refused(&told, 1, r#"{"reason":"cascade_limit"}"#);
            assert_eq!(server.head().await, 1);
            assert_eq!(server.rows("top").await.len(), 2);
        }
    }

    #[tokio::test]
    async fn rows_the_client_deletes_itself_do_not_count() {
        let children = ["m1", "m2", "m3", "m4", "m5"];
        let mut operations = vec![top("a")];
        operations.extend(children.map(|id| mid(id, OWNED)));
        let server = server_with(operations).await;
        let told = server.push(vec![
            delete("mid", "m2"),
            delete("top", "a"),
            delete("mid", "m4"),
        ]);
        assert_eq!(told.await, "applied 2");
        assert_eq!(server.rows("mid").await, [""; 0]);
    }

    #[tokio::test]
    async fn a_row_that_loses_two_references_counts_once() {
        let both = [None, None, Some("a"), Some("a")];
        let rows = vec![top("a"), mid("m1", both), mid("m2", both), mid("m3", both)];
        let server = server_with(rows).await;
        assert_eq!(server.push(vec![delete("top", "a")]).await, "applied 2");
    }

    #[tokio::test]
    async fn a_restriction_is_found_behind_many_rows_that_go_anyway() {
        let rows = vec![
            top("a"),
            mid("m1", [Some("a"), Some("a"), None, None]),
            mid("m2", [Some("a"), Some("a"), None, None]),
            mid("m3", [Some("a"), Some("a"), None, None]),
            mid("m9", GUARDED),
        ];
        let server = server_with(rows).await;
        let told = server.tell(vec![delete("top", "a")]).await;
        let details = r#"{"reason":"restricted_delete","references":{"child":"mid"}}"#;
        Server::is_refused(&told, 0, details);
    }

    #[tokio::test]
    async fn a_thousand_rows_go_and_one_more_does_not() {
        let server = Server::start(SCHEMA).await;
        server.has(vec![top("a"), top("b")]).await;
        for chunk in 0..2 {
            let rows = (0..500)
                .map(|row| mid(&format!("m{chunk}-{row}"), OWNED))
                .collect();
            server.has(rows).await;
        }
        server.has(vec![mid("m9", OWNED)]).await;
        let refused = server.tell(vec![delete("top", "a")]).await;
        Server::is_refused(&refused, 0, r#"{"reason":"cascade_limit"}"#);
        server.has(vec![delete("mid", "m9")]).await;
        server.has(vec![delete("top", "a")]).await;
        assert_eq!(server.rows("mid").await, [""; 0]);
    }
}

#[tokio::test]
async fn a_refusal_is_recorded_with_its_details() {
    let server = Server::start(SCHEMA).await;
    server
        .round(Ask::new().push("k1", vec![leaf("l1", Some("m1"))]))
        .await;
    let Some(StoredResult::Readable(record)) = server.recorded("k1").await else {
        panic!("not recorded")
    };
    let [
        tidewater_store::ResultRecord::Error {
            details: Some(_),
            retryable: false,
            ..
        },
    ] = &record.results[..]
    else {
        panic!("{record:?}")
    };
}

#[tokio::test]
async fn appended_changes_carry_whole_rows() {
    let server = Server::start(SCHEMA).await;
    server.has(vec![top("a"), mid("m1", HINTED)]).await;
    server.events();
    server.has(vec![delete("top", "a")]).await;
    let [event] = &server.events()[..] else {
        panic!("one commit")
    };
    let change = &event.commit.applied.as_ref().unwrap().changes[1];
    let ChangeKind::Upsert {
        row,
        scopes_before: Some(before),
    } = &change.kind
    else {
        panic!("{change:?}")
    };
    assert_eq!(
        row.payload,
        server.stored("mid", "m1").await.unwrap().payload
    );
    assert_eq!(&row.scopes, before);
}

/// Names that are no field path and no value of a reference.
const ODD: &str = r#"{"version": 1, "tables": [
  {"name": " padded", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false}]},
  {"name": "child ", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "the parent", "type": "string", "nullable": true}],
   "indexes": [{"name": "i1", "columns": ["the parent"]}],
   "references": [{"column": "the parent", "parentTable": " padded"}]}
]}"#;

#[tokio::test]
async fn names_that_are_not_fit_to_be_shown_are_left_out_and_the_reason_stays() {
    let server = Server::start(ODD).await;
    let child = |parent: &str| {
        put(
            "child ",
            json!({"id": "c", "team": "t1", "the parent": parent}),
        )
    };
    let told = server.tell(vec![child("p")]).await;
    let details = r#"{"reason":"missing_parent","references":{"row":"p"}}"#;
    Server::is_refused(&told, 0, details);
    server
        .has(vec![
            put(" padded", json!({"id": "p", "team": "t1"})),
            child("p"),
        ])
        .await;
    let told = server.tell(vec![delete(" padded", "p")]).await;
    Server::is_refused(&told, 0, r#"{"reason":"restricted_delete"}"#);
}

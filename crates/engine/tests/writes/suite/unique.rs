//! UNIQUE indexes (§6.3): the commit that breaks one is refused for good, and nobody else is.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tidewater_wire::WireVersion;

use super::{
    asking::{Ask, Op, delete, put},
    server::Server,
};

const VERSIONS: [WireVersion; 3] = [WireVersion::V1, WireVersion::V2, WireVersion::V3];

/// Codes are unique, and so are pairs of place and number; boxes go with their item.
const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "items", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "code", "type": "string", "nullable": true},
               {"name": "place", "type": "string", "nullable": true},
               {"name": "number", "type": "integer", "nullable": true}],
   "indexes": [{"name": "items_code", "columns": ["code"], "unique": true},
               {"name": "items_place", "columns": ["place", "number"], "unique": true}]},
  {"name": "boxes", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "item", "type": "string", "nullable": true},
               {"name": "seal", "type": "string", "nullable": true}],
   "indexes": [{"name": "boxes_item", "columns": ["item"]},
               {"name": "boxes_seal", "columns": ["seal"], "unique": true}],
   "references": [{"column": "item", "parentTable": "items", "onDelete": "CASCADE"}]}
]}"#;

fn item(id: &str, code: &str) -> Op {
    let row = json!({"id": id, "team": "t1", "code": code, "place": null, "number": null});
    put("items", row)
}

fn placed(id: &str, place: Json, number: Json) -> Op {
    let row = json!({"id": id, "team": "t1", "code": null, "place": place, "number": number});
    put("items", row)
}

fn boxed(id: &str, item: &str, seal: &str) -> Op {
    put(
        "boxes",
        json!({"id": id, "team": "t1", "item": item, "seal": seal}),
    )
}

const REFUSED: &str = "rejected 0:sync.constraint_violation";

#[tokio::test]
async fn a_collision_is_recorded_with_its_operation_and_harms_nothing_in_every_wire_version() {
    for version in VERSIONS {
        let server = Server::start(SCHEMA).await;
        server.push(vec![item("a", "x")]).await;
        let ask = || {
            let operations = vec![item("b", "y"), item("c", "x"), item("d", "z")];
            Ask::new().in_version(version).push("k1", operations)
        };
        let answer = server.round(ask()).await;
        assert_eq!(answer.outcomes(), ["rejected 1:sync.constraint_violation"]);
        assert_eq!(
            answer.told[0].message(),
            "write violates a relational constraint"
        );
        assert_eq!(answer.told[0].details(), None);
        assert_eq!(server.rows("items").await, ["a|t1|x|-|-@1"]);
        assert_eq!(server.round(ask()).await.bytes, answer.bytes);
        // Also when the value has become free.
        assert_eq!(
            server.push_in(version, vec![delete("items", "a")]).await,
            "applied 2"
        );
        assert_eq!(server.round(ask()).await.bytes, answer.bytes);
        assert_eq!(
            server.push_in(version, vec![item("c", "x")]).await,
            "applied 3"
        );
    }
}

#[tokio::test]
async fn an_update_collides_like_an_insert_and_a_row_never_with_itself() {
    let server = Server::start(SCHEMA).await;
    server.push(vec![item("a", "x"), item("b", "y")]).await;
    assert_eq!(
        server
            .push(vec![put("items", json!({"id": "b", "code": "x"}))])
            .await,
        REFUSED
    );
    assert_eq!(
        server.push(vec![item("b", "y"), item("b", "y")]).await,
        "applied 2"
    );
    assert_eq!(server.rows("items").await, ["a|t1|x|-|-@1", "b|t1|y|-|-@3"]);
}

#[tokio::test]
async fn operations_are_written_in_their_order() {
    let server = Server::start(SCHEMA).await;
    server.push(vec![item("a", "x")]).await;
    let too_early = vec![item("b", "x"), delete("items", "a")];
    assert_eq!(server.push(too_early).await, REFUSED);
    let in_time = vec![delete("items", "a"), item("b", "x")];
    assert_eq!(server.push(in_time).await, "applied 2");
    // Two rows cannot change places without a third value in between.
    server.push(vec![item("c", "y")]).await;
    let swap = |first: &str| {
        let set = |id: &str, code: &str| put("items", json!({"id": id, "code": code}));
        vec![set("b", first), set("c", "x"), set("b", "y")]
    };
    assert_eq!(server.push(swap("y")).await, REFUSED);
    assert_eq!(server.push(swap("z")).await, "applied 4");
    assert_eq!(server.rows("items").await, ["b|t1|y|-|-@3", "c|t1|x|-|-@2"]);
}

#[tokio::test]
async fn null_is_equal_to_nothing_and_every_column_of_an_index_counts() {
    let server = Server::start(SCHEMA).await;
    let rows = vec![
        placed("a", json!("p"), json!(1)),
        placed("b", json!("p"), json!(2)),
        placed("c", json!("q"), json!(1)),
        placed("d", json!("p"), json!(null)),
        placed("e", json!("p"), json!(null)),
        placed("f", json!(null), json!(1)),
        placed("g", json!(null), json!(1)),
    ];
    assert_eq!(server.push(rows).await, "applied 1");
    assert_eq!(
        server.push(vec![placed("h", json!("p"), json!(1))]).await,
        REFUSED
    );
}

#[tokio::test]
async fn values_are_unique_per_partition_and_not_per_scope() {
    let server = Server::start(SCHEMA).await;
    server.push(vec![item("a", "x")]).await;
    let elsewhere = Ask::new()
        .in_partition("p2")
        .push("k1", vec![item("a", "x"), item("b", "y")]);
    assert_eq!(server.round(elsewhere).await.outcomes(), ["applied 1"]);
    let foreign = json!({"id": "c", "team": "t2", "code": "x", "place": null, "number": null});
    assert_eq!(server.push(vec![put("items", foreign)]).await, REFUSED);
}

#[tokio::test]
async fn a_colliding_commit_in_the_middle_of_a_batch_is_refused_alone() {
    let server = Arc::new(Server::start(SCHEMA).await);
    server.push(vec![item("a", "x")]).await;
    let bob = || Ask::new().by("bob");
    let asks = vec![
        Ask::new()
            .push("k1", vec![item("b", "y")])
            .push("k2", vec![item("c", "x"), item("row-of-k2", "free")])
            .push("k2", vec![item("c", "other")])
            .push(
                "k3",
                vec![put("items", json!({"id": "row-of-k2", "code": "w"}))],
            )
            .push(
                "k4",
                vec![put("items", json!({"id": "b", "code": "z"})).based_on(1)],
            ),
        Ask::new()
            .in_partition("p2")
            .push("k5", vec![item("c", "x")])
            .push("k6", vec![item("d", "x")]),
        bob()
            .push("k7", vec![item("row-of-k2", "free")])
            .push("k8", vec![item("c", "y")]),
        Ask::new().push("k2", vec![item("c", "x")]),
        bob().in_partition("p2").push("k9", vec![item("e", "e")]),
    ];
    let answers = server.batch(asks).await;
    let outcomes: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.unwrap().outcomes())
        .collect();
    let expected: [&[&str]; 5] = [
        &[
            "applied 2",
            REFUSED,
            REFUSED,
            "rejected 0:sync.row_missing",
            "applied 3",
        ],
        &["applied 1", REFUSED],
        // `k4` gave the value up.
        &["applied 4", "applied 5"],
        &[REFUSED],
        &["applied 2"],
    ];
    assert_eq!(outcomes, expected);
    let rows = [
        "a|t1|x|-|-@1",
        "b|t1|z|-|-@2",
        "c|t1|y|-|-@1",
        "row-of-k2|t1|free|-|-@1",
    ];
    assert_eq!(server.rows("items").await, rows);
    assert_eq!(
        server.rows_in("p2", "items").await,
        ["c|t1|x|-|-@1", "e|t1|e|-|-@1"]
    );
    assert_eq!((server.head().await, server.head_of("p2").await), (5, 2));
    assert_eq!(server.told_head("items").await, 5);
    let order: Vec<_> = server
        .events()
        .iter()
        .filter(|event| event.partition().as_str() == "p1")
        .map(|event| event.commit_seq().get())
        .collect();
    assert_eq!(order, [1, 2, 3, 4, 5], "observers are told once, in order");
}

#[tokio::test]
async fn every_second_commit_of_a_batch_may_collide() {
    let server = Server::start(SCHEMA).await;
    let mut ask = Ask::new();
    for number in 0..40 {
        let code = format!("code-{}", number / 2);
        ask = ask.push(
            &format!("k{number}"),
            vec![item(&format!("i{number:02}"), &code)],
        );
    }
    let outcomes = server.round(ask).await.outcomes();
    for (number, outcome) in outcomes.iter().enumerate() {
        let expected = match number % 2 {
            0 => format!("applied {}", number / 2 + 1),
            _ => REFUSED.to_owned(),
        };
        assert_eq!(*outcome, expected);
    }
    assert_eq!(server.rows("items").await.len(), 20);
}

#[tokio::test]
async fn overlapping_duplicates_of_a_collision_get_one_answer() {
    let server = Arc::new(Server::start(SCHEMA).await);
    server.push(vec![item("a", "x")]).await;
    let ask = || Ask::new().push("k1", vec![item("b", "x")]);
    let answers = server.batch(vec![ask(), ask(), ask()]).await;
    let bytes: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.unwrap().bytes)
        .collect();
    assert!(bytes.iter().all(|one| *one == bytes[0]));
    assert_eq!(server.head().await, 1);
}

#[tokio::test]
async fn overlapping_duplicates_of_a_version_conflict_get_one_answer_and_no_number() {
    let server = Arc::new(Server::start(SCHEMA).await);
    for code in ["x", "y"] {
        server.push(vec![item("a", code)]).await;
    }
    let ask = || Ask::new().push("k1", vec![item("a", "z").based_on(1)]);
    let answers = server.batch(vec![ask(), ask(), ask()]).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers[0].outcomes(), ["rejected 0:sync.version_conflict"]);
    assert!(answers.iter().all(|one| one.bytes == answers[0].bytes));
    assert_eq!(server.head().await, 2);
}

#[tokio::test]
async fn a_commit_that_needs_the_row_of_a_collision_is_decided_without_it() {
    let server = Arc::new(Server::start(SCHEMA).await);
    server.push(vec![item("a", "x")]).await;
    let ask = Ask::new()
        .push("k1", vec![item("p", "x"), item("q", "free")])
        // Its parent would be written by k1.
        .push("k2", vec![boxed("b1", "q", "s")])
        .push("k3", vec![item("q", "other")])
        .push("k4", vec![boxed("b1", "q", "s")])
        // Its cascade makes the collision in k6 go away.
        .push("k5", vec![delete("items", "q")])
        .push("k6", vec![boxed("b2", "a", "s")]);
    let expected = [
        REFUSED,
        "rejected 0:sync.reference_violation",
        "applied 2",
        "applied 3",
        "applied 4",
        "applied 5",
    ];
    assert_eq!(server.round(ask).await.outcomes(), expected);
    assert_eq!(server.rows("boxes").await, ["b2|t1|a|s@1"]);
    assert_eq!(
        server.log("boxes").await,
        ["3 upsert b1@1 t1", "4 delete b1 t1", "5 upsert b2@1 t1"]
    );
}

#[tokio::test]
async fn a_collision_found_while_children_are_looked_up_is_the_commits_own() {
    let server = Server::start(SCHEMA).await;
    server
        .push(vec![item("a", "x"), item("b", "y"), boxed("b1", "b", "s")])
        .await;
    // Looking for the children of `b` writes `c` first, which collides.
    let told = server
        .tell(vec![item("c", "x"), delete("items", "b")])
        .await;
    assert_eq!(told.outcome(), REFUSED);
    assert_eq!(server.rows("boxes").await.len(), 1);
    // A collision of an earlier commit of the batch is that commit's.
    let ask = Ask::new()
        .push("k1", vec![item("c", "x")])
        .push("k2", vec![item("d", "z"), delete("items", "b")]);
    assert_eq!(server.round(ask).await.outcomes(), [REFUSED, "applied 2"]);
    assert_eq!(server.rows("boxes").await, [""; 0]);
}

#[tokio::test]
async fn a_commit_is_told_of_its_first_failure_though_a_reference_fails_too() {
    let server = Server::start(SCHEMA).await;
    server.push(vec![item("a", "x")]).await;
    let told = server
        .tell(vec![item("b", "x"), boxed("b1", "nobody", "s")])
        .await;
    assert_eq!(told.outcome(), REFUSED);
}

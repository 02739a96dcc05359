//! What commits of one group have to do with one another: nothing, unless they must.

use std::sync::Arc;

use serde_json::json;
use tidewater_engine::Hooks;
use tidewater_model::PartitionId;
use tidewater_wire::WireVersion;

use super::{
    asking::{Answer, Ask, Op, delete, put},
    host::with_planner,
    server::{Server, Setup},
};

const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "notes", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "code", "type": "string", "nullable": true}],
   "indexes": [{"name": "notes_code", "columns": ["code"], "unique": true}]}
]}"#;

fn note(id: &str, code: Option<&str>) -> Op {
    put("notes", json!({"id": id, "team": "t1", "code": code}))
}

/// Fails to plan for commits that write the row `unplanned`.
fn moody() -> Hooks {
    with_planner(Hooks::default(), |commit, _| {
        let fails = commit
            .operations
            .iter()
            .any(|operation| operation.row_id == "unplanned");
        Box::pin(async move {
            if fails {
                Err("as told".into())
            } else {
                Ok(Vec::new())
            }
        })
    })
}

fn words(answers: Vec<Result<Answer, tidewater_engine::RoundError>>) -> Vec<String> {
    answers
        .into_iter()
        .map(|answer| match answer {
            Ok(answer) => answer.outcomes().join(", "),
            Err(error) => format!("failed {}", error.code.as_str()),
        })
        .collect()
}

#[tokio::test]
async fn a_client_id_belongs_to_the_first_of_two_actors_who_bring_it_at_the_same_time() {
    let server = Arc::new(Server::start(SCHEMA).await);
    let from = |actor: &str, id: &str, row: &str| {
        Ask::new()
            .by(actor)
            .of_client("shared")
            .push(id, vec![note(row, None)])
    };
    let asks = vec![
        from("ann", "k1", "a"),
        from("bob", "k2", "b"),
        from("ann", "k3", "c"),
    ];
    let expected = ["applied 1", "failed sync.invalid_client_id", "applied 2"];
    assert_eq!(words(server.batch(asks).await), expected);
    assert_eq!(server.bound_to("shared").await.as_deref(), Some("ann"));
    assert_eq!(server.rows("notes").await, ["a|t1|-@1", "c|t1|-@1"]);
}

#[tokio::test]
async fn a_refused_commit_binds_its_client_too() {
    let server = Arc::new(Server::start(SCHEMA).await);
    server.push(vec![note("x", Some("taken"))]).await;
    let from = |actor: &str, id: &str, operation| {
        Ask::new()
            .by(actor)
            .of_client("shared")
            .push(id, vec![operation])
    };
    for (number, refused) in [note("a", Some("taken")), note("a", None).based_on(3)]
        .into_iter()
        .enumerate()
    {
        let shared = format!("shared-{number}");
        let asks = vec![
            from("ann", "k1", refused).of_client(&shared),
            from("bob", "k2", note("b", None)).of_client(&shared),
        ];
        let told = words(server.batch(asks).await);
        assert!(told[0].starts_with("rejected"), "{told:?}");
        assert_eq!(told[1], "failed sync.invalid_client_id");
        assert_eq!(server.bound_to(&shared).await.as_deref(), Some("ann"));
    }
    assert_eq!(server.rows("notes").await, ["x|t1|taken@1"]);
}

#[tokio::test]
async fn a_request_that_failed_binds_nobody() {
    let server = Arc::new(Setup::of(SCHEMA).with_hooks(moody()).start().await);
    let from = |actor: &str, id: &str, row: &str| {
        Ask::new()
            .by(actor)
            .of_client("shared")
            .push(id, vec![note(row, None)])
    };
    let asks = vec![from("ann", "k1", "unplanned"), from("bob", "k2", "b")];
    assert_eq!(
        words(server.batch(asks).await),
        ["failed sync.internal_error", "applied 1"]
    );
    assert_eq!(server.bound_to("shared").await.as_deref(), Some("bob"));
}

#[tokio::test]
async fn a_request_that_failed_halfway_has_bound_its_client_for_everybody() {
    let server = Setup::of(SCHEMA).with_hooks(moody()).start().await;
    let halfway = || {
        Ask::new()
            .push("k1", vec![note("a", None)])
            .push("k2", vec![note("unplanned", None)])
    };
    assert!(server.try_round(halfway()).await.is_err());
    assert_eq!(server.bound_to("c1").await.as_deref(), Some("ann"));
    // Also for rounds that write nothing: one of them must not take the client over.
    let pull = || Ask::new().pull("notes", 0);
    let error = server
        .try_round(pull().by("bob").of_client("c1"))
        .await
        .unwrap_err();
    assert_eq!(error.code.as_str(), "sync.invalid_client_id");
    assert_eq!(server.round(pull()).await.cursors, [1]);
}

#[tokio::test]
async fn a_request_that_failed_stays_failed_when_a_commit_after_it_collides() {
    let server = Arc::new(Setup::of(SCHEMA).with_hooks(moody()).start().await);
    server.push(vec![note("x", Some("taken"))]).await;
    let asks = vec![
        Ask::new()
            .push("k1", vec![note("a", None)])
            .push("k2", vec![note("unplanned", None)])
            .push("k3", vec![note("b", None)]),
        Ask::new()
            .by("bob")
            .push("k4", vec![note("c", Some("taken"))]),
        Ask::new()
            .by("eve")
            .push("k5", vec![note("unplanned", None)]),
        Ask::new().by("tom").push("k6", vec![note("d", None)]),
    ];
    let expected = [
        "failed sync.internal_error",
        "rejected 0:sync.constraint_violation",
        "failed sync.internal_error",
        "applied 3",
    ];
    assert_eq!(words(server.batch(asks).await), expected);
    // What was decided before the failure stands, and a retry finds it.
    assert_eq!(
        server.rows("notes").await,
        ["a|t1|-@1", "d|t1|-@1", "x|t1|taken@1"]
    );
    let retry = Ask::new()
        .push("k1", vec![note("a", None)])
        .push("k3", vec![note("b", None)]);
    assert_eq!(
        server.round(retry).await.outcomes(),
        ["cached 2", "applied 4"]
    );
}

#[tokio::test]
async fn requests_of_an_epoch_that_ended_while_they_waited_are_refused_and_no_others() {
    let server = Arc::new(Server::start(SCHEMA).await);
    server.push(vec![note("x", Some("taken"))]).await;
    server
        .round(
            Ask::new()
                .in_partition("p2")
                .push("k0", vec![note("x", Some("taken"))]),
        )
        .await;
    let rotating = Arc::clone(&server);
    let during = async move {
        rotating
            .engine
            .rotate_epoch(&PartitionId::new("p1"))
            .await
            .unwrap();
    };
    let asks = vec![
        Ask::new().push("k1", vec![note("a", None)]),
        Ask::new()
            .in_partition("p2")
            .push("k2", vec![note("b", Some("taken"))]),
        Ask::new()
            .in_partition("p2")
            .push("k3", vec![note("b", None)]),
    ];
    let expected = [
        "failed sync.schema_not_ready",
        "rejected 0:sync.constraint_violation",
        "applied 2",
    ];
    assert_eq!(words(server.batch_while(asks, during).await), expected);
    assert_eq!(server.rows("notes").await, ["x|t1|taken@1"]);
}

#[tokio::test]
async fn a_row_written_and_deleted_in_one_commit_leaves_a_tombstone() {
    let server = Server::start(SCHEMA).await;
    let fleeting = vec![note("a", None), delete("notes", "a")];
    assert_eq!(server.push(fleeting).await, "applied 1");
    assert_eq!(
        server.log("notes").await,
        ["1 upsert a@1 t1", "1 delete a t1"]
    );
    assert_eq!(
        server
            .tombstone("notes", "a")
            .await
            .unwrap()
            .commit_seq
            .get(),
        1
    );
    assert_eq!(
        server.push(vec![note("a", None)]).await,
        "rejected 0:sync.row_deleted"
    );
    // The tombstone of an earlier commit gives way to the newer one.
    let again = vec![note("a", None).based_on(0), delete("notes", "a")];
    assert_eq!(server.push(again).await, "applied 2");
    assert_eq!(
        server
            .tombstone("notes", "a")
            .await
            .unwrap()
            .commit_seq
            .get(),
        2
    );
    assert_eq!(
        server.push_in(WireVersion::V2, vec![note("a", None)]).await,
        "applied 3"
    );
    assert_eq!(server.tombstone("notes", "a").await, None);
}

#[tokio::test]
async fn an_insert_clears_the_tombstone_for_the_rest_of_its_commit() {
    let server = Server::start(SCHEMA).await;
    server.push(vec![note("a", None)]).await;
    server.push(vec![delete("notes", "a")]).await;
    let revived = |last: Op| vec![note("a", None).based_on(0), delete("notes", "a"), last];
    let refused = revived(note("a", None).based_on(3));
    assert_eq!(server.push(refused).await, "rejected 2:sync.row_missing");
    assert_eq!(
        server
            .tombstone("notes", "a")
            .await
            .unwrap()
            .commit_seq
            .get(),
        2
    );
    assert_eq!(
        server.push(vec![note("a", None)]).await,
        "rejected 0:sync.row_deleted"
    );
    assert_eq!(server.push(revived(note("a", None))).await, "applied 3");
    assert_eq!(server.tombstone("notes", "a").await, None);
    assert_eq!(server.rows("notes").await, ["a|t1|-@1"]);
}

#[tokio::test]
async fn tombstones_of_the_batch_are_seen_by_its_later_commits() {
    let server = Server::start(SCHEMA).await;
    let ask = Ask::new()
        .push("k1", vec![note("a", None), note("b", None)])
        .push(
            "k2",
            vec![delete("notes", "a"), delete("notes", "b"), note("b", None)],
        )
        .push("k3", vec![note("a", None)])
        .push("k4", vec![note("b", None)])
        .push("k5", vec![note("a", None).based_on(0)])
        .push("k6", vec![note("a", None)]);
    let expected = [
        "applied 1",
        "applied 2",
        "rejected 0:sync.row_deleted",
        "applied 3",
        "applied 4",
        "applied 5",
    ];
    assert_eq!(server.round(ask).await.outcomes(), expected);
    assert_eq!(server.tombstone("notes", "a").await, None);
    assert_eq!(server.rows("notes").await, ["a|t1|-@2", "b|t1|-@2"]);
}

#[tokio::test]
async fn the_tombstone_of_a_refused_commit_is_not_seen() {
    let server = Server::start(SCHEMA).await;
    server.push(vec![note("a", None)]).await;
    let ask = Ask::new()
        .push(
            "k1",
            vec![delete("notes", "a"), note("z", None).based_on(4)],
        )
        .push("k2", vec![note("a", None)])
        .push("k3", vec![delete("notes", "a")])
        .push(
            "k4",
            vec![note("a", None).based_on(0), note("z", None).based_on(4)],
        )
        .push("k5", vec![note("a", None)]);
    let expected = [
        "rejected 1:sync.row_missing",
        "applied 2",
        "applied 3",
        "rejected 1:sync.row_missing",
        "rejected 0:sync.row_deleted",
    ];
    assert_eq!(server.round(ask).await.outcomes(), expected);
}

#[tokio::test]
async fn two_servers_on_one_database_are_of_one_mind() {
    let database = crate::home::open();
    let left = Setup::of(SCHEMA).start_on(Arc::clone(&database)).await;
    let right = Setup::of(SCHEMA).start_on(database).await;
    let ask = || Ask::new().push("k1", vec![note("a", Some("x"))]);
    let (one, two) = tokio::join!(left.round(ask()), right.round(ask()));
    let mut outcomes = [one.outcomes(), two.outcomes()].concat();
    outcomes.sort();
    assert_eq!(outcomes, ["applied 1", "cached 1"]);

    let error = right
        .try_round(ask().by("bob").of_client("c1"))
        .await
        .unwrap_err();
    assert_eq!(error.code.as_str(), "sync.invalid_client_id");
    for (number, server) in [&left, &right, &right, &left].into_iter().enumerate() {
        let seq = number + 2;
        let ask = Ask::new().push(&format!("n{seq}"), vec![note("a", None)]);
        assert_eq!(
            server.round(ask).await.outcomes(),
            [format!("applied {seq}")]
        );
        assert_eq!(server.told_head("notes").await, i64::try_from(seq).unwrap());
    }
    let colliding = |id: &str| Ask::new().push(id, vec![note(id, Some("y"))]);
    assert_eq!(left.round(colliding("b")).await.outcomes(), ["applied 6"]);
    let outcomes = right.round(colliding("c")).await.outcomes();
    assert_eq!(outcomes, ["rejected 0:sync.constraint_violation"]);
    // Its retry is the first the other server hears of it, and its author can pull it.
    let retry = Ask::new()
        .by("ann")
        .of_client("c9")
        .push("k9", vec![note("d", None)]);
    assert_eq!(left.round(retry.clone()).await.outcomes(), ["applied 7"]);
    let answer = right.round(retry.pull("notes", 6)).await;
    assert_eq!(
        (answer.outcomes(), answer.cursors),
        (vec!["cached 7".to_owned()], vec![7])
    );

    left.engine
        .rotate_epoch(&PartitionId::new("p1"))
        .await
        .unwrap();
    let error = right
        .try_round(Ask::new().push("k10", vec![note("e", None)]))
        .await
        .unwrap_err();
    assert_eq!(error.code.as_str(), "sync.schema_not_ready");
    assert_eq!(right.head().await, 7);
}

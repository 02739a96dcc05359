//! Reactions are planned in the commit's transaction and recorded with it, or not at all (§6.9).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde_json::json;
use tidewater_engine::{Hooks, PlannedReaction};
use tidewater_model::PartitionId;
use tidewater_store::{ReactionStatus, Store};

use super::{
    asking::{Ask, Op, all_teams, delete, put},
    host::{with_commits, with_planner},
    server::{Server, Setup},
};

const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "mails", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "code", "type": "string", "nullable": true}],
   "indexes": [{"name": "mails_code", "columns": ["code"], "unique": true}]}
]}"#;

fn mail(id: &str, code: Option<&str>) -> Op {
    put("mails", json!({"id": id, "team": "t1", "code": code}))
}

fn reaction(key: &str) -> PlannedReaction {
    PlannedReaction {
        key: key.to_owned(),
        kind: "mail.send".to_owned(),
        version: 2,
        payload: json!({"z": 1, "a": key}),
        max_attempts: None,
    }
}

/// One reaction for each row written; counts how often it was asked.
fn planning(calls: &Arc<AtomicU64>) -> Hooks {
    let calls = Arc::clone(calls);
    with_planner(Hooks::default(), move |commit, _| {
        calls.fetch_add(1, Ordering::SeqCst);
        let written = commit
            .operations
            .iter()
            .filter(|operation| operation.row.is_some());
        let planned: Vec<_> = written
            .map(|operation| reaction(operation.row_id))
            .collect();
        Box::pin(async move { Ok(planned) })
    })
}

impl Server {
    /// The idempotency keys recorded in a partition.
    async fn reactions(&self, partition: &str) -> Vec<String> {
        let partition = PartitionId::new(partition);
        let listed = self
            .store
            .list_reactions(&partition, None, None, 100)
            .await
            .unwrap();
        listed
            .into_iter()
            .map(|record| record.write.idempotency_key)
            .collect()
    }
}

#[tokio::test]
async fn a_commit_and_its_reactions_land_together() {
    let calls = Arc::default();
    let server = Setup::of(SCHEMA).with_hooks(planning(&calls)).start().await;
    server.clock.advance_ms(5);
    let ask = Ask::new().push("k\"1", vec![mail("a", None), mail("b", None)]);
    assert_eq!(server.round(ask).await.outcomes(), ["applied 1"]);
    let partition = PartitionId::new("p1");
    let listed = server
        .store
        .list_reactions(&partition, None, None, 100)
        .await
        .unwrap();
    let [one, two] = &listed[..] else {
        panic!("{listed:?}")
    };
    assert_eq!(one.write.idempotency_key, r#"["p1","c1","k\"1","a"]"#);
    assert_eq!(two.write.idempotency_key, r#"["p1","c1","k\"1","b"]"#);
    assert_eq!(
        (one.write.kind.as_str(), one.write.version),
        ("mail.send", 2)
    );
    assert_eq!(
        (one.write.payload.as_str(), one.write.max_attempts),
        (r#"{"a":"a","z":1}"#, 10)
    );
    assert_eq!((one.status, one.attempts), (ReactionStatus::Pending, 0));
    assert_eq!(
        (one.client.as_str(), &*one.client_commit_id),
        ("c1", "k\"1")
    );
    assert_eq!(
        (one.commit_seq.get(), one.created_at_ms),
        (1, 1_800_000_000_005)
    );
    let [event] = &server.events()[..] else {
        panic!("one commit")
    };
    assert_eq!(event.commit.applied.as_ref().unwrap().reactions.len(), 2);
}

#[tokio::test]
async fn keys_keep_partitions_clients_and_commits_apart() {
    let calls = Arc::default();
    let server = Setup::of(SCHEMA).with_hooks(planning(&calls)).start().await;
    let write = || vec![mail("k", None)];
    for ask in [
        Ask::new().push("a", write()),
        Ask::new().push("b", write()),
        Ask::new().of_client("c1\",\"a").push("b", write()),
        Ask::new().in_partition("p2").push("a", write()),
    ] {
        let outcome = &server.round(ask).await.outcomes()[0];
        assert!(outcome.starts_with("applied"), "{outcome}");
    }
    assert_eq!(server.reactions("p1").await.len(), 3);
    assert_eq!(server.reactions("p2").await, [r#"["p2","c1","a","k"]"#]);
}

#[tokio::test]
async fn refused_and_replayed_commits_plan_nothing() {
    let calls: Arc<AtomicU64> = Arc::default();
    let server = Arc::new(Setup::of(SCHEMA).with_hooks(planning(&calls)).start().await);
    let ask = || Ask::new().push("k1", vec![mail("a", None)]);
    server.round(ask()).await;
    assert_eq!(server.round(ask()).await.outcomes(), ["cached 1"]);
    server
        .push(vec![mail("b", None), mail("a", None).based_on(0)])
        .await;
    server.push(vec![mail("b", None).based_on(1)]).await;
    let twice = Ask::new().push("k2", vec![mail("b", None)]);
    server.batch(vec![twice.clone(), twice]).await;
    // k1, the plug of the batch, k2.
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let expected = [r#"["p1","c1","k1","a"]"#, r#"["p1","c1","k2","b"]"#];
    assert_eq!(server.reactions("p1").await, expected);
}

#[tokio::test]
async fn a_commit_that_collides_records_no_reaction() {
    let calls = Arc::default();
    let server = Setup::of(SCHEMA).with_hooks(planning(&calls)).start().await;
    let ask = Ask::new()
        .push("k1", vec![mail("a", Some("x"))])
        .push("k2", vec![mail("b", Some("x"))])
        .push("k3", vec![mail("c", None)]);
    let expected = [
        "applied 1",
        "rejected 0:sync.constraint_violation",
        "applied 2",
    ];
    assert_eq!(server.round(ask).await.outcomes(), expected);
    let expected = [r#"["p1","c1","k1","a"]"#, r#"["p1","c1","k3","c"]"#];
    assert_eq!(server.reactions("p1").await, expected);
}

#[tokio::test]
async fn a_planner_that_fails_in_any_way_fails_the_push_and_leaves_nothing() {
    let _ = crate::home::pause_time();
    for fault in [
        "error", "panic", "hang", "too many", "bad key", "same key", "large", "deep",
    ] {
        let hooks = with_planner(Hooks::default(), move |commit, _| {
            let bad = commit
                .operations
                .iter()
                .any(|operation| operation.row_id == "bad");
            Box::pin(async move {
                if !bad {
                    return Ok(Vec::new());
                }
                Ok(match fault {
                    "error" => return Err("as told".into()),
                    "panic" => panic!("as told"),
                    "hang" => std::future::pending().await,
                    "too many" => (0..101).map(|key| reaction(&key.to_string())).collect(),
                    "bad key" => vec![reaction("")],
                    "same key" => vec![reaction("a"), reaction("a")],
                    "large" => vec![PlannedReaction {
                        payload: json!("x".repeat(65_535)),
                        ..reaction("a")
                    }],
                    _ => vec![PlannedReaction {
                        payload: (0..17).fold(json!(1), |inner, _| json!([inner])),
                        ..reaction("a")
                    }],
                })
            })
        });
        let server = Arc::new(Setup::of(SCHEMA).with_hooks(hooks).start().await);
        let ask = || {
            Ask::new()
                .push("k1", vec![mail("a", None)])
                .push("k2", vec![mail("bad", None)])
                .push("k3", vec![mail("b", None)])
        };
        let other = Ask::new().by("bob").push("k1", vec![mail("c", None)]);
        let answers = server.batch(vec![ask(), other]).await;
        let [one, two] = &answers[..] else {
            panic!("two")
        };
        let error = one.as_ref().unwrap_err();
        assert_eq!(
            (error.code.as_str(), error.message.as_ref()),
            ("sync.internal_error", "internal server error"),
            "{fault}"
        );
        assert!(error.code.is_retryable());
        assert_eq!(two.as_ref().unwrap().outcomes(), ["applied 2"], "{fault}");
        assert_eq!(
            server.rows("mails").await,
            ["a|t1|-@1", "c|t1|-@1"],
            "{fault}"
        );
        assert_eq!(server.recorded("k2").await, None, "{fault}");
        assert_eq!(server.reactions("p1").await, [""; 0], "{fault}");
        let again = server.try_round(ask()).await.unwrap_err();
        assert_eq!(again.code.as_str(), "sync.internal_error", "{fault}");
    }
}

#[tokio::test]
async fn the_planner_reads_what_the_validators_accepted() {
    let hooks = with_planner(Hooks::default(), |_, reader| {
        Box::pin(async move {
            let rows = reader.scan_rows("mails", all_teams(), None, 100).await?;
            let seen: Vec<&str> = rows.iter().map(|row| row.row_id.as_str()).collect();
            Ok(vec![reaction(&format!("saw {}", seen.join(",")))])
        })
    });
    let hooks = with_commits(hooks, |commit, _| {
        let refused = commit.operations.len() > 2;
        Box::pin(async move {
            let rejection = tidewater_engine::Rejection::new("mail.many", "no").unwrap();
            if refused {
                Err(rejection.into())
            } else {
                Ok(())
            }
        })
    });
    let server = Setup::of(SCHEMA).with_hooks(hooks).start().await;
    let ask = Ask::new()
        .push("k1", vec![mail("a", None), mail("b", None)])
        .push(
            "k2",
            vec![mail("x", None), mail("y", None), mail("z", None)],
        )
        .push("k3", vec![delete("mails", "a"), mail("c", None)]);
    assert_eq!(
        server.round(ask).await.outcomes(),
        ["applied 1", "rejected 0:mail.many", "applied 2"]
    );
    let expected = [
        r#"["p1","c1","k1","saw a,b"]"#,
        r#"["p1","c1","k3","saw b,c"]"#,
    ];
    assert_eq!(server.reactions("p1").await, expected);
}

#[tokio::test]
async fn as_many_reactions_as_allowed_are_recorded_and_a_commit_without_changes_may_have_some() {
    let hooks = with_planner(Hooks::default(), |commit, _| {
        let count = if commit.client_commit_id == "many" {
            100
        } else {
            1
        };
        let planned = (0..count)
            .map(|key| reaction(&format!("{key:03}")))
            .collect();
        Box::pin(async move { Ok(planned) })
    });
    let server = Setup::of(SCHEMA).with_hooks(hooks).start().await;
    let ask = Ask::new()
        .push("many", vec![mail("a", None)])
        .push("none", vec![delete("mails", "never")]);
    assert_eq!(
        server.round(ask).await.outcomes(),
        ["applied 1", "applied 2"]
    );
    let partition = PartitionId::new("p1");
    let listed = server
        .store
        .list_reactions(&partition, None, None, 1_000)
        .await
        .unwrap();
    assert_eq!(listed.len(), 101);
    assert_eq!(listed[100].commit_seq.get(), 2);
}

#[tokio::test]
async fn overlapping_duplicates_are_planned_once() {
    let calls = Arc::default();
    let setup = Setup::of(SCHEMA).with_hooks(planning(&calls));
    let server = Arc::new(setup.start().await);
    let ask = || Ask::new().push("k1", vec![mail("a", None)]);
    let answers = server.batch(vec![ask(), ask(), ask()]).await;
    let outcomes: Vec<_> = answers
        .into_iter()
        .flat_map(|answer| answer.unwrap().outcomes())
        .collect();
    assert_eq!(outcomes, ["applied 1", "cached 1", "cached 1"]);
    // For the commit that held them back, and for this one.
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(server.reactions("p1").await, [r#"["p1","c1","k1","a"]"#]);
}

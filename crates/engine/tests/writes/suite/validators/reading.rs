//! What validators read: the state their commit would leave behind, and nothing they should not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::join;
use serde_json::json;
use tidewater_engine::{CandidateReader, CandidateRow, EngineConfig, Hooks, ReadError};
use tidewater_model::{PartitionId, ScopeFilter, ScopeValues};
use tidewater_store::{SqlQuery, SqlValue};

use super::{
    super::{
        asking::{Ask, all_teams, delete, put},
        host::{with_commits, with_planner, with_rows},
        server::{Server, Setup},
    },
    Notes, SCHEMA, coded, line, order, refuse, start,
};

fn ids(rows: &[CandidateRow]) -> String {
    let rows = rows
        .iter()
        .map(|row| format!("{}@{}", row.row_id, row.row_version));
    rows.collect::<Vec<_>>().join(" ")
}

fn team(name: &str) -> ScopeFilter {
    let entry = ScopeValues {
        variable: "team".to_owned(),
        values: vec![name.to_owned()],
    };
    ScopeFilter::new(vec![entry]).unwrap()
}

/// Notes all orders before each write of one, and after each commit.
fn scanning(notes: &Notes) -> Hooks {
    let (rows, commits) = (notes.clone(), notes.clone());
    let hooks = with_rows(Hooks::default(), "orders", move |write, reader| {
        let notes = rows.clone();
        Box::pin(async move {
            let found = reader.scan_rows("orders", all_teams(), None, 100).await?;
            notes.add(format!("before {}: {}", write.row_id, ids(&found)));
            Ok(())
        })
    });
    with_commits(hooks, move |commit, reader| {
        let notes = commits.clone();
        Box::pin(async move {
            let found = reader.scan_rows("orders", all_teams(), None, 100).await?;
            let lines = reader.scan_rows("lines", all_teams(), None, 100).await?;
            notes.add(format!(
                "{}: {} / {}",
                commit.client_commit_id,
                ids(&found),
                ids(&lines)
            ));
            Ok(())
        })
    })
}

#[tokio::test]
async fn scans_see_earlier_operations_and_earlier_commits_of_the_batch() {
    let notes = Notes::default();
    let server = Arc::new(start(scanning(&notes)).await);
    server.push(vec![order("m", 1)]).await;
    notes.take();
    let ann = Ask::new()
        .push("k1", vec![order("a", 1), order("z", 1), order("a", 2)])
        .push("k2", vec![order("q", 1), order("m", 1).based_on(7)])
        .push(
            "k3",
            vec![delete("orders", "m"), line("l", Some("a"), None)],
        );
    let bob = Ask::new()
        .by("bob")
        .push("k4", vec![delete("orders", "a"), order("b", 1)]);
    let other = Ask::new()
        .in_partition("p2")
        .push("k5", vec![order("x", 1)]);
    let answers = server.batch(vec![ann, bob, other]).await;
    let outcomes: Vec<_> = answers
        .into_iter()
        .flat_map(|answer| answer.unwrap().outcomes())
        .collect();
    let expected = [
        "applied 2",
        "rejected 1:sync.invalid_request",
        "applied 3",
        "applied 4",
        "applied 1",
    ];
    assert_eq!(outcomes, expected);
    let mut seen = notes.take();
    seen.retain(|line| !line.starts_with("auto"));
    // Jobs of two partitions take turns: the other partition's is decided second.
    let other = seen.iter().filter(|line| line.contains("x")).count();
    assert_eq!(other, 2);
    seen.retain(|line| !line.contains("x"));
    let expected = [
        "before a: m@1",
        "before z: a@1 m@1",
        "before a: a@1 m@1 z@1",
        "k1: a@2 m@1 z@1 / ",
        "before q: a@2 m@1 z@1",
        "before m: a@2 m@1 z@1",
        "k3: a@2 z@1 / l@1",
        "before a: a@2 z@1 / never",
        "k4: b@1 z@1 / ",
    ];
    // k2's second operation is refused before its validator.
    let expected: Vec<_> = [
        &expected[..5],
        &expected[5..7],
        &["before a: a@2 z@1", "before b: z@1"],
        &expected[8..],
    ]
    .concat();
    assert_eq!(seen, expected);
    assert_eq!(server.rows("lines").await, [""; 0]);
}

#[tokio::test]
async fn what_a_request_had_written_before_it_failed_is_not_seen() {
    let notes = Notes::default();
    let hooks = with_planner(scanning(&notes), |commit, _| {
        let fails = commit.client_commit_id == "k1";
        Box::pin(async move {
            if fails {
                Err("as told".into())
            } else {
                Ok(Vec::new())
            }
        })
    });
    let server = Arc::new(start(hooks).await);
    let asks = vec![
        Ask::new().push("k1", vec![order("a", 1), order("b", 1)]),
        Ask::new().by("bob").push("k2", vec![order("c", 1)]),
    ];
    let answers = server.batch(asks).await;
    assert!(answers[0].is_err());
    assert_eq!(answers[1].as_ref().unwrap().outcomes(), ["applied 1"]);
    let seen = notes.take();
    assert!(seen.contains(&"k1: a@1 b@1 / ".to_owned()), "{seen:?}");
    assert_eq!(seen[seen.len() - 2..], ["before c: ", "k2: c@1 / "]);
}

#[tokio::test]
async fn one_row_is_read_as_it_would_be() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |commit, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            for id in ["a", "b", "c", "never"] {
                let row = reader.row("orders", id).await?;
                let version = row.map_or_else(|| "-".to_owned(), |row| row.row_version.to_string());
                notes.add(format!("{} {id} {version}", commit.client_commit_id));
            }
            Ok(())
        })
    });
    let server = start(hooks).await;
    server
        .round(Ask::new().push("k0", vec![order("a", 1), order("b", 1)]))
        .await;
    notes.take();
    let ask = Ask::new()
        .push(
            "k1",
            vec![order("a", 2), delete("orders", "b"), order("c", 1)],
        )
        .push("k2", vec![order("a", 3)]);
    server.round(ask).await;
    let expected = [
        "k1 a 2",
        "k1 b -",
        "k1 c 1",
        "k1 never -",
        "k2 a 3",
        "k2 b -",
        "k2 c 1",
        "k2 never -",
    ];
    assert_eq!(notes.take(), expected);
}

#[tokio::test]
async fn scans_are_by_row_id_after_a_row_up_to_a_limit_and_by_scope() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |commit, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            if commit.client_commit_id != "look" {
                return Ok(());
            }
            let first = reader.scan_rows("orders", all_teams(), None, 2).await?;
            let next = reader
                .scan_rows("orders", all_teams(), Some("B"), 1000)
                .await?;
            let from = reader
                .scan_rows("orders", all_teams(), Some("aa"), 1)
                .await?;
            let two = reader.scan_rows("orders", team("t2"), None, 1000).await?;
            let none = reader.scan_rows("orders", team("t9"), None, 1000).await?;
            for rows in [first, next, from, two, none] {
                notes.add(ids(&rows));
            }
            Ok(())
        })
    });
    let server = start(hooks).await;
    let foreign = put(
        "orders",
        json!({"id": "t", "team": "t2", "total": 0, "code": null,
        "tags": null}),
    );
    server
        .push(vec![
            order("a", 1),
            order("B", 1),
            order("é", 1),
            order("b", 1),
        ])
        .await;
    let look = Ask::new().push("look", vec![foreign, order("ab", 1)]);
    assert_eq!(server.round(look).await.outcomes(), ["applied 2"]);
    let expected = ["B@1 a@1", "a@1 ab@1 b@1 t@1 é@1", "ab@1", "t@1", ""];
    assert_eq!(notes.take(), expected);
}

#[tokio::test]
async fn indexes_are_looked_up_with_exact_values() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |commit, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            if commit.client_commit_id != "look" {
                return Ok(());
            }
            let text = |text: &str| SqlValue::Text(text.to_owned());
            let by_total = |total| vec![text("t1"), SqlValue::Integer(total)];
            let looks = [
                reader
                    .scan_index("orders", "orders_total", by_total(1), None, 10)
                    .await?,
                reader
                    .scan_index("orders", "orders_total", by_total(1), Some("a"), 1)
                    .await?,
                reader
                    .scan_index("orders", "orders_total", by_total(2), None, 10)
                    .await?,
                reader
                    .scan_index("orders", "orders_code", vec![text("x")], None, 10)
                    .await?,
                reader
                    .scan_index("orders", "orders_code", vec![SqlValue::Null], None, 10)
                    .await?,
                reader
                    .scan_index("lines", "lines_order", vec![text("a")], None, 10)
                    .await?,
            ];
            for rows in looks {
                notes.add(ids(&rows));
            }
            Ok(())
        })
    });
    let server = start(hooks).await;
    let rows = vec![order("c", 1), order("a", 1), order("b", 2), coded("x", "x")];
    server.push(rows).await;
    let ask = Ask::new()
        .push("k1", vec![delete("orders", "c"), order("b", 1)])
        .push(
            "look",
            vec![order("d", 1), line("l", Some("a"), None), coded("x", "y")],
        );
    assert_eq!(
        server.round(ask).await.outcomes(),
        ["applied 2", "applied 3"]
    );
    assert_eq!(
        notes.take(),
        ["a@1 b@2 d@1", "b@2", "", "", "a@1 b@2 d@1", "l@1"]
    );
}

/// Reads that no validator should make, each with what is wrong about it.
async fn wrong_reads(
    reader: &dyn CandidateReader,
) -> Vec<(&'static str, Result<Vec<CandidateRow>, ReadError>)> {
    let scan = |table, filter, limit| reader.scan_rows(table, filter, None, limit);
    let look = |table, index, values: usize, limit| {
        let values = vec![SqlValue::Text("x".to_owned()); values];
        reader.scan_index(table, index, values, None, limit)
    };
    vec![
        ("empty", scan("orders", ScopeFilter::default(), 10).await),
        ("zero", scan("orders", all_teams(), 0).await),
        ("many", scan("orders", all_teams(), 1_001).await),
        ("table", scan("nothing", all_teams(), 10).await),
        ("zero", look("orders", "orders_code", 1, 0).await),
        ("many", look("orders", "orders_code", 1, 1_001).await),
        ("few", look("orders", "orders_total", 1, 10).await),
        ("much", look("orders", "orders_code", 2, 10).await),
        ("index", look("orders", "lines_order", 1, 10).await),
        ("table", look("nothing", "orders_code", 1, 10).await),
        ("typed", look("plain", "plain_text", 1, 10).await),
    ]
}

#[tokio::test]
async fn a_wrong_read_is_refused_and_the_validators_own_affair() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |commit, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            let looks = wrong_reads(reader).await;
            for (what, look) in looks {
                match look {
                    Err(ReadError::Refused(code, _)) => notes.add(format!("{what} {code}")),
                    other => panic!("{what}: {other:?}"),
                }
            }
            assert!(reader.row("nothing", "x").await.is_err());
            if commit.client_commit_id == "strict" {
                reader.scan_rows("nothing", all_teams(), None, 10).await?;
            }
            Ok(())
        })
    });
    let server = start(hooks).await;
    let write = || vec![order("a", 1)];
    let ask = Ask::new().push("strict", write()).push("lenient", write());
    let answer = server.round(ask).await;
    assert_eq!(
        answer.outcomes(),
        ["rejected 0:sync.constraint_violation", "applied 1"]
    );
    assert_eq!(answer.told[0].message(), "whole-commit validator failed");
    let expected = [
        "empty sync.storage.scan_requires_scope",
        "zero sync.storage.invalid_limit",
        "many sync.storage.invalid_limit",
        "table sync.unknown_table",
        "zero sync.storage.invalid_limit",
        "many sync.storage.invalid_limit",
        "few sync.storage.index_value_count_mismatch",
        "much sync.storage.index_value_count_mismatch",
        "index sync.storage.index_not_found",
        "table sync.unknown_table",
        "typed sync.storage.index_not_materialized",
    ];
    let seen = notes.take();
    assert_eq!(seen[..11], expected);
    assert_eq!(seen[11..], expected);
}

#[tokio::test]
async fn a_scan_gives_as_many_rows_as_were_asked_for_however_large_they_are() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |_, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            let found = reader.scan_rows("plain", all_teams(), None, 5).await?;
            notes.add(ids(&found));
            Ok(())
        })
    });
    let mut setup = Setup::of(SCHEMA).with_hooks(hooks);
    setup.config = EngineConfig {
        section_bytes_max: 100,
        ..EngineConfig::default()
    };
    let server = setup.start().await;
    let large = |id: &str| {
        put(
            "plain",
            json!({"id": id, "team": "t1", "text": "x".repeat(90)}),
        )
    };
    server
        .push(["a", "b", "c", "d", "e", "f"].map(large).to_vec())
        .await;
    assert_eq!(notes.take(), ["a@1 b@1 c@1 d@1 e@1"]);
}

#[tokio::test]
async fn reads_at_the_same_time_wait_for_each_other() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |_, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            let scan = || reader.scan_rows("orders", all_teams(), None, 10);
            let (left, (row, right)) =
                join(scan(), join(reader.row("orders", "never"), scan())).await;
            notes.add(format!(
                "{} {} {}",
                ids(&left?),
                row?.is_some(),
                ids(&right?)
            ));
            Ok(())
        })
    });
    let server = start(hooks).await;
    let ask = Ask::new()
        .push("k1", vec![order("a", 1)])
        .push("k2", vec![order("b", 1)]);
    assert_eq!(
        server.round(ask).await.outcomes(),
        ["applied 1", "applied 2"]
    );
    assert_eq!(notes.take(), ["a@1 false a@1", "a@1 b@1 false a@1 b@1"]);
}

/// Scans before it accepts, whatever the scan says.
fn careless() -> Hooks {
    with_commits(Hooks::default(), |_, reader| {
        Box::pin(async move {
            let _ = reader.scan_rows("orders", all_teams(), None, 10).await;
            Ok(())
        })
    })
}

#[tokio::test]
async fn reading_brings_a_violation_of_an_earlier_commit_to_light_and_changes_no_outcome() {
    // With and without a reader the outcomes are the same.
    for hooks in [careless(), Hooks::default()] {
        let server = Arc::new(start(hooks).await);
        server.push(vec![coded("x", "taken")]).await;
        let ann = Ask::new()
            .push("k1", vec![order("a", 1)])
            .push("k2", vec![order("b", 1), coded("c", "taken")])
            .push("k3", vec![order("b", 5).based_on(0)])
            .push("k4", vec![coded("c", "free")]);
        let bob = Ask::new()
            .by("bob")
            .push("k5", vec![order("b", 6).based_on(1)]);
        let other = Ask::new()
            .in_partition("p2")
            .push("k6", vec![coded("c", "taken")]);
        let answers = server.batch(vec![ann, other, bob]).await;
        let outcomes: Vec<_> = answers
            .into_iter()
            .flat_map(|answer| answer.unwrap().outcomes())
            .collect();
        let expected = [
            "applied 2",
            "rejected 1:sync.constraint_violation",
            "applied 3",
            "applied 4",
            "applied 1",
            "applied 5",
        ];
        assert_eq!(outcomes, expected);
        let rows = [
            "a|t1|1|-|-@1",
            "b|t1|6|-|-@2",
            "c|t1|0|free|-@1",
            "x|t1|0|taken|-@1",
        ];
        assert_eq!(server.rows("orders").await, rows);
        assert_eq!(server.head().await, 5);
    }
}

#[tokio::test]
async fn a_commit_that_breaks_a_constraint_is_refused_for_that_whatever_its_validator_says() {
    for accepts in [true, false] {
        let hooks = with_commits(Hooks::default(), move |_, reader| {
            Box::pin(async move {
                let found = reader.scan_rows("orders", all_teams(), None, 10).await;
                match (found, accepts) {
                    (_, true) => Ok(()),
                    (_, false) => Err(refuse("shop.no")),
                }
            })
        });
        let server = start(hooks).await;
        let told = server
            .tell(vec![order("a", 1), coded("b", "x"), coded("c", "x")])
            .await;
        assert_eq!(told.outcome(), "rejected 2:sync.constraint_violation");
        assert_eq!(told.message(), "write violates a relational constraint");
    }
}

#[tokio::test]
async fn the_first_operation_that_fails_is_the_one_that_is_told() {
    // The constraint is broken by operation 1; what comes later is never reached.
    let later = [
        order("a", 1).based_on(9),
        line("l", Some("nobody"), None),
        delete("nothing", "x"),
        order("refused", 1),
    ];
    for operation in later {
        let hooks = with_rows(Hooks::default(), "orders", |write, _| {
            let refused = write.row_id == "refused";
            Box::pin(async move {
                if refused {
                    Err(refuse("shop.no"))
                } else {
                    Ok(())
                }
            })
        });
        let server = start(hooks).await;
        server.push(vec![order("a", 1), coded("x", "taken")]).await;
        let told = server
            .tell(vec![order("b", 1), coded("c", "taken"), operation.clone()])
            .await;
        assert_eq!(
            told.outcome(),
            "rejected 1:sync.constraint_violation",
            "{operation:?}"
        );
        let alone = server
            .push(vec![order("b", 1), coded("c", "free"), operation])
            .await;
        assert_ne!(alone, "applied 2");
    }
}

#[tokio::test]
async fn a_read_that_is_given_up_halfway_does_not_write_twice() {
    let _ = crate::home::pause_time();
    let impatient = Arc::new(AtomicBool::new(true));
    let is_impatient = Arc::clone(&impatient);
    let hooks = with_commits(Hooks::default(), move |commit, reader| {
        let reads = commit.client_commit_id == "k2" && is_impatient.load(Ordering::SeqCst);
        Box::pin(async move {
            if reads {
                let scan = reader.scan_rows("orders", all_teams(), None, 10);
                let _ = tokio::time::timeout(Duration::from_millis(10), scan).await;
            }
            Ok(())
        })
    });
    let server = Arc::new(start(hooks).await);
    server.store.hang_after_apply(true);
    let ask = || {
        Ask::new()
            .push("k1", vec![order("a", 1)])
            .push("k2", vec![order("b", 1)])
    };
    let other = Ask::new().by("bob").push("k3", vec![order("c", 1)]);
    let answers = server.batch(vec![ask(), other]).await;
    let [one, two] = &answers[..] else {
        panic!("two")
    };
    // What the database did for it is not known, so nothing is promised.
    let error = one.as_ref().unwrap_err();
    assert_eq!(error.code.as_str(), "sync.internal_error");
    assert_eq!(two.as_ref().unwrap().outcomes(), ["applied 1"]);
    server.store.hang_after_apply(false);
    impatient.store(false, Ordering::SeqCst);
    let again = server.round(ask()).await;
    assert_eq!(again.outcomes(), ["applied 2", "applied 3"]);
    let rows = ["a|t1|1|-|-@1", "b|t1|1|-|-@1", "c|t1|1|-|-@1"];
    assert_eq!(server.rows("orders").await, rows);
}

#[tokio::test]
async fn a_query_sees_the_candidate_of_its_own_partition_where_there_is_sql() {
    let notes = Notes::default();
    let noting = notes.clone();
    let hooks = with_commits(Hooks::default(), move |commit, reader| {
        let notes = noting.clone();
        Box::pin(async move {
            let query = |partition: &str, sql: &str| SqlQuery {
                sql: sql.to_owned(),
                params: vec![SqlValue::Integer(1)],
                partition: PartitionId::new(partition),
                rows_max: 10,
            };
            let foreign = reader.query(query("p2", "SELECT 1 WHERE ?1 AND ?2")).await;
            assert!(
                matches!(foreign, Err(ReadError::Refused(..))),
                "{foreign:?}"
            );
            let sql =
                "SELECT id FROM orders WHERE _sync_partition = ?1 AND total >= ?2 ORDER BY id";
            match reader.query(query("p1", sql)).await {
                Ok(rows) => notes.add(format!("{} {rows:?}", commit.client_commit_id)),
                Err(ReadError::Refused(code, _)) => {
                    assert_eq!(code, "sync.storage.query_unsupported");
                }
                Err(error) => panic!("{error}"),
            }
            Ok(())
        })
    });
    let server: Server = start(hooks).await;
    let ask = Ask::new()
        .push("k1", vec![order("a", 1), order("b", 0)])
        .push("k2", vec![order("b", 1), delete("orders", "a")]);
    assert_eq!(
        server.round(ask).await.outcomes(),
        ["applied 1", "applied 2"]
    );
    let seen = notes.take();
    if !seen.is_empty() {
        assert_eq!(seen, [r#"k1 [[Text("a")]]"#, r#"k2 [[Text("b")]]"#]);
    }
}

//! A database that fails in the middle of a group, at every call and in every way.
//!
//! Whatever happens: what was acknowledged is there, once and for good; what was not can be sent
//! again; nobody is told of more than is durable; the lane goes on.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::json;
use tidewater_engine::{Hooks, RoundError};
use tidewater_store::{PushStatus, StoreErrorKind, StoredResult};

use super::{
    asking::{Answer, Ask, Op, all_teams, delete, put},
    host::with_commits,
    server::{Server, Setup},
    watched::{Fault, When},
};

const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "top", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "code", "type": "string", "nullable": true}],
   "indexes": [{"name": "top_code", "columns": ["code"], "unique": true}]},
  {"name": "sub", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "top", "type": "string", "nullable": true}],
   "indexes": [{"name": "sub_top", "columns": ["top"]}],
   "references": [{"column": "top", "parentTable": "top", "onDelete": "CASCADE"}]}
]}"#;

fn top(id: &str, code: Option<&str>) -> Op {
    put("top", json!({"id": id, "team": "t1", "code": code}))
}

fn sub(id: &str, top: &str) -> Op {
    put("sub", json!({"id": id, "team": "t1", "top": top}))
}

/// Requests that together do all there is: insert, collide, cascade, be refused, repeat.
fn requests() -> Vec<Ask> {
    vec![
        Ask::new()
            .push("a1", vec![top("a", None), sub("s1", "a")])
            .push("a2", vec![top("b", None), top("c", Some("taken"))])
            .push("a3", vec![sub("s2", "old"), sub("s3", "nobody")])
            .push("a4", vec![delete("top", "old"), sub("s4", "a")]),
        Ask::new()
            .by("bob")
            .push("b1", vec![top("d", None)])
            .push("b1", vec![top("d", None)])
            .push("read", vec![sub("s5", "d"), delete("top", "d")]),
        Ask::new()
            .by("tom")
            .push("t1", vec![top("e", Some("taken"))]),
        Ask::new()
            .by("eve")
            .push("read", vec![top("f", None)])
            .push("e2", vec![top("g", None)]),
    ]
}

/// Commits with this id are read back by a validator.
fn hooks() -> Hooks {
    with_commits(Hooks::default(), |commit, reader| {
        let reads = commit.client_commit_id == "read";
        Box::pin(async move {
            if reads {
                reader.scan_rows("top", all_teams(), None, 10).await?;
            }
            Ok(())
        })
    })
}

async fn start() -> Arc<Server> {
    let server = Arc::new(Setup::of(SCHEMA).with_hooks(hooks()).start().await);
    let rows = vec![top("old", None), sub("s0", "old"), top("t", Some("taken"))];
    let seed = Ask::new().by("seed").push("seed", rows);
    assert_eq!(server.round(seed).await.outcomes(), ["applied 1"]);
    server
}

/// What each client was told about each of its commits, for good.
#[derive(Default)]
struct Ledger(BTreeMap<(String, String), String>);

impl Ledger {
    /// Takes an answer, which must agree with those before it.
    fn take(&mut self, client: &str, answer: &Answer) {
        for told in &answer.told {
            let commit = told.result.client_commit_id.to_string();
            let outcome = told.outcome().replace("cached", "applied");
            let before = self.0.insert((client.to_owned(), commit), outcome.clone());
            assert!(
                before.is_none_or(|before| before == outcome),
                "{outcome} after all"
            );
        }
    }

    /// Whether everything that was told is so in the database.
    async fn check(&self, server: &Server) {
        let mut places = BTreeSet::new();
        for ((client, commit), outcome) in &self.0 {
            let Some(StoredResult::Readable(record)) = server.recorded_of(client, commit).await
            else {
                panic!("{client} {commit} was told {outcome} and nothing is recorded")
            };
            match record.status {
                PushStatus::Applied(seq) => {
                    assert_eq!(*outcome, format!("applied {seq}"));
                    assert!(places.insert(seq), "two commits have one place");
                    assert!(
                        seq.get() <= server.head().await,
                        "acknowledged and not durable"
                    );
                }
                PushStatus::Rejected => assert!(outcome.starts_with("rejected"), "{outcome}"),
            }
        }
    }
}

/// The rows are what the log says, and the log has no gaps.
async fn check_consistent(server: &Server) {
    for table in ["top", "sub"] {
        let mut rows = BTreeMap::new();
        for line in server.log(table).await {
            let words: Vec<&str> = line.split(' ').collect();
            match words[1] {
                "upsert" => {
                    let (id, version) = words[2].split_once('@').unwrap();
                    let before = rows.insert(id.to_owned(), version.parse::<i64>().unwrap());
                    assert_eq!(
                        before.unwrap_or(0) + 1,
                        version.parse::<i64>().unwrap(),
                        "{line}"
                    );
                }
                _ => assert!(rows.remove(words[2]).is_some(), "{line}"),
            }
        }
        let stored: BTreeMap<String, i64> = server
            .rows(table)
            .await
            .iter()
            .map(|row| {
                let (values, version) = row.rsplit_once('@').unwrap();
                let id = values.split('|').next().unwrap();
                (id.to_owned(), version.parse().unwrap())
            })
            .collect();
        assert_eq!(stored, rows);
    }
}

fn check_retryable(error: &RoundError) {
    assert_eq!(error.code.as_str(), "sync.internal_error");
    assert!(error.code.is_retryable());
    assert_eq!(
        error.message, "internal server error",
        "nothing of the failure is told"
    );
}

/// Runs the requests while the database fails, then again while it works.
async fn check(fault: Option<Fault>) -> Vec<&'static str> {
    let server = start().await;
    let mut ledger = Ledger::default();
    // The plug of the batch begins and finishes; then comes the group.
    server.store.fail(fault.map(|fault| Fault {
        from: fault.from + 2,
        ..fault
    }));
    let answers = server.batch(requests()).await;
    let calls = server.store.calls()[2..].to_vec();
    server.store.fail(None);
    ledger.check(&server).await;
    let mut failed = 0;
    for (ask, answer) in requests().iter().zip(&answers) {
        match answer {
            Ok(answer) => ledger.take(&ask.client, answer),
            Err(error) => {
                check_retryable(error);
                failed += 1;
            }
        }
    }
    ledger.check(&server).await;
    check_consistent(&server).await;
    assert!(server.told_head("top").await <= i64::try_from(server.head().await).unwrap());

    // Everybody sends again, those who were answered too: an answer can be lost.
    for ask in requests() {
        let answer = server.round(ask.clone()).await;
        ledger.take(&ask.client, &answer);
        let told = server.told_head("top").await;
        assert_eq!(
            told,
            i64::try_from(server.head().await).unwrap(),
            "{fault:?}"
        );
    }
    ledger.check(&server).await;
    check_consistent(&server).await;
    assert_eq!(ledger.0.len(), 9);

    let told: Vec<u64> = server
        .events()
        .iter()
        .filter(|event| event.partition().as_str() == "p1")
        .map(|event| event.commit_seq().get())
        .collect();
    assert!(
        told.is_sorted_by(|left, right| left < right),
        "{fault:?}: {told:?}"
    );
    if fault.is_none_or(|fault| fault.times == 1) {
        let all: Vec<u64> = (1..=server.head().await).collect();
        assert_eq!(told, all, "{fault:?}: observers miss nothing");
        assert!(
            failed <= 1,
            "{fault:?}: one failure fails at most one request"
        );
        let panics =
            fault.is_some_and(|fault| matches!(fault.when, When::Panics | When::PanicsAfter));
        assert!(
            !panics || failed == 0,
            "{fault:?}: what panicked once is made good"
        );
    }
    calls
}

#[tokio::test]
async fn a_group_does_all_there_is_to_a_database() {
    let calls: BTreeSet<_> = check(None).await.into_iter().collect();
    let expected = [
        "apply",
        "begin",
        "children",
        "finish",
        "load",
        "scan rows",
        "stage",
        "unstage",
    ];
    assert_eq!(calls.into_iter().collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn whatever_fails_once_is_made_good() {
    let calls = u64::try_from(check(None).await.len()).unwrap();
    for from in (0..calls).step_by(crate::home::FAULTS_STEP) {
        for kind in [StoreErrorKind::Contention, StoreErrorKind::Unavailable] {
            for when in [When::Before, When::After] {
                check(Some(Fault {
                    from,
                    times: 1,
                    kind,
                    when,
                }))
                .await;
            }
        }
    }
}

#[tokio::test]
async fn whatever_fails_for_a_while_loses_nothing_that_was_acknowledged() {
    let calls = u64::try_from(check(None).await.len()).unwrap();
    let whiles = [
        (2, StoreErrorKind::Contention),
        (5, StoreErrorKind::Contention),
        (2, StoreErrorKind::Unavailable),
        (1_000, StoreErrorKind::Unavailable),
        (2, StoreErrorKind::Corrupt),
    ];
    for from in (0..calls).step_by(crate::home::FAULTS_STEP) {
        for (times, kind) in whiles {
            for when in [When::Before, When::After] {
                check(Some(Fault {
                    from,
                    times,
                    kind,
                    when,
                }))
                .await;
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_panics_loses_nothing_and_the_lane_goes_on() {
    let calls = u64::try_from(check(None).await.len()).unwrap();
    for from in (0..calls).step_by(crate::home::FAULTS_STEP) {
        for when in [When::Panics, When::PanicsAfter] {
            for times in [1, 3, 1_000] {
                let kind = StoreErrorKind::Corrupt;
                check(Some(Fault {
                    from,
                    times,
                    kind,
                    when,
                }))
                .await;
            }
        }
    }
}

#[tokio::test]
async fn a_commit_whose_calls_panic_fails_alone() {
    // Through a commit's own reads, what is written for it, and the transaction as a whole.
    for call in ["begin", "load", "apply", "stage", "finish"] {
        let hooks = with_commits(hooks(), |commit, reader| {
            let reads = commit.client_commit_id == "read";
            Box::pin(async move {
                if reads {
                    reader.row("sub", "bad").await?;
                }
                Ok(())
            })
        });
        let server = Arc::new(Setup::of(SCHEMA).with_hooks(hooks).start().await);
        server.store.poison(call, "bad");
        // What is applied in the middle of a transaction is what was decided before.
        let (first, second) = match call {
            "apply" => ("bad", "d"),
            _ => ("a", "bad"),
        };
        let bad = Ask::new()
            .push("k0", vec![top("z", None)])
            .push("k1", vec![top(first, None)])
            .push("read", vec![top(second, None)])
            .push("k3", vec![top("c", None)]);
        let others = ["bob", "tom", "eve"].map(|actor| {
            Ask::new()
                .by(actor)
                .push("k1", vec![top(actor, None)])
                .push("k2", vec![top(actor, None)])
        });
        let [bob, tom, eve] = others;
        let answers = server.batch(vec![bob, bad, tom, eve]).await;
        for (place, answer) in answers.iter().enumerate() {
            match answer {
                Ok(answer) => assert!(
                    answer
                        .outcomes()
                        .iter()
                        .all(|told| told.starts_with("applied")),
                    "{call} {place}"
                ),
                Err(error) => {
                    assert_eq!(place, 1, "{call}");
                    check_retryable(error);
                }
            }
        }
        if call == "apply" {
            // Alone, nothing has to be applied for it before it is finished.
            assert!(answers[1].is_ok(), "{call}");
        } else {
            assert!(answers[1].is_err(), "{call}");
            // What came before it stands, what comes after it is not decided.
            let stands = server.recorded_of("c1", "k1").await.is_some();
            assert!(stands, "{call}");
            let decided = server.recorded_of("c1", "k3").await.is_some();
            assert!(!decided, "{call}");
        }
        check_consistent(&server).await;
        let head = server.head().await;
        assert_eq!(server.told_head("top").await, i64::try_from(head).unwrap());
    }
}

#[tokio::test]
async fn a_lone_commit_that_became_durable_unnoticed_is_acknowledged_pulled_and_announced() {
    for kind in [StoreErrorKind::Contention, StoreErrorKind::Unavailable] {
        let server = start().await;
        server.events();
        server.store.fail(Some(Fault {
            from: 1,
            times: 1,
            kind,
            when: When::After,
        }));
        let answer = server
            .round(Ask::new().push("k1", vec![top("a", None)]))
            .await;
        assert_eq!(answer.outcomes(), ["cached 2"]);
        assert_eq!(server.told_head("top").await, 2);
        assert_eq!(server.events().len(), 1);
    }
}

#[tokio::test]
async fn a_replay_that_is_the_first_to_learn_of_a_commit_raises_the_head() {
    let server = start().await;
    let fault = Fault {
        from: 1,
        times: 2,
        kind: StoreErrorKind::Unavailable,
        when: When::After,
    };
    server.store.fail(Some(fault));
    let ask = || Ask::new().push("k1", vec![top("a", None)]);
    // Its own attempt to find out failed as well: begin, finish, begin.
    check_retryable(&server.try_round(ask()).await.unwrap_err());
    assert_eq!(server.head().await, 2, "durable all the same");
    server.store.fail(None);
    let answer = server.round(ask().pull("top", 1)).await;
    assert_eq!(answer.outcomes(), ["cached 2"]);
    assert_eq!(
        answer.cursors,
        [2],
        "its author can pull what was acknowledged"
    );
}

#[tokio::test]
async fn a_refusal_that_could_not_be_recorded_holds_nobody_up() {
    let server = start().await;
    let ask = || Ask::new().push("k1", vec![top("a", Some("taken"))]);
    let fault = Fault {
        from: 2,
        times: 1,
        kind: StoreErrorKind::Unavailable,
        when: When::Before,
    };
    server.store.fail(Some(fault));
    check_retryable(&server.try_round(ask()).await.unwrap_err());
    assert_eq!(server.store.calls(), ["begin", "finish", "load"]);
    server.store.fail(None);
    assert_eq!(server.push(vec![top("b", None)]).await, "applied 2");
    assert_eq!(
        server.round(ask()).await.outcomes(),
        ["rejected 0:sync.constraint_violation"]
    );
}

/// One client's share of the crowd: requests that are sent until they are answered.
async fn insist(server: Arc<Server>, number: u64) -> Ledger {
    let actor = format!("actor-{number}");
    let mut ledger = Ledger::default();
    for round in 0..12 {
        let own = format!("{number}-{round}");
        let shared = format!("shared-{}", (number + round) % 3);
        let code = format!("code-{}", (number * 7 + round) % 5);
        let ask = Ask::new()
            .by(&actor)
            .push(
                &format!("k{round}"),
                vec![top(&shared, None), sub(&own, &shared)],
            )
            .push(&format!("u{round}"), vec![top(&own, Some(&code))])
            .push(&format!("read{round}"), vec![delete("top", &shared)])
            .push(&format!("d{round}"), vec![delete("top", &own)]);
        // Now and then the next calls fail, whoever makes them.
        if (number + round).is_multiple_of(3) {
            server.store.fail(Some(Fault {
                from: number % 5,
                times: 1 + round % 4,
                kind: [StoreErrorKind::Contention, StoreErrorKind::Unavailable]
                    [usize::from(round > 5)],
                when: if number.is_multiple_of(2) {
                    When::Before
                } else {
                    When::After
                },
            }));
        }
        let answer = loop {
            match server.try_round(ask.clone()).await {
                Ok(answer) => break answer,
                Err(error) => check_retryable(&error),
            }
        };
        ledger.take(&ask.client, &answer);
        let told = server.told_head("top").await;
        assert!(told <= i64::try_from(server.head().await).unwrap());
    }
    ledger
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_while_the_database_fails_now_and_then() {
    let server = start().await;
    let crowd: Vec<_> = (0..8)
        .map(|number| tokio::spawn(insist(Arc::clone(&server), number)))
        .collect();
    let mut ledger = Ledger::default();
    for client in crowd {
        ledger.0.extend(client.await.unwrap().0);
    }
    server.store.fail(None);
    assert_eq!(ledger.0.len(), 8 * 12 * 4);
    ledger.check(&server).await;
    check_consistent(&server).await;
    let applied = ledger
        .0
        .values()
        .filter(|outcome| outcome.starts_with("applied"))
        .count();
    assert_eq!(
        server.head().await,
        u64::try_from(applied).unwrap() + 1,
        "and nothing else"
    );
    assert_eq!(
        server.told_head("top").await,
        i64::try_from(server.head().await).unwrap()
    );
}

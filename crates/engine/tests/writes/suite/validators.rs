//! Validators of the host end to end (§6.7, §6.8): when they are called, what they see, what
//! becomes of their verdict. What they read is in `reading`.

mod reading;

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use tidewater_engine::{Hooks, Rejection, RowView, ValidatorError};
use tidewater_wire::{RejectionDetails, WireVersion, row::Value};

use super::{
    asking::{Ask, Op, delete, put},
    crdt::SetMerger,
    host::{with_commits, with_planner, with_rows},
    server::{Server, Setup},
};

const VERSIONS: [WireVersion; 3] = [WireVersion::V1, WireVersion::V2, WireVersion::V3];

/// Orders with lines that go with them, codes that are unique, and a table without typed columns.
const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "orders", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "total", "type": "integer", "nullable": true},
               {"name": "code", "type": "string", "nullable": true},
               {"name": "tags", "type": "crdt", "crdtType": "set", "nullable": true}],
   "indexes": [{"name": "orders_code", "columns": ["code"], "unique": true},
               {"name": "orders_total", "columns": ["team", "total"]}]},
  {"name": "lines", "primaryKey": "id", "scopes": ["team:{team}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "order_id", "type": "string", "nullable": true},
               {"name": "gift_of", "type": "string", "nullable": true},
               {"name": "amount", "type": "integer", "nullable": true}],
   "indexes": [{"name": "lines_order", "columns": ["order_id"]},
               {"name": "lines_gift", "columns": ["gift_of"]}],
   "references": [{"column": "order_id", "parentTable": "orders", "onDelete": "CASCADE"},
                  {"column": "gift_of", "parentTable": "orders", "onDelete": "SET NULL"}]},
  {"name": "plain", "primaryKey": "id", "scopes": ["team:{team}"], "materialize": false,
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "team", "type": "string", "nullable": false},
               {"name": "text", "type": "string", "nullable": true}],
   "indexes": [{"name": "plain_text", "columns": ["text"]}]}
]}"#;

fn order(id: &str, total: i64) -> Op {
    put(
        "orders",
        json!({"id": id, "team": "t1", "total": total, "code": null, "tags": null}),
    )
}

fn coded(id: &str, code: &str) -> Op {
    put(
        "orders",
        json!({"id": id, "team": "t1", "total": 0, "code": code, "tags": null}),
    )
}

fn line(id: &str, order: Option<&str>, gift_of: Option<&str>) -> Op {
    let row = json!({"id": id, "team": "t1", "order_id": order, "gift_of": gift_of, "amount": 1});
    put("lines", row)
}

async fn start(hooks: Hooks) -> Server {
    Setup::of(SCHEMA).with_hooks(hooks).start().await
}

/// What was seen, line by line.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    /// What was added since the last time.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

fn words(row: Option<RowView<'_>>) -> String {
    let Some(row) = row else {
        return "nothing".to_owned();
    };
    let value = |value: &Option<Value<'_>>| match value {
        None => "-".to_owned(),
        Some(Value::Crdt(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(value) => value.render().unwrap_or_default().into_owned(),
    };
    let values: Vec<String> = row
        .values()
        .unwrap()
        .iter()
        .map(|(_, text)| value(text))
        .collect();
    format!("{}@{}", values.join("|"), row.row_version)
}

/// Notes every row validation, and refuses orders with a negative total.
fn noting_rows(notes: &Notes, table: &str, hooks: Hooks) -> Hooks {
    let notes = notes.clone();
    with_rows(hooks, table, move |write, _| {
        let line = format!(
            "{:?} {} by {}: {} -> {}",
            write.op,
            write.row_id,
            write.actor.as_str(),
            words(write.stored),
            words(write.row)
        );
        notes.add(line);
        Box::pin(async move {
            let total = write.row.map(|row| row.value("total")).transpose()?;
            match total.flatten() {
                Some(Value::Integer(total)) if total < 0 => {
                    let details = RejectionDetails::new()
                        .field_path("total")
                        .reason("negative")
                        .reference("order", write.row_id);
                    let rejection = Rejection::new("shop.negative_total", "Totals are positive.");
                    Err(rejection.unwrap().with_details(details).unwrap().into())
                }
                _ => Ok(()),
            }
        })
    })
}

/// Notes every commit with all its operations.
fn noting_commits(notes: &Notes, hooks: Hooks) -> Hooks {
    let notes = notes.clone();
    with_commits(hooks, move |commit, _| {
        for operation in commit.operations {
            notes.add(format!(
                "{}: {:?} {} {}: {} -> {}",
                operation.op_index,
                operation.op,
                operation.table.name,
                operation.row_id,
                words(operation.stored),
                words(operation.row)
            ));
        }
        Box::pin(async { Ok(()) })
    })
}

fn refuse(code: &str) -> ValidatorError {
    Rejection::new(code, "no").unwrap().into()
}

mod rows {
    use super::*;

    #[tokio::test]
    async fn a_hosts_verdict_ends_the_commit_and_is_replayed_in_every_wire_version() {
        for version in VERSIONS {
            let notes = Notes::default();
            let server = start(noting_rows(&notes, "orders", Hooks::default())).await;
            let ask = || {
                let operations = vec![order("a", 1), order("b", -1), order("c", 2)];
                Ask::new().in_version(version).push("k1", operations)
            };
            let answer = server.round(ask()).await;
            assert_eq!(answer.outcomes(), ["rejected 1:shop.negative_total"]);
            assert_eq!(answer.told[0].message(), "Totals are positive.");
            let details =
                r#"{"fieldPaths":["total"],"reason":"negative","references":{"order":"b"}}"#;
            assert_eq!(answer.told[0].details(), Some(details));
            assert_eq!(server.rows("orders").await, [""; 0]);
            assert_eq!((server.head().await, server.events().len()), (0, 0));
            assert_eq!(notes.take().len(), 2, "nothing after the first refusal");

            assert_eq!(server.round(ask()).await.bytes, answer.bytes);
            assert_eq!(notes.take(), [""; 0], "a replay is not judged");
        }
    }

    #[tokio::test]
    async fn an_update_is_seen_with_the_row_as_stored_and_as_it_will_be() {
        for version in VERSIONS {
            let notes = Notes::default();
            let server = start(noting_rows(&notes, "orders", Hooks::default())).await;
            server.push_in(version, vec![order("a", 1)]).await;
            server
                .push_in(version, vec![order("a", 2), order("a", 3)])
                .await;
            server
                .push_in(version, vec![delete("orders", "a"), delete("orders", "a")])
                .await;
            server
                .push_in(version, vec![delete("orders", "never")])
                .await;
            let expected = [
                "Upsert a by ann: nothing -> a|t1|1|-|-@1",
                "Upsert a by ann: a|t1|1|-|-@1 -> a|t1|2|-|-@2",
                "Upsert a by ann: a|t1|2|-|-@2 -> a|t1|3|-|-@3",
                "Delete a by ann: a|t1|3|-|-@3 -> nothing",
            ];
            assert_eq!(notes.take(), expected);
        }
    }

    #[tokio::test]
    async fn a_patch_is_seen_as_the_whole_row() {
        let notes = Notes::default();
        let server = start(noting_rows(&notes, "orders", Hooks::default())).await;
        server.push(vec![order("a", 1)]).await;
        server
            .push(vec![put("orders", json!({"id": "a", "code": "x"}))])
            .await;
        assert_eq!(
            notes.take()[1],
            "Upsert a by ann: a|t1|1|-|-@1 -> a|t1|1|x|-@2"
        );
    }

    #[tokio::test]
    async fn a_document_is_seen_merged() {
        let notes = Notes::default();
        let mut hooks = noting_rows(&notes, "orders", Hooks::default());
        hooks.mergers = hooks.mergers.with("set", Arc::new(SetMerger::default()));
        let server = start(hooks).await;
        let tagged = |tags: &str| {
            let row = json!({"id": "a", "team": "t1", "total": 1, "code": null, "tags": tags});
            put("orders", row)
        };
        server.push(vec![tagged("b,a")]).await;
        server.push_in(WireVersion::V1, vec![tagged("c")]).await;
        let expected = [
            "Upsert a by ann: nothing -> a|t1|1|-|a,b@1",
            "Upsert a by ann: a|t1|1|-|a,b@1 -> a|t1|1|-|a,b,c@2",
        ];
        assert_eq!(notes.take(), expected);
    }

    #[tokio::test]
    async fn whoever_may_not_write_the_row_is_told_so_before_the_validator_is_asked() {
        let notes = Notes::default();
        let server = start(noting_rows(&notes, "orders", Hooks::default())).await;
        server.push(vec![order("a", 1)]).await;
        server.resolver.allow("bob", &["t2"]);
        notes.take();
        for operation in [order("a", -1), delete("orders", "a"), order("b", -1)] {
            let ask = Ask::new()
                .by("bob")
                .push(&server.fresh_id(), vec![operation]);
            assert_eq!(
                server.round(ask).await.outcomes(),
                ["rejected 0:sync.forbidden"]
            );
        }
        assert_eq!(
            server.push(vec![order("a", -1).based_on(0)]).await,
            "rejected 0:sync.version_conflict"
        );
        assert_eq!(notes.take(), [""; 0]);
    }

    #[tokio::test]
    async fn what_references_append_is_judged_and_blamed_on_the_clients_delete() {
        let notes = Notes::default();
        let hooks = noting_rows(&notes, "lines", Hooks::default());
        let server = start(with_rows(hooks, "lines", |write, _| {
            let refused = write.row_id == "kept";
            Box::pin(async move {
                if refused {
                    Err(refuse("shop.kept"))
                } else {
                    Ok(())
                }
            })
        }))
        .await;
        server
            .push(vec![
                order("a", 1),
                line("l1", Some("a"), None),
                line("l2", None, Some("a")),
            ])
            .await;
        notes.take();
        assert_eq!(
            server
                .push(vec![order("z", 1), delete("orders", "a")])
                .await,
            "applied 2"
        );
        let expected = [
            "Delete l1 by ann: l1|t1|a|-|1@1 -> nothing",
            "Upsert l2 by ann: l2|t1|-|a|1@1 -> l2|t1|-|-|1@2",
        ];
        assert_eq!(notes.take(), expected);

        // "kept" is refused on insert as well, so it gets in before the validator exists.
        let database = crate::home::open();
        let before = Setup::of(SCHEMA).start_on(Arc::clone(&database)).await;
        before
            .push(vec![order("a", 1), line("kept", None, Some("a"))])
            .await;
        drop(before);
        let hooks = with_rows(Hooks::default(), "lines", |write, _| {
            let refused = write.row_id == "kept";
            Box::pin(async move {
                if refused {
                    Err(refuse("shop.kept"))
                } else {
                    Ok(())
                }
            })
        });
        let server = Setup::of(SCHEMA).with_hooks(hooks).start_on(database).await;
        let operations = vec![order("z", 1), delete("orders", "a")];
        let ask = Ask::new().push("kept", operations);
        assert_eq!(server.round(ask).await.outcomes(), ["rejected 1:shop.kept"]);
        assert_eq!(server.rows("orders").await, ["a|t1|1|-|-@1"]);
        assert_eq!(server.rows("lines").await, ["kept|t1|-|a|1@1"]);
    }

    #[tokio::test]
    async fn validators_of_one_table_run_in_order_until_one_refuses() {
        let notes = Notes::default();
        let mut hooks = Hooks::default();
        for (name, refuses) in [("first", false), ("second", true), ("third", false)] {
            let notes = notes.clone();
            hooks = with_rows(hooks, "orders", move |_, _| {
                notes.add(name);
                Box::pin(async move {
                    if refuses {
                        Err(refuse("shop.no"))
                    } else {
                        Ok(())
                    }
                })
            });
        }
        let server = start(hooks).await;
        assert_eq!(server.push(vec![order("a", 1)]).await, "rejected 0:shop.no");
        assert_eq!(notes.take(), ["first", "second"]);
        assert_eq!(server.push(vec![line("l", None, None)]).await, "applied 1");
    }

    #[tokio::test]
    async fn overlapping_deliveries_are_judged_once_and_answered_alike() {
        let notes = Notes::default();
        let server = Arc::new(start(noting_rows(&notes, "orders", Hooks::default())).await);
        let ask = || Ask::new().push("k1", vec![order("a", -1)]);
        let answers = server.batch(vec![ask(), ask()]).await;
        let [one, two] = &answers[..] else {
            panic!("two")
        };
        assert_eq!(one.as_ref().unwrap().bytes, two.as_ref().unwrap().bytes);
        assert_eq!(notes.take().len(), 1);
    }
}

mod failures {
    use std::time::Duration;

    use tidewater_engine::{CandidateReader, EngineConfig, RowValidator, RowWrite};

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Fault {
        Fails,
        Panics,
        Hangs,
    }

    const FAULTS: [Fault; 3] = [Fault::Fails, Fault::Panics, Fault::Hangs];

    async fn go_wrong(fault: Fault) -> Result<(), ValidatorError> {
        match fault {
            Fault::Fails => Err(ValidatorError::Failed("secret text".into())),
            Fault::Panics => panic!("secret text"),
            Fault::Hangs => std::future::pending().await,
        }
    }

    /// What goes wrong for this row only.
    fn hooks(fault: Fault, whole: bool) -> Hooks {
        if whole {
            with_commits(Hooks::default(), move |commit, _| {
                let bad = commit
                    .operations
                    .iter()
                    .any(|operation| operation.row_id == "bad");
                Box::pin(async move { if bad { go_wrong(fault).await } else { Ok(()) } })
            })
        } else {
            with_rows(Hooks::default(), "orders", move |write, _| {
                let bad = write.row_id == "bad";
                Box::pin(async move { if bad { go_wrong(fault).await } else { Ok(()) } })
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn any_other_failure_rejects_its_own_commit_with_a_fixed_text() {
        for whole in [false, true] {
            for fault in FAULTS {
                let server = Arc::new(start(hooks(fault, whole)).await);
                let bad = || {
                    let operations = vec![order("good", 1), order("bad", 1)];
                    Ask::new()
                        .push("k1", operations)
                        .push("k2", vec![order("a", 1)])
                };
                let other = Ask::new().by("bob").push("k1", vec![order("b", 1)]);
                let answers = server.batch(vec![bad(), other]).await;
                let [one, two] = &answers[..] else {
                    panic!("two")
                };
                let (one, two) = (one.as_ref().unwrap(), two.as_ref().unwrap());
                let (index, message) = match whole {
                    true => (0, "whole-commit validator failed"),
                    false => (1, "write validator failed"),
                };
                let refused = format!("rejected {index}:sync.constraint_violation");
                assert_eq!(one.outcomes(), [refused.as_str(), "applied 1"], "{fault:?}");
                assert_eq!(two.outcomes(), ["applied 2"]);
                assert_eq!(
                    (one.told[0].message(), one.told[0].details()),
                    (message, None)
                );
                assert_eq!(
                    server.rows("orders").await,
                    ["a|t1|1|-|-@1", "b|t1|1|-|-@1"]
                );
                let replayed = server.round(bad()).await;
                assert_eq!(replayed.outcomes(), [refused.as_str(), "cached 1"]);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_is_one_for_everything_that_judges_a_commit() {
        async fn slow() -> Result<(), ValidatorError> {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(())
        }
        let rows = |hooks| with_rows(hooks, "orders", |_, _| Box::pin(slow()));
        let commits = |hooks| with_commits(hooks, |_, _| Box::pin(slow()));
        let plans = |hooks| {
            with_planner(hooks, |_, _| {
                Box::pin(async {
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    Ok(Vec::new())
                })
            })
        };
        let none = Hooks::default;
        let start = async |hooks| {
            let mut setup = Setup::of(SCHEMA).with_hooks(hooks);
            setup.adopts_lanes = false;
            setup.config = EngineConfig {
                hook_timeout: Duration::from_secs(1),
                ..EngineConfig::default()
            };
            setup.start().await
        };
        let two = || vec![order("a", 1), order("b", 1)];

        // Three rests of 300 ms fit, four do not, wherever they are taken.
        let server = start(plans(commits(rows(none())))).await;
        assert_eq!(server.push(vec![order("c", 1)]).await, "applied 1");
        // Each commit has its own second.
        assert_eq!(server.push(vec![order("c", 1)]).await, "applied 2");
        let error = server.try_round(Ask::new().push("k", two())).await;
        assert_eq!(error.unwrap_err().code.as_str(), "sync.internal_error");

        let refused = "rejected 0:sync.constraint_violation";
        let server = start(commits(commits(rows(none())))).await;
        assert_eq!(server.push(two()).await, refused);
        let server = start(commits(commits(commits(commits(none()))))).await;
        assert_eq!(server.push(vec![order("a", 1)]).await, refused);
        let server = start(rows(rows(none()))).await;
        let outcome = server.push(two()).await;
        assert_eq!(outcome, "rejected 1:sync.constraint_violation");
        assert_eq!(server.rows("orders").await, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_validator_that_panics_before_it_waits_has_failed_and_no_more() {
        /// Written without the macro that makes every method one future.
        struct Eager;
        impl RowValidator for Eager {
            fn validate<'a, 'b, 'c, 'd, 'e>(
                &'a self,
                write: &'b RowWrite<'c>,
                _reader: &'d dyn CandidateReader,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), ValidatorError>> + Send + 'e>>
            where
                'a: 'e,
                'b: 'e,
                'c: 'e,
                'd: 'e,
            {
                assert!(write.row_id != "bad", "as told");
                Box::pin(async { Ok(()) })
            }
        }
        let mut hooks = Hooks::default();
        hooks
            .row_validators
            .insert("orders".to_owned(), vec![Arc::new(Eager)]);
        let server = Arc::new(start(hooks).await);
        let ask = Ask::new()
            .push("k1", vec![order("bad", 1)])
            .push("k2", vec![order("a", 1)]);
        let other = Ask::new().by("bob").push("k1", vec![order("b", 1)]);
        let answers = server.batch(vec![ask, other]).await;
        let outcomes: Vec<_> = answers
            .into_iter()
            .flat_map(|answer| answer.unwrap().outcomes())
            .collect();
        assert_eq!(
            outcomes,
            [
                "rejected 0:sync.constraint_violation",
                "applied 1",
                "applied 2"
            ]
        );
    }
}

mod commits {
    use super::*;

    #[tokio::test]
    async fn the_final_candidate_is_seen_with_every_operation_in_order() {
        for version in VERSIONS {
            let notes = Notes::default();
            let server = start(noting_commits(&notes, Hooks::default())).await;
            let rows = vec![
                order("a", 1),
                line("l2", Some("a"), None),
                line("l1", Some("a"), None),
                line("l3", None, Some("a")),
            ];
            server.push_in(version, rows).await;
            notes.take();
            let operations = vec![
                order("b", 1),
                delete("orders", "never"),
                order("b", 2),
                delete("orders", "a"),
                delete("lines", "l2"),
            ];
            assert_eq!(server.push_in(version, operations).await, "applied 2");
            let expected = [
                "0: Upsert orders b: nothing -> b|t1|1|-|-@1",
                "1: Delete orders never: nothing -> nothing",
                "2: Upsert orders b: b|t1|1|-|-@1 -> b|t1|2|-|-@2",
                "3: Delete orders a: a|t1|1|-|-@1 -> nothing",
                "4: Delete lines l2: l2|t1|a|-|1@1 -> nothing",
                "5: Delete lines l1: l1|t1|a|-|1@1 -> nothing",
                "6: Upsert lines l3: l3|t1|-|a|1@1 -> l3|t1|-|-|1@2",
            ];
            assert_eq!(notes.take(), expected);
        }
    }

    #[tokio::test]
    async fn who_pushed_what_is_known() {
        let hooks = with_commits(Hooks::default(), |commit, _| {
            let seen = format!(
                "{} {} {} {}",
                commit.partition.as_str(),
                commit.actor.as_str(),
                commit.client.as_str(),
                commit.client_commit_id
            );
            Box::pin(async move {
                if seen == "p1 bob bob-1 k7" {
                    Ok(())
                } else {
                    Err(refuse("x"))
                }
            })
        });
        let server = start(hooks).await;
        let ask = Ask::new().by("bob").push("k7", vec![order("a", 1)]);
        assert_eq!(server.round(ask).await.outcomes(), ["applied 1"]);
    }

    #[tokio::test]
    async fn a_missing_sibling_refuses_all_and_a_complete_aggregate_applies() {
        let hooks = with_commits(Hooks::default(), |commit, reader| {
            Box::pin(async move {
                for operation in commit.operations {
                    let is_order = operation.table.name == "orders" && operation.row.is_some();
                    let first_line = format!("{}-1", operation.row_id);
                    if is_order && reader.row("lines", &first_line).await?.is_none() {
                        let rejection = Rejection::new("shop.empty_order", "An order has lines.");
                        return Err(rejection.unwrap().at_operation(operation.op_index).into());
                    }
                }
                Ok(())
            })
        });
        let server = start(hooks).await;
        let told = server
            .tell(vec![line("x", None, None), order("a", 1)])
            .await;
        assert_eq!(told.outcome(), "rejected 1:shop.empty_order");
        assert_eq!(server.rows("lines").await, [""; 0]);
        let whole = vec![order("a", 1), line("a-1", Some("a"), None)];
        assert_eq!(server.push(whole).await, "applied 1");
        // The line is there from before.
        assert_eq!(server.push(vec![order("a", 2)]).await, "applied 2");
        // And goes with the commit.
        let told = server
            .tell(vec![delete("lines", "a-1"), order("a", 3)])
            .await;
        assert_eq!(told.outcome(), "rejected 1:shop.empty_order");
    }

    #[tokio::test]
    async fn the_blamed_operation_must_exist_and_appended_ones_stand_for_the_delete() {
        let hooks = with_commits(Hooks::default(), |commit, _| {
            let blamed: Option<i32> = commit.client_commit_id.parse().ok();
            Box::pin(async move {
                let rejection = Rejection::new("shop.no", "no").unwrap();
                match blamed {
                    None => Err(rejection.into()),
                    Some(-9) => Ok(()),
                    Some(index) => Err(rejection.at_operation(index).into()),
                }
            })
        });
        let server = start(hooks).await;
        let rows = vec![
            order("a", 1),
            line("l1", Some("a"), None),
            line("l2", None, Some("a")),
        ];
        server.round(Ask::new().push("-9", rows).by("eve")).await;
        let cases = [
            ("plain", "rejected 0:shop.no"),
            ("0", "rejected 0:shop.no"),
            ("1", "rejected 1:shop.no"),
            ("2", "rejected 1:shop.no"),
            ("3", "rejected 1:shop.no"),
            ("4", "rejected 0:sync.constraint_violation"),
            ("-1", "rejected 0:sync.constraint_violation"),
        ];
        for (id, expected) in cases {
            let operations = vec![order("b", 1), delete("orders", "a")];
            let answer = server.round(Ask::new().push(id, operations)).await;
            assert_eq!(answer.outcomes(), [expected], "blaming {id}");
        }
    }

    #[tokio::test]
    async fn a_commit_is_judged_once_for_overlapping_duplicates_and_never_for_a_refused_one() {
        let notes = Notes::default();
        let server = Arc::new(start(noting_commits(&notes, Hooks::default())).await);
        let ask = || Ask::new().push("k1", vec![order("a", 1)]);
        let answers = server
            .batch(vec![ask(), ask(), ask().push("k1", vec![order("b", 1)])])
            .await;
        let outcomes: Vec<_> = answers
            .into_iter()
            .map(|answer| answer.unwrap().outcomes().join(", "))
            .collect();
        assert_eq!(outcomes, ["applied 1", "cached 1", "cached 1, cached 1"]);
        // The plug is judged too.
        assert_eq!(notes.take().len(), 2);

        server
            .push(vec![order("b", 1), order("a", 1).based_on(9)])
            .await;
        server.push(vec![line("l", Some("nobody"), None)]).await;
        assert_eq!(notes.take(), [""; 0]);
    }

    #[tokio::test]
    async fn commit_validators_run_in_order_until_one_refuses() {
        let notes = Notes::default();
        let mut hooks = noting_rows(&notes, "orders", Hooks::default());
        for (name, refuses) in [("first", false), ("second", true), ("third", false)] {
            let notes = notes.clone();
            hooks = with_commits(hooks, move |_, _| {
                notes.add(name);
                Box::pin(async move {
                    if refuses {
                        Err(refuse("shop.no"))
                    } else {
                        Ok(())
                    }
                })
            });
        }
        let server = start(hooks).await;
        assert_eq!(server.push(vec![order("a", 1)]).await, "rejected 0:shop.no");
        assert_eq!(notes.take()[1..], ["first", "second"], "after the rows");
        assert_eq!(server.head().await, 0);
    }
}

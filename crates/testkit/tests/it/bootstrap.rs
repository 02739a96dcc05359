//! A device that comes late gets the rows as they are, in pages (§4.7, rows lane).

use serde_json::json;
use syncular_client::SyncClient;
use tidewater_testkit::{StoreKind, message::commit};
use tidewater_wire::WireVersion;

use crate::{
    raw::Raw,
    support::{Replica, Wire, World, limits, whole_note},
};

on_every_store!(
    twenty_thousand_rows_arrive_in_pages_across_interruptions,
    rows_written_while_a_bootstrap_runs_are_there_at_its_end,
    an_empty_table_completes_in_one_round,
);

const ROWS: usize = 20_000;
const ROWS_PER_COMMIT: usize = 500;
/// 1,000 rows a page and 4 pages a round are what a client gets that does not ask.
const ROWS_PER_ROUND: u32 = 4_000;

/// Fills the table through the protocol.
pub(crate) fn fill(world: &World, rows: usize) {
    let raw = Raw::ready(world, "alice", "filler", WireVersion::V3);
    for start in (0..rows).step_by(ROWS_PER_COMMIT) {
        let numbers = start..(start + ROWS_PER_COMMIT).min(rows);
        let operations = numbers
            .map(|number| {
                let values = whole_note(&format!("n{number:05}"), "t1", &format!("t{number}"));
                raw.author.upsert("notes", &values, None)
            })
            .collect();
        raw.apply(commit(&format!("fill-{start}"), operations));
    }
}

/// A replica in a file, opened again and again.
fn reopen(world: &World, path: &str, wire: Option<Wire>) -> Replica {
    let client =
        SyncClient::open_path("client-bob".to_owned(), &world.schema, limits(), path).unwrap();
    Replica {
        client,
        wire: wire.unwrap_or_else(|| Wire::new(&world.url, "bob", "client-bob")),
    }
}

fn twenty_thousand_rows_arrive_in_pages_across_interruptions(kind: StoreKind) {
    let world = World::of_notes(kind);
    fill(&world, ROWS);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("replica.db");
    let path = path.to_str().unwrap();

    let mut bob = reopen(&world, path, None);
    bob.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    // The first answer tells the epoch.
    bob.good_round();
    let mut applied = 0;
    for round in 0.. {
        if round == 2 {
            // An answer that is lost is asked for again from the same page on.
            bob.wire.answers_to_lose = 1;
            bob.failed_round();
        }
        let report = bob.good_round();
        applied += report.segment_rows_applied;
        if report.bootstrapping.is_empty() {
            break;
        }
        assert_eq!(report.segment_rows_applied, ROWS_PER_ROUND);
        let state = bob.client.subscription_state("s1").unwrap();
        assert!(state.has_resume_token);
        assert_eq!(state.cursor, 40);
        // The app is closed between two pages.
        let Replica { client, wire } = bob;
        drop(client);
        bob = reopen(&world, path, Some(wire));
    }
    // No page came twice.
    assert_eq!(usize::try_from(applied).unwrap(), ROWS);
    bob.assert_agrees(&world);
    let report = bob.sync();
    assert_eq!(
        (report.segment_rows_applied, report.commits_applied),
        (0, 0)
    );
}

fn rows_written_while_a_bootstrap_runs_are_there_at_its_end(kind: StoreKind) {
    let world = World::of_notes(kind);
    fill(&world, 5_000);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.sync();
    bob.good_round();
    assert_eq!(bob.good_round().bootstrapping, ["s1"]);
    // One row that was delivered already, one that was not, one deleted on each side, one new.
    alice.patch("n00007", json!({ "title": "changed" }), None);
    alice.patch("n04500", json!({ "title": "changed" }), None);
    alice.delete("n00008");
    alice.delete("n04501");
    alice.put("n00000-new", "new");
    alice.sync();
    bob.sync();
    bob.assert_agrees(&world);
    alice.assert_agrees(&world);
}

fn an_empty_table_completes_in_one_round(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut bob = world.replica("bob");
    bob.good_round();
    let report = bob.good_round();
    assert_eq!(report.bootstrapping, Vec::<String>::new());
    let state = bob.client.subscription_state("s1").unwrap();
    assert_eq!((state.cursor, state.has_resume_token), (0, false));
}

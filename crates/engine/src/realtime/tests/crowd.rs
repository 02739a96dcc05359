//! Writers and connections at the same time, on several threads: nobody ends with a hole.

use std::{collections::BTreeSet, sync::Arc};

use super::*;

const WRITERS: usize = 4;
const COMMITS: usize = 60;
const READERS: usize = 6;

/// A device that follows a team until it has every note of it.
async fn follow(world: Arc<World>, device: String, team: String, expected: usize) {
    let mut cursor = -1;
    let mut has: BTreeSet<String> = BTreeSet::new();
    let mut session = world.connect(&device).await;
    let mut rounds = 0;
    loop {
        match session.next().await {
            Outgoing::Delta(frame) => {
                let answer = Answer::decode(&frame);
                cursor = apply(&world, &mut has, &answer, cursor);
                ack(&mut session, cursor);
            }
            Outgoing::Text(_) => {
                let ask = notes(&[&team], cursor);
                let answer = world.socket_round(&mut session, &device, ask).await;
                cursor = apply(&world, &mut has, &answer, cursor);
                ack(&mut session, cursor);
                rounds += 1;
                if rounds % 5 == 0 {
                    // The connection is lost now and then, before its response was confirmed.
                    session = world.connect(&device).await;
                }
            }
            Outgoing::Close(reason) => panic!("closed: {reason:?}"),
        }
        if has.len() == expected {
            return;
        }
    }
}

/// Applies a delta or a pull of the only subscription.
fn apply(world: &World, has: &mut BTreeSet<String>, answer: &Answer, cursor: i64) -> i64 {
    let section = answer.section();
    for page in &section.pages {
        let rows = page.inline().blocks.iter().flatten();
        has.extend(rows.map(|row| {
            let text = world.server.text("notes", &row.row);
            let (id, _) = text.split_once('|').unwrap();
            id.to_owned()
        }));
    }
    for commit in &section.commits {
        has.extend(
            commit
                .changes
                .iter()
                .map(|change| change.row_id.to_string()),
        );
    }
    cursor.max(section.next_cursor())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_follows_a_busy_partition_gets_everything() {
    let world = Arc::new(World::start().await);
    let mut tasks = tokio::task::JoinSet::new();
    for reader in 0..READERS {
        let (device, team) = (format!("r{reader}/c{reader}"), format!("t{}", reader % 2));
        let expected = WRITERS * COMMITS / 2;
        tasks.spawn(follow(Arc::clone(&world), device, team, expected));
    }
    for writer in 0..WRITERS {
        let world = Arc::clone(&world);
        tasks.spawn(async move {
            let device = format!("w{writer}/w{writer}");
            for number in 0..COMMITS {
                let (id, team) = (format!("n{writer}-{number}"), format!("t{}", number % 2));
                let ask = Ask::new().push(&format!("k{number}"), vec![upsert(&id, &team, "text")]);
                world.round(&device, ask).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let stats = world.server.engine.realtime_stats();
    assert!(stats.deltas > 0, "{stats:?}");
}

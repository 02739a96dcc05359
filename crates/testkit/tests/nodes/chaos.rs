//! Devices that write while nodes die, stand still and lose one another and the database.
//!
//! In the end every device has the same rows, every commit that a device made is in the log once,
//! whatever its answers came to, and the log has no hole. Nobody is ever reset: no node takes a
//! device for one from the future, or from another log.

use std::{
    collections::BTreeSet,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use tidewater_testkit::Dice;

use crate::{
    cluster::{Cluster, PATIENCE},
    device::Device,
};

const DEVICES: usize = 5;
const NODES: usize = 3;

/// A device that goes from node to node, and the commits it made.
struct Wanderer {
    device: Device,
    number: usize,
    dice: Dice,
    commits: Vec<String>,
}

impl Wanderer {
    fn new(cluster: &Cluster, number: usize, seed: u64) -> Self {
        Self {
            device: Device::new(cluster, &format!("device-{number}")),
            number,
            dice: Dice::new(seed + u64::try_from(number).unwrap()),
            commits: Vec::new(),
        }
    }

    fn write(&mut self) {
        let title = format!("{}/{}", self.number, self.commits.len());
        let id = if self.dice.one_in(3) {
            format!("shared-{}", self.dice.below(6))
        } else {
            format!("own-{}-{}", self.number, self.dice.below(30))
        };
        let commit = self.device.put(&id, &title);
        self.commits.push(commit);
    }

    /// Writes and syncs, each time with any of the nodes, until it is over.
    fn wander(&mut self, is_over: &AtomicBool, acknowledged: &mpsc::Sender<usize>) {
        while !is_over.load(Ordering::Relaxed) {
            if self.device.client.pending_commit_ids().len() < 10 {
                self.write();
            }
            let waiting = self.device.client.pending_commit_ids().len();
            let node = usize::try_from(self.dice.below(3)).unwrap();
            self.device.round(node);
            let heard = waiting - self.device.client.pending_commit_ids().len();
            let _ = acknowledged.send(heard);
        }
    }

    /// Sends what is left and takes what is there, at this node.
    #[track_caller]
    fn settle(&mut self, node: usize) {
        let since = Instant::now();
        loop {
            let is_answered = self.device.round(node);
            if is_answered && self.device.client.pending_commit_ids().is_empty() {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "node {node} does not take all");
        }
    }
}

/// Waits for so many acknowledged commits, or for what a stopped node makes of the devices.
fn progress(acknowledgements: &mpsc::Receiver<usize>, wanted: usize, patience: Duration) -> bool {
    let since = Instant::now();
    let mut heard = 0;
    while heard < wanted {
        let left = patience.saturating_sub(since.elapsed());
        match acknowledgements.recv_timeout(left) {
            Ok(count) => heard += count,
            Err(_) => return false,
        }
    }
    true
}

fn disturb(cluster: &Cluster, acknowledgements: &mpsc::Receiver<usize>) {
    let go_on = |what: &str| {
        let went_on = progress(acknowledgements, 40, PATIENCE);
        assert!(went_on, "nothing is acknowledged any more after {what}");
    };
    go_on("the start");
    for node in 0..NODES {
        cluster.kill(node);
        go_on("a node was killed");
        cluster.restart(node);
    }
    cluster.signal(1, "-STOP");
    // The devices go on with the others as they find out.
    progress(acknowledgements, 40, Duration::from_secs(3));
    cluster.signal(1, "-CONT");
    go_on("a node stood still");
    cluster.cut_signals();
    go_on("the nodes were cut off from one another");
    cluster.crash_database();
    go_on("the database crashed");
    cluster.cut_signals();
    cluster.kill(0);
    cluster.kill(2);
    go_on("two nodes were killed");
    cluster.restart(0);
    cluster.restart(2);
    go_on("they came back");
}

#[test]
fn devices_that_go_from_node_to_node_lose_nothing_and_agree_in_the_end() {
    let cluster = Cluster::start(NODES);
    let mut wanderers: Vec<Wanderer> = (0..DEVICES)
        .map(|number| Wanderer::new(&cluster, number, 7))
        .collect();
    let (acknowledged, acknowledgements) = mpsc::channel();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for wanderer in &mut wanderers {
            let (acknowledged, is_over) = (acknowledged.clone(), &is_over);
            scope.spawn(move || wanderer.wander(is_over, &acknowledged));
        }
        let cluster = &cluster;
        let disturbing = scope.spawn(move || disturb(cluster, &acknowledgements));
        let disturbed = disturbing.join();
        is_over.store(true, Ordering::Relaxed);
        disturbed.unwrap();
    });

    for (number, wanderer) in wanderers.iter_mut().enumerate() {
        wanderer.settle(number % NODES);
    }
    let database = cluster.database();
    let made: BTreeSet<String> = wanderers
        .iter()
        .flat_map(|it| {
            it.commits
                .iter()
                .map(|id| format!("client-device-{}:{id}", it.number))
        })
        .collect();
    let recorded =
        database.texts("SELECT client_id || ':' || client_commit_id FROM sync_push_results");
    assert_eq!(recorded.len(), made.len());
    assert_eq!(recorded.into_iter().collect::<BTreeSet<_>>(), made);
    let total = i64::try_from(made.len()).unwrap();
    let count = "SELECT count(*) FROM sync_commits WHERE commit_seq BETWEEN 1 AND";
    assert_eq!(database.number(&format!("{count} {total}")), total);
    assert_eq!(
        database.number("SELECT max_commit_seq FROM sync_partitions"),
        total
    );

    let rows = database.number("SELECT count(*) FROM notes");
    let expected = newest(&mut wanderers[0], 0, rows);
    for (number, wanderer) in wanderers.iter_mut().enumerate().skip(1) {
        assert_eq!(newest(wanderer, number % NODES, rows), expected, "{number}");
    }
}

/// What a device sees once its node has nothing new for it.
fn newest(
    wanderer: &mut Wanderer,
    node: usize,
    rows: i64,
) -> Vec<(String, i64, serde_json::Value)> {
    let since = Instant::now();
    loop {
        let before = wanderer.device.titles();
        wanderer.settle(node);
        let titles = wanderer.device.titles();
        if titles == before && i64::try_from(titles.len()).unwrap() == rows {
            return titles;
        }
        assert!(
            since.elapsed() < PATIENCE,
            "a device does not get every row"
        );
    }
}

//! What a history has come to, and the next step of it.
//!
//! A step only does what the contract allows its caller: places follow the head, scopes before a
//! write are those of the row. Whether a unique value is taken is for the stores to say.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use tidewater_model::{Cursor, HorizonSeq};
use tidewater_schema::TableIndex;

use super::dice::Dice;
use crate::{
    ActivityBatch, ClientKey, ClientRecord, ClientSubscription, CommitWrite, FailureReport,
    PartitionTouch,
    conformance::fixtures::{
        Draft, Item, NOTES, NOW_MS, TASKS, actor, client, epoch, filter, partition, seq,
    },
};

pub(super) const PARTITIONS: [&str; 3] = ["p", "q", "r"];
pub(super) const CLIENTS: [&str; 3] = ["c1", "c2", "\u{E9}"];
pub(super) const TABLES: [TableIndex; 2] = [NOTES, TASKS];
pub(super) const IDS: [&str; 8] = [
    "10",
    "9",
    "A",
    "a",
    "a b",
    "\u{E9}",
    "\u{FF21}",
    "\u{1F600}",
];
pub(super) const TEAMS: [&str; 4] = ["t1", "t2", "t3", "t9"];
pub(super) const OWNERS: [&str; 3] = ["o1", "o2", "o9"];
pub(super) const BLOBS: [&str; 3] = ["b1", "b2", "b3"];
const CODES: [&str; 4] = ["k1", "k2", "K1", ""];
const ACTORS: [&str; 2] = ["a1", "a2"];

/// One partition, as the history left it.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) head: u64,
    /// The epoch is named by this number; none while unregistered.
    pub(super) epoch: Option<u64>,
    pub(super) rows: BTreeMap<(TableIndex, String), Item>,
}

/// Everything, as the history left it.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) logs: BTreeMap<&'static str, Log>,
    pub(super) now_ms: i64,
    pub(super) commits: u64,
    epochs: u64,
}

/// One step of a history.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write(Write),
    Touch(PartitionTouch),
    Rotate {
        partition: &'static str,
        epoch: u64,
        at_ms: i64,
    },
    Activity(ActivityBatch),
    Prune {
        partition: &'static str,
        epoch: u64,
        horizon: HorizonSeq,
    },
    /// Closes the database and opens it again.
    Reopen,
}

/// A write transaction.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) partitions: Vec<&'static str>,
    /// With the logs as they are once the commit is applied.
    pub(super) commits: Vec<(Arc<CommitWrite>, BTreeMap<&'static str, Log>)>,
    /// How many of them are applied before the transaction finishes with the others.
    pub(super) applied_first: usize,
    /// Whether it is dropped instead.
    pub(super) dropped: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            logs: PARTITIONS
                .into_iter()
                .map(|name| (name, Log::default()))
                .collect(),
            now_ms: NOW_MS,
            commits: 0,
            epochs: 0,
        }
    }

    /// The next step. `spanning` transactions hold more than one partition.
    pub(super) fn step(&mut self, spanning: bool) -> Step {
        self.now_ms += i64::try_from(self.dice.below(50)).unwrap();
        match self.dice.below(100) {
            0..70 => Step::Write(self.write(spanning)),
            70..78 => self.touch(),
            78..80 => self.rotate(),
            80..90 => Step::Activity(self.activity()),
            90..98 => self.prune(),
            _ => Step::Reopen,
        }
    }

    fn write(&mut self, spanning: bool) -> Write {
        let mut partitions = vec![self.dice.pick(&PARTITIONS)];
        if spanning && self.dice.percent(30) {
            partitions = PARTITIONS.to_vec();
        }
        let mut logs = self.logs.clone();
        let mut commits = Vec::new();
        for _ in 0..=self.dice.below(4) {
            let name = self.dice.pick(&partitions);
            let commit = self.commit(name, &mut logs);
            commits.push((commit, logs.clone()));
        }
        Write {
            partitions,
            applied_first: self.dice.index(commits.len() + 1),
            commits,
            dropped: self.dice.percent(10),
        }
    }

    fn commit(
        &mut self,
        name: &'static str,
        logs: &mut BTreeMap<&'static str, Log>,
    ) -> Arc<CommitWrite> {
        self.commits += 1;
        // An id that was there before: the first outcome stays.
        let number = if self.dice.percent(8) {
            self.dice.below(self.commits)
        } else {
            self.commits
        };
        let log = logs.get_mut(name).expect("every partition has a log");
        let draft = if self.dice.percent(15) {
            Draft::rejected(name, "")
        } else {
            log.head += 1;
            self.applied(name, log)
        };
        let draft = draft
            .id(&format!("m{number}"))
            .client(self.dice.pick(&CLIENTS))
            .actor(self.dice.pick(&ACTORS));
        let draft = if self.dice.percent(20) {
            draft.bind(self.now_ms)
        } else {
            draft
        };
        draft.build()
    }

    /// A commit with up to six writes, some of them to one row.
    fn applied(&mut self, name: &str, log: &mut Log) -> Draft {
        let back_ms = i64::try_from(self.dice.below(200)).unwrap();
        let mut draft = Draft::new(name, log.head).at(self.now_ms - back_ms);
        let before = log.rows.clone();
        let mut deleted = BTreeMap::new();
        for _ in 0..self.dice.below(7) {
            let key = (self.dice.pick(&TABLES), self.dice.pick(&IDS).to_owned());
            match log.rows.get(&key).cloned() {
                Some(row) if self.dice.percent(40) => {
                    draft = draft.remove(&row);
                    log.rows.remove(&key);
                    deleted.insert(key, row);
                }
                stored => {
                    let item = self.item(&key, stored.as_ref());
                    draft = match &stored {
                        Some(row) => draft.update(row, &item),
                        None => draft.insert(&item),
                    };
                    log.rows.insert(key, item);
                }
            }
        }
        for (key, row) in &deleted {
            if !log.rows.contains_key(key) {
                draft = draft.bury(row);
            }
        }
        for (key, row) in &log.rows {
            if !before.contains_key(key) {
                draft = draft.clear(row);
            }
        }
        draft
    }

    /// A row, or the next version of one. Mostly it stays in its scopes.
    fn item(&mut self, key: &(TableIndex, String), stored: Option<&Item>) -> Item {
        let dice = &mut self.dice;
        let mut item = match stored {
            Some(row) => row.next(),
            None => Item::new(key.0, &key.1),
        };
        if stored.is_none() || dice.percent(15) {
            item = item
                .team(dice.pick(&TEAMS[..3]))
                .owner(dice.pick(&OWNERS[..2]));
        }
        item.code = dice.percent(50).then(|| dice.pick(&CODES).to_owned());
        item.body = dice.percent(70).then(|| "x".repeat(dice.index(90)));
        item.column_versions = match dice.below(3) {
            0 => None,
            1 => Some(Bytes::new()),
            _ => Some(Bytes::from_static(&[3, 2])),
        };
        item.blob_ids = dice.percent(30).then(|| {
            let mut ids = dice.some(&BLOBS, 3);
            ids.sort();
            ids.dedup();
            ids.into_iter().map(str::to_owned).collect()
        });
        item
    }

    fn touch(&mut self) -> Step {
        let name = self.dice.pick(&PARTITIONS);
        let initial_epoch = epoch(&format!("e{}", self.next_epoch()));
        let log = self.logs.get_mut(name).expect("every partition has a log");
        log.epoch.get_or_insert(self.epochs);
        Step::Touch(PartitionTouch {
            partition: partition(name),
            initial_epoch,
            at_ms: self.now_ms,
        })
    }

    fn rotate(&mut self) -> Step {
        let name = self.dice.pick(&PARTITIONS);
        let epoch = self.next_epoch();
        let log = self.logs.get_mut(name).expect("every partition has a log");
        log.epoch = Some(epoch);
        Step::Rotate {
            partition: name,
            epoch,
            at_ms: self.now_ms,
        }
    }

    fn next_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    /// The epoch of a partition, now and then a wrong one.
    fn epoch_of(&mut self, name: &str) -> u64 {
        let right = self.logs[name].epoch.unwrap_or(0);
        if self.dice.percent(10) { 1_000 } else { right }
    }

    fn activity(&mut self) -> ActivityBatch {
        let touches = self.dice.some(&PARTITIONS, 3);
        let touches = touches
            .into_iter()
            .map(|name| (partition(name), self.now_ms));
        let mut batch = ActivityBatch {
            touches: touches.collect(),
            clients: Vec::new(),
        };
        for _ in 0..self.dice.below(4) {
            let name = self.dice.pick(&PARTITIONS);
            let key = ClientKey {
                partition: partition(name),
                client: client(self.dice.pick(&CLIENTS)),
            };
            let epoch = epoch(&format!("e{}", self.epoch_of(name)));
            // One record of a client in a batch: their order is not a promise.
            if batch.clients.iter().all(|(other, ..)| *other != key) {
                let record = self.client(self.logs[name].head);
                batch.clients.push((key, epoch, record));
            }
        }
        batch
    }

    fn client(&mut self, head: u64) -> ClientRecord {
        let dice = &mut self.dice;
        let subscription = ClientSubscription {
            id: "s".to_owned(),
            table: "notes".to_owned(),
            scopes: filter(&[("team", &dice.some(&TEAMS, 3))]),
            complete: dice.percent(50).then(|| dice.percent(50)),
            schema_version: dice.percent(50).then_some(1),
        };
        ClientRecord {
            actor: actor(dice.pick(&ACTORS)),
            cursor: match dice.percent(80) {
                true => Cursor::At(seq(dice.below(head + 1))),
                false => Cursor::Never,
            },
            subscriptions: vec![subscription; dice.index(3)],
            wire_version: 3,
            updated_at_ms: self.now_ms,
            failure: dice.percent(30).then(|| FailureReport {
                code: "transport.timeout".to_owned(),
                at_ms: self.now_ms,
                streak: 1,
            }),
        }
    }

    fn prune(&mut self) -> Step {
        let name = self.dice.pick(&PARTITIONS);
        // Not often to the end, so that there is something to read.
        let most = self.logs[name].head.saturating_sub(self.dice.below(12));
        Step::Prune {
            partition: name,
            epoch: self.epoch_of(name),
            horizon: HorizonSeq::at(seq(self.dice.below(most + 1))),
        }
    }
}

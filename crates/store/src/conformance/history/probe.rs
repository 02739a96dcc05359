//! Reads at random, to compare.

use std::sync::Arc;

use tidewater_model::ScopeFilter;

use super::world::{BLOBS, CLIENTS, IDS, OWNERS, PARTITIONS, TABLES, TEAMS, World};
use crate::{
    ClientKey, LoadRequest, PushKey, RowKey, RowScan, Store, StoredRow, WindowRequest,
    conformance::{
        Database,
        fixtures::{
            Item, all_rows, client, filter, lock, page, partition, push_key, seq, whole_log, window,
        },
    },
};

/// Questions to ask of both stores.
pub(super) struct Probe {
    windows: Vec<WindowRequest>,
    scans: Vec<RowScan>,
    name: &'static str,
    values: Vec<String>,
    variable: &'static str,
    times_ms: [i64; 2],
    keys: Vec<PushKey>,
    /// How the generator knows the rows.
    rows: Vec<(RowKey, Option<StoredRow>)>,
    head: u64,
}

impl Probe {
    pub(super) fn new(world: &mut World) -> Self {
        let name = world.dice.pick(&PARTITIONS);
        let log = world.logs[name].clone();
        let dice = &mut world.dice;
        let mut windows = Vec::new();
        let mut scans = Vec::new();
        for table in TABLES {
            windows.push(WindowRequest {
                after: seq(dice.below(log.head + 1)),
                through: seq(dice.below(log.head + 3)),
                changes_max: dice.index(12),
                bytes_max: dice.index(600),
                ..whole_log(name, table, some_filter(dice))
            });
            windows.push(whole_log(name, table, some_filter(dice)));
            scans.push(RowScan {
                after: dice.percent(50).then(|| dice.pick(&IDS).to_owned()),
                rows_max: dice.index(6),
                bytes_max: dice.index(300),
                ..all_rows(name, table, some_filter(dice))
            });
            scans.push(all_rows(name, table, some_filter(dice)));
        }
        let keys = (0..6).map(|_| {
            let number = dice.below(world.commits + 2);
            push_key(name, dice.pick(&CLIENTS), &format!("m{number}"))
        });
        let keys = keys.collect();
        let ago_ms = i64::try_from(dice.below(500)).unwrap();
        let variable = dice.pick(&["team", "owner", "none"]);
        let values = match variable {
            "owner" => dice.some(&OWNERS, 3),
            _ => dice.some(&TEAMS, 3),
        };
        let rows = TABLES
            .iter()
            .flat_map(|table| IDS.map(|id| Item::new(*table, id)))
            .map(|item| {
                let row = log.rows.get(&(item.table, item.id.clone()));
                (item.key(name), row.map(Item::stored))
            });
        Self {
            windows,
            scans,
            name,
            values: values.into_iter().map(str::to_owned).collect(),
            variable,
            times_ms: [world.now_ms - ago_ms, world.now_ms - ago_ms / 2],
            keys,
            rows: rows.collect(),
            head: log.head,
        }
    }

    /// The answers, each with what was asked.
    pub(super) async fn read(
        &self,
        database: &dyn Database,
        store: &Arc<dyn Store>,
    ) -> Vec<String> {
        let mut seen = Vec::new();
        for request in &self.windows {
            let answer = window(&**store, request.clone()).await;
            seen.push(format!("{request:?}: {answer:?}"));
        }
        for scan in &self.scans {
            let answer = page(&**store, scan.clone()).await;
            seen.push(format!("{scan:?}: {answer:?}"));
        }
        self.read_records(&**store, &mut seen).await;
        self.read_locked(&**store, &mut seen).await;
        for blob_id in BLOBS {
            let found = database
                .rows_with_blob(store, &partition(self.name), blob_id)
                .await;
            // A store that cannot tell is not compared.
            if let Some(mut found) = found {
                found.sort();
                seen.push(format!("{blob_id}: {found:?}"));
            }
        }
        seen
    }

    async fn read_records(&self, store: &dyn Store, seen: &mut Vec<String>) {
        let name = partition(self.name);
        for table in TABLES {
            let newest = store
                .newest_change(&name, table, self.variable, &self.values)
                .await
                .unwrap();
            seen.push(format!(
                "{table:?} {} {:?}: {newest:?}",
                self.variable, self.values
            ));
        }
        for key in &self.keys {
            let found = store.find_push_result(key).await.unwrap();
            seen.push(format!("{key:?}: {found:?}"));
        }
        seen.push(format!(
            "{:?}\n{:?}\n{:?}\n{:?}",
            store.list_partitions(None, 9).await.unwrap(),
            store.find_partition(&name).await.unwrap(),
            store.list_clients(&name, None, 9).await.unwrap(),
            store
                .retention_inputs(&name, self.times_ms[0], self.times_ms[1])
                .await
                .unwrap(),
        ));
    }

    async fn read_locked(&self, store: &dyn Store, seen: &mut Vec<String>) {
        let clients = CLIENTS.map(|name| ClientKey {
            partition: partition(self.name),
            client: client(name),
        });
        let wanted = LoadRequest {
            rows: self.rows.iter().map(|(key, _)| key.clone()).collect(),
            push_results: self.keys.clone(),
            clients: clients.to_vec(),
            ..lock(&[self.name])
        };
        let (_, loaded) = store.begin_write(wanted).await.unwrap();
        assert_eq!(loaded.gates[0].head, seq(self.head), "the generator's head");
        for ((key, expected), row) in self.rows.iter().zip(&loaded.rows) {
            assert_eq!(row, expected, "the generator's {key:?}");
        }
        seen.push(format!("{loaded:?}"));
    }
}

fn some_filter(dice: &mut super::dice::Dice) -> ScopeFilter {
    let (teams, owners) = (dice.some(&TEAMS, 4), dice.some(&OWNERS, 3));
    match dice.below(10) {
        0 => filter(&[]),
        1..5 => filter(&[("team", &teams)]),
        5..7 => filter(&[("owner", &owners)]),
        _ => filter(&[("team", &teams), ("owner", &owners)]),
    }
}

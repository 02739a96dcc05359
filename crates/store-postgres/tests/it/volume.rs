//! Thousands of rows and commits, where reading takes other ways than with a few.
//!
//! The memory store is the judge: it knows one way only.

use tidewater_model::{HorizonSeq, ScopeFilter};
use tidewater_store::{
    MemoryStore, Store,
    conformance::{
        SeenPage, SeenWindow,
        fixtures::{
            Draft, Item, NOTES, all_rows, epoch, filter, page, partition, schema, seq, touch,
            whole_log, window,
        },
    },
};
use tidewater_store_postgres::PostgresStore;

use crate::support::{TestDatabase, write};

struct Pair {
    database: TestDatabase,
    postgres: PostgresStore,
    memory: MemoryStore,
    head: u64,
    dice: u64,
}

impl Pair {
    async fn new(seed: u64) -> Self {
        let database = TestDatabase::new();
        let pair = Self {
            postgres: database.open(),
            database,
            memory: MemoryStore::new(),
            head: 0,
            dice: seed,
        };
        for store in pair.stores() {
            store.prepare(&schema()).await.unwrap();
            touch(store, "p").await;
        }
        pair
    }

    fn stores(&self) -> [&dyn Store; 2] {
        [&self.postgres, &self.memory]
    }

    /// A number below `end`.
    fn roll(&mut self, end: u64) -> u64 {
        let stepped = self.dice.wrapping_mul(6_364_136_223_846_793_005);
        self.dice = stepped.wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % end
    }

    /// Commits one draft to both.
    async fn commit(&mut self, fill: impl Fn(Draft) -> Draft) {
        self.head += 1;
        for store in self.stores() {
            write(store, [fill(Draft::new("p", self.head))]).await;
        }
    }

    /// A note in a large team, or in one of many small ones.
    fn item(&mut self, number: u64) -> Item {
        let team = match self.roll(10) {
            0..5 => "large".to_owned(),
            5 => "medium".to_owned(),
            _ => format!("s{}", self.roll(40)),
        };
        let owner = format!("o{}", self.roll(3));
        // Ids without order, of different lengths.
        let id = format!("{:x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8);
        Item::note(&id).team(&team).owner(&owner)
    }

    fn filter(&mut self) -> ScopeFilter {
        let small: Vec<String> = (0..self.roll(60)).map(|n| format!("s{n}")).collect();
        let mut teams: Vec<&str> = small.iter().map(String::as_str).collect();
        if self.roll(2) == 0 {
            teams.push("large");
        }
        if self.roll(2) == 0 {
            teams.push("medium");
        }
        teams.push("nobody");
        match self.roll(4) {
            0 => filter(&[("team", &["large"])]),
            1 => filter(&[("team", &teams), ("owner", &["o1", "o2"])]),
            2 => filter(&[("owner", &["o0"]), ("team", &["s1", "s2"])]),
            _ => filter(&[("team", &teams)]),
        }
    }

    async fn compare_scans(&mut self, filter: &ScopeFilter) {
        let rows_max = [1, 7, 63, 64, 65, 500, 5_000][usize::try_from(self.roll(7)).unwrap()];
        let bytes_max = [1 << 20, 3_000][usize::try_from(self.roll(2)).unwrap()];
        let mut after = None;
        for _ in 0..8 {
            let scan = tidewater_store::RowScan {
                after: after.clone(),
                rows_max,
                bytes_max,
                ..all_rows("p", NOTES, filter.clone())
            };
            let [ours, theirs]: [SeenPage; 2] = [
                page(&self.postgres, scan.clone()).await,
                page(&self.memory, scan.clone()).await,
            ];
            assert_eq!(ours, theirs, "{scan:?}");
            if !ours.has_more {
                break;
            }
            after = ours.rows.last().map(|(id, ..)| id.clone());
        }
    }

    async fn compare_windows(&mut self, filter: &ScopeFilter) {
        let changes_max = [1, 10, 1_000, 10_000][usize::try_from(self.roll(4)).unwrap()];
        let bytes_max = [1 << 20, 2_000][usize::try_from(self.roll(2)).unwrap()];
        let mut after = seq(self.roll(self.head));
        for _ in 0..8 {
            let request = tidewater_store::WindowRequest {
                after,
                through: seq(self.head - self.roll(3)),
                changes_max,
                bytes_max,
                ..whole_log("p", NOTES, filter.clone())
            };
            let [ours, theirs]: [SeenWindow; 2] = [
                window(&self.postgres, request.clone()).await,
                window(&self.memory, request.clone()).await,
            ];
            assert_eq!(ours, theirs, "{request:?}");
            let Some(last) = ours.seqs().last().copied().filter(|_| !ours.exhausted) else {
                break;
            };
            after = seq(last);
        }
    }
}

#[tokio::test]
async fn every_way_to_find_rows_finds_the_same_rows() {
    let mut pair = Pair::new(1).await;
    for batch in 0..6 {
        let items: Vec<Item> = (0..500).map(|n| pair.item(batch * 500 + n)).collect();
        pair.commit(|draft| items.iter().fold(draft, |draft, item| draft.insert(item)))
            .await;
    }
    for _ in 0..60 {
        let filter = pair.filter();
        pair.compare_scans(&filter).await;
    }
}

#[tokio::test]
async fn rows_that_lie_dense_and_then_sparse_are_all_found() {
    let mut pair = Pair::new(4).await;
    for batch in 0..8 {
        let items: Vec<Item> = (batch * 500..batch * 500 + 500)
            .map(|number: u64| {
                let is_found = !(700..=3_800).contains(&number) || number.is_multiple_of(50);
                let team = if is_found { "large" } else { "other" };
                Item::note(&format!("{number:05}")).team(team)
            })
            .collect();
        pair.commit(|draft| items.iter().fold(draft, |draft, item| draft.insert(item)))
            .await;
    }
    for teams in [&["large"][..], &["large", "nobody"]] {
        for _ in 0..10 {
            pair.compare_scans(&filter(&[("team", teams)])).await;
        }
    }
}

#[tokio::test]
async fn every_way_to_find_commits_finds_the_same_commits() {
    let mut pair = Pair::new(2).await;
    for number in 0..2_500 {
        let mut items = vec![pair.item(3 * number)];
        if pair.roll(4) == 0 {
            items.push(pair.item(3 * number + 1));
            items.push(pair.item(3 * number + 2));
        }
        pair.commit(|draft| items.iter().fold(draft, |draft, item| draft.insert(item)))
            .await;
    }
    for _ in 0..60 {
        let filter = pair.filter();
        pair.compare_windows(&filter).await;
    }
}

#[tokio::test]
async fn a_long_log_is_pruned_piece_by_piece_and_wholly() {
    let mut pair = Pair::new(3).await;
    for batch in 0..30 {
        let items: Vec<Item> = (0..500).map(|n| pair.item(batch * 500 + n)).collect();
        pair.commit(|draft| items.iter().fold(draft, |draft, item| draft.insert(item)))
            .await;
    }
    let horizon = HorizonSeq::at(seq(28));
    for store in pair.stores() {
        let pruned = store.prune(&partition("p"), &epoch("e1"), horizon).await;
        assert_eq!(pruned.unwrap().removed_commits, 28);
    }
    for _ in 0..10 {
        let filter = pair.filter();
        pair.compare_windows(&filter).await;
        pair.compare_scans(&filter).await;
    }
    let database = &pair.database;
    for table in ["sync_changes", "sync_change_scopes", "sync_commits"] {
        let first = database.number(&format!("SELECT min(commit_seq) FROM {table}"));
        assert_eq!(first, 29, "{table}");
    }
}

//! Whatever happens between two pulls, a client that does as it is told ends with the rows that
//! are there.
//!
//! The clients here are as simple as the protocol allows: they clear their rows only when they
//! asked with cursor −1 and without a token (OQ-1), take pages in any delivery, and start over
//! when they are reset.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidewater_store::{RowScan, Store};
use tidewater_wire::{MediaType, RowsSegment, SubStatus, Subscription};

use super::{image_rows, notes, resumed};
use crate::{
    EngineConfig,
    testing::{Ask, SEGMENT_LIFETIME_MS, SeenPage, TestServer, Write, identity, note, partition},
};

#[derive(Clone, Debug)]
enum Step {
    /// Rows to write; those that exist are deleted instead if the flag says so.
    Write(Vec<(usize, bool)>),
    Pull {
        client: usize,
        changes: i32,
        rows: i32,
        pages: i32,
        accept: u8,
    },
    /// Prunes all but so many commits.
    Prune(i64),
    ExpireSegments,
}

fn step() -> impl Strategy<Value = Step> {
    let accept = prop::sample::select(vec![0b0001, 0b0010, 0b0011, 0b0110, 0b0111]);
    prop_oneof![
        4 => prop::collection::vec((0..IDS.len(), any::<bool>()), 1..4).prop_map(Step::Write),
        6 => (0..3usize, 1..4i32, 1..4i32, 1..3i32, accept).prop_map(
            |(client, changes, rows, pages, accept)| {
                Step::Pull { client, changes, rows, pages, accept }
            }
        ),
        1 => (0..6i64).prop_map(Step::Prune),
        1 => Just(Step::ExpireSegments),
    ]
}

/// Every second row is of team `t1`, which the clients follow.
const IDS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

fn team(row: usize) -> &'static str {
    if row.is_multiple_of(2) { "t1" } else { "t2" }
}

/// Rows as text with their versions, by row id.
type Rows = BTreeMap<String, String>;

struct Replica {
    id: String,
    rows: Rows,
    cursor: i64,
    token: Option<String>,
}

impl Replica {
    fn new(number: usize) -> Self {
        Self {
            id: format!("c{number}"),
            rows: Rows::new(),
            cursor: -1,
            token: None,
        }
    }

    fn subscription(&self) -> Subscription {
        resumed(self.token.as_deref(), self.cursor)
    }

    /// Pulls once and does what the answer says. Whether anything came.
    async fn pull(&mut self, server: &TestServer, limits: (i32, i32, i32), accept: u8) -> bool {
        let (changes, rows, pages) = limits;
        let ask = Ask::pull([self.subscription()])
            .of_client(&self.id)
            .limited(changes, rows, pages)
            .accepting(accept);
        let answer = server.round(ask).await;
        let section = answer.section();
        if section.start.status == SubStatus::Reset {
            (self.cursor, self.token) = (-1, None);
            return true;
        }
        if section.start.bootstrap && self.cursor == -1 && self.token.is_none() {
            self.rows.clear();
        }
        for page in &section.pages {
            self.import(server, page).await;
        }
        for commit in &section.commits {
            for change in &commit.changes {
                match &change.row {
                    Some(row) => {
                        let text = server.text("notes", &row.row);
                        let text = format!("{text}@{}", row.row_version);
                        self.rows.insert(change.row_id.to_string(), text);
                    }
                    None => drop(self.rows.remove(&*change.row_id)),
                }
            }
        }
        self.cursor = section.next_cursor();
        self.token = section.token().map(str::to_owned);
        section.start.bootstrap || !section.commits.is_empty()
    }

    async fn import(&mut self, server: &TestServer, page: &SeenPage) {
        let fetched;
        let segment = match page {
            SeenPage::Inline(segment) => segment,
            SeenPage::External(reference) => {
                let header = r#"{"team_id":["t1"]}"#;
                let id = &*reference.segment_id;
                let grant = server
                    .engine
                    .segment(&identity(), id, header)
                    .await
                    .unwrap();
                let bytes = grant.open(None).await.unwrap().unwrap();
                let bytes = bytes.collect(usize::MAX).await.unwrap();
                if reference.media_type == MediaType::Sqlite {
                    for text in image_rows(&bytes).1 {
                        let id = text.split('|').next().unwrap().to_owned();
                        self.rows.insert(id, text);
                    }
                    return;
                }
                fetched = RowsSegment::decode(&bytes).unwrap();
                &fetched
            }
        };
        for row in segment.blocks.iter().flatten() {
            let text = server.text("notes", &row.row);
            let id = text.split('|').next().unwrap().to_owned();
            self.rows
                .insert(id, format!("{text}@{}", row.server_version));
        }
    }
}

async fn stored(server: &TestServer) -> Rows {
    let scan = RowScan {
        partition: partition(),
        table: server.engine.schema().find("notes").unwrap(),
        filter: notes(0).scopes,
        after: None,
        rows_max: IDS.len(),
        bytes_max: usize::MAX,
    };
    let page = server.store.scan_rows(scan).await.unwrap();
    page.rows()
        .map(|row| {
            let text = server.text("notes", row.payload);
            (row.row_id.to_owned(), format!("{text}@{}", row.row_version))
        })
        .collect()
}

async fn run(steps: Vec<Step>) {
    // Small enough that one or two rows go inline and three do not.
    let config = EngineConfig {
        inline_segment_bytes_max: 150,
        ..EngineConfig::default()
    };
    let server = TestServer::start_with(config).await;
    let mut exists = [false; IDS.len()];
    let mut head = 0;
    let mut replicas: Vec<Replica> = (0..3).map(Replica::new).collect();
    for step in steps {
        match step {
            Step::Write(rows) => {
                let mut writes = Vec::new();
                for (row, delete) in rows {
                    let write = if delete && exists[row] {
                        Write::Delete("notes", IDS[row])
                    } else {
                        note(IDS[row], team(row), "x")
                    };
                    exists[row] = matches!(write, Write::Upsert(..));
                    writes.push(write);
                }
                head = server.commit(&writes).await;
            }
            Step::Pull {
                client,
                changes,
                rows,
                pages,
                accept,
            } => {
                replicas[client]
                    .pull(&server, (changes, rows, pages), accept)
                    .await;
            }
            Step::Prune(kept) => server.prune_to((head - kept).max(0)).await,
            Step::ExpireSegments => server.clock.advance_ms(SEGMENT_LIFETIME_MS),
        }
    }
    let expected = stored(&server).await;
    for mut replica in replicas {
        let mut rounds = 0;
        while replica.pull(&server, (0, 0, 0), 0b0111).await {
            rounds += 1;
            assert!(rounds < 20, "client {} does not come to rest", replica.id);
        }
        assert_eq!(replica.cursor, head);
        assert_eq!(replica.rows, expected, "client {}", replica.id);
    }
}

proptest! {
    #[test]
    fn every_client_ends_with_the_rows_that_are_there(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(run(steps));
    }
}

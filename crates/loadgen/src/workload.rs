//! What each client pushes, as a function of the seed: the same run twice sends the same rows.
//!
//! **Invariant:** [`Workload::commit`] has no state. The check after a run asks for the commits
//! again, so the generator remembers 24 bytes of an acknowledged commit and not its rows.

use bytestring::ByteString;
use tidewater_wire::{Operation, OperationAction, PushCommit, WireVersion};

use crate::table::{Cells, Table, row_id};

/// The shape of pushed commits.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) table: Table,
    pub(crate) version: WireVersion,
    /// Tells runs apart on a server that remembers earlier ones.
    pub(crate) run_id: String,
    pub(crate) seed: u64,
    /// Rows in the table that updates go to.
    pub(crate) rows: u32,
    /// Operations in one commit.
    pub(crate) operations: u32,
    /// How many of 100 operations insert a new row.
    pub(crate) insert_percent: u8,
    /// Updates write two columns instead of all.
    pub(crate) patch: bool,
    /// Clients write to rows of their own list only.
    pub(crate) own_list: bool,
}

/// One commit before it is encoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    pub(crate) id: ByteString,
    pub(crate) writes: Vec<Write>,
}

/// One row write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) row_id: ByteString,
    pub(crate) list: u32,
    pub(crate) cells: Cells,
    pub(crate) patch: bool,
    /// The row did not exist before.
    pub(crate) is_insert: bool,
}

impl Workload {
    /// The list that a client subscribes to.
    pub(crate) fn list_of(&self, client: u32) -> u32 {
        client % self.table.lists()
    }

    /// The `number`th commit of `client`. Its rows are distinct when the table has enough.
    pub(crate) fn commit(&self, client: u32, number: u32) -> Planned {
        let stamp = mix(mix(self.seed, client), number);
        let mut random = fastrand::Rng::with_seed(stamp);
        let first = random.u32(0..FIRST_ROW_MAX);
        let writes = (0..self.operations)
            .map(|index| {
                let row_stamp = mix(stamp, index);
                if random.u8(0..100) < self.insert_percent {
                    self.insert(client, number, index, row_stamp)
                } else {
                    self.update(client, first + index, row_stamp)
                }
            })
            .collect();
        Planned {
            id: format!("{}-{client}-{number}", self.run_id).into(),
            writes,
        }
    }

    fn insert(&self, client: u32, number: u32, index: u32, stamp: u64) -> Write {
        let row_id = format!("new-{}-{client}-{number}-{index}", self.run_id);
        let list = match self.own_list {
            true => self.list_of(client),
            false => index % self.table.lists(),
        };
        Write {
            cells: self.table.cells(&row_id, list, stamp),
            row_id: row_id.into(),
            list,
            patch: false,
            is_insert: true,
        }
    }

    fn update(&self, client: u32, position: u32, stamp: u64) -> Write {
        let lists = self.table.lists();
        let row = if self.own_list {
            let list = self.list_of(client);
            let rows_of_list = (self.rows.saturating_sub(list)).div_ceil(lists).max(1);
            position % rows_of_list * lists + list
        } else {
            position % self.rows
        };
        Write {
            patch: self.patch && self.version.is_sparse(),
            ..self.row(row, stamp)
        }
    }

    /// The `index`th row as the fill writes it.
    pub(crate) fn filled(&self, index: u32) -> Write {
        self.row(index, mix(mix(self.seed, FILL), index))
    }

    fn row(&self, index: u32, stamp: u64) -> Write {
        let row_id = row_id(index);
        let list = index % self.table.lists();
        Write {
            cells: self.table.cells(&row_id, list, stamp),
            row_id,
            list,
            patch: false,
            is_insert: false,
        }
    }

    /// Encodes a commit for the wire.
    pub(crate) fn encode(&self, planned: &Planned) -> PushCommit {
        let operations = planned
            .writes
            .iter()
            .map(|write| Operation {
                table: self.table.name.clone(),
                row_id: write.row_id.clone(),
                action: OperationAction::Upsert(self.table.payload(
                    &write.cells,
                    write.patch,
                    self.version,
                )),
                base_version: None,
            })
            .collect();
        PushCommit {
            client_commit_id: planned.id.clone(),
            operations,
        }
    }
}

/// Leaves room above it for the rows of a commit: a sum that wraps would name a row twice.
const FIRST_ROW_MAX: u32 = 1 << 30;

/// Takes the place of a client number; there are never that many clients.
const FILL: u32 = u32::MAX;

/// One step of SplitMix64: a stamp from a stamp and a number.
fn mix(stamp: u64, number: u32) -> u64 {
    let mut mixed = stamp
        .wrapping_add(u64::from(number))
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    pub(crate) fn workload() -> Workload {
        Workload {
            table: Table::new(6, 1, 4).unwrap(),
            version: WireVersion::V3,
            run_id: "r1".to_owned(),
            seed: 1,
            rows: 100,
            operations: 10,
            insert_percent: 0,
            patch: false,
            own_list: false,
        }
    }

    #[test]
    fn the_same_seed_plans_the_same_commits() {
        let other_seed = Workload {
            seed: 2,
            ..workload()
        };
        assert_eq!(workload().commit(3, 4), workload().commit(3, 4));
        assert_ne!(workload().commit(3, 4), other_seed.commit(3, 4));
        assert_ne!(
            workload().commit(3, 4).writes,
            workload().commit(4, 3).writes
        );
    }

    #[test]
    fn the_rows_of_a_commit_are_distinct_and_exist() {
        for number in 0..50 {
            let writes = workload().commit(0, number).writes;
            let ids: BTreeSet<ByteString> = writes.iter().map(|w| w.row_id.clone()).collect();
            assert_eq!(ids.len(), 10);
            assert!(ids.iter().all(|id| *id < row_id(100)));
        }
    }

    #[test]
    fn a_client_with_its_own_list_stays_in_it() {
        let own = Workload {
            own_list: true,
            insert_percent: 30,
            rows: 10,
            ..workload()
        };
        for client in 0..8 {
            for write in own.commit(client, 1).writes {
                assert_eq!(write.list, client % 4);
                let exists = (0..10).any(|index| row_id(index) == write.row_id);
                assert!(write.is_insert || exists, "{}", write.row_id);
            }
        }
    }

    #[test]
    fn the_share_of_inserts_is_what_was_asked_for() {
        let share = |insert_percent| {
            let shaped = Workload {
                insert_percent,
                operations: 1000,
                ..workload()
            };
            let writes = shaped.commit(0, 0).writes;
            writes.iter().filter(|write| write.is_insert).count()
        };
        assert_eq!(share(0), 0);
        assert_eq!(share(100), 1000);
        assert!((400..600).contains(&share(50)));
    }
}

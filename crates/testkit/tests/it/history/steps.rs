//! What can happen in a history, and how to draw one.

use proptest::{collection::vec, prelude::*, sample::select};

/// The most rows a table has for each team.
pub(super) const ROWS_PER_TEAM: usize = 4;

/// One thing that happens.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A device writes a commit, offline or not: it goes to the outbox.
    Write {
        client: usize,
        operations: Vec<OperationStep>,
    },
    /// A device sends some of its outbox and asks for news.
    Sync(SyncStep),
    /// The network delivers an old request once more. Nobody waits for the answer.
    Duplicate { client: usize, back: usize },
    /// A device sends other operations under the id of a commit that it sent before.
    Reuse {
        client: usize,
        back: usize,
        operations: Vec<OperationStep>,
    },
    /// An actor's grants change: groups of teams, as bits.
    Grant { actor: usize, groups: u8 },
    /// Days pass.
    Wait { days: i64 },
    /// The log is pruned as far as it goes, but for so many commits.
    Prune { retained: u64 },
    /// The server restarts.
    Restart,
    /// An operator keeps a backup, in place of an earlier one.
    BackUp,
    /// An operator puts the databases back to the backup, if there is one.
    Restore,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SyncStep {
    pub(super) client: usize,
    /// How many commits of the outbox go along, oldest first.
    pub(super) commits: usize,
    pub(super) pull: bool,
    /// Whether the answer never arrives.
    pub(super) lost: bool,
    /// Changes in a section, rows in a page, pages in a section.
    pub(super) limits: (i32, i32, i32),
    /// Pages by reference only.
    pub(super) external: bool,
    /// Whether the resolver of scopes fails.
    pub(super) failing: bool,
}

/// One operation, before it is known what the device has seen of its row.
#[derive(Clone, Debug)]
pub(super) struct OperationStep {
    pub(super) table: usize,
    pub(super) team: usize,
    pub(super) row: usize,
    pub(super) kind: KindStep,
}

#[derive(Clone, Debug)]
pub(super) enum KindStep {
    /// In wire version 3 only the columns with a bit in `present`, and the key.
    Upsert {
        present: u16,
        values: u8,
        base: Base,
    },
    /// An update that names another team than the row's.
    Move {
        base: i64,
    },
    Delete,
    /// Something that is no row of the table.
    Garbage(Garbage),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Garbage {
    UnknownTable,
    OtherKey,
    Truncated,
}

/// The base version an author gives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base {
    Absent,
    /// The version the device has.
    Seen,
    Exactly(i64),
}

/// Up to so many steps.
pub(super) fn history(steps_max: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), steps_max / 4..=steps_max)
}

fn step() -> impl Strategy<Value = Step> {
    let write = (client(), operations())
        .prop_map(|(client, operations)| Step::Write { client, operations });
    let duplicate =
        (client(), 0..4_usize).prop_map(|(client, back)| Step::Duplicate { client, back });
    let reuse =
        (client(), 0..4_usize, operations()).prop_map(|(client, back, operations)| Step::Reuse {
            client,
            back,
            operations,
        });
    // Most grants are whole: what was revoked comes back.
    let groups = prop_oneof![2 => Just(0b11), 1 => 0..0b11_u8];
    let grant = (0..3_usize, groups).prop_map(|(actor, groups)| Step::Grant { actor, groups });
    prop_oneof![
        14 => write,
        20 => sync().prop_map(Step::Sync),
        2 => duplicate,
        1 => reuse,
        1 => grant,
        2 => (5..30_i64).prop_map(|days| Step::Wait { days }),
        2 => (0..6_u64).prop_map(|retained| Step::Prune { retained }),
        1 => Just(Step::Restart),
        1 => Just(Step::BackUp),
        1 => Just(Step::Restore),
    ]
}

fn client() -> impl Strategy<Value = usize> {
    0..super::world::CLIENTS.len()
}

fn sync() -> impl Strategy<Value = SyncStep> {
    let flags = (
        prop::bool::weighted(0.85),
        prop::bool::weighted(0.2),
        any::<bool>(),
        prop::bool::weighted(0.03),
    );
    (client(), 0..4_usize, flags, (1..6_i32, 1..4_i32, 1..3_i32)).prop_map(
        |(client, commits, (pull, lost, external, failing), limits)| SyncStep {
            client,
            // A request that asks for nothing does not exist.
            commits: if pull { commits } else { commits.max(1) },
            pull,
            lost,
            limits,
            external,
            failing,
        },
    )
}

fn operations() -> impl Strategy<Value = Vec<OperationStep>> {
    vec(operation(), 1..4)
}

fn operation() -> impl Strategy<Value = OperationStep> {
    (0..2_usize, 0..3_usize, 0..ROWS_PER_TEAM, kind()).prop_map(|(table, team, row, kind)| {
        OperationStep {
            table,
            team,
            row,
            kind,
        }
    })
}

fn kind() -> impl Strategy<Value = KindStep> {
    let base = prop_oneof![
        6 => Just(Base::Absent),
        4 => Just(Base::Seen),
        1 => Just(Base::Exactly(0)),
        1 => (-1..5_i64).prop_map(Base::Exactly),
    ];
    // Many rows are whole, so that rows come to be.
    let present = prop_oneof![Just(u16::MAX), any::<u16>()];
    let upsert =
        (present, any::<u8>(), base).prop_map(|(present, values, base)| KindStep::Upsert {
            present,
            values,
            base,
        });
    let garbage = select(vec![
        Garbage::UnknownTable,
        Garbage::OtherKey,
        Garbage::Truncated,
    ]);
    prop_oneof![
        16 => upsert,
        5 => Just(KindStep::Delete),
        1 => (1..4_i64).prop_map(|base| KindStep::Move { base }),
        1 => garbage.prop_map(KindStep::Garbage),
    ]
}

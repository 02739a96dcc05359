//! What a delta holds, by what its receiver sees.

use tidewater_model::{ActorId, PartitionId, ScopeFilter, ScopeValues};
use tidewater_store::{
    AppliedCommit, ChangeWrite, PushKey, PushResultRecord, PushStatus, RowState,
};
use tidewater_wire::Response;

use super::*;
use crate::testing::SCHEMA;

fn scopes(team: &str) -> StoredScopes {
    StoredScopes::new(vec![("team_id".to_owned(), team.to_owned())]).unwrap()
}

/// `+n1 t1` writes a row, `-n1 t1` deletes it.
fn commit(changes: &[&str]) -> CommitWrite {
    let change = |text: &&str| {
        let (row, team) = text.split_once(' ').unwrap();
        let kind = if row.starts_with('+') {
            let row = RowState {
                row_version: 1,
                scopes: scopes(team),
                payload: Bytes::from_static(b"payload"),
                column_versions: None,
                blob_ids: None,
            };
            let scopes_before = None;
            ChangeKind::Upsert { row, scopes_before }
        } else {
            ChangeKind::Delete {
                scopes: scopes(team),
            }
        };
        ChangeWrite {
            table: TableIndex(0),
            row_id: row[1..].into(),
            op_index: 0,
            kind,
        }
    };
    let seq = CommitSeq::new(7).unwrap();
    CommitWrite {
        key: PushKey {
            partition: PartitionId::new("p"),
            client: ClientId::new("c"),
            client_commit_id: "x".into(),
        },
        actor: ActorId::new("ann"),
        result: PushResultRecord {
            status: PushStatus::Applied(seq),
            results: Vec::new(),
            recorded_at_ms: None,
            actor: None,
            schema_version: None,
            content_digest: None,
        },
        applied: Some(AppliedCommit {
            commit_seq: seq,
            created_at_ms: 5,
            changes: changes.iter().map(change).collect(),
            tombstones: Vec::new(),
            tombstones_cleared: Vec::new(),
            reactions: Vec::new(),
        }),
        bind_client_at_ms: None,
    }
}

fn registration(id: &str, teams: &[&str]) -> Registration {
    let values = ScopeValues {
        variable: "team_id".to_owned(),
        values: teams.iter().map(|team| (*team).to_owned()).collect(),
    };
    Registration {
        id: id.into(),
        table: TableIndex(0),
        schema_version: 3,
        effective: ScopeFilter::new(vec![values]).unwrap(),
    }
}

/// The delta for who holds these, in words; each registration is named by its teams.
fn delta(changes: &[&str], held: &[&[&str]], bytes_max: usize) -> Option<String> {
    let schema = Schema::from_json(SCHEMA).unwrap();
    let commit = commit(changes);
    let delivery = Delivery::of(&commit).unwrap();
    let held: Vec<Registration> = held
        .iter()
        .map(|teams| registration(&teams.join("+"), teams))
        .collect();
    let seen: Vec<Vec<usize>> = held
        .iter()
        .map(|registration| {
            let seen = delivery.changes.iter().enumerate();
            seen.filter(|(_, change)| registration.effective.matches(change.scopes))
                .map(|(index, _)| index)
                .collect()
        })
        .collect();
    let sections: Vec<Section<'_>> = held
        .iter()
        .zip(&seen)
        .filter(|(_, changes)| !changes.is_empty())
        .map(|(registration, changes)| Section {
            registration,
            changes,
        })
        .collect();
    let epoch = LogEpoch::new("e");
    let version = WireVersion::V3;
    let frame = encode(&schema, &epoch, version, &delivery, &sections, bytes_max).unwrap()?;
    assert!(frame.len() <= bytes_max);
    let mut words = Vec::new();
    for frame in Response::decode(&frame).unwrap().frames {
        match frame {
            ResponseFrame::Header(header) => assert_eq!(&*header.log_epoch, "e"),
            ResponseFrame::SubStart(start) => {
                assert!(!start.bootstrap && start.status == SubStatus::Active);
                words.push(format!("{}:", start.id));
            }
            ResponseFrame::Commit(commit) => {
                assert_eq!((commit.commit_seq, commit.created_at_ms), (7, 5));
                for change in &commit.changes {
                    let sign = if change.row.is_some() { '+' } else { '-' };
                    words.push(format!("{sign}{}", change.row_id));
                }
            }
            ResponseFrame::SubEnd(end) => assert_eq!(end.next_cursor, 7),
            other => panic!("not expected: {other:?}"),
        }
    }
    Some(words.join(" "))
}

#[track_caller]
fn check(changes: &[&str], held: &[&[&str]], expected: &str) {
    assert_eq!(delta(changes, held, 10_000).as_deref(), Some(expected));
}

#[test]
fn each_registration_has_a_section_with_what_it_sees() {
    let changes = ["+n1 t1", "+n2 t2", "-n3 t1", "+n4 t9"];
    check(&changes, &[&["t1"]], "t1: +n1 -n3");
    check(&changes, &[&["t2"], &["t1"]], "t2: +n2 t1: +n1 -n3");
    check(&changes, &[&["t1", "t2"]], "t1+t2: +n1 +n2 -n3");
}

#[test]
fn a_row_that_moves_to_another_registration_is_not_deleted_by_the_first() {
    let moved = ["-n1 t1", "+n1 t2"];
    check(&moved, &[&["t1"], &["t2"]], "t2: +n1");
    check(&moved, &[&["t2"], &["t1"]], "t2: +n1");
    check(&moved, &[&["t1"]], "t1: -n1");
    check(&moved, &[&["t1", "t2"]], "t1+t2: -n1 +n1");
}

#[test]
fn a_row_that_ends_deleted_is_deleted_for_everybody() {
    let back = ["+n1 t2", "-n1 t2", "-n2 t1"];
    check(&back, &[&["t1"], &["t2"]], "t1: -n2 t2: +n1 -n1");
}

#[test]
fn a_delta_over_the_limit_is_none() {
    assert_eq!(delta(&["+n1 t1"], &[&["t1"]], 6), None, "by its payload");
    assert_eq!(delta(&["+n1 t1"], &[&["t1"]], 50), None, "by its frames");
}

//! Who sees what, and what happens when that changes (§3.2, §3.3, §3.4).

use serde_json::json;
use syncular_client::{Mutation, WindowBase};
use tidewater_testkit::{
    InstanceSpec, ResolverMode, StoreKind,
    message::{commit, delete},
    scopes,
};
use tidewater_wire::WireVersion;

use crate::{
    raw::Raw,
    support::{Replica, World},
};

on_every_store!(
    a_revoked_scope_takes_its_rows_from_the_device,
    only_the_revoked_grant_is_taken,
    a_failing_resolver_forbids_writes_and_revokes_until_it_recovers,
    an_outage_of_the_resolver_revokes_nothing,
    rows_of_other_scopes_are_never_delivered,
    a_write_outside_the_allowed_scopes_is_refused,
    a_row_moved_to_another_team_by_one_commit_stays_with_a_device_that_sees_both,
    a_granted_parent_fences_a_wildcard_child_for_reads_and_writes,
    a_window_that_moves_loads_what_is_new_and_lets_go_of_what_is_out_of_it,
);

fn status(replica: &Replica, id: &str) -> String {
    replica.client.subscription_state(id).unwrap().status
}

fn a_revoked_scope_takes_its_rows_from_the_device(kind: StoreKind) {
    let world = World::of_notes(kind);
    let (mut alice, mut bob) = (world.replica("alice"), world.replica("bob"));
    alice.put("n1", "secret");
    alice.sync();
    bob.sync();
    assert_eq!(bob.titles().len(), 1);

    world.allow("bob", scopes([]));
    let report = bob.sync();
    assert_eq!(report.revoked, ["s1"]);
    assert_eq!(status(&bob, "s1"), "revoked");
    assert_eq!(bob.titles(), []);
    alice.sync();
    assert_eq!(alice.titles().len(), 1);

    world.allow("bob", scopes([("team_id", &["t1"])]));
    bob.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    bob.sync();
    bob.assert_agrees(&world);
}

fn only_the_revoked_grant_is_taken(kind: StoreKind) {
    let world = World::of_notes(kind);
    world.allow("alice", scopes([("team_id", &["t1", "t2"])]));
    world.allow("bob", scopes([("team_id", &["t1", "t2"])]));
    let mut alice = world.bare_replica("alice", "a");
    alice.subscribe("s1", "notes", &[("team_id", &["t1", "t2"])]);
    for (id, team) in [("n1", "t1"), ("n2", "t2")] {
        let values = crate::support::note(id, team, "x");
        let table = "notes".to_owned();
        alice.mutate(Mutation::Upsert {
            table,
            values,
            base_version: None,
        });
    }
    alice.sync();
    let mut bob = world.bare_replica("bob", "b");
    bob.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    bob.subscribe("s2", "notes", &[("team_id", &["t2"])]);
    bob.sync();
    assert_eq!(bob.titles().len(), 2);
    world.allow("bob", scopes([("team_id", &["t1"])]));
    let report = bob.sync();
    assert_eq!(report.revoked, ["s2"]);
    let ids: Vec<_> = bob.titles().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["n1"]);
    assert_eq!(status(&bob, "s1"), "active");
}

fn a_failing_resolver_forbids_writes_and_revokes_until_it_recovers(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.put("n1", "one");
    alice.sync();
    world.instance.resolver().set_mode(ResolverMode::Failing);
    let commit = alice.put("n2", "two");
    let report = alice.sync();
    assert_eq!(report.rejected, [commit]);
    assert_eq!(alice.client.rejections()[0].code, "sync.forbidden");
    assert_eq!(report.revoked, ["s1"]);
    assert_eq!(world.head(), 1);

    world.instance.resolver().set_mode(ResolverMode::Ok);
    alice.subscribe("s1", "notes", &[("team_id", &["t1"])]);
    alice.put("n3", "three");
    alice.sync();
    assert_eq!(world.head(), 2);
}

fn an_outage_of_the_resolver_revokes_nothing(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.put("n1", "one");
    alice.sync();
    world.instance.resolver().set_mode(ResolverMode::Outage);
    alice.put("n2", "two");
    assert_eq!(alice.failed_round(), "sync.auth_lease_required");
    assert_eq!(alice.titles().len(), 2);
    assert_eq!(status(&alice, "s1"), "active");
    world.instance.resolver().set_mode(ResolverMode::Ok);
    alice.sync();
    assert_eq!(world.head(), 2);
    alice.assert_agrees(&world);
}

fn rows_of_other_scopes_are_never_delivered(kind: StoreKind) {
    let world = World::of_notes(kind);
    world.allow("carol", scopes([("team_id", &["*"])]));
    let (mut bob, mut carol) = (world.replica("bob"), world.bare_replica("carol", "c"));
    bob.sync();
    carol.subscribe("s1", "notes", &[("team_id", &["t1", "t2"])]);
    for (id, team) in [("n1", "t1"), ("n2", "t2"), ("n3", "t2")] {
        let values = crate::support::note(id, team, "x");
        let table = "notes".to_owned();
        carol.mutate(Mutation::Upsert {
            table,
            values,
            base_version: None,
        });
    }
    carol.sync();
    bob.sync();
    let ids: Vec<_> = bob.titles().into_iter().map(|(id, ..)| id).collect();
    assert_eq!(ids, ["n1"]);
    // The cursor passes over commits that are none of its business.
    assert_eq!(bob.client.subscription_state("s1").unwrap().cursor, 3);
    carol.assert_agrees(&world);
}

fn a_write_outside_the_allowed_scopes_is_refused(kind: StoreKind) {
    let world = World::of_notes(kind);
    let mut alice = world.replica("alice");
    alice.sync();
    let values = crate::support::note("n1", "t2", "x");
    let table = "notes".to_owned();
    alice.mutate(Mutation::Upsert {
        table,
        values,
        base_version: None,
    });
    let report = alice.sync();
    assert_eq!(report.rejected.len(), 1);
    let rejection = &alice.client.rejections()[0];
    assert_eq!(
        (rejection.code.as_str(), rejection.retryable),
        ("sync.forbidden", false)
    );
    assert_eq!(world.head(), 0);
    assert_eq!(json!(world.rows("notes")), json!([]));
}

fn a_row_moved_to_another_team_by_one_commit_stays_with_a_device_that_sees_both(kind: StoreKind) {
    for order in [["t1", "t2"], ["t2", "t1"]] {
        let world = World::of_notes(kind);
        for actor in ["alice", "bob"] {
            world.allow(actor, scopes([("team_id", &["t1", "t2"])]));
        }
        let mut bob = world.bare_replica("bob", "b");
        for team in order {
            bob.subscribe(team, "notes", &[("team_id", &[team])]);
        }
        let raw = Raw::ready(&world, "alice", "a", WireVersion::V3);
        let put = |team: &str, base| {
            let values = crate::support::whole_note("n1", team, "x");
            raw.author.upsert("notes", &values, base)
        };
        raw.apply(commit("k1", vec![put("t1", None)]));
        bob.sync();
        for (id, team) in [("k2", "t2"), ("k3", "t1")] {
            raw.apply(commit(id, vec![delete("notes", "n1"), put(team, None)]));
            bob.sync();
            bob.assert_agrees(&world);
        }
    }
}

fn a_granted_parent_fences_a_wildcard_child_for_reads_and_writes(kind: StoreKind) {
    let schema = json!({ "version": 1, "tables": [{
        "name": "tasks", "primaryKey": "id",
        "columns": [
            { "name": "id", "type": "string", "nullable": false },
            { "name": "org_id", "type": "string", "nullable": false },
            { "name": "project_id", "type": "string", "nullable": false },
        ],
        "scopes": [
            { "pattern": "org:{org_id}", "column": "org_id" },
            { "pattern": "project:{project_id}", "column": "project_id" },
        ],
    }] });
    let world = World::new(kind, InstanceSpec::new(schema));
    world.allow("root", scopes([("org_id", &["*"]), ("project_id", &["*"])]));
    world.allow(
        "alice",
        scopes([("org_id", &["o1"]), ("project_id", &["*"])]),
    );
    let write = |replica: &mut Replica, id: &str, org: &str| {
        let values = json!({ "id": id, "org_id": org, "project_id": "p1" });
        replica.mutate(Mutation::Upsert {
            table: "tasks".to_owned(),
            values: crate::support::object(values),
            base_version: None,
        })
    };
    let mut root = world.bare_replica("root", "r");
    write(&mut root, "t1", "o1");
    write(&mut root, "t2", "o2");
    root.sync();

    // Whatever is asked for, the parent's grant is the wall: nothing of o2 is read or written.
    let mut alice = world.bare_replica("alice", "a");
    alice.subscribe(
        "s1",
        "tasks",
        &[("org_id", &["o1", "o2"]), ("project_id", &["p1"])],
    );
    alice.sync();
    let refused = write(&mut alice, "t3", "o2");
    write(&mut alice, "t4", "o1");
    let report = alice.sync();
    assert_eq!(report.rejected, [refused]);
    assert_eq!(alice.client.rejections()[0].code, "sync.forbidden");
    let rows = alice.client.read_rows("tasks").unwrap();
    let ids: Vec<_> = rows.iter().map(|row| row.row_id.as_str()).collect();
    assert_eq!(ids, ["t1", "t4"]);
    let stored: Vec<_> = world
        .rows("tasks")
        .into_iter()
        .map(|row| row.row_id)
        .collect();
    assert_eq!(stored, ["t1", "t2", "t4"]);
}

fn a_window_that_moves_loads_what_is_new_and_lets_go_of_what_is_out_of_it(kind: StoreKind) {
    let world = World::of_notes(kind);
    for actor in ["alice", "bob"] {
        world.allow(actor, scopes([("team_id", &["t1", "t2", "t3"])]));
    }
    let mut alice = world.bare_replica("alice", "a");
    for (id, team) in [("n1", "t1"), ("n2", "t2"), ("n3", "t3")] {
        alice.mutate(Mutation::Upsert {
            table: "notes".to_owned(),
            values: crate::support::note(id, team, "x"),
            base_version: None,
        });
    }
    alice.sync();

    let base = WindowBase {
        table: "notes".to_owned(),
        variable: "team_id".to_owned(),
        fixed_scopes: Vec::new(),
        params: None,
    };
    let mut bob = world.bare_replica("bob", "b");
    let moved = |bob: &mut Replica, units: &[&str], expected: &[&str]| {
        let units: Vec<_> = units.iter().map(|&unit| unit.to_owned()).collect();
        bob.client.set_window(&base, &units).unwrap();
        let report = bob.sync();
        let state = bob.client.window_state(&base);
        assert_eq!((state.units, state.pending.len()), (units, 0));
        let ids: Vec<_> = bob.titles().into_iter().map(|(id, ..)| id).collect();
        assert_eq!(ids, expected);
        report.segment_rows_applied
    };
    assert_eq!(moved(&mut bob, &["t1", "t2"], &["n1", "n2"]), 2);
    // Only what is new to the window is loaded.
    assert_eq!(moved(&mut bob, &["t2", "t3"], &["n2", "n3"]), 1);
    assert_eq!(moved(&mut bob, &["t2"], &["n2"]), 0);
    assert_eq!(moved(&mut bob, &["t1", "t2", "t3"], &["n1", "n2", "n3"]), 2);
}

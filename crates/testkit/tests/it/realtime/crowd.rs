//! Sockets that nobody reads, among others: they cost little, do not last, and nobody else
//! notices (§8.2, §8.7).

use serde_json::{Value, json};
use tidewater_testkit::{InstanceLimits, InstanceSpec, StoreKind, message::teams, schema, scopes};
use tidewater_wire::WireVersion;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::party::Party;
use crate::{raw::Raw, support::World};

on_each_database!(
    sockets_that_nobody_reads_hold_little_and_are_cut_off,
    a_socket_that_nobody_reads_delays_nobody,
);

/// Sockets that nobody reads.
const CROWD: usize = 100;
/// What may wait for each of them in the hub.
const MAILBOX_BYTES: usize = 64 * 1024;
/// More commits than it takes to fill whatever the system keeps for a connection.
const COMMITS_MAX: u32 = 600;

fn world(kind: StoreKind, write_timeout_ms: u64) -> World {
    let spec = InstanceSpec {
        limits: InstanceLimits {
            max_mailbox_bytes: Some(MAILBOX_BYTES),
            socket_write_timeout_ms: Some(write_timeout_ms),
            ..InstanceLimits::default()
        },
        ..InstanceSpec::new(schema::notes(1).json())
    };
    let world = World::new(kind, spec);
    world.allow("alice", scopes([("team_id", &["t1"])]));
    world
}

/// A socket of a client that is up to date, with a small window, that is not read.
fn unread(world: &World, client_id: &str) -> TcpStream {
    let raw = Raw::ready(world, "alice", client_id, WireVersion::V3);
    raw.pull(vec![teams("s1", &["t1"], -1)]);
    let url = world.url.strip_prefix("http://").unwrap();
    let (address, path) = url.split_at(url.find('/').unwrap());
    let request = format!(
        "GET {path}/realtime?clientId={client_id} HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer alice\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    world.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let mut stream = socket.connect(address.parse().unwrap()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 101");
        stream
    })
}

/// Commits of a good size until this holds.
fn commit_until(world: &World, raw: &Raw, what: &str, holds: impl Fn(u32) -> bool) {
    let body = "x".repeat(60_000);
    for number in 0..COMMITS_MAX {
        let id = format!("big-{}", number % 4);
        let values: Value = json!({
            "id": id, "team_id": "t1", "title": body, "stars": number, "done": null,
            "meta": null, "body": null,
        });
        let operation = raw.author.upsert("notes", &values, None);
        let commit = tidewater_testkit::message::commit(&format!("c{number}"), vec![operation]);
        raw.apply(commit);
        if holds(number) {
            return;
        }
    }
    let usage = world.block_on(world.instance.usage());
    panic!("it never came true that {what}: {usage:?}");
}

fn sockets_that_nobody_reads_hold_little_and_are_cut_off(kind: StoreKind) {
    let world = world(kind, 300);
    let crowd: Vec<_> = (0..CROWD)
        .map(|number| unread(&world, &format!("unread-{number}")))
        .collect();
    let mut party = Party::new(&world);
    let reader = party.join(&world.url, "alice", "reader", &["t1"]);
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    let bound = MAILBOX_BYTES * (CROWD + 1) * 2;
    commit_until(&world, &writer, "nobody is left but who reads", |_| {
        let stats = world.block_on(world.instance.realtime());
        assert!(stats.queued_bytes <= bound, "{stats:?}");
        let usage = world.block_on(world.instance.usage());
        usage.sockets_stuck >= sockets_of(CROWD)
    });
    let usage = world.block_on(world.instance.usage());
    assert_eq!(usage.sockets_stuck, sockets_of(CROWD));
    drop(crowd);
    party.until_converged(&world);
    assert_eq!(party.devices[reader].losses, 0);
    let stats = world.block_on(world.instance.realtime());
    assert_eq!((stats.sessions, stats.queued_bytes), (1, 0));
}

fn a_socket_that_nobody_reads_delays_nobody(kind: StoreKind) {
    // It is never cut off.
    let world = world(kind, 600_000);
    let stuck = unread(&world, "unread");
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let other = party.join(&world.url, "alice", "b", &["t1"]);
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    commit_until(&world, &writer, "a socket is suppressed", |_| {
        world
            .block_on(world.instance.realtime())
            .suppressed_sessions
            > 0
    });
    party.until_converged(&world);
    let (rounds, deltas) = (party.devices[other].rounds, party.devices[other].deltas);
    for number in 0..20 {
        let title = format!("edit {number}");
        party.devices[alice].put("n1", "t1", &title);
        party.until("the other device sees the edit", |devices| {
            devices[other].title("n1").as_deref() == Some(&title)
        });
    }
    assert_eq!(party.devices[other].rounds, rounds);
    assert_eq!(party.devices[other].deltas, deltas + 20);
    drop(stuck);
    party.until_converged(&world);
}

fn sockets_of(count: usize) -> u64 {
    u64::try_from(count).unwrap()
}

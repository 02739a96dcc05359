//! Sockets that nobody reads, among others: they cost little, do not last, and nobody else
//! notices (§8.2, §8.7).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tidewater_testkit::{
    InstanceLimits, InstanceSpec, StoreKind,
    message::{self, Answer, teams},
    schema, scopes,
};
use tidewater_wire::WireVersion;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::channel::Channel;
use crate::{party::Party, raw::Raw, support::World};

on_each_database!(
    sockets_that_nobody_reads_hold_little_and_are_cut_off,
    a_socket_that_nobody_reads_delays_nobody,
    everybody_at_once_is_let_in_and_the_server_stays_well,
);

/// Sockets that nobody reads.
const CROWD: usize = 100;
/// What may wait for each of them in the hub.
const MAILBOX_BYTES: usize = 256 * 1024;
const BODY_BYTES: usize = 60_000;
/// More than whatever the system keeps for a connection.
const COMMITS: u32 = 150;

fn world(kind: StoreKind, limits: InstanceLimits) -> World {
    let spec = InstanceSpec {
        limits: InstanceLimits {
            max_mailbox_bytes: Some(MAILBOX_BYTES),
            ..limits
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

/// A commit of a good size.
fn commit(raw: &Raw, number: u32) {
    let id = format!("big-{}", number % 4);
    let values: Value = json!({
        "id": id, "team_id": "t1", "title": "x".repeat(BODY_BYTES), "stars": number, "done": null,
        "meta": null, "body": null,
    });
    let operation = raw.author.upsert("notes", &values, None);
    raw.apply(message::commit(&format!("c{number}"), vec![operation]));
}

fn sockets_that_nobody_reads_hold_little_and_are_cut_off(kind: StoreKind) {
    let world = world(
        kind,
        InstanceLimits {
            socket_write_timeout_ms: Some(300),
            socket_heartbeat_ms: Some(500),
            socket_idle_timeout_ms: Some(5_000),
            ..InstanceLimits::default()
        },
    );
    let crowd: Vec<_> = (0..CROWD)
        .map(|number| unread(&world, &format!("unread-{number}")))
        .collect();
    let mut party = Party::new(&world);
    let reader = party.join(&world.url, "alice", "reader", &["t1"]);
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    // What waits is shared by all for whom it waits.
    let bound = (CROWD + 1) * MAILBOX_BYTES;
    for number in 0..COMMITS {
        commit(&writer, number);
        let stats = world.block_on(world.instance.realtime());
        assert!(stats.queued_bytes <= bound, "{stats:?}");
    }
    // One whose connection has taken more than it could keep is stuck. One that was told to pull
    // before that has nothing to take, and is found out by its silence.
    party.until("nobody is left but who reads", |_| {
        let usage = world.block_on(world.instance.usage());
        usage.sockets == 1
    });
    let usage = world.block_on(world.instance.usage());
    assert_eq!(
        usage.sockets_stuck + usage.sockets_dead,
        u64::try_from(CROWD).unwrap()
    );
    drop(crowd);
    party.until_converged(&world);
    assert_eq!(party.devices[reader].losses, 0);
    let stats = world.block_on(world.instance.realtime());
    assert_eq!((stats.sessions, stats.queued_bytes), (1, 0));
}

fn a_socket_that_nobody_reads_delays_nobody(kind: StoreKind) {
    // It is never cut off.
    let world = world(
        kind,
        InstanceLimits {
            socket_write_timeout_ms: Some(600_000),
            ..InstanceLimits::default()
        },
    );
    let stuck = unread(&world, "unread");
    let mut party = Party::new(&world);
    let alice = party.join(&world.url, "alice", "a", &["t1"]);
    let other = party.join(&world.url, "alice", "b", &["t1"]);
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    for number in 0..COMMITS {
        commit(&writer, number);
    }
    party.until_converged(&world);
    let stats = world.block_on(world.instance.realtime());
    assert_eq!(stats.suppressed_sessions, 1, "{stats:?}");
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

/// Who comes back at once.
const RETURNING: usize = 300;

fn everybody_at_once_is_let_in_and_the_server_stays_well(kind: StoreKind) {
    let world = world(kind, InstanceLimits::default());
    let raws: Vec<_> = (0..RETURNING)
        .map(|number| {
            let raw = Raw::ready(&world, "alice", &format!("d{number}"), WireVersion::V3);
            let answer = raw.pull(vec![teams("s1", &["t1"], -1)]);
            (raw, reached(&answer))
        })
        .collect();
    let channels = world.block_on(join_all(raws.iter().map(|(raw, _)| open(&world, raw))));
    world.block_on(world.instance.restart()).unwrap();
    drop(channels);
    let writer = Raw::ready(&world, "alice", "writer", WireVersion::V3);
    commit(&writer, 0);
    let is_over = Arc::new(AtomicBool::new(false));
    let health = watch_health(&world, Arc::clone(&is_over));
    let returns = raws.iter().map(async |(raw, cursor)| {
        let mut channel = open(&world, raw).await;
        assert!(channel.hello.requires_sync);
        let request = raw
            .author
            .request(vec![], Some(vec![teams("s1", &["t1"], *cursor)]));
        let answer = channel.round(&request).await;
        assert_eq!(answer.sections[0].commits.len(), 1);
        channel.ack(reached(&answer)).await;
        channel
    });
    let mut channels = world.block_on(join_all(returns));
    is_over.store(true, Ordering::Relaxed);
    health.join().unwrap();
    // And everybody is there for what comes next.
    commit(&writer, 1);
    world.block_on(join_all(channels.iter_mut().map(async |channel| {
        assert_eq!(channel.delta().await.sections[0].commits.len(), 1);
    })));
}

async fn open(world: &World, raw: &Raw) -> Channel {
    Channel::open(&world.url, "alice", &raw.author.client_id).await
}

/// The place in the log that an answer leaves its only subscription at.
fn reached(answer: &Answer) -> i64 {
    answer.sections[0].end.as_ref().unwrap().next_cursor
}

/// Asks for the server's health again and again until it is over.
fn watch_health(world: &World, is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    let url = format!("{}/ready", world.url);
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            // Every other status is an error.
            let answer = ureq::get(&url).call().unwrap();
            assert_eq!(answer.status(), 200);
        }
    })
}

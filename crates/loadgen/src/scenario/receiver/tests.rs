//! A listener against a peer that says what the test tells it to say.

use bytes::Bytes;
use clap::Parser;
use tidewater_wire::{
    CommitFrame, Response, ResponseFrame, ResponseHeader, SubEnd, SubStart, SubStatus, WireVersion,
    control::{ClientControl, DELTA_TAG, Hello, ServerControl},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

use futures_util::SinkExt as _;

use super::*;
use crate::args::{FanOutArgs, Scenario};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: crate::Args,
}

fn args(address: std::net::SocketAddr) -> Box<FanOutArgs> {
    let line = format!("load fan-out --url http://{address} --quiet --timeout 5s --patience 200ms");
    match Cli::parse_from(line.split(' ')).args.scenario {
        Scenario::FanOut(args) => Box::new(args),
        other => panic!("not fan-out: {other:?}"),
    }
}

/// A delta that brings these places of the log.
fn delta(seqs: &[i64]) -> Message {
    let mut frames = vec![
        ResponseFrame::Header(ResponseHeader {
            log_epoch: "e1".into(),
            ..ResponseHeader::default()
        }),
        ResponseFrame::SubStart(SubStart {
            id: SUBSCRIPTION_ID.into(),
            status: SubStatus::Active,
            reason_code: "".into(),
            effective_scopes: ScopeFilter::default(),
            bootstrap: false,
        }),
    ];
    frames.extend(seqs.iter().map(|&commit_seq| {
        ResponseFrame::Commit(CommitFrame {
            commit_seq,
            created_at_ms: 0,
            actor_id: "a".into(),
            changes: Vec::new(),
            tables: Vec::new(),
        })
    }));
    frames.push(ResponseFrame::SubEnd(SubEnd {
        next_cursor: *seqs.last().unwrap(),
        bootstrap_state: None,
    }));
    let version = WireVersion::V3;
    let encoded = Response { version, frames }.encode().unwrap();
    Message::binary([&[DELTA_TAG], &encoded[..]].concat())
}

/// What a listener found that must see 1 to 3, when it is sent this.
async fn listen_to(messages: Vec<Message>) -> (Arrived, Vec<i64>) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let args = args(server.local_addr().unwrap());
    let setup = Setup::new(&args.common, &args.table, &args.fill, Some(&args.shape)).unwrap();
    let table = &setup.workload.table;
    let filter = table.filter(Some(0));
    let listener = Listener {
        partition: 0,
        list: Some(0),
        client: setup.client(1),
        pull: pull_of(&table.name, &filter, 0, default_pull_header()),
    };
    let peer = tokio::spawn(async move {
        let (stream, _) = server.accept().await.unwrap();
        speak(accept_async(stream).await.unwrap(), messages).await
    });
    let socket = listener.client.open_socket(None).await.unwrap();
    let (end, ended) = watch::channel(None);
    let patience = args.receivers.patience;
    let mut tasks = listen(vec![listener], vec![socket], true, patience, &ended);
    let expected = [((0, Some(0)), BTreeSet::from([1, 2, 3]))].into();
    end.send_replace(Some(Arc::new(expected)));
    let arrived = tasks.remove(0).await.unwrap();
    (arrived, peer.await.unwrap())
}

/// Says hello and this, and hears what is acknowledged until the other side leaves.
async fn speak(mut stream: WebSocketStream<TcpStream>, messages: Vec<Message>) -> Vec<i64> {
    let hello = ServerControl::Hello(Hello {
        session_id: "s".into(),
        actor_id: "a".into(),
        client_id: "c".into(),
        cursor: 0,
        latest_cursor: 0,
        requires_sync: false,
        timestamp: 0,
    });
    stream.send(Message::text(hello.to_text())).await.unwrap();
    for message in messages {
        stream.send(message).await.unwrap();
    }
    let mut acknowledged = Vec::new();
    while let Some(Ok(message)) = stream.next().await {
        if let Message::Text(text) = message
            && let ClientControl::Ack { cursor } = ClientControl::parse(&text).unwrap()
        {
            acknowledged.push(cursor);
        }
    }
    acknowledged
}

async fn check(messages: Vec<Message>, expected: &[ProblemKind]) {
    let (arrived, _) = listen_to(messages).await;
    let found: Vec<_> = arrived.problems.counts().map(|(kind, _)| kind).collect();
    assert_eq!(found, expected, "{:?}", arrived.problems.examples());
}

#[tokio::test]
async fn what_arrives_is_counted_and_acknowledged() {
    let messages = [&[1][..], &[2, 3]].map(delta).to_vec();
    let (arrived, acknowledged) = listen_to(messages).await;
    assert!(arrived.problems.is_empty(), "{:?}", arrived.problems);
    let seqs: Vec<_> = arrived.commits.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [1, 2, 3]);
    assert!(arrived.commits.iter().all(|(_, at)| at.is_some()));
    assert_eq!(acknowledged, [1, 3]);
    assert!(arrived.bytes > 0 && arrived.wake_ups == 0);
}

#[tokio::test]
async fn a_hole_is_found() {
    let messages = [&[1][..], &[3]].map(delta).to_vec();
    check(messages, &[ProblemKind::LostCommit]).await;
}

#[tokio::test]
async fn what_does_not_come_is_not_waited_for_without_end() {
    check(vec![delta(&[1, 2])], &[ProblemKind::LostCommit]).await;
}

#[tokio::test]
async fn what_comes_twice_is_found() {
    let messages = [&[1][..], &[2], &[2], &[3]].map(delta).to_vec();
    check(messages, &[ProblemKind::OutOfOrder]).await;
}

#[tokio::test]
async fn a_chunk_without_a_round_ends_the_check() {
    let chunk = Message::binary(Bytes::from_static(&[1, 7]));
    check(vec![chunk], &[ProblemKind::Unfinished]).await;
}

//! What hostile bodies may cost in memory. A program of its own, because it counts every
//! allocation of the process; one test, because tests that run beside it would be counted.

// Tells clippy that helpers outside of test functions are tests, too.
#![cfg(test)]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use flate2::{Compression, write::GzEncoder};
use peak_alloc::PeakAlloc;
use tidewater_engine::{
    Engine, EngineConfig, EngineParts, Hooks, RandomIds, SystemClock, Transfers,
};
use tidewater_objects::MemorySegments;
use tidewater_schema::Schema;
use tidewater_server::{BearerTokens, ConfigScopes, Secret, Server, ServerConfig, StaticToken};
use tidewater_store::MemoryStore;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const CAP: usize = 1024 * 1024;
/// Twice the cap for a body that grows by doubling, and what everything else may need.
const ALLOWED: usize = 2 * CAP + 2 * 1024 * 1024;

#[test]
fn a_hostile_body_costs_no_more_than_the_cap() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let address = runtime.block_on(start());
    let expanding = vec![0u8; 16 * CAP];
    let cases: Vec<(&str, &[&str], Vec<u8>)> = vec![
        ("a gzip bomb", &["content-encoding: gzip"], gzip(&expanding)),
        (
            "a zstd bomb",
            &["content-encoding: zstd"],
            zstd::encode_all(&expanding[..], 3).unwrap(),
        ),
        (
            "a declared length",
            &["content-length: 17179869184"],
            Vec::new(),
        ),
        ("a frame of 4 GiB", &[], frame_of(u32::MAX)),
        ("a frame of 2 GiB", &[], frame_of(i32::MAX.unsigned_abs())),
        (
            "a window of 2 GiB",
            &["content-encoding: zstd"],
            WINDOW.to_vec(),
        ),
        ("more than the cap", &[], vec![0; 8 * CAP]),
    ];
    drop(expanding);
    for (what, headers, body) in &cases {
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let status = post(address, headers, body);
        let peak = ALLOCATOR.peak_usage().saturating_sub(before);
        assert!(matches!(status, 400 | 413), "{what}: status {status}");
        assert!(
            peak <= ALLOWED,
            "{what}: {peak} bytes at most, {ALLOWED} allowed"
        );
    }
}

/// A zstd frame whose header asks for a window of 2 GiB.
const WINDOW: [u8; 9] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];

/// A request that promises a header frame of this many bytes.
fn frame_of(length: u32) -> Vec<u8> {
    let mut bytes = b"SSP2".to_vec();
    bytes.extend_from_slice(&[3, 0, 1, 0]);
    bytes.push(0x01);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&[b'x'; 100]);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn start() -> SocketAddr {
    let schema = r#"{"irVersion": 1, "schemaVersion": 1, "tables": [{
        "name": "notes", "primaryKey": "id", "scopes": ["team:{team_id}"], "columns": [
            {"name": "id", "type": "string", "nullable": false},
            {"name": "team_id", "type": "string", "nullable": false}]}]}"#;
    let engine = Engine::open(EngineParts {
        store: Arc::new(MemoryStore::new()),
        schema: Arc::new(Schema::from_json(schema).unwrap()),
        segments: Arc::new(MemorySegments::new(CAP, 60_000)),
        transfers: Transfers::default(),
        resolver: Arc::new(ConfigScopes::default()),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
        config: EngineConfig::default(),
        hooks: Hooks::default(),
    })
    .await
    .unwrap();
    let tokens = BearerTokens::new([StaticToken {
        token: Secret::new("alice"),
        partition: "p".to_owned(),
        actor: "alice".to_owned(),
        claims: serde_json::Map::new(),
    }]);
    let config = ServerConfig {
        request_bytes_max: CAP,
        ..ServerConfig::default()
    };
    let server = Arc::new(Server::new(engine, Arc::new(tokens.unwrap()), config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(tidewater_server::serve(
        listener,
        server,
        std::future::pending(),
    ));
    address
}

/// Sends a body and returns the status of the answer. Allocates next to nothing itself.
fn post(address: SocketAddr, headers: &[&str], body: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /sync HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer alice\r\n\
         content-type: application/vnd.syncular.sync.v2\r\n"
    )
    .unwrap();
    for header in headers {
        write!(stream, "{header}\r\n").unwrap();
    }
    if !headers
        .iter()
        .any(|header| header.starts_with("content-length"))
    {
        write!(stream, "content-length: {}\r\n", body.len()).unwrap();
    }
    write!(stream, "\r\n").unwrap();
    // The server may have answered and stopped reading.
    let _ = stream.write_all(body);
    let mut start = [0; 12];
    stream.read_exact(&mut start).unwrap();
    str::from_utf8(&start[9..]).unwrap().parse().unwrap()
}

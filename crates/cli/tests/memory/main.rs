//! A server that may not use more than 256 MiB serves what is many times as large: a blob of
//! 2 GiB up and down, and an image of a million rows. A debug build, which takes twenty times as
//! long to hash a byte, has to be content with 512 MiB and a quarter of the rows.
//!
//! The limit is `RLIMIT_DATA`: what the process maps for itself and can write, which is its heap
//! and its stacks, touched or not. Address space (`RLIMIT_AS`) would count what is only reserved,
//! such as the arenas of the allocator, and mapped files, which cost nothing; a limit of resident
//! memory is not kept by Linux. Resident memory is looked at all the same, at its peak.
//!
//! The rows are put into the database by one statement, because it is the image that is tested.

// Tells clippy that helpers outside of test functions are tests, too.
#![cfg(test)]
#![cfg(target_os = "linux")]

#[path = "../it/process.rs"]
#[expect(dead_code, reason = "the other tests need all of it")]
mod process;

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::json;
use tidewater_schema::Schema;
use tidewater_testkit::{
    HttpClient,
    message::{Author, commit, pull_header, teams},
};
use tidewater_wire::{ContentHasher, MediaType, PushOutcome, WireVersion};

use crate::process::{Running, file};

const LIMIT_KIB: u64 = 256 * 1024;
const ROWS: i64 = if cfg!(debug_assertions) {
    250_000
} else {
    1_000_000
};

const SCHEMA: &str = r#"{"irVersion": 1, "schemaVersion": 1, "tables": [
    {"name": "notes", "primaryKey": "id", "scopes": ["team:{team_id}"], "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team_id", "type": "string", "nullable": false},
        {"name": "title", "type": "string", "nullable": false}]},
    {"name": "files", "primaryKey": "id", "scopes": ["team:{team_id}"], "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team_id", "type": "string", "nullable": false},
        {"name": "content", "type": "blob_ref", "nullable": true}]}]}"#;

const CONFIG: &str = r#"
[server]
listen = "127.0.0.1:0"
[schema]
path = "schema.json"
[blobs]
blob_bytes_max = "3GiB"
[[auth.tokens]]
token = "alice"
actor = "alice"
partition = "p"
[scopes.actors."*"]
team_id = ["t1"]
"#;

/// A server under the limit, until it is dropped.
struct Limited {
    child: Child,
    address: String,
}

impl Limited {
    fn start(config: &str) -> Self {
        let limited = format!("ulimit -d {LIMIT_KIB} && exec \"$0\" serve --config \"$1\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_tidewater"), config])
            .env_remove("TIDEWATER_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = errors.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("listening address=")?;
            Some(address.trim().to_owned())
        });
        // Read on, or the server would block on its log.
        std::thread::spawn(move || errors.map_while(Result::ok).for_each(drop));
        Self {
            child,
            address: address.expect("the server says where it listens"),
        }
    }

    /// The largest resident size so far.
    fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let size = line.unwrap().split_whitespace().nth(1);
        size.unwrap().parse().unwrap()
    }

    fn client(&self) -> HttpClient {
        let schema = std::sync::Arc::new(Schema::from_json(SCHEMA).unwrap());
        let author = Author::new("device", WireVersion::V3, &schema);
        let mut client = HttpClient::new(&format!("http://{}", self.address), "alice", author);
        client.acquire_epoch().unwrap();
        client
    }

    /// Sends the head of a request; a body may follow.
    fn request(&self, head: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "{head}host: x\r\nconnection: close\r\nauthorization: Bearer alice\r\n\r\n"
        )
        .unwrap();
        stream
    }

    /// The body of a successful answer.
    fn body(&self, path: &str, headers: &str) -> impl Read {
        let stream = self.request(&format!("GET {path} HTTP/1.1\r\n{headers}"));
        successful(stream)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the head of an answer.
fn successful(stream: TcpStream) -> BufReader<TcpStream> {
    let mut answer = BufReader::with_capacity(256 * 1024, stream);
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    while line != "\r\n" {
        line.clear();
        answer.read_line(&mut line).unwrap();
    }
    answer
}

/// A folder with a configuration and a database that the server made.
fn prepare(folder: &Path) -> String {
    file(folder, "schema.json", SCHEMA);
    let config = file(folder, "tidewater.toml", CONFIG);
    let mut server = Running::start(&["serve", "--config", &config], &[]);
    server.url_from_log();
    assert_eq!(server.stop("-TERM"), Some(0));
    config
}

/// One mebibyte that does not compress to nothing.
fn block() -> Vec<u8> {
    let byte = |n: u64| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0];
    (0..1 << 20).map(byte).collect()
}

/// Blocks of the blob, and the address of so many: hashing them here would take as long as all
/// the rest.
const BLOB: (u64, &str) = if cfg!(debug_assertions) {
    (
        512,
        "sha256:2a2bdf8168aac385fbf52916d2753bba8e5793413a510973e726b09e1d4bb191",
    )
} else {
    (
        2_048,
        "sha256:73c85366afba5b9c145ce69e7d93580843d60b6699ec2ca359fa832d47a61b6c",
    )
};

#[test]
fn a_blob_larger_than_the_servers_memory_goes_up_and_comes_down() {
    let folder = tempfile::tempdir().unwrap();
    let server = Limited::start(&prepare(folder.path()));
    let (blocks, blob_id) = BLOB;
    let (path, block) = (format!("/blobs/{blob_id}"), block());
    let length = blocks << 20;
    let mut upload = server.request(&format!(
        "PUT {path} HTTP/1.1\r\ncontent-length: {length}\r\n"
    ));
    for _ in 0..blocks {
        upload.write_all(&block).unwrap();
    }
    successful(upload);

    let client = server.client();
    let file = json!({
        "id": "f1", "team_id": "t1",
        "content": json!({ "blobId": blob_id, "byteLength": length }).to_string(),
    });
    let write = client.author.upsert("files", &file, None);
    let answer = client
        .send(client.author.request(vec![commit("k1", vec![write])], None))
        .unwrap();
    assert_eq!(answer.results[0].outcome, PushOutcome::Applied(1));

    let mut body = server.body(&path, "");
    let mut received = vec![0; block.len()];
    for number in 0..blocks {
        body.read_exact(&mut received).unwrap();
        assert!(received == block, "block {number} is another");
    }
    assert_eq!(body.read(&mut received).unwrap(), 0);
    let peak_kib = server.peak_kib();
    assert!(peak_kib < LIMIT_KIB, "{peak_kib} KiB");
}

#[test]
fn an_image_of_many_rows_is_built_and_sent_within_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let config = prepare(folder.path());
    seed(&folder.path().join("tidewater.db"));
    let server = Limited::start(&config);

    let mut client = server.client();
    client.author.limits = pull_header(0b0110);
    let request = client
        .author
        .request(Vec::new(), Some(vec![teams("s1", &["t1"], -1)]));
    let mut answer = client.send(request).unwrap();
    let reference = answer.sections.remove(0).references.remove(0);
    assert_eq!(
        (reference.media_type, reference.row_count),
        (MediaType::Sqlite, ROWS)
    );

    let image = folder.path().join("image.db");
    let scopes = "x-syncular-scopes: {\"team_id\":[\"t1\"]}\r\n";
    let path = format!("/segments/{}", reference.segment_id);
    let mut body = server.body(&path, scopes);
    let mut kept = File::create(&image).unwrap();
    let mut hasher = ContentHasher::new();
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let length = body.read(&mut chunk).unwrap();
        if length == 0 {
            break;
        }
        hasher.update(&chunk[..length]);
        kept.write_all(&chunk[..length]).unwrap();
    }
    assert_eq!(hasher.finish(), *reference.segment_id);
    let image = rusqlite::Connection::open(image).unwrap();
    let (rows, sum): (i64, i64) = image
        .query_row(
            "SELECT count(*), sum(CAST(substr(title, 10) AS INTEGER)) FROM notes",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .unwrap();
    assert_eq!((rows, sum), (ROWS, ROWS * (ROWS - 1) / 2));

    // Compressed, it is made once more, and not held either.
    let headers = format!("{scopes}accept-encoding: zstd\r\n");
    let travelled = std::io::copy(&mut server.body(&path, &headers), &mut std::io::sink());
    assert!(travelled.unwrap() < reference.byte_length.unsigned_abs() / 2);
    let peak_kib = server.peak_kib();
    assert!(peak_kib < LIMIT_KIB, "{peak_kib} KiB");
}

/// Fills the table as commits would have.
fn seed(database: &Path) {
    let database = rusqlite::Connection::open(database).unwrap();
    // A row is its null bitmap, and each text with its length in front.
    let payload = "CAST(x'00' || x'08000000' || id || x'02000000' || 't1' || x'12000000' || title \
                   AS BLOB)";
    database
        .execute_batch(&format!(
            "PRAGMA synchronous = OFF; BEGIN;
             CREATE TEMP TABLE numbered AS
             WITH RECURSIVE n(i) AS (
                 SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {ROWS})
             SELECT printf('n%07d', i) AS id, printf('title of %09d', i) AS title FROM n;
             INSERT INTO notes (_sync_partition, _sync_row_id, id, team_id, title,
                 _sync_server_version, _sync_scopes, _sync_payload)
             SELECT 'p', id, id, 't1', title, 1, '{{\"team_id\":\"t1\"}}', {payload}
             FROM numbered ORDER BY id;
             INSERT INTO sync_row_scopes (partition, tbl, var, value, row_id)
             SELECT 'p', 'notes', 'team_id', 't1', id FROM numbered ORDER BY id;
             COMMIT;"
        ))
        .unwrap();
}

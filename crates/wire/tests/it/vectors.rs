//! Golden vectors: bytes and their rendering, both ways, byte for byte (§11.1).
//!
//! `TIDEWATER_BLESS=1 cargo test -p tidewater-wire --test it` writes the project's own vectors
//! anew from [`crate::cases`]; without it every file must be what the cases say. Vectors of the
//! original project are checked too where they are at hand.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use serde_json::{Value as Json, json};
use tidewater_wire::{
    Message, RowsSegment, check_rows_segment,
    control::{ClientControl, ServerControl},
    render,
    row::{Slot, decode_sparse_row, encode_sparse_row},
};

use crate::{cases, oracle};

fn own_vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors")
}

/// Vectors of the original project, if they are beside this one.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn shared_vectors() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: no vectors of the original project here");
    None
}

/// What `vectors/` must hold: path and content of every file.
fn own_files() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut add = |path: String, bytes: Vec<u8>, sidecar: Option<&Json>| {
        let extension = if sidecar.is_some() { "bin" } else { "json" };
        files.push((PathBuf::from(format!("{path}.{extension}")), bytes));
        if let Some(sidecar) = sidecar {
            files.push((PathBuf::from(format!("{path}.json")), pretty(sidecar)));
        }
    };
    for case in cases::messages() {
        let bytes = case.message.encode().unwrap().to_vec();
        let path = format!("{}/v{}/{}", case.kind(), case.version().number(), case.name);
        add(path, bytes, Some(&render::message(&case.message)));
    }
    for (kind, version, case) in cases::invalid_messages() {
        let error = Message::decode(&Bytes::from(case.bytes.clone())).unwrap_err();
        let sidecar = json!({
            "code": error.code().as_str(), "class": case.class, "error": error.to_string(),
        });
        let path = format!("{kind}/v{}/invalid/{}", version.number(), case.name);
        add(path, case.bytes, Some(&sidecar));
    }
    for case in cases::segments() {
        let rendering = render::rows_segment(&case.segment).unwrap();
        let path = format!("segment/{}", case.name);
        add(path, case.segment.encode(), Some(&rendering));
    }
    for case in cases::invalid_segments() {
        let error = check_rows_segment(&case.bytes).unwrap_err();
        let sidecar = json!({
            "code": error.code().as_str(), "class": case.class, "error": error.to_string(),
        });
        add(
            format!("segment/invalid/{}", case.name),
            case.bytes,
            Some(&sidecar),
        );
    }
    let columns = cases::sparse_columns();
    for case in cases::sparse_rows() {
        let slots = decode_sparse_row(&columns, 0, &case.bytes).unwrap();
        let rendering = render::sparse_row(&columns, &slots);
        add(
            format!("push/{}", case.name),
            case.bytes.clone(),
            Some(&rendering),
        );
    }
    for case in cases::invalid_sparse_rows() {
        let error = decode_sparse_row(&columns, 0, &case.bytes).unwrap_err();
        let sidecar = json!({ "code": error.code().as_str(), "error": error.to_string() });
        add(
            format!("push/invalid/{}", case.name),
            case.bytes,
            Some(&sidecar),
        );
    }
    for case in cases::control_messages() {
        add(format!("realtime/{}", case.name), line(&case.text), None);
    }
    for case in cases::invalid_control_messages() {
        add(
            format!("realtime/invalid/{}", case.name),
            line(&case.text),
            None,
        );
    }
    files
}

fn pretty(json: &Json) -> Vec<u8> {
    line(&serde_json::to_string_pretty(json).unwrap())
}

fn line(text: &str) -> Vec<u8> {
    format!("{text}\n").into_bytes()
}

/// Every file below `root`, as paths relative to it.
fn walk(root: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.insert(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    files
}

/// The `.bin` files of one kind below `root`: path, bytes, sidecar.
fn binaries(root: &Path, kind: &str, invalid: bool) -> Vec<(PathBuf, Vec<u8>, Json)> {
    let mut found = Vec::new();
    for path in walk(root) {
        let is_invalid = path.components().any(|part| part.as_os_str() == "invalid");
        let is_binary = path.extension().is_some_and(|extension| extension == "bin");
        if path.starts_with(kind) && is_binary && is_invalid == invalid {
            let bytes = fs::read(root.join(&path)).unwrap();
            let sidecar = fs::read(root.join(path.with_extension("json"))).unwrap();
            found.push((path, bytes, serde_json::from_slice(&sidecar).unwrap()));
        }
    }
    assert!(!found.is_empty() || invalid, "there are vectors of {kind}");
    found
}

#[test]
fn the_vectors_are_what_the_cases_say() {
    let root = own_vectors();
    let files = own_files();
    let expected: BTreeSet<PathBuf> = files.iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(expected.len(), files.len(), "no two cases have one name");
    if std::env::var_os("TIDEWATER_BLESS").is_some() {
        for (path, bytes) in &files {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), bytes).unwrap();
        }
        for stray in walk(&root).difference(&expected) {
            if stray.extension().is_some_and(|extension| extension != "md") {
                fs::remove_file(root.join(stray)).unwrap();
            }
        }
    }
    for (path, bytes) in &files {
        let found = fs::read(root.join(path)).unwrap_or_default();
        assert!(
            found == *bytes,
            "{} is not what its case says",
            path.display()
        );
    }
    let strays: Vec<PathBuf> = walk(&root)
        .difference(&expected)
        .filter(|path| path.extension().is_none_or(|extension| extension != "md"))
        .cloned()
        .collect();
    assert_eq!(strays, Vec::<PathBuf>::new(), "every file has a case");
}

fn check_messages(root: &Path) {
    for kind in ["request", "response"] {
        for (path, bytes, rendering) in binaries(root, kind, false) {
            let path = path.display();
            let message = Message::decode(&Bytes::from(bytes.clone()))
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(render::message(&message), rendering, "{path}");
            assert_eq!(message.encode().unwrap(), bytes, "{path}");
            oracle::compare(&bytes);
        }
        for (path, bytes, sidecar) in binaries(root, kind, true) {
            let path = path.display();
            let error = Message::decode(&Bytes::from(bytes.clone())).unwrap_err();
            assert_eq!(error.code().as_str(), sidecar["code"], "{path}");
            oracle::compare(&bytes);
        }
    }
}

fn check_segments(root: &Path) {
    for (path, bytes, rendering) in binaries(root, "segment", false) {
        let path = path.display();
        let segment = RowsSegment::decode(&bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(render::rows_segment(&segment).unwrap(), rendering, "{path}");
        assert_eq!(segment.encode(), bytes, "{path}");
        oracle::compare_segment(&bytes);
    }
    for (path, bytes, sidecar) in binaries(root, "segment", true) {
        let error = check_rows_segment(&bytes).unwrap_err();
        assert_eq!(error.code().as_str(), sidecar["code"], "{}", path.display());
        oracle::compare_segment(&bytes);
    }
}

fn check_realtime(root: &Path) {
    for path in walk(root)
        .iter()
        .filter(|path| path.starts_with("realtime"))
    {
        let text = fs::read_to_string(root.join(path)).unwrap();
        let is_invalid = path.components().any(|part| part.as_os_str() == "invalid");
        let server = ServerControl::parse(&text);
        let client = ClientControl::parse(&text);
        let path = path.display();
        if is_invalid {
            assert!(server.is_err(), "{path}");
            continue;
        }
        // A fan-out could also be read as a publication, so the server's messages come first.
        let written = match (server, client) {
            (Ok(server), _) => server.to_text(),
            (Err(_), Ok(client)) => client.to_text(),
            (Err(error), Err(_)) => panic!("{path}: {error}"),
        };
        let written: Json = serde_json::from_str(&written).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        assert_eq!(written.to_string(), expected.to_string(), "{path}");
    }
}

#[test]
fn the_projects_own_vectors_hold_in_both_directions() {
    check_messages(&own_vectors());
    check_segments(&own_vectors());
    check_realtime(&own_vectors());
}

#[test]
fn the_original_projects_vectors_hold_in_both_directions() {
    let Some(root) = shared_vectors() else {
        return;
    };
    check_messages(&root);
    check_segments(&root);
    check_realtime(&root);
}

#[test]
fn sparse_rows_hold_in_both_directions() {
    let root = own_vectors();
    let columns = cases::sparse_columns();
    for (path, bytes, rendering) in binaries(&root, "push", false) {
        let path = path.display();
        let slots = decode_sparse_row(&columns, 0, &bytes)
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        assert_eq!(render::sparse_row(&columns, &slots), rendering, "{path}");
        let values: Vec<Option<Option<&[u8]>>> = slots
            .iter()
            .map(|slot| match slot {
                Slot::Absent => None,
                Slot::Null => Some(None),
                Slot::Present(field) => Some(Some(field.encoded)),
            })
            .collect();
        assert_eq!(encode_sparse_row(&values), bytes, "{path}");
        oracle::compare_sparse_row(&columns, 0, &bytes);
    }
    for (path, bytes, sidecar) in binaries(&root, "push", true) {
        let error = decode_sparse_row(&columns, 0, &bytes).unwrap_err();
        assert_eq!(error.code().as_str(), sidecar["code"], "{}", path.display());
        oracle::compare_sparse_row(&columns, 0, &bytes);
    }
}

/// §1.7: the list is closed, and each of its entries is refused by a vector.
#[test]
fn every_entry_of_the_closed_list_has_a_vector() {
    let classes: BTreeSet<u8> = cases::invalid_messages()
        .into_iter()
        .map(|(_, _, case)| case.class)
        .collect();
    assert!(classes.into_iter().eq(1..=9));
}

#[test]
fn every_prefix_of_a_vector_fails_cleanly() {
    let root = own_vectors();
    for kind in ["request", "response"] {
        for (path, bytes, _) in binaries(&root, kind, false) {
            let bytes = Bytes::from(bytes);
            for len in 0..bytes.len() {
                let prefix = Message::decode(&bytes.slice(..len));
                assert!(prefix.is_err(), "{} up to {len}", path.display());
            }
        }
    }
    for (path, bytes, _) in binaries(&root, "segment", false) {
        for len in 0..bytes.len() {
            let prefix = check_rows_segment(&bytes[..len]);
            assert!(prefix.is_err(), "{} up to {len}", path.display());
        }
    }
}

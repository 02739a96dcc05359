//! Images as their readers see them: format, metadata, values, determinism (§5.3).

#![expect(
    clippy::unwrap_used,
    clippy::as_conversions,
    reason = "a suite of tests"
)]

use std::{fs, sync::Arc};

use rusqlite::{Connection, OpenFlags, types::Value as Stored};
use serde_json::json;
use tidewater_image::{Image, ImageErrorKind, ImageSpec, ImageWriter, is_eligible};
use tidewater_model::CommitSeq;
use tidewater_schema::{Schema, Table};
use tidewater_wire::{
    content_address,
    row::{RowWriter, Value},
};

fn schema() -> Schema {
    let column = |name: &str, kind: &str, nullable: bool| json!({"name": name, "type": kind, "nullable": nullable});
    let scopes = json!([{"pattern": "team:{team}", "variable": "team", "column": "team"}]);
    let document = json!({
        "irVersion": 1, "schemaVersion": 3,
        "tables": [
            {
                "name": "samples", "primaryKey": "id", "scopes": scopes,
                "columns": [
                    column("team", "string", false),
                    column("id", "string", false),
                    column("count", "integer", true),
                    column("ratio", "float", true),
                    column("done", "boolean", true),
                    column("meta", "json", true),
                    column("raw", "bytes", true),
                    column("photo", "blob_ref", true),
                    {"name": "doc", "type": "crdt", "nullable": true, "crdtType": "yjs-doc"},
                    column("level", "float", false),
                ],
            },
            {
                "name": "order", "primaryKey": "number", "scopes": scopes,
                "columns": [column("number", "integer", false), column("team", "string", false)],
            },
            {
                "name": "letters", "primaryKey": "id", "scopes": scopes,
                "columns": [
                    column("id", "string", false), column("team", "string", false),
                    {"name": "secret", "type": "bytes", "nullable": true, "encrypted": true,
                     "declaredType": "string"},
                ],
            },
        ],
    });
    Schema::from_json(&document.to_string()).unwrap()
}

fn table(name: &str) -> Arc<Table> {
    let schema = schema();
    Arc::clone(schema.table(schema.find(name).unwrap()))
}

fn begin(name: &str) -> ImageWriter {
    ImageWriter::create(None, spec(name)).unwrap()
}

fn spec(name: &str) -> ImageSpec {
    ImageSpec {
        table: table(name),
        schema_version: 3,
        as_of: CommitSeq::new(41).unwrap(),
        scope_digest: "d1".to_owned(),
    }
}

fn payload(values: &[Option<Value<'_>>]) -> Vec<u8> {
    let mut row = RowWriter::new(values.len());
    for value in values {
        match value {
            Some(value) => row.value(value),
            None => row.null(),
        }
    }
    row.finish()
}

/// A row of `samples` with nothing in it but what must be.
fn sample(id: &str) -> Vec<u8> {
    let mut values = vec![None; 10];
    values[0] = Some(Value::String("t1"));
    values[1] = Some(Value::String(id));
    values[9] = Some(Value::Float(0.5));
    payload(&values)
}

fn open(image: &Image) -> Connection {
    Connection::open_with_flags(&image.file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn rows(image: &Image, sql: &str) -> Vec<Vec<Stored>> {
    let connection = open(image);
    let mut statement = connection.prepare(sql).unwrap();
    let count = statement.column_count();
    let rows = statement.query_map([], |row| (0..count).map(|at| row.get(at)).collect());
    rows.unwrap().map(Result::unwrap).collect()
}

fn text(value: &str) -> Stored {
    Stored::Text(value.to_owned())
}

#[test]
fn an_image_has_two_tables_and_says_what_it_is() {
    let mut writer = begin("samples");
    let (a, b) = (sample("a"), sample("b"));
    writer.push([(1, &a[..])]).unwrap();
    writer.push([(7, &b[..])]).unwrap();
    let image = writer.finish().unwrap();
    assert_eq!(image.row_count, 2);
    let tables = rows(&image, "SELECT name FROM sqlite_schema ORDER BY rowid");
    assert_eq!(tables, [[text("samples")], [text("_syncular_segment")]]);
    let metadata = rows(&image, "SELECT * FROM _syncular_segment");
    let integer = Stored::Integer;
    let expected = [
        integer(1),
        text("samples"),
        integer(3),
        integer(41),
        text("d1"),
        integer(2),
    ];
    assert_eq!(metadata, [expected]);
    let columns = rows(
        &image,
        "SELECT name, type, \"notnull\" FROM pragma_table_info('_syncular_segment')",
    );
    let expected = [
        ("format", "INTEGER"),
        ("table", "TEXT"),
        ("schemaVersion", "INTEGER"),
        ("asOfCommitSeq", "INTEGER"),
        ("scopeDigest", "TEXT"),
        ("rowCount", "INTEGER"),
    ];
    assert_eq!(
        columns,
        expected.map(|(name, kind)| [text(name), text(kind), integer(1)])
    );
    let versions = rows(&image, "SELECT id, _syncular_version FROM samples");
    assert_eq!(versions, [[text("a"), integer(1)], [text("b"), integer(7)]]);
}

#[test]
fn columns_come_in_declaration_order_with_their_affinity_and_one_key() {
    let image = begin("samples").finish().unwrap();
    let columns = rows(
        &image,
        "SELECT name, type, \"notnull\", pk FROM pragma_table_info('samples')",
    );
    let expected = [
        ("team", "TEXT", 1, 0),
        ("id", "TEXT", 1, 1),
        ("count", "INTEGER", 0, 0),
        ("ratio", "REAL", 0, 0),
        ("done", "INTEGER", 0, 0),
        ("meta", "TEXT", 0, 0),
        ("raw", "BLOB", 0, 0),
        ("photo", "TEXT", 0, 0),
        ("doc", "BLOB", 0, 0),
        ("level", "REAL", 1, 0),
        ("_syncular_version", "INTEGER", 1, 0),
    ];
    let expected = expected.map(|(name, kind, not_null, key)| {
        [
            text(name),
            text(kind),
            Stored::Integer(not_null),
            Stored::Integer(key),
        ]
    });
    assert_eq!(columns, expected);
    assert_eq!(
        rows(&image, "SELECT count(*) FROM samples"),
        [[Stored::Integer(0)]]
    );
}

#[test]
fn a_value_of_every_type_is_stored_as_it_was_written() {
    let photo = format!(r#"{{"blobId":"sha256:{}","byteLength":3}}"#, "0".repeat(64));
    let values = [
        Some(Value::String("t\0é")),
        Some(Value::String("a")),
        Some(Value::Integer(-9_007_199_254_740_991)),
        Some(Value::Float(1.0)),
        Some(Value::Boolean(true)),
        Some(Value::Json(r#"{ "b":1, "a":2 }"#)),
        Some(Value::Bytes(&[0, 255])),
        Some(Value::BlobRef(&photo)),
        Some(Value::Crdt(&[1, 2])),
        Some(Value::Float(f64::INFINITY)),
    ];
    let (full, empty) = (payload(&values), sample("b"));
    let mut writer = begin("samples");
    writer.push([(1, &full[..]), (1, &empty[..])]).unwrap();
    let image = writer.finish().unwrap();
    let stored = rows(&image, "SELECT * FROM samples ORDER BY id");
    let expected = [
        text("t\0é"),
        text("a"),
        Stored::Integer(-9_007_199_254_740_991),
        Stored::Real(1.0),
        Stored::Integer(1),
        text(r#"{ "b":1, "a":2 }"#),
        Stored::Blob(vec![0, 255]),
        text(&photo),
        Stored::Blob(vec![1, 2]),
        Stored::Real(f64::INFINITY),
        Stored::Integer(1),
    ];
    assert_eq!(stored[0], expected);
    assert_eq!(stored[1][2..9], vec![Stored::Null; 7]);
}

#[test]
fn a_key_of_integers_and_a_name_that_is_a_word_of_sql_are_taken() {
    let mut writer = begin("order");
    // By the text of the key, as rows are read.
    let values = [1, 10, 2]
        .map(|number| payload(&[Some(Value::Integer(number)), Some(Value::String("t1"))]));
    writer.push(values.iter().map(|row| (1, &row[..]))).unwrap();
    let image = writer.finish().unwrap();
    let keys = rows(&image, "SELECT number FROM \"order\" ORDER BY number");
    assert_eq!(keys, [1, 2, 10].map(|number| [Stored::Integer(number)]));
}

#[test]
fn the_address_is_the_hash_of_the_file_and_the_file_goes_with_the_image() {
    let mut writer = begin("samples");
    let row = sample("a");
    writer.push([(1, &row[..])]).unwrap();
    let image = writer.finish().unwrap();
    let bytes = fs::read(&image.file).unwrap();
    assert_eq!(image.id, content_address(&bytes));
    assert_eq!(image.byte_length, bytes.len() as u64);
    let path = image.file.to_path_buf();
    drop(image);
    assert!(!path.exists());
}

#[test]
fn an_image_that_is_given_up_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = ImageWriter::create(Some(directory.path()), spec("samples")).unwrap();
    let row = sample("a");
    writer.push([(1, &row[..])]).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    drop(writer);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_same_rows_are_the_same_bytes_whatever_pieces_they_come_in() {
    // More than fits in the cache of pages, so that some leave it early.
    let rows: Vec<(String, Vec<u8>)> = (0..60_000)
        .map(|number| {
            let id = format!("row-{number:06}");
            let body = format!("{{\"text\":\"{}\"}}", "x".repeat(number % 230));
            let values = [
                Some(Value::String("t1")),
                Some(Value::String(&id)),
                Some(Value::Integer(i64::from(number as u32))),
                None,
                Some(Value::Boolean(number % 2 == 0)),
                Some(Value::Json(&body)),
                None,
                None,
                None,
                Some(Value::Float(0.25)),
            ];
            let row = payload(&values);
            (id, row)
        })
        .collect();
    let build = |piece: usize| {
        let mut writer = begin("samples");
        for rows in rows.chunks(piece) {
            let rows = rows.iter().map(|(_, payload)| (3, &payload[..]));
            writer.push(rows).unwrap();
        }
        writer.finish().unwrap()
    };
    let first = build(5_000);
    assert!(first.byte_length > 8 << 20, "{} bytes", first.byte_length);
    assert_eq!(first.id, build(5_000).id);
    assert_eq!(first.id, build(777).id);
    let connection = open(&first);
    let count: i64 = connection
        .query_row("SELECT count(*) FROM samples", [], |row| row.get(0))
        .unwrap();
    assert_eq!(count, 60_000);
    let other = ImageSpec {
        as_of: CommitSeq::new(42).unwrap(),
        ..spec("samples")
    };
    let other = ImageWriter::create(None, other).unwrap().finish().unwrap();
    assert_ne!(other.id, begin("samples").finish().unwrap().id);
}

#[test]
fn a_table_with_an_encrypted_column_is_never_an_image() {
    assert!(!is_eligible(&table("letters")));
    assert!(is_eligible(&table("samples")));
    let refused = ImageWriter::create(None, spec("letters")).unwrap_err();
    assert_eq!(refused.kind, ImageErrorKind::Unsuited);
}

#[test]
fn rows_that_sqlite_cannot_hold_are_unsuited_and_damaged_ones_corrupt() {
    let mut values = vec![None; 10];
    values[0] = Some(Value::String("t1"));
    values[1] = Some(Value::String("a"));
    values[9] = Some(Value::Float(f64::NAN));
    let nan = payload(&values);
    let failed = begin("samples").push([(1, &nan[..])]).unwrap_err();
    assert_eq!(failed.kind, ImageErrorKind::Unsuited);
    let twice = sample("a");
    let failed = begin("samples")
        .push([(1, &twice[..]), (1, &twice[..])])
        .unwrap_err();
    assert_eq!(failed.kind, ImageErrorKind::Unsuited);
    let failed = begin("samples").push([(1, &[0xff][..])]).unwrap_err();
    assert_eq!(failed.kind, ImageErrorKind::Corrupt);
}

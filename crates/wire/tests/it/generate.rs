//! Messages, rows and segments of every shape, for the properties.

use bytes::Bytes;
use bytestring::ByteString;
use proptest::{collection::vec, option, prelude::*};
use serde_json::Value as Json;
use tidewater_model::{
    ColumnType, ScopeFilter, ScopeValues, StoredScopes, limits::SAFE_INTEGER_MAX,
};
use tidewater_wire::{
    BlobRef, RejectionDetails, RowsSegment, SegmentRow, WireVersion, content_address,
    row::{Column, Value, encode_row, encode_sparse_row},
};

mod request;
mod response;

pub(crate) use request::request;
pub(crate) use response::{commit_frame, response};

/// A failure prints its bytes: they become a named test, not a file of seeds.
/// `PROPTEST_CASES` says how often each property is tried.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

pub(crate) fn version() -> BoxedStrategy<WireVersion> {
    prop_oneof![
        1 => Just(WireVersion::V1),
        1 => Just(WireVersion::V2),
        2 => Just(WireVersion::V3),
    ]
    .boxed()
}

/// Short text, with characters on both sides of the surrogates and of every UTF-8 length.
pub(crate) fn text() -> BoxedStrategy<String> {
    prop_oneof![
        4 => "[a-z0-9_.]{0,6}",
        1 => "[\\u{0}-\\u{7f}]{0,4}",
        1 => vec(
            prop::sample::select(vec!['\u{7ff}', '\u{d7ff}', '\u{e000}', '\u{ffff}', '\u{1F600}']),
            0..3,
        )
        .prop_map(String::from_iter),
    ]
    .boxed()
}

fn shared_text() -> BoxedStrategy<ByteString> {
    text().prop_map(Into::into).boxed()
}

fn filled_text() -> BoxedStrategy<ByteString> {
    text()
        .prop_map(|text| {
            if text.is_empty() {
                "x".into()
            } else {
                text.into()
            }
        })
        .boxed()
}

pub(crate) fn integer() -> BoxedStrategy<i64> {
    prop_oneof![
        3 => 0..100_i64,
        1 => -SAFE_INTEGER_MAX..=SAFE_INTEGER_MAX,
        1 => prop::sample::select(vec![-1, SAFE_INTEGER_MAX, -SAFE_INTEGER_MAX]),
    ]
    .boxed()
}

fn bytes() -> BoxedStrategy<Bytes> {
    vec(any::<u8>(), 0..12).prop_map(Into::into).boxed()
}

/// The text of any JSON document, with white space that must survive.
pub(crate) fn json_text() -> BoxedStrategy<String> {
    let number = prop_oneof![
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
    ];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        number,
        text().prop_map(Json::from),
    ];
    let document = leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Json::from),
            vec((text(), inner), 0..3).prop_map(|members| members.into_iter().collect()),
        ]
    });
    (document, any::<bool>())
        .prop_map(|(document, pretty)| {
            if pretty {
                serde_json::to_string_pretty(&document).unwrap()
            } else {
                format!(" {document}")
            }
        })
        .boxed()
}

fn shared_json() -> BoxedStrategy<ByteString> {
    json_text().prop_map(Into::into).boxed()
}

fn scope_filter() -> BoxedStrategy<ScopeFilter> {
    vec((text(), vec(text(), 0..3)), 0..4)
        .prop_map(|mut entries| {
            entries.sort();
            entries.dedup_by(|left, right| left.0 == right.0);
            let entries = entries
                .into_iter()
                .map(|(variable, values)| ScopeValues { variable, values })
                .collect();
            ScopeFilter::new(entries).unwrap()
        })
        .boxed()
}

pub(crate) fn stored_scopes() -> BoxedStrategy<StoredScopes> {
    vec((text(), text()), 0..4)
        .prop_map(|mut pairs| {
            pairs.sort();
            pairs.dedup_by(|left, right| left.0 == right.0);
            StoredScopes::new(pairs).unwrap()
        })
        .boxed()
}

/// A frame type that is unknown in `version`.
fn unknown_type(version: WireVersion) -> BoxedStrategy<u8> {
    let mut types = vec![
        0x06, 0x0f, 0x17, 0x18, 0x1a, 0x1c, 0x1e, 0x20, 0x2f, 0x80, 0xff,
    ];
    if version < WireVersion::V3 {
        types.push(0x05);
    }
    prop::sample::select(types).boxed()
}

pub(crate) fn rejection_details() -> BoxedStrategy<ByteString> {
    let token = || "[a-z][a-z0-9]{0,3}([._-][a-z0-9]{1,3}){0,2}";
    let reference = (token(), "[!-~é\u{1F600}]{1,8}");
    (
        prop::collection::btree_set("[A-Za-z_][A-Za-z0-9_]{0,3}(\\.[a-z]{1,3}){0,2}", 0..4),
        token(),
        option::of(token()),
        vec(reference, 0..3),
    )
        .prop_map(|(paths, reason, action, references)| {
            let mut details = RejectionDetails::new().reason(reason);
            for path in paths {
                details = details.field_path(path);
            }
            if let Some(action) = action {
                details = details.required_action(action);
            }
            for (key, value) in references {
                details = details.reference(key, value);
            }
            details.build().unwrap()
        })
        .boxed()
}

pub(crate) fn blob_ref() -> BoxedStrategy<String> {
    (
        bytes(),
        0..=SAFE_INTEGER_MAX,
        option::of(text()),
        option::of(text()),
    )
        .prop_map(|(content, byte_length, media_type, name)| {
            BlobRef {
                blob_id: content_address(&content),
                byte_length,
                media_type,
                name,
            }
            .to_text()
        })
        .boxed()
}

pub(crate) fn columns() -> BoxedStrategy<Vec<Column>> {
    let kind = prop::sample::select(ColumnType::ALL.to_vec());
    vec((kind, any::<bool>()), 1..20)
        .prop_map(|columns| {
            let column = |(index, (kind, nullable))| Column {
                name: format!("c{index}"),
                kind,
                nullable,
            };
            columns.into_iter().enumerate().map(column).collect()
        })
        .boxed()
}

/// The encoding of a value of a column, `None` for NULL where it may be.
fn cell(column: &Column) -> BoxedStrategy<Option<Vec<u8>>> {
    let encode = |value: Value<'_>| {
        let mut out = Vec::new();
        value.encode(&mut out);
        out
    };
    let value = match column.kind {
        ColumnType::String => text().prop_map(move |v| encode(Value::String(&v))).boxed(),
        ColumnType::Integer => integer()
            .prop_map(move |v| encode(Value::Integer(v)))
            .boxed(),
        ColumnType::Float => any::<u64>()
            .prop_map(move |bits| encode(Value::Float(f64::from_bits(bits))))
            .boxed(),
        ColumnType::Boolean => any::<bool>()
            .prop_map(move |v| encode(Value::Boolean(v)))
            .boxed(),
        ColumnType::Json => json_text()
            .prop_map(move |v| encode(Value::Json(&v)))
            .boxed(),
        ColumnType::Bytes => bytes().prop_map(move |v| encode(Value::Bytes(&v))).boxed(),
        ColumnType::BlobRef => blob_ref()
            .prop_map(move |v| encode(Value::BlobRef(&v)))
            .boxed(),
        ColumnType::Crdt => bytes().prop_map(move |v| encode(Value::Crdt(&v))).boxed(),
    };
    if column.nullable {
        option::of(value).boxed()
    } else {
        value.prop_map(Some).boxed()
    }
}

pub(crate) type Cells = Vec<Option<Vec<u8>>>;

fn cells(columns: &[Column]) -> BoxedStrategy<Cells> {
    columns.iter().map(cell).collect::<Vec<_>>().boxed()
}

pub(crate) fn full_row(cells: &Cells) -> Vec<u8> {
    let values: Vec<Option<&[u8]>> = cells.iter().map(Option::as_deref).collect();
    encode_row(&values)
}

/// Columns, the primary key's index, and a sparse row.
pub(crate) fn sparse_row() -> BoxedStrategy<(Vec<Column>, usize, Vec<u8>)> {
    columns()
        .prop_flat_map(|columns| {
            let present = vec(any::<bool>(), columns.len());
            let cells = cells(&columns);
            (Just(columns), any::<prop::sample::Index>(), present, cells)
        })
        .prop_map(|(columns, primary_key, mut present, cells)| {
            let primary_key = primary_key.index(columns.len());
            present[primary_key] = true;
            let values: Vec<Option<Option<&[u8]>>> = cells
                .iter()
                .zip(present)
                .map(|(cell, present)| present.then_some(cell.as_deref()))
                .collect();
            let row = encode_sparse_row(&values);
            (columns, primary_key, row)
        })
        .boxed()
}

/// Columns and a full row with its cells.
pub(crate) fn row() -> BoxedStrategy<(Vec<Column>, Cells)> {
    columns()
        .prop_flat_map(|columns| {
            let cells = cells(&columns);
            (Just(columns), cells)
        })
        .boxed()
}

pub(crate) fn segment() -> BoxedStrategy<RowsSegment> {
    columns()
        .prop_flat_map(|columns| {
            let row = (1..=SAFE_INTEGER_MAX, cells(&columns));
            let blocks = vec(vec(row, 1..3), 0..3);
            (Just(columns), text(), any::<i32>(), blocks)
        })
        .prop_map(|(columns, table, schema_version, blocks)| {
            let row = |(server_version, cells)| SegmentRow {
                server_version,
                row: full_row(&cells),
            };
            RowsSegment {
                table,
                schema_version,
                columns,
                blocks: blocks
                    .into_iter()
                    .map(|block| block.into_iter().map(row).collect())
                    .collect(),
            }
        })
        .boxed()
}

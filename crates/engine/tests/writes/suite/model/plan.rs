//! Random schemas and random histories on them, small enough that everything meets everything.

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};
use tidewater_wire::WireVersion;
use yrs::{ClientID, Doc, Options, Text, Transact};

use super::super::asking::{Op, Write};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    Text(String),
    Number(i64),
    Bytes(Vec<u8>),
}

impl Cell {
    /// As the engine renders it, in keys and in test output.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Bytes(bytes) => match str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            },
        }
    }

    fn json(&self) -> Json {
        match self {
            Self::Text(text) => json!(text),
            Self::Number(number) => json!(number),
            Self::Bytes(bytes) => json!(bytes),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Text,
    Number,
    Set,
    Yjs,
}

impl Kind {
    pub(crate) fn is_crdt(self) -> bool {
        matches!(self, Self::Set | Self::Yjs)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    Restrict,
    Cascade,
    SetNull,
}

#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) nullable: bool,
}

/// A table: its key, its team, its references, its other columns.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// Column, parent table, rule.
    pub(crate) references: Vec<(usize, usize, Rule)>,
    pub(crate) unique: Vec<Vec<usize>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Slot {
    Absent,
    Null,
    Value(Cell),
}

#[derive(Clone, Debug)]
pub(crate) enum Payload {
    Row(String, Vec<Slot>),
    Garbage,
    Delete,
}

/// One operation, before it is encoded.
#[derive(Clone, Debug)]
pub(crate) struct Intent {
    /// `None` is a table that does not exist.
    pub(crate) table: Option<usize>,
    pub(crate) row_id: String,
    pub(crate) payload: Payload,
    pub(crate) base: Option<i64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) partition: &'static str,
    pub(crate) actor: &'static str,
    pub(crate) client: &'static str,
    pub(crate) version: WireVersion,
    pub(crate) commits: Vec<(String, Vec<Intent>)>,
}

/// Requests that are taken together, and perhaps a call that is lost to another transaction.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) requests: Vec<Request>,
    pub(crate) lost: Option<(u64, bool)>,
}

#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) schema: Vec<Shape>,
    pub(crate) limit: usize,
    pub(crate) batches: Vec<Batch>,
}

const TEXT_KEYS: [&str; 5] = ["a", "b", "B", "é", "1"];
const NUMBER_KEYS: [i64; 5] = [1, 2, 10, -3, 0];

/// The key of a table's row with this number.
pub(crate) fn key(shape: &Shape, row: usize) -> Cell {
    match shape.columns[0].kind {
        Kind::Number => Cell::Number(NUMBER_KEYS[row]),
        _ => Cell::Text(TEXT_KEYS[row].to_owned()),
    }
}

/// How many keys each table has.
pub(crate) const ROWS: usize = 5;

/// The updates two replicas made, and one that is none.
fn updates() -> Vec<Vec<u8>> {
    let mut updates = Vec::new();
    for replica in [7, 9] {
        let doc = Doc::with_options(Options::with_client_id(ClientID::new(replica)));
        let body = doc.get_or_insert_text("body");
        for word in ["x", "y"] {
            let mut txn = doc.transact_mut();
            body.insert(&mut txn, 0, word);
            updates.push(txn.encode_update_v1());
        }
    }
    updates.push(vec![1, 2, 3, 200, 200]);
    updates
}

/// A random table: the kind of its key, references, columns and what is unique.
#[derive(Clone, Debug)]
struct TableDraft {
    number_key: bool,
    references: Vec<(usize, u8, bool)>,
    columns: Vec<(u8, bool)>,
    pair: bool,
}

fn table_draft() -> impl Strategy<Value = TableDraft> {
    let reference = (0..4_usize, 0..3_u8, prop::bool::weighted(0.2));
    let column = (0..5_u8, prop::bool::weighted(0.4));
    (
        any::<bool>(),
        prop::collection::vec(reference, 0..4),
        prop::collection::vec(column, 0..4),
        any::<bool>(),
    )
        .prop_map(|(number_key, references, columns, pair)| TableDraft {
            number_key,
            references,
            columns,
            pair,
        })
}

fn shapes(drafts: &[TableDraft]) -> Vec<Shape> {
    let key_kind = |table: usize| {
        if drafts[table].number_key {
            Kind::Number
        } else {
            Kind::Text
        }
    };
    let column = |name: String, kind, nullable| Column {
        name,
        kind,
        nullable,
    };
    drafts
        .iter()
        .enumerate()
        .map(|(place, draft)| {
            let mut shape = Shape {
                name: format!("tb{place}"),
                columns: vec![
                    column("id".to_owned(), key_kind(place), false),
                    column("team".to_owned(), Kind::Text, false),
                ],
                references: Vec::new(),
                unique: Vec::new(),
            };
            for &(parent, rule, unique) in &draft.references {
                let parent = parent % drafts.len();
                let at = shape.columns.len();
                let rule = [Rule::Restrict, Rule::Cascade, Rule::SetNull][usize::from(rule)];
                shape
                    .columns
                    .push(column(format!("r{at}"), key_kind(parent), true));
                shape.references.push((at, parent, rule));
                if unique {
                    shape.unique.push(vec![at]);
                }
            }
            let first = shape.columns.len();
            for &(kind, unique) in &draft.columns {
                let at = shape.columns.len();
                let kinds = [Kind::Text, Kind::Number, Kind::Set, Kind::Yjs, Kind::Text];
                let kind_of = kinds[usize::from(kind)];
                shape
                    .columns
                    .push(column(format!("v{at}"), kind_of, kind < 4));
                if unique && !kind_of.is_crdt() {
                    shape.unique.push(vec![at]);
                }
            }
            let plain = |at: &usize| !shape.columns[*at].kind.is_crdt();
            let pair: Vec<usize> = (first..shape.columns.len()).filter(plain).take(2).collect();
            if draft.pair && pair.len() == 2 {
                shape.unique.push(pair);
            }
            shape
        })
        .collect()
}

/// An operation in numbers: how each column is filled is decided by a number of its own.
#[derive(Clone, Debug)]
struct OpDraft {
    table: usize,
    row: usize,
    what: u8,
    whole: bool,
    cells: Vec<u8>,
    base: Option<i64>,
}

fn op_draft() -> impl Strategy<Value = OpDraft> {
    let base = prop_oneof![
        20 => Just(None),
        2 => Just(Some(0)),
        5 => prop::sample::select(vec![1, 1, 1, 2, 2, 3]).prop_map(Some),
        1 => prop::sample::select(vec![-1, 9]).prop_map(Some),
    ];
    (
        0..100_usize,
        0..ROWS,
        0..60_u8,
        prop::bool::weighted(0.8),
        prop::collection::vec(0..60_u8, 8),
        base,
    )
        .prop_map(|(table, row, what, whole, cells, base)| OpDraft {
            table,
            row,
            what,
            whole,
            cells,
            base,
        })
}

fn intent(schema: &[Shape], updates: &[Vec<u8>], draft: &OpDraft) -> Intent {
    // Tables in turn; the last number is one that does not exist.
    let table = (draft.table < 99).then_some(draft.table % schema.len());
    let shape = &schema[table.unwrap_or(0)];
    let row_id = key(shape, draft.row).text();
    let payload = match draft.what {
        0..20 => Payload::Delete,
        20 => Payload::Garbage,
        what => {
            let named = if what == 21 {
                (draft.row + 1) % ROWS
            } else {
                draft.row
            };
            let slots = shape
                .columns
                .iter()
                .enumerate()
                .map(|(at, column)| slot(schema, shape, updates, draft, at, column));
            Payload::Row(key(shape, named).text(), slots.collect())
        }
    };
    Intent {
        table,
        row_id,
        payload,
        base: draft.base,
    }
}

fn slot(
    schema: &[Shape],
    shape: &Shape,
    updates: &[Vec<u8>],
    draft: &OpDraft,
    at: usize,
    column: &Column,
) -> Slot {
    let number = draft.cells[at % draft.cells.len()];
    if at == 0 {
        return Slot::Value(key(shape, draft.row));
    }
    let reference = shape.references.iter().find(|(column, ..)| *column == at);
    let nulls = if reference.is_some() { 2 } else { 1 };
    match number % 4 {
        0 if !draft.whole => return Slot::Absent,
        rest if (1..=nulls).contains(&rest) && (column.nullable || number == 1 && at > 1) => {
            return Slot::Null;
        }
        _ => {}
    }
    let value = usize::from(number / 4);
    if at == 1 {
        let team = if value == 14 && number % 4 == 3 {
            "t2"
        } else {
            "t1"
        };
        return Slot::Value(Cell::Text(team.to_owned()));
    }
    if let Some((_, parent, _)) = reference {
        return Slot::Value(key(&schema[*parent], value % ROWS));
    }
    // The last one of these is no document.
    let document = if value == 14 { 4 } else { value % 4 };
    Slot::Value(match column.kind {
        Kind::Text => Cell::Text(["x", "y", "z", "", "X"][value % 5].to_owned()),
        Kind::Number => Cell::Number([0, 1, 2, 3, -1][value % 5]),
        Kind::Set => Cell::Bytes([&b"x"[..], b"y", b"z,x", b"", &[0xff]][document].to_vec()),
        Kind::Yjs => Cell::Bytes(updates[document].clone()),
    })
}

#[derive(Clone, Debug)]
struct RequestDraft {
    who: usize,
    version: usize,
    elsewhere: bool,
    commits: Vec<(Option<u8>, Vec<OpDraft>)>,
}

fn request_draft() -> impl Strategy<Value = RequestDraft> {
    let repeated = prop_oneof![8 => Just(None), 1 => (0..6_u8).prop_map(Some)];
    let commit = (repeated, prop::collection::vec(op_draft(), 1..6));
    (
        0..20_usize,
        0..4_usize,
        prop::bool::weighted(0.1),
        prop::collection::vec(commit, 1..4),
    )
        .prop_map(|(who, version, elsewhere, commits)| RequestDraft {
            who,
            version,
            elsewhere,
            commits,
        })
}

/// Any history.
pub(crate) fn history() -> impl Strategy<Value = History> {
    let lost = prop_oneof![3 => Just(None), 1 => (0..12_u64, any::<bool>()).prop_map(Some)];
    let batch = (prop::collection::vec(request_draft(), 1..5), lost);
    (
        prop::collection::vec(table_draft(), 1..5),
        1..6_usize,
        prop::collection::vec(batch, 4..14),
    )
        .prop_map(|(tables, limit, batches)| {
            let schema = shapes(&tables);
            let updates = updates();
            let mut fresh = 0..;
            let drawn = batches.into_iter().map(|(requests, lost)| Batch {
                requests: requests
                    .iter()
                    .map(|draft| request(&schema, &updates, draft, &mut fresh))
                    .collect(),
                lost,
            });
            let seed = Batch {
                requests: vec![seed(&schema)],
                lost: None,
            };
            let batches = std::iter::once(seed).chain(drawn).collect();
            History {
                schema,
                limit,
                batches,
            }
        })
}

/// Rows to begin with: three in each table, two of three references set.
fn seed(schema: &[Shape]) -> Request {
    let rows = schema.iter().enumerate().flat_map(|(table, shape)| {
        (0..3).map(move |row| {
            let id = key(shape, row);
            let slots = shape.columns.iter().enumerate().map(|(at, column)| {
                let reference = shape.references.iter().find(|(column, ..)| *column == at);
                match (at, reference) {
                    (0, _) => Slot::Value(id.clone()),
                    (1, _) => Slot::Value(Cell::Text("t1".to_owned())),
                    (_, Some((_, parent, _))) if !(row + at).is_multiple_of(3) => {
                        Slot::Value(key(&schema[*parent], row))
                    }
                    _ if column.nullable => Slot::Null,
                    _ => Slot::Value(Cell::Text(format!("seed-{row}"))),
                }
            });
            Intent {
                table: Some(table),
                row_id: id.text(),
                payload: Payload::Row(id.text(), slots.collect()),
                base: None,
            }
        })
    });
    Request {
        partition: "p1",
        actor: "ann",
        client: "c-seed",
        version: WireVersion::V3,
        commits: vec![("seed".to_owned(), rows.collect())],
    }
}

fn request(
    schema: &[Shape],
    updates: &[Vec<u8>],
    draft: &RequestDraft,
    fresh: &mut impl Iterator<Item = u32>,
) -> Request {
    let (actor, client) = [
        ("ann", "c-ann"),
        ("ann", "c-ann"),
        ("ann", "c-ann-2"),
        ("ann", "c-ann-2"),
        ("bob", "c-bob"),
        ("bob", "c-bob"),
        ("eve", "c-eve"),
        ("bob", "shared"),
        ("eve", "shared"),
        ("ann", "shared"),
    ]
    .get(draft.who)
    .copied()
    .unwrap_or(("ann", "c-ann"));
    let versions = [
        WireVersion::V3,
        WireVersion::V3,
        WireVersion::V2,
        WireVersion::V1,
    ];
    let commits = draft
        .commits
        .iter()
        .map(|(repeated, operations)| {
            let id = match repeated {
                Some(number) => format!("again-{number}"),
                None => format!("k{}", fresh.next().unwrap()),
            };
            let intents = operations
                .iter()
                .map(|draft| intent(schema, updates, draft))
                .collect();
            (id, intents)
        })
        .collect();
    Request {
        partition: if draft.elsewhere { "p2" } else { "p1" },
        actor,
        client,
        version: versions[draft.version],
        commits,
    }
}

/// The schema as a document.
pub(crate) fn document(schema: &[Shape]) -> String {
    let tables: Vec<Json> = schema
        .iter()
        .map(|shape| {
            let columns: Vec<Json> = shape
                .columns
                .iter()
                .map(|column| {
                    let (kind, crdt) = match column.kind {
                        Kind::Text => ("string", None),
                        Kind::Number => ("integer", None),
                        Kind::Set => ("crdt", Some("set")),
                        Kind::Yjs => ("crdt", Some("yjs-doc")),
                    };
                    json!({"name": column.name, "type": kind, "nullable": column.nullable,
                        "crdtType": crdt})
                })
                .collect();
            let name = |at: &usize| shape.columns[*at].name.clone();
            let mut indexes: Vec<Json> = Vec::new();
            for (number, columns) in shape.unique.iter().enumerate() {
                let columns: Vec<String> = columns.iter().map(name).collect();
                indexes.push(json!({"name": format!("{}_u{number}", shape.name),
                    "columns": columns, "unique": true}));
            }
            for (column, ..) in &shape.references {
                indexes.push(json!({"name": format!("{}_i{column}", shape.name),
                    "columns": [name(column)]}));
            }
            let references: Vec<Json> = shape
                .references
                .iter()
                .map(|(column, parent, rule)| {
                    let rule = match rule {
                        Rule::Restrict => "RESTRICT",
                        Rule::Cascade => "CASCADE",
                        Rule::SetNull => "SET NULL",
                    };
                    json!({"column": name(column), "parentTable": schema[*parent].name,
                        "onDelete": rule})
                })
                .collect();
            json!({"name": shape.name, "primaryKey": "id", "scopes": ["team:{team}"],
                "columns": columns, "indexes": indexes, "references": references})
        })
        .collect();
    json!({"version": 1, "tables": tables}).to_string()
}

/// The operation as a request carries it.
pub(crate) fn operation(schema: &[Shape], intent: &Intent) -> Op {
    let table = intent
        .table
        .map_or("nothing", |table| schema[table].name.as_str());
    let write = match &intent.payload {
        Payload::Delete => Write::Delete,
        Payload::Garbage => Write::Bytes(vec![0xff, 0xff].into()),
        Payload::Row(id, slots) => match intent.table {
            None => Write::Bytes(vec![0].into()),
            Some(table) => {
                let columns = &schema[table].columns;
                let mut values = Map::new();
                for (column, slot) in columns.iter().zip(slots) {
                    match slot {
                        Slot::Absent => None,
                        Slot::Null => values.insert(column.name.clone(), Json::Null),
                        Slot::Value(cell) => values.insert(column.name.clone(), cell.json()),
                    };
                }
                let id = match columns[0].kind {
                    Kind::Number => json!(id.parse::<i64>().unwrap()),
                    _ => json!(id),
                };
                values.insert("id".to_owned(), id);
                Write::Row(values)
            }
        },
    };
    Op {
        table: table.to_owned(),
        row_id: intent.row_id.clone(),
        write,
        base: intent.base,
    }
}

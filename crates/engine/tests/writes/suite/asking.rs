//! Requests to ask with and what is answered, in words.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde_json::{Map, Value as Json};
use tidewater_engine::RoundBody;
use tidewater_model::{ColumnType, LogEpoch, ScopeFilter, ScopeValues};
use tidewater_schema::{Schema, Table};
use tidewater_wire::{
    Accept, OpResult, Operation, OperationAction, PullHeader, PushCommit, PushOutcome, PushResult,
    Request, RequestFrame, RequestHeader, Response, ResponseFrame, Subscription, WireVersion,
    row::{Column, Value, decode_row, encode_row, encode_sparse_row},
};

/// One operation. Its payload is encoded when the wire version is known.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) table: String,
    pub(crate) row_id: String,
    pub(crate) write: Write,
    pub(crate) base: Option<i64>,
}

#[derive(Clone, Debug)]
pub(crate) enum Write {
    /// Values by column. A column that is not named is absent in wire version 3 and NULL before.
    Row(Map<String, Json>),
    Bytes(Bytes),
    Delete,
}

/// Writes a row whose key column is `id`.
pub(crate) fn put(table: &str, values: Json) -> Op {
    let Json::Object(values) = values else {
        panic!("a row is an object")
    };
    let row_id = match &values["id"] {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    Op {
        table: table.to_owned(),
        row_id,
        write: Write::Row(values),
        base: None,
    }
}

pub(crate) fn delete(table: &str, row_id: &str) -> Op {
    Op {
        table: table.to_owned(),
        row_id: row_id.to_owned(),
        write: Write::Delete,
        base: None,
    }
}

impl Op {
    pub(crate) fn based_on(mut self, base: i64) -> Self {
        self.base = Some(base);
        self
    }

    fn encode(self, schema: &Schema, version: WireVersion) -> Operation {
        let action = match self.write {
            Write::Delete => OperationAction::Delete,
            Write::Bytes(payload) => OperationAction::Upsert(payload),
            Write::Row(values) => {
                let table = schema.table(schema.find(&self.table).expect("a table that exists"));
                OperationAction::Upsert(encode(table, &values, version))
            }
        };
        Operation {
            table: self.table.into(),
            row_id: self.row_id.into(),
            action,
            base_version: self.base,
        }
    }
}

fn encode(table: &Table, values: &Map<String, Json>, version: WireVersion) -> Bytes {
    for name in values.keys() {
        assert!(table.column(name).is_some(), "{} has no {name}", table.name);
    }
    let slots: Vec<Option<Option<Vec<u8>>>> = table
        .columns
        .iter()
        .map(|column| match values.get(&column.name) {
            None => None,
            Some(Json::Null) => Some(None),
            Some(value) => Some(Some(encode_value(column, value))),
        })
        .collect();
    if version.is_sparse() {
        let slots: Vec<Option<Option<&[u8]>>> = slots
            .iter()
            .map(|slot| slot.as_ref().map(|value| value.as_deref()))
            .collect();
        encode_sparse_row(&slots).into()
    } else {
        let values: Vec<Option<&[u8]>> = slots
            .iter()
            .map(|slot| slot.as_ref().and_then(|value| value.as_deref()))
            .collect();
        encode_row(&values).into()
    }
}

/// Bytes are given as text, or as a list of numbers where they are none.
fn encode_value(column: &Column, value: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    let text = || value.as_str().expect("text");
    let bytes = || match value {
        Json::Array(bytes) => bytes
            .iter()
            .map(|byte| u8::try_from(byte.as_u64().expect("a byte")).expect("a byte"))
            .collect(),
        _ => text().as_bytes().to_vec(),
    };
    match column.kind {
        ColumnType::String => Value::String(text()).encode(&mut out),
        ColumnType::Json => Value::Json(text()).encode(&mut out),
        ColumnType::BlobRef => Value::BlobRef(text()).encode(&mut out),
        ColumnType::Integer => Value::Integer(value.as_i64().expect("a number")).encode(&mut out),
        ColumnType::Float => Value::Float(value.as_f64().expect("a number")).encode(&mut out),
        ColumnType::Boolean => Value::Boolean(value.as_bool().expect("a flag")).encode(&mut out),
        ColumnType::Bytes => Value::Bytes(&bytes()).encode(&mut out),
        ColumnType::Crdt => Value::Crdt(&bytes()).encode(&mut out),
    }
    out
}

/// A row as text: its values between bars, NULL as a dash, bytes as text or else in hex.
pub(crate) fn row_text(table: &Table, payload: &[u8]) -> String {
    let fields = decode_row(&table.columns, payload).expect("a row of this table");
    let values: Vec<String> = fields
        .iter()
        .map(|field| match field.as_ref().map(|field| field.value) {
            None => "-".to_owned(),
            Some(Value::Bytes(bytes) | Value::Crdt(bytes)) => match str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            },
            Some(value) => value.render().unwrap_or_default().into_owned(),
        })
        .collect();
    values.join("|")
}

/// A request in the making.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) partition: String,
    pub(crate) actor: String,
    pub(crate) client: String,
    pub(crate) version: WireVersion,
    /// What the client knows; `None` is what the server serves.
    pub(crate) schema: Option<Arc<Schema>>,
    commits: Vec<(String, Vec<Op>)>,
    pulls: Vec<(String, i64)>,
}

impl Ask {
    /// By ann from client `c1` in wire version 3, with nothing in it yet.
    pub(crate) fn new() -> Self {
        Self {
            partition: "p1".to_owned(),
            actor: "ann".to_owned(),
            client: "c1".to_owned(),
            version: WireVersion::V3,
            schema: None,
            commits: Vec::new(),
            pulls: Vec::new(),
        }
    }

    pub(crate) fn knowing(mut self, schema: &Arc<Schema>) -> Self {
        self.schema = Some(Arc::clone(schema));
        self
    }

    pub(crate) fn in_version(mut self, version: WireVersion) -> Self {
        self.version = version;
        self
    }

    /// By this actor, from a client of its own.
    pub(crate) fn by(mut self, actor: &str) -> Self {
        actor.clone_into(&mut self.actor);
        self.client = format!("{actor}-1");
        self
    }

    pub(crate) fn of_client(mut self, client: &str) -> Self {
        client.clone_into(&mut self.client);
        self
    }

    pub(crate) fn in_partition(mut self, partition: &str) -> Self {
        partition.clone_into(&mut self.partition);
        self
    }

    pub(crate) fn push(mut self, id: &str, operations: Vec<Op>) -> Self {
        self.commits.push((id.to_owned(), operations));
        self
    }

    /// Pulls every row of a table that has the scope variable `team`.
    pub(crate) fn pull(mut self, table: &str, cursor: i64) -> Self {
        self.pulls.push((table.to_owned(), cursor));
        self
    }

    pub(crate) fn encode(self, schema: &Schema, live: &LogEpoch) -> Bytes {
        let header = RequestHeader {
            client_id: self.client.into(),
            schema_version: schema.version(),
            log_epoch: self.version.has_epoch().then(|| live.as_str().into()),
        };
        let mut frames = vec![RequestFrame::Header(header)];
        for (id, operations) in self.commits {
            let operations = operations
                .into_iter()
                .map(|op| op.encode(schema, self.version))
                .collect();
            frames.push(RequestFrame::PushCommit(PushCommit {
                client_commit_id: id.into(),
                operations,
            }));
        }
        if !self.pulls.is_empty() {
            frames.push(RequestFrame::PullHeader(PullHeader {
                limit_commits: 0,
                limit_snapshot_rows: 0,
                max_snapshot_pages: 0,
                accept: Accept::from_bits(0b0011).expect("two defined bits"),
            }));
        }
        for (table, cursor) in self.pulls {
            frames.push(RequestFrame::Subscription(Subscription {
                id: table.as_str().into(),
                table: table.into(),
                scopes: all_teams(),
                params: None,
                cursor,
                bootstrap_state: None,
            }));
        }
        let request = Request {
            version: self.version,
            frames,
        };
        request.encode().expect("a small request")
    }
}

/// Every value of `team` that tests use.
pub(crate) fn all_teams() -> ScopeFilter {
    let values = ["t1", "t2", "t3"].map(str::to_owned).to_vec();
    let variable = "team".to_owned();
    ScopeFilter::new(vec![ScopeValues { variable, values }]).expect("one variable")
}

/// What was answered to one commit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) result: PushResult,
    /// Operation and details.
    pub(crate) details: Vec<(i32, String)>,
}

impl Told {
    /// `applied 1`, `cached 1`, `rejected 0:sync.forbidden`.
    pub(crate) fn outcome(&self) -> String {
        let record = |record: &OpResult| match record {
            OpResult::Applied { op_index } => format!("{op_index}:applied"),
            OpResult::Conflict { op_index, code, .. } | OpResult::Error { op_index, code, .. } => {
                format!("{op_index}:{code}")
            }
        };
        let records: Vec<String> = self.result.results.iter().map(record).collect();
        match self.result.outcome {
            PushOutcome::Applied(seq) => format!("applied {seq}"),
            PushOutcome::Cached(seq) => format!("cached {seq}"),
            PushOutcome::Rejected => format!("rejected {}", records.join(" ")),
        }
    }

    /// The message of the only record.
    pub(crate) fn message(&self) -> &str {
        match &self.result.results[..] {
            [OpResult::Conflict { message, .. } | OpResult::Error { message, .. }] => message,
            other => panic!("not one refusal: {other:?}"),
        }
    }

    /// The details of the only record.
    pub(crate) fn details(&self) -> Option<&str> {
        match &self.details[..] {
            [] => None,
            [(op_index, details)] => {
                let OpResult::Error {
                    op_index: blamed, ..
                } = self.result.results[0]
                else {
                    panic!("details of no error: {self:?}")
                };
                assert_eq!(*op_index, blamed, "details belong to the record");
                Some(details)
            }
            other => panic!("more than one: {other:?}"),
        }
    }
}

/// A response by what it says.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) bytes: Bytes,
    pub(crate) told: Vec<Told>,
    /// The code of an ERROR frame.
    pub(crate) error: Option<String>,
    /// Where each section ended.
    pub(crate) cursors: Vec<i64>,
}

impl Answer {
    /// Reads a response that obeys the grammar; anything else panics.
    pub(crate) async fn read(mut body: RoundBody) -> Self {
        let mut bytes = BytesMut::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece);
        }
        let bytes = bytes.freeze();
        let response = Response::decode(&bytes).expect("a response");
        let mut answer = Self {
            bytes,
            told: Vec::new(),
            error: None,
            cursors: Vec::new(),
        };
        for frame in response.frames {
            match frame {
                ResponseFrame::PushResult(result) => answer.told.push(Told {
                    result,
                    details: Vec::new(),
                }),
                ResponseFrame::PushResultDetails(frame) => {
                    let told = answer.told.last_mut().expect("details follow a result");
                    assert_eq!(told.result.client_commit_id, frame.client_commit_id);
                    let entries = frame.entries.into_iter();
                    told.details
                        .extend(entries.map(|entry| (entry.op_index, entry.details.to_string())));
                }
                ResponseFrame::Error(error) => answer.error = Some(error.code.to_string()),
                ResponseFrame::SubEnd(end) => answer.cursors.push(end.next_cursor),
                _ => {}
            }
        }
        answer
    }

    pub(crate) fn outcomes(&self) -> Vec<String> {
        self.told.iter().map(Told::outcome).collect()
    }
}

//! Requests as clients of release 0.49 send them, and what is read from the answers.

use std::net::SocketAddr;

use bytes::Bytes;
use tidewater_model::{ScopeFilter, ScopeValues};
use tidewater_wire::{
    Accept, Operation, OperationAction, PullHeader, PushCommit, PushOutcome, Request, RequestFrame,
    RequestHeader, Response, ResponseFrame, Subscription, WireVersion, content_address,
    row::{Value, encode_sparse_row},
};

use crate::client::{Reply, post};

/// Every delivery by reference.
pub(crate) const ACCEPT_EXTERNAL: u8 = 0b0010;
/// Every delivery inside the response.
pub(crate) const ACCEPT_INLINE: u8 = 0b0001;

/// A client that knows the log epoch.
pub(crate) struct Device {
    pub(crate) address: SocketAddr,
    pub(crate) id: String,
    epoch: String,
}

impl Device {
    /// Learns the epoch, as every client does first.
    pub(crate) async fn meet(address: SocketAddr, id: &str) -> Self {
        let header = RequestFrame::Header(RequestHeader {
            client_id: id.into(),
            schema_version: 1,
            log_epoch: None,
        });
        let frames = [vec![header], pull("t1", -1, ACCEPT_INLINE)].concat();
        let request = Request {
            version: WireVersion::V3,
            frames,
        };
        let reply = post(address, &[], &request.encode().unwrap()).await;
        let response = response(&reply);
        let Some(ResponseFrame::Header(header)) = response.frames.first() else {
            panic!("no header: {response:?}");
        };
        assert!(header.reset_required);
        Self {
            address,
            id: id.to_owned(),
            epoch: header.log_epoch.to_string(),
        }
    }

    /// A request with these frames after its header.
    pub(crate) fn request(&self, frames: Vec<RequestFrame>) -> Bytes {
        let header = RequestFrame::Header(RequestHeader {
            client_id: self.id.as_str().into(),
            schema_version: 1,
            log_epoch: Some(self.epoch.as_str().into()),
        });
        let frames = [vec![header], frames].concat();
        Request {
            version: WireVersion::V3,
            frames,
        }
        .encode()
        .unwrap()
    }

    /// Sends a request that is answered.
    pub(crate) async fn post(&self, frames: Vec<RequestFrame>) {
        let reply = post(self.address, &[], &self.request(frames)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Pushes notes in one commit.
    pub(crate) async fn push(&self, commit: &str, notes: &[(&str, &str, &str)]) -> PushOutcome {
        let reply = post(self.address, &[], &self.request(vec![push(commit, notes)])).await;
        outcome(&reply)
    }
}

/// One commit that writes a file: id, team, the blob with its content.
pub(crate) fn push_file(
    commit: &str,
    id: &str,
    team: &str,
    content: Option<&[u8]>,
) -> RequestFrame {
    let reference = content.map(|content| {
        format!(
            r#"{{"blobId":"{}","byteLength":{}}}"#,
            content_address(content),
            content.len()
        )
    });
    let encode = |value: Value<'_>| {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        bytes
    };
    let texts = [id, team].map(|text| encode(Value::String(text)));
    let reference = reference.map(|reference| encode(Value::BlobRef(&reference)));
    let values = [
        Some(Some(&texts[0][..])),
        Some(Some(&texts[1][..])),
        Some(reference.as_deref()),
    ];
    RequestFrame::PushCommit(PushCommit {
        client_commit_id: commit.into(),
        operations: vec![Operation {
            table: "files".into(),
            row_id: id.into(),
            action: OperationAction::Upsert(encode_sparse_row(&values).into()),
            base_version: None,
        }],
    })
}

/// One commit that writes notes: id, team, body.
pub(crate) fn push(commit: &str, notes: &[(&str, &str, &str)]) -> RequestFrame {
    let operations = notes.iter().map(|&(id, team, body)| Operation {
        table: "notes".into(),
        row_id: id.into(),
        action: OperationAction::Upsert(note(id, team, body)),
        base_version: None,
    });
    RequestFrame::PushCommit(PushCommit {
        client_commit_id: commit.into(),
        operations: operations.collect(),
    })
}

fn note(id: &str, team: &str, body: &str) -> Bytes {
    let encoded = [id, team, body].map(|text| {
        let mut bytes = Vec::new();
        Value::String(text).encode(&mut bytes);
        bytes
    });
    let photo = {
        let mut bytes = Vec::new();
        Value::Bytes(&[7; 9]).encode(&mut bytes);
        bytes
    };
    let values: Vec<Option<Option<&[u8]>>> = encoded
        .iter()
        .chain([&photo])
        .map(|value| Some(Some(&value[..])))
        .collect();
    encode_sparse_row(&values).into()
}

/// A pull of notes of one team.
pub(crate) fn pull(team: &str, cursor: i64, accept: u8) -> Vec<RequestFrame> {
    pull_of("notes", team, cursor, accept)
}

pub(crate) fn pull_of(table: &str, team: &str, cursor: i64, accept: u8) -> Vec<RequestFrame> {
    let scopes = ScopeFilter::new(vec![ScopeValues {
        variable: "team_id".to_owned(),
        values: vec![team.to_owned()],
    }]);
    vec![
        RequestFrame::PullHeader(PullHeader {
            limit_commits: 0,
            limit_snapshot_rows: 50_000,
            max_snapshot_pages: 50,
            accept: Accept::from_bits(accept).unwrap(),
        }),
        RequestFrame::Subscription(Subscription {
            id: "s".into(),
            table: table.into(),
            scopes: scopes.unwrap(),
            params: None,
            cursor,
            bootstrap_state: None,
        }),
    ]
}

/// The message in a successful reply.
#[track_caller]
pub(crate) fn response(reply: &Reply) -> Response {
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(
        reply.header("content-type"),
        Some("application/vnd.syncular.sync.v2")
    );
    Response::decode(&reply.body).unwrap()
}

/// What became of the first commit.
#[track_caller]
pub(crate) fn outcome(reply: &Reply) -> PushOutcome {
    assert_eq!(reply.status, 200, "{reply:?}");
    outcome_in(&reply.body)
}

/// What became of the commit that this answers.
#[track_caller]
pub(crate) fn outcome_in(response: &Bytes) -> PushOutcome {
    let response = Response::decode(response).unwrap();
    let found = response.frames.iter().find_map(|frame| match frame {
        ResponseFrame::PushResult(result) => Some(result.outcome),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no push result: {response:?}"))
}

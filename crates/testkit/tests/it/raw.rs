//! A client that is only an HTTP client.

use bytes::Bytes;
use serde_json::Value;
use tidewater_wire::{OpResult, PushCommit, PushOutcome, PushResult, Subscription, WireVersion};

use crate::{
    message::{Answer, Author},
    support::World,
};

/// Sends requests built by hand.
pub(crate) struct Raw {
    pub(crate) author: Author,
    pub(crate) url: String,
    authorization: String,
}

/// A request that was refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Refusal {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap()
    }
}

impl Raw {
    /// A client of this version that knows no epoch yet.
    pub(crate) fn new(world: &World, actor: &str, client_id: &str, version: WireVersion) -> Self {
        let schema = world.block_on(world.instance.schema());
        Self {
            author: Author::new(client_id, version, &schema),
            url: world.url.clone(),
            authorization: format!("Bearer {actor}"),
        }
    }

    /// A client that has what it needs to push.
    pub(crate) fn ready(world: &World, actor: &str, client_id: &str, version: WireVersion) -> Self {
        let mut raw = Self::new(world, actor, client_id, version);
        if version.has_epoch() {
            raw.acquire_epoch();
        }
        raw
    }

    /// Asks for the epoch the way clients do: a pull without one is answered with a reset.
    pub(crate) fn acquire_epoch(&mut self) -> Answer {
        self.author.log_epoch = None;
        let answer = self.pull(vec![]);
        assert!(answer.header.reset_required);
        self.author.log_epoch = Some(answer.header.log_epoch.clone());
        answer
    }

    pub(crate) fn send(&self, request: Bytes) -> Result<Answer, Refusal> {
        let (status, body) = self.exchange(request);
        if status == 200 {
            return Ok(Answer::read(&body));
        }
        Err(Refusal {
            status,
            body: serde_json::from_slice(&body).unwrap(),
        })
    }

    /// Status and body of the answer to a request.
    pub(crate) fn exchange(&self, request: Bytes) -> (u16, Bytes) {
        let sent = ureq::post(format!("{}/sync", self.url))
            .header("content-type", "application/vnd.syncular.sync.v2")
            .header("authorization", &self.authorization)
            .config()
            .http_status_as_error(false)
            .build()
            .send(&request[..]);
        read(sent.unwrap())
    }

    /// Status and body of a segment's download.
    pub(crate) fn segment(&self, id: &str, scopes: &str) -> (u16, Bytes) {
        let sent = ureq::get(format!("{}/segments/{id}", self.url))
            .header("authorization", &self.authorization)
            .header("x-syncular-scopes", scopes)
            .config()
            .http_status_as_error(false)
            .build()
            .call();
        read(sent.unwrap())
    }

    #[track_caller]
    pub(crate) fn round(
        &self,
        commits: Vec<PushCommit>,
        pull: Option<Vec<Subscription>>,
    ) -> Answer {
        self.send(self.author.request(commits, pull)).unwrap()
    }

    #[track_caller]
    pub(crate) fn pull(&self, subscriptions: Vec<Subscription>) -> Answer {
        self.round(vec![], Some(subscriptions))
    }

    /// Pushes one commit and returns its result.
    #[track_caller]
    pub(crate) fn push(&self, commit: PushCommit) -> PushResult {
        let mut answer = self.round(vec![commit], None);
        assert_eq!(answer.results.len(), 1);
        answer.results.remove(0)
    }

    /// Pushes one commit that is applied and returns its place.
    #[track_caller]
    pub(crate) fn apply(&self, commit: PushCommit) -> i64 {
        let result = self.push(commit);
        match result.outcome {
            PushOutcome::Applied(seq) => seq,
            _ => panic!("the commit was not applied: {result:?}"),
        }
    }

    /// Pushes one commit that is rejected and returns the code.
    #[track_caller]
    pub(crate) fn reject(&self, commit: PushCommit) -> String {
        let result = self.push(commit);
        assert_eq!(result.outcome, PushOutcome::Rejected, "{result:?}");
        match &result.results[..] {
            [OpResult::Error { code, .. } | OpResult::Conflict { code, .. }] => code.to_string(),
            other => panic!("a rejected commit has one record: {other:?}"),
        }
    }
}

fn read(mut response: http::Response<ureq::Body>) -> (u16, Bytes) {
    let body = response
        .body_mut()
        .with_config()
        .limit(1 << 30)
        .read_to_vec()
        .unwrap();
    (response.status().as_u16(), body.into())
}

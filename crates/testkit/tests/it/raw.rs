//! Requests built by hand, for tests that know how they end.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use tidewater_testkit::{
    HttpClient, Refusal,
    message::{Answer, Author},
};
use tidewater_wire::{OpResult, PushCommit, PushOutcome, PushResult, Subscription, WireVersion};

use crate::support::World;

/// A client that says what went wrong by panicking.
pub(crate) struct Raw(HttpClient);

impl Deref for Raw {
    type Target = HttpClient;

    fn deref(&self) -> &HttpClient {
        &self.0
    }
}

impl DerefMut for Raw {
    fn deref_mut(&mut self) -> &mut HttpClient {
        &mut self.0
    }
}

impl Raw {
    /// A client of this version that knows no epoch yet.
    pub(crate) fn new(world: &World, actor: &str, client_id: &str, version: WireVersion) -> Self {
        let schema = world.block_on(world.instance.schema());
        let author = Author::new(client_id, version, &schema);
        Self(HttpClient::new(&world.url, actor, author))
    }

    /// A client that has what it needs to push.
    pub(crate) fn ready(world: &World, actor: &str, client_id: &str, version: WireVersion) -> Self {
        let mut raw = Self::new(world, actor, client_id, version);
        if version.has_epoch() {
            raw.acquire_epoch().unwrap();
        }
        raw
    }

    /// Sends a request that is refused.
    #[track_caller]
    pub(crate) fn refused(&self, request: Bytes) -> Refusal {
        self.send(request).unwrap_err().downcast().unwrap()
    }

    #[track_caller]
    pub(crate) fn download(&self, id: &str, scopes: &str) -> (u16, Bytes) {
        self.segment(id, scopes).unwrap()
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

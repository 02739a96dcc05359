//! Authentication for tests: the bearer token is the actor's name.

use async_trait::async_trait;
use http::header::AUTHORIZATION;
use tidewater_engine::Identity;
use tidewater_model::PartitionId;
use tidewater_server::{AuthError, Authenticator, RequestHead};

/// Takes any non-empty bearer token for the name of an actor of one partition.
#[derive(Clone, Debug)]
pub struct NameIsToken(PartitionId);

impl NameIsToken {
    /// Everybody is in `partition`.
    pub fn new(partition: PartitionId) -> Self {
        Self(partition)
    }
}

#[async_trait]
impl Authenticator for NameIsToken {
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError> {
        let header = head.headers.get(AUTHORIZATION);
        let value = header.and_then(|value| str::from_utf8(value.as_bytes()).ok());
        let token = value.and_then(|value| value.split_once(' '));
        Ok(token
            .filter(|(scheme, name)| {
                scheme.eq_ignore_ascii_case("bearer") && !name.trim().is_empty()
            })
            .map(|(_, name)| Identity::new(self.0.as_str(), name.trim())))
    }
}

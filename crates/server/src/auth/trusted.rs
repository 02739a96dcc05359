//! Identity from headers that a proxy sets, believed only from the proxy's own addresses.
//!
//! **Invariant:** without a known peer inside the configured networks the headers mean nothing.
//! The proxy must remove them from what clients send.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;
use http::HeaderName;
use ipnet::IpNet;
use serde_json::{Map, Value};
use tidewater_engine::Identity;

use super::{AuthError, Authenticator, RequestHead, single};

/// Authenticates by headers of a trusted proxy.
#[derive(Clone, Debug)]
pub struct TrustedHeader {
    /// Names the actor.
    pub actor_header: HeaderName,
    /// Names the partition; without it every request is in `partition`.
    pub partition_header: Option<HeaderName>,
    /// The partition of requests that do not name one, if that is allowed.
    pub partition: Option<String>,
    /// Holds claims as a JSON object.
    pub claims_header: Option<HeaderName>,
    /// Where the proxy's connections come from.
    pub proxies: Vec<IpNet>,
}

impl TrustedHeader {
    fn trusts(&self, peer: IpAddr) -> bool {
        // A dual-stack socket shows IPv4 peers as mapped addresses.
        let peer = peer.to_canonical();
        self.proxies.iter().any(|network| network.contains(&peer))
    }
}

#[async_trait]
impl Authenticator for TrustedHeader {
    async fn authenticate(&self, head: RequestHead<'_>) -> Result<Option<Identity>, AuthError> {
        if !head.peer.is_some_and(|peer| self.trusts(peer.ip())) {
            return Ok(None);
        }
        let Some(actor) = single(head.headers, &self.actor_header) else {
            return Ok(None);
        };
        let named = self
            .partition_header
            .as_ref()
            .and_then(|name| single(head.headers, name));
        let Some(partition) = named.or(self.partition.as_deref()) else {
            return Ok(None);
        };
        let mut identity = Identity::new(partition, actor);
        if let Some(name) = &self.claims_header
            && head.headers.contains_key(name)
        {
            let claims: Option<Map<String, Value>> =
                single(head.headers, name).and_then(|text| serde_json::from_str(text).ok());
            let claims =
                claims.ok_or_else(|| AuthError::Failed(format!("{name} is not a JSON object")))?;
            identity.claims = Arc::new(claims);
        }
        Ok(Some(identity))
    }
}

//! What an engine hands out and takes in beside its responses: URLs, blobs.
//!
//! A signed URL is a capability. **Invariant:** it is made directly after its holder was
//! authorized, for what they were authorized for and for no longer than the protocol allows, and
//! a token of ours opens nothing that its claim does not name.

use std::{fmt, sync::Arc, time::Duration};

use tidewater_model::PartitionId;
use tidewater_objects::{
    BlobStore, Claim, ObjectError, SIGNED_URL_SECONDS_MAX, SegmentStore, SignedUrl, SigningKeys,
};

/// Blobs and signed URLs. By default there are none.
#[derive(Clone, Default)]
pub struct Transfers {
    /// Where blobs are kept. Without it, blob routes and pushes that reference a blob are
    /// answered with `blob.not_found`.
    pub blobs: Option<Arc<dyn BlobStore>>,
    /// How clients that accept URLs of segments get them; the others use the direct route.
    pub segment_urls: UrlSource,
    /// How long URLs live that fetch a blob past this server, at most 15 minutes. `None` and a
    /// backend without such URLs let clients fetch blobs from this server.
    pub blob_urls: Option<Duration>,
    /// How long URLs live that upload a blob past this server, at most 15 minutes. `None` and a
    /// backend without such URLs let clients upload through this server.
    pub upload_urls: Option<Duration>,
}

/// Where URLs come from that need no credentials (§5.4).
#[derive(Clone, Default)]
pub enum UrlSource {
    /// There are none.
    #[default]
    None,
    /// From the backend that has the bytes, where it makes any.
    Presigned {
        /// How long they live, at most 15 minutes.
        lifetime: Duration,
    },
    /// From this host, which serves them on a route of its own.
    Signed {
        /// What signs them.
        keys: Arc<SigningKeys>,
        /// What a URL begins with, without a slash at its end.
        base_url: String,
        /// How long they live, at most 15 minutes.
        lifetime: Duration,
    },
}

impl UrlSource {
    /// A URL of a segment, for somebody who was authorized just now.
    pub(crate) async fn segment(
        &self,
        segments: &dyn SegmentStore,
        partition: &PartitionId,
        segment_id: &str,
        scope_digest: &str,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        match self {
            Self::None => Ok(None),
            Self::Presigned { lifetime } => {
                segments.presign(segment_id, cut(*lifetime), now_ms).await
            }
            Self::Signed {
                keys,
                base_url,
                lifetime,
            } => {
                let claim = Claim::Segment {
                    segment_id: segment_id.to_owned(),
                    scope_digest: scope_digest.to_owned(),
                    audience: keys.audience(partition),
                };
                Ok(Some(keys.sign_url(base_url, &claim, *lifetime, now_ms)))
            }
        }
    }

    /// The keys of tokens that this host verifies.
    pub(crate) fn keys(&self) -> Option<&SigningKeys> {
        match self {
            Self::Signed { keys, .. } => Some(keys),
            Self::None | Self::Presigned { .. } => None,
        }
    }
}

/// A lifetime within the limit of the protocol.
pub(crate) fn cut(lifetime: Duration) -> Duration {
    lifetime.min(Duration::from_secs(SIGNED_URL_SECONDS_MAX))
}

/// Without keys and URLs.
impl fmt::Debug for UrlSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::None => "None",
            Self::Presigned { .. } => "Presigned",
            Self::Signed { .. } => "Signed",
        })
    }
}

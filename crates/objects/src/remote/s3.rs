//! A bucket of S3, or of a service that speaks like it.

use std::{fmt, sync::Arc, time::Duration};

use http::Method;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
    signer::Signer,
};

use super::{
    backend::{Backend, BackendLimits, Conditions, Kind, failed},
    sigv4,
};
use crate::{ObjectError, SignedUrl, signed};

/// An S3 bucket, or one of a service that speaks like it.
#[derive(Clone)]
pub struct S3Config {
    /// The bucket's name.
    pub bucket: String,
    /// The region; `us-east-1` or `auto` where the service has none.
    pub region: String,
    /// Base URL of the service; `None` for AWS.
    pub endpoint: Option<String>,
    /// Access key; `None` takes credentials from the instance or the web identity.
    pub access_key_id: Option<String>,
    /// Its secret.
    pub secret_access_key: Option<String>,
    /// Token of temporary credentials.
    pub session_token: Option<String>,
    /// Whether the bucket's name is part of the host's name, not of the path.
    pub virtual_hosted: bool,
    /// Whether plain HTTP is allowed.
    pub allow_http: bool,
}

/// Without the secrets.
impl fmt::Debug for S3Config {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("S3Config")
            .field("bucket", &self.bucket)
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// Signs uploads with their length.
pub(super) struct S3Signer {
    bucket: Arc<AmazonS3>,
    region: String,
}

impl Backend {
    /// A bucket. `prefix` is put before every key as it is.
    pub fn s3(config: S3Config, prefix: &str, limits: BackendLimits) -> Result<Self, ObjectError> {
        // The client's own limits would count the time that a reader lets pass. Ours, around every
        // call and every wait for a piece, do not.
        let client = ClientOptions::new()
            .with_connect_timeout(limits.connect_timeout)
            .with_timeout_disabled()
            .with_allow_http(config.allow_http);
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(50),
                max_backoff: Duration::from_secs(2),
                base: 2.0,
            },
            max_retries: limits.retries_max,
            retry_timeout: limits.call_timeout,
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(config.bucket)
            .with_region(config.region.clone())
            .with_virtual_hosted_style_request(config.virtual_hosted)
            .with_disable_bulk_delete(true)
            .with_client_options(client)
            .with_retry(retry);
        if let Some(endpoint) = config.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(key) = config.access_key_id {
            builder = builder.with_access_key_id(key);
        }
        if let Some(secret) = config.secret_access_key {
            builder = builder.with_secret_access_key(secret);
        }
        if let Some(token) = config.session_token {
            builder = builder.with_token(token);
        }
        let s3 = Arc::new(builder.build().map_err(failed("configure the bucket"))?);
        let signer: Arc<dyn Signer> = Arc::<AmazonS3>::clone(&s3);
        let store: Arc<dyn ObjectStore> = Arc::<AmazonS3>::clone(&s3);
        let uploads = S3Signer {
            bucket: s3,
            region: config.region,
        };
        Ok(Self::assemble(
            Kind {
                store,
                signer: Some(signer),
                s3: Some(uploads),
                conditions: Conditions::Provider,
                files: None,
            },
            prefix,
            limits,
        ))
    }

    /// A URL that writes one object of this length.
    pub(crate) async fn presign_put(
        &self,
        during: &'static str,
        path: &Path,
        length: u64,
        lifetime: Duration,
        now_ms: i64,
    ) -> Result<Option<SignedUrl>, ObjectError> {
        let Some(s3) = self.s3_signer() else {
            return Ok(None);
        };
        let seconds = signed::clamp_lifetime(lifetime);
        // Only for its host and path.
        let like_it = s3
            .bucket
            .signed_url(Method::PUT, path, Duration::from_secs(seconds));
        let mut url = self.bounded(during, like_it).await?;
        let credentials = s3.bucket.credentials();
        let credential = self.bounded(during, credentials.get_credential()).await?;
        let port = url.port().map(|port| format!(":{port}"));
        let host = format!(
            "{}{}",
            url.host_str().unwrap_or_default(),
            port.unwrap_or_default()
        );
        let timestamp = chrono::Utc::now().format("%Y%m%dT%H%M%SZ").to_string();
        let signature = sigv4::Signature {
            key_id: &credential.key_id,
            secret: &credential.secret_key,
            session_token: credential.token.as_deref(),
            region: &s3.region,
            timestamp: &timestamp,
            lifetime_seconds: seconds,
        };
        let allowed = sigv4::Allowed {
            method: "PUT",
            host: &host,
            path: url.path(),
            content_length: Some(length),
        };
        let query = sigv4::query(&signature, &allowed);
        url.set_query(Some(&query));
        Ok(Some(SignedUrl {
            url: url.into(),
            expires_at_ms: signed::expiry_ms(now_ms, seconds),
        }))
    }
}

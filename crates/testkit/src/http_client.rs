//! A client that is nothing but an HTTP client: it sends the bytes it is given and reads the
//! bytes it gets. It blocks.

use std::fmt;

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use serde_json::Value;

use crate::message::{Answer, Author};

/// One client of one server.
#[derive(Clone, Debug)]
pub struct HttpClient {
    /// Writes its requests.
    pub author: Author,
    /// The mount.
    pub url: String,
    authorization: String,
    agent: ureq::Agent,
}

/// A request that was answered with a failure.
#[derive(Debug)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The error body.
    pub body: Value,
}

impl Refusal {
    /// The error's code.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "refused with {}: {}", self.status, self.body)
    }
}

impl std::error::Error for Refusal {}

/// No response of a test is larger.
const RESPONSE_BYTES_MAX: u64 = 1 << 30;

impl HttpClient {
    /// A client with this bearer token.
    pub fn new(url: &str, token: &str, author: Author) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Self {
            author,
            url: url.to_owned(),
            authorization: format!("Bearer {token}"),
            agent: config.build().into(),
        }
    }

    /// Asks for the epoch the way clients do: a pull without one is answered with a reset.
    pub fn acquire_epoch(&mut self) -> Result<Answer> {
        self.author.log_epoch = None;
        let answer = self.send(self.author.request(Vec::new(), Some(Vec::new())))?;
        ensure!(answer.header.reset_required, "no epoch was asked for");
        self.author.log_epoch = Some(answer.header.log_epoch.clone());
        Ok(answer)
    }

    /// Sends a request; a failure that the server answers with is a [`Refusal`].
    pub fn send(&self, request: Bytes) -> Result<Answer> {
        let (status, body) = self.exchange(&request)?;
        if status == 200 {
            return Answer::read(&body);
        }
        let body = serde_json::from_slice(&body).context("read an error body")?;
        Err(anyhow!(Refusal { status, body }))
    }

    /// Status and body of the answer to a request.
    pub fn exchange(&self, request: &[u8]) -> Result<(u16, Bytes)> {
        let sent = self
            .agent
            .post(format!("{}/sync", self.url))
            .header("content-type", "application/vnd.syncular.sync.v2")
            .header("authorization", &self.authorization)
            .send(request);
        read(sent.context("send a request")?)
    }

    /// Status and body of a segment's download.
    pub fn segment(&self, id: &str, scopes: &str) -> Result<(u16, Bytes)> {
        let sent = self
            .agent
            .get(format!("{}/segments/{id}", self.url))
            .header("authorization", &self.authorization)
            .header("x-syncular-scopes", scopes)
            .call();
        read(sent.context("ask for a segment")?)
    }
}

fn read(mut response: http::Response<ureq::Body>) -> Result<(u16, Bytes)> {
    let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
    let body = body.read_to_vec().context("read a response")?;
    Ok((response.status().as_u16(), body.into()))
}

//! One virtual client: an identity, a connection, and the log epoch it accepted.
//!
//! It does what published clients do on the wire (§25 of our protocol document): the first round
//! asks for the epoch and pushes nothing, every later one carries it. It keeps no replica; what
//! an answer must contain is the business of `verify`.

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::ScopeFilter;
use tidewater_wire::{
    Accept, Pull, PullHeader, PushCommit, Request, RequestFrame, RequestHeader, SegmentRef,
    Subscription, WireVersion, canonical_scopes,
};

use crate::{
    error::RoundError,
    http1::{Connection, Fetched, Path, Reply},
    round::{Round, Section, check_results},
    socket::Socket,
    verify::image::{Inspected, Inspector},
};

/// More is a server that turns in circles.
const CATCH_UP_REQUESTS_MAX: u32 = 100_000;
const CONTENT_TYPE: &str = "application/vnd.syncular.sync.v2";
/// Id of the only subscription a client of ours has.
pub(crate) const SUBSCRIPTION_ID: &str = "load";

/// Who a client is and how it speaks.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) client_id: ByteString,
    /// Complete header lines: the token and what else was asked for.
    pub(crate) headers: String,
    pub(crate) version: WireVersion,
    pub(crate) schema_version: i32,
    /// `None` leaves the header out: the server answers without compression.
    pub(crate) accept_encoding: Option<String>,
}

/// A virtual client.
#[derive(Debug)]
pub(crate) struct Client {
    identity: Identity,
    connection: Connection,
    sync_headers: String,
    log_epoch: Option<ByteString>,
}

impl Client {
    pub(crate) fn new(identity: Identity, connection: Connection) -> Self {
        let encoding = identity
            .accept_encoding
            .as_ref()
            .map(|names| format!("accept-encoding: {names}\r\n"))
            .unwrap_or_default();
        let sync_headers = format!(
            "{}content-type: {CONTENT_TYPE}\r\n{encoding}",
            identity.headers
        );
        Self {
            identity,
            connection,
            sync_headers,
            log_epoch: None,
        }
    }

    /// Learns the log epoch: a round without one and without commits is answered with it (§2.1).
    pub(crate) async fn acquire_epoch(&mut self, pull: &Pull) -> Result<(), RoundError> {
        self.log_epoch = None;
        let request = self.encode(Vec::new(), Some(pull))?;
        let reply = self.send(&request).await?;
        let round = Round::parse(&reply.decoded()?, self.identity.version)?;
        if !round.header.reset_required {
            return Err(RoundError::unexpected(
                "a round without epoch was not answered with a reset",
            ));
        }
        if !round.sections.is_empty() || !round.results.is_empty() {
            return Err(RoundError::unexpected("a reset has a body"));
        }
        self.log_epoch = Some(round.header.log_epoch);
        Ok(())
    }

    /// One request, ready to be sent.
    pub(crate) fn encode(
        &self,
        commits: Vec<PushCommit>,
        pull: Option<&Pull>,
    ) -> Result<Bytes, RoundError> {
        let mut frames = vec![RequestFrame::Header(RequestHeader {
            client_id: self.identity.client_id.clone(),
            schema_version: self.identity.schema_version,
            log_epoch: self.log_epoch.clone(),
        })];
        frames.extend(commits.into_iter().map(RequestFrame::PushCommit));
        if let Some(pull) = pull {
            frames.push(RequestFrame::PullHeader(pull.header));
            let subscriptions = pull.subscriptions.iter().cloned();
            frames.extend(subscriptions.map(RequestFrame::Subscription));
        }
        let version = self.identity.version;
        Request { version, frames }
            .encode()
            .map_err(|error| RoundError::unexpected(error.to_string()))
    }

    /// Sends an encoded request. The reply has status 200 and is not read yet.
    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<Reply, RoundError> {
        let reply = self
            .connection
            .post("/sync", &self.sync_headers, request)
            .await?;
        check_status(reply)
    }

    /// Reads a response of the accepted epoch.
    pub(crate) fn parse(&self, body: &Bytes) -> Result<Round, RoundError> {
        let round = Round::parse(body, self.identity.version)?;
        if round.header.required_schema_version.is_some() {
            return Err(RoundError::unexpected("server does not serve this schema"));
        }
        if round.header.reset_required || Some(&round.header.log_epoch) != self.log_epoch.as_ref() {
            return Err(RoundError::unexpected("log epoch changed"));
        }
        Ok(round)
    }

    /// Sends commits, a pull, or both, and reads the response.
    pub(crate) async fn round(
        &mut self,
        commits: Vec<PushCommit>,
        pull: Option<&Pull>,
    ) -> Result<Round, RoundError> {
        let ids: Vec<ByteString> = commits
            .iter()
            .map(|commit| commit.client_commit_id.clone())
            .collect();
        let request = self.encode(commits, pull)?;
        let reply = self.send(&request).await?;
        let round = self.parse(&reply.decoded()?)?;
        check_results(&round.results, &ids)?;
        Ok(round)
    }

    /// Pulls until there is nothing more, and keeps nothing; the pull holds the place afterwards.
    /// That is all a server needs to see to send deltas from there on.
    pub(crate) async fn catch_up(&mut self, pull: &mut Pull) -> Result<(), RoundError> {
        for _ in 0..CATCH_UP_REQUESTS_MAX {
            let round = self.round(Vec::new(), Some(pull)).await?;
            if advance(pull, round.into_section(SUBSCRIPTION_ID)?) {
                return Ok(());
            }
        }
        Err(RoundError::unexpected("the log does not end"))
    }

    /// Closes the HTTP connection; the next request opens another.
    pub(crate) fn hang_up(&mut self) {
        self.connection.close();
    }

    /// Opens the realtime channel.
    pub(crate) async fn open_socket(
        &self,
        receive_buffer: Option<u32>,
    ) -> Result<Socket, RoundError> {
        let identity = &self.identity;
        let (target, timeout) = self.connection.target();
        Socket::open(
            target,
            &identity.headers,
            &identity.client_id,
            timeout,
            receive_buffer,
        )
        .await
    }

    /// One round over a socket.
    pub(crate) async fn socket_round(
        &self,
        socket: &mut Socket,
        pull: &Pull,
    ) -> Result<Round, RoundError> {
        let request = self.encode(Vec::new(), Some(pull))?;
        let answer = socket.round(&request).await?;
        self.parse(&answer)
    }

    /// The version that responses must have.
    pub(crate) fn version(&self) -> WireVersion {
        self.identity.version
    }

    /// Fetches a segment as it travels (§5.5).
    pub(crate) async fn fetch_segment(
        &mut self,
        segment_id: &str,
        scopes: &ScopeFilter,
    ) -> Result<Reply, RoundError> {
        let headers = self.download_headers(Some(scopes));
        let path = format!("/segments/{segment_id}");
        check_status(self.connection.get(&path, &headers).await?)
    }

    /// Fetches a segment and looks at it as it streams by: at its own route, or by its signed URL,
    /// which gets no credentials (§5.4). Gives what it was and how many bytes travelled.
    pub(crate) async fn inspect_segment(
        &mut self,
        reference: &SegmentRef,
        scopes: &ScopeFilter,
        mut inspector: Inspector,
    ) -> Result<(Inspected, u64), RoundError> {
        let sink = &mut inspector;
        let fetched = match &reference.url {
            Some((url, _)) => {
                let headers = self.download_headers(None);
                let path = self.connection.path_of(url).map(str::to_owned);
                let path = path.ok_or_else(|| {
                    RoundError::unexpected("a signed URL points to another server")
                })?;
                let path = Path::Absolute(&path);
                self.connection.get_into(path, &headers, sink).await?
            }
            None => {
                let headers = self.download_headers(Some(scopes));
                let path = format!("/segments/{}", reference.segment_id);
                let path = Path::Mounted(&path);
                self.connection.get_into(path, &headers, sink).await?
            }
        };
        match fetched {
            Fetched::Streamed { travelled } => {
                Ok((inspector.finish(&reference.segment_id), travelled))
            }
            Fetched::Refused(reply) => Err(refusal(&reply)),
        }
    }

    /// Header lines of a download: credentials and scopes, unless the URL is all it takes.
    fn download_headers(&self, scopes: Option<&ScopeFilter>) -> String {
        let encoding = self.identity.accept_encoding.as_ref();
        let encoding = encoding
            .map(|names| format!("accept-encoding: {names}\r\n"))
            .unwrap_or_default();
        match scopes {
            None => encoding,
            Some(scopes) => format!(
                "{}x-syncular-scopes: {}\r\n{encoding}",
                self.identity.headers,
                canonical_scopes(scopes)
            ),
        }
    }
}

/// Takes the end of a section; says whether that was all.
pub(crate) fn advance(pull: &mut Pull, section: Section) -> bool {
    let is_last = section.commits.is_empty() && section.segments.is_empty();
    let subscription = &mut pull.subscriptions[0];
    subscription.bootstrap_state = section.end.bootstrap_state;
    if subscription.bootstrap_state.is_none() {
        subscription.cursor = section.end.next_cursor;
        return is_last;
    }
    false
}

/// A pull with one subscription.
pub(crate) fn pull_of(
    table: &ByteString,
    scopes: &ScopeFilter,
    cursor: i64,
    header: PullHeader,
) -> Pull {
    Pull {
        header,
        subscriptions: vec![Subscription {
            id: SUBSCRIPTION_ID.into(),
            table: table.clone(),
            scopes: scopes.clone(),
            params: None,
            cursor,
            bootstrap_state: None,
        }],
    }
}

/// The header of a pull that leaves every limit to the server.
pub(crate) fn default_pull_header() -> PullHeader {
    PullHeader {
        limit_commits: 0,
        limit_snapshot_rows: 0,
        max_snapshot_pages: 0,
        accept: accept(ROWS),
    }
}

/// Inline and external rows segments.
pub(crate) const ROWS: u8 = 0b0011;

pub(crate) fn accept(bits: u8) -> Accept {
    Accept::from_bits(bits).expect("the callers' bits are defined")
}

fn check_status(reply: Reply) -> Result<Reply, RoundError> {
    if reply.status == 200 {
        return Ok(reply);
    }
    Err(refusal(&reply))
}

fn refusal(reply: &Reply) -> RoundError {
    RoundError::Status {
        status: reply.status,
        code: error_code(reply),
    }
}

/// The code in the JSON of an error reply, or nothing.
fn error_code(reply: &Reply) -> String {
    reply
        .decoded()
        .ok()
        .and_then(|body| serde_json::from_slice::<serde_json::Value>(&body).ok())
        .and_then(|body| {
            let error = body.get("error").unwrap_or(&body);
            error.get("code")?.as_str().map(str::to_owned)
        })
        .unwrap_or_default()
}

//! A server for one test, and the published client against it.

use std::{cell::Cell, sync::Arc};

use crate::party::Truth;
pub(crate) use crate::party::{limits, whole_note};
use serde_json::{Map, Value, json};
use syncular_client::{
    BlobDownload, BlobUploadGrant, ClientLimits, Mutation, SegmentRequest, SyncClient, SyncOutcome,
    SyncReport, Transport, TransportError,
    native_transport::{HostTransport, Inbound},
};
use tidewater_testkit::{
    Instance, InstanceCounts, InstanceSpec, RowView, ScopeLists, StoreKind, TestServer, schema,
    scopes,
};

/// Makes a test of each function for each store, and for rounds over the realtime socket:
/// `on_every_store!(it_converges, it_resumes)`.
macro_rules! on_every_store {
    ($($name:ident),+ $(,)?) => {
        mod on_memory {
            $(#[test] fn $name() { super::$name(tidewater_testkit::StoreKind::Memory); })+
        }
        mod on_sqlite {
            $(#[test] fn $name() { super::$name(tidewater_testkit::StoreKind::Sqlite); })+
        }
        mod over_the_socket {
            $(#[test] fn $name() {
                crate::support::over_the_socket();
                super::$name(tidewater_testkit::StoreKind::Memory);
            })+
        }
        mod on_postgres {
            $(#[test] fn $name() { super::$name(tidewater_testkit::StoreKind::Postgres); })+
        }
    };
}

/// Makes a test of each function for each store, for what has nothing to do with bindings.
macro_rules! on_each_database {
    ($($name:ident),+ $(,)?) => {
        mod on_memory {
            $(#[test] fn $name() { super::$name(tidewater_testkit::StoreKind::Memory); })+
        }
        mod on_sqlite {
            $(#[test] fn $name() { super::$name(tidewater_testkit::StoreKind::Sqlite); })+
        }
    };
}

thread_local! {
    static OVER_THE_SOCKET: Cell<bool> = const { Cell::new(false) };
}

/// From now on the replicas of this test send their rounds over a socket. Nothing may depend on
/// which it is (§1.1), so the tests do not know.
pub(crate) fn over_the_socket() {
    OVER_THE_SOCKET.set(true);
}

/// A server with one instance.
pub(crate) struct World {
    pub(crate) url: String,
    pub(crate) instance: Arc<Instance>,
    pub(crate) schema: Value,
    server: TestServer,
}

impl World {
    /// Notes, with alice and bob in team t1.
    pub(crate) fn of_notes(kind: StoreKind) -> Self {
        let world = Self::new(kind, InstanceSpec::new(schema::notes(1).json()));
        for actor in ["alice", "bob"] {
            world.allow(actor, scopes([("team_id", &["t1"])]));
        }
        world
    }

    pub(crate) fn new(kind: StoreKind, spec: InstanceSpec) -> Self {
        let server = TestServer::start(kind).unwrap();
        let (url, instance) = server.create(&spec).unwrap();
        Self {
            url,
            instance,
            schema: spec.schema,
            server,
        }
    }

    pub(crate) fn allow(&self, actor: &str, allowed: ScopeLists) {
        self.instance.resolver().allow(actor, allowed);
    }

    /// What the server sent, took and built so far.
    pub(crate) fn counts(&self) -> InstanceCounts {
        self.block_on(self.instance.counts())
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.server.block_on(future)
    }

    /// The rows of a table as the database holds them.
    pub(crate) fn rows(&self, table: &str) -> Vec<RowView> {
        self.block_on(self.instance.rows(table)).unwrap()
    }

    pub(crate) fn head(&self) -> u64 {
        self.block_on(self.instance.head()).unwrap().get()
    }

    /// A replica of team t1's notes that has not synced yet.
    pub(crate) fn replica(&self, actor: &str) -> Replica {
        let mut replica = self.bare_replica(actor, &format!("client-{actor}"));
        replica.subscribe("s1", "notes", &[("team_id", &["t1"])]);
        replica
    }

    /// A replica of team t1's notes that takes images.
    pub(crate) fn image_replica(&self, actor: &str) -> Replica {
        let mut replica = self.replica_that_accepts(actor, &format!("image-{actor}"), 0b0111);
        replica.subscribe("s1", "notes", &[("team_id", &["t1"])]);
        replica
    }

    /// A replica without subscriptions.
    pub(crate) fn bare_replica(&self, actor: &str, client_id: &str) -> Replica {
        self.replica_that_accepts(actor, client_id, 0b0011)
    }

    /// A replica without subscriptions that takes these deliveries.
    pub(crate) fn replica_that_accepts(&self, actor: &str, client_id: &str, accept: u8) -> Replica {
        let limits = ClientLimits {
            accept: Some(accept),
            ..ClientLimits::default()
        };
        let client = SyncClient::new(client_id.to_owned(), &self.schema, limits).unwrap();
        Replica {
            client,
            wire: Wire::new(&self.url, actor, client_id),
        }
    }
}

impl Truth for World {
    fn schema(&self) -> Value {
        self.schema.clone()
    }

    fn notes(&self) -> Vec<(String, i64, Map<String, Value>)> {
        let rows = self.rows("notes").into_iter();
        rows.map(|row| (row.row_id, row.version, row.values))
            .collect()
    }
}

/// The published client and its connection.
pub(crate) struct Replica {
    pub(crate) client: SyncClient,
    pub(crate) wire: Wire,
}

impl Replica {
    pub(crate) fn subscribe(&mut self, id: &str, table: &str, scopes: &[(&str, &[&str])]) {
        let scopes = scopes
            .iter()
            .map(|(variable, values)| {
                let values = values.iter().map(|&value| value.to_owned()).collect();
                ((*variable).to_owned(), values)
            })
            .collect();
        self.client
            .subscribe(id.to_owned(), table.to_owned(), scopes, None)
            .unwrap();
    }

    /// Syncs until there is nothing left to do.
    #[track_caller]
    pub(crate) fn sync(&mut self) -> SyncReport {
        match self.client.sync_until_idle(&mut self.wire, None) {
            SyncOutcome::Ok(report) => report,
            other => panic!("the sync did not end well: {other:?}"),
        }
    }

    /// One round, however it ends.
    pub(crate) fn round(&mut self) -> SyncOutcome {
        self.client.sync(&mut self.wire)
    }

    /// One round that ends well.
    #[track_caller]
    pub(crate) fn good_round(&mut self) -> SyncReport {
        match self.round() {
            SyncOutcome::Ok(report) => report,
            other => panic!("the round did not end well: {other:?}"),
        }
    }

    /// One round that fails; its code.
    #[track_caller]
    pub(crate) fn failed_round(&mut self) -> String {
        match self.round() {
            SyncOutcome::Failed { error_code, .. } => error_code,
            other => panic!("the round did not fail: {other:?}"),
        }
    }

    /// Writes a note of team t1, whole.
    pub(crate) fn put(&mut self, id: &str, title: &str) -> String {
        let values = note(id, "t1", title);
        self.mutate(Mutation::Upsert {
            table: "notes".to_owned(),
            values,
            base_version: None,
        })
    }

    /// Changes columns of a note.
    pub(crate) fn patch(&mut self, id: &str, values: Value, base_version: Option<i64>) -> String {
        self.client
            .patch("notes", id, object(values), base_version)
            .unwrap()
    }

    pub(crate) fn delete(&mut self, id: &str) -> String {
        let row_id = id.to_owned();
        self.mutate(Mutation::Delete {
            table: "notes".to_owned(),
            row_id,
            base_version: None,
        })
    }

    pub(crate) fn mutate(&mut self, mutation: Mutation) -> String {
        self.client.mutate(vec![mutation]).unwrap()
    }

    /// What the app on this device sees: id, version, title.
    pub(crate) fn titles(&self) -> Vec<(String, i64, Value)> {
        let rows = self.client.read_rows("notes").unwrap();
        rows.into_iter()
            .map(|row| (row.row_id, row.version, row.values["title"].clone()))
            .collect()
    }

    /// The device holds exactly what the database holds, column by column.
    #[track_caller]
    pub(crate) fn assert_agrees(&self, world: &World) {
        let rows = self.client.read_rows("notes").unwrap().into_iter();
        let here: Vec<_> = rows
            .map(|row| (row.row_id, row.version, row.values))
            .collect();
        let rows = world.rows("notes").into_iter();
        let there: Vec<_> = rows
            .map(|row| (row.row_id, row.version, row.values))
            .collect();
        assert_eq!(here, there);
    }
}

pub(crate) fn note(id: &str, team: &str, title: &str) -> Map<String, Value> {
    object(json!({ "id": id, "team_id": team, "title": title, "stars": 1 }))
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("not an object: {other}"),
    }
}

/// The client's own transport, with a cable that can be cut.
pub(crate) struct Wire {
    inner: HostTransport,
    /// Whose socket takes the rounds.
    socket: Option<String>,
    /// Rounds whose answer is lost after the server has given it.
    pub(crate) answers_to_lose: u32,
    /// Segment downloads that succeed before all fail.
    pub(crate) downloads_left: Option<u32>,
    /// Segment downloads that arrive with a wrong byte.
    pub(crate) downloads_to_spoil: u32,
    /// Rounds and downloads that reached the server.
    pub(crate) rounds: u32,
    pub(crate) downloads: u32,
    /// The last request sent, byte for byte.
    pub(crate) last_request: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(url: &str, actor: &str, client_id: &str) -> Self {
        let authorization = format!("Bearer {actor}");
        let config = json!({ "baseUrl": url, "headers": { "authorization": authorization } });
        Self {
            inner: HostTransport::from_config(&config).unwrap(),
            socket: OVER_THE_SOCKET.get().then(|| client_id.to_owned()),
            answers_to_lose: 0,
            downloads_left: None,
            downloads_to_spoil: 0,
            rounds: 0,
            downloads: 0,
            last_request: Vec::new(),
        }
    }
}

impl Wire {
    /// One round over whichever binding this is.
    fn round(&mut self, request: &[u8]) -> Result<Vec<u8>, TransportError> {
        let Some(client_id) = &self.socket else {
            return self.inner.sync(request);
        };
        self.inner.realtime_connect_for_client(client_id)?;
        let answer = self.inner.realtime_sync(request);
        let inbound = self.inner.take_inbound();
        let was_lost = inbound
            .iter()
            .any(|inbound| matches!(inbound, Inbound::Disconnected(_)));
        if answer.is_ok() || !was_lost {
            return answer;
        }
        // The server was restarted since the last round: nobody was there to notice.
        self.inner.realtime_connect_for_client(client_id)?;
        self.inner.realtime_sync(request)
    }

    /// A connection that fetches segments by signed URLs.
    pub(crate) fn with_urls(url: &str, actor: &str, client_id: &str) -> Self {
        let mut wire = Self::new(url, actor, client_id);
        wire.inner.set_signed_urls(true);
        wire
    }

    fn begin_download(&mut self) -> Result<(), TransportError> {
        if self.downloads_left == Some(0) {
            return Err(TransportError::new("transport.failed", "the cable was cut"));
        }
        self.downloads_left = self.downloads_left.map(|left| left - 1);
        self.downloads += 1;
        Ok(())
    }

    fn end_download(&mut self, mut bytes: Vec<u8>) -> Vec<u8> {
        if self.downloads_to_spoil > 0 {
            self.downloads_to_spoil -= 1;
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }
        bytes
    }
}

impl Transport for Wire {
    fn sync(&mut self, request: &[u8]) -> Result<Vec<u8>, TransportError> {
        self.rounds += 1;
        self.last_request = request.to_vec();
        let answer = self.round(request)?;
        if self.answers_to_lose > 0 {
            self.answers_to_lose -= 1;
            return Err(TransportError::new("transport.failed", "the cable was cut"));
        }
        Ok(answer)
    }

    fn realtime_sync(&mut self, request: &[u8]) -> Result<Vec<u8>, TransportError> {
        self.inner.realtime_sync(request)
    }

    fn download_segment(
        &mut self,
        request: &SegmentRequest,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<u8>, TransportError> {
        self.begin_download()?;
        let bytes = self.inner.download_segment(request, on_progress)?;
        Ok(self.end_download(bytes))
    }

    fn supports_url_fetch(&self) -> bool {
        self.inner.supports_url_fetch()
    }

    fn fetch_url(
        &mut self,
        url: &str,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<u8>, TransportError> {
        self.begin_download()?;
        let bytes = self.inner.fetch_url(url, on_progress)?;
        Ok(self.end_download(bytes))
    }

    fn blob_upload(
        &mut self,
        blob_id: &str,
        bytes: &[u8],
        media_type: Option<&str>,
    ) -> Result<(), TransportError> {
        self.inner.blob_upload(blob_id, bytes, media_type)
    }

    fn blob_download(&mut self, blob_id: &str) -> Result<BlobDownload, TransportError> {
        self.inner.blob_download(blob_id)
    }

    fn fetch_blob_url(&mut self, url: &str) -> Result<Vec<u8>, TransportError> {
        self.inner.fetch_blob_url(url)
    }

    fn blob_upload_grant(
        &mut self,
        blob_id: &str,
        byte_length: u64,
        media_type: Option<&str>,
    ) -> Result<BlobUploadGrant, TransportError> {
        self.inner
            .blob_upload_grant(blob_id, byte_length, media_type)
    }

    fn blob_put_url(
        &mut self,
        url: &str,
        bytes: &[u8],
        media_type: Option<&str>,
    ) -> Result<(), TransportError> {
        self.inner.blob_put_url(url, bytes, media_type)
    }

    fn realtime_connect(&mut self) -> Result<(), TransportError> {
        self.inner.realtime_connect()
    }

    fn realtime_send(&mut self, text: &str) -> Result<(), TransportError> {
        self.inner.realtime_send(text)
    }

    fn realtime_close(&mut self) -> Result<(), TransportError> {
        self.inner.realtime_close()
    }
}

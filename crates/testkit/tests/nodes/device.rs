//! The published client, with a connection to every node.

use serde_json::{Value, json};
use syncular_client::{
    Mutation, SegmentRequest, SyncClient, SyncOutcome, Transport, TransportError,
    native_transport::HostTransport,
};
use tidewater_testkit::schema::notes;

use crate::{
    cluster::Cluster,
    party::{limits, whole_note},
};

/// A replica of team t1's notes.
pub(crate) struct Device {
    pub(crate) client: SyncClient,
    nodes: Vec<HostTransport>,
}

impl Device {
    pub(crate) fn new(cluster: &Cluster, name: &str) -> Self {
        let schema = notes(1).json();
        let client = SyncClient::new(format!("client-{name}"), &schema, limits());
        let mut client = client.unwrap();
        let scopes = vec![("team_id".to_owned(), vec!["t1".to_owned()])];
        let scopes = scopes.into_iter().collect();
        client
            .subscribe("s1".to_owned(), "notes".to_owned(), scopes, None)
            .unwrap();
        let authorization = format!("Bearer {name}");
        let nodes = (0..cluster.count()).map(|node| {
            let config = json!({
                "baseUrl": cluster.url(node),
                "headers": { "authorization": authorization },
                // A node may be stopped without being dead.
                "requestTimeoutMs": 1_500,
            });
            HostTransport::from_config(&config).unwrap()
        });
        Self {
            nodes: nodes.collect(),
            client,
        }
    }

    /// Writes a note, on the device.
    pub(crate) fn put(&mut self, id: &str, title: &str) -> String {
        let note = whole_note(id, "t1", title);
        let mutation = Mutation::Upsert {
            table: "notes".to_owned(),
            values: note.as_object().cloned().expect("it is one"),
            base_version: None,
        };
        self.client.mutate(vec![mutation]).unwrap()
    }

    /// One round with a node, however it ends. Nothing is ever rejected, revoked or started over.
    #[track_caller]
    pub(crate) fn round(&mut self, node: usize) -> bool {
        match self.client.sync(&mut self.nodes[node]) {
            SyncOutcome::Ok(report) => {
                let lost = (&report.rejected, &report.resets, &report.revoked);
                assert_eq!(lost, (&vec![], &vec![], &vec![]), "node {node}: {report:?}");
                true
            }
            SyncOutcome::Failed { .. } => false,
            other => panic!("node {node}: {other:?}"),
        }
    }

    /// One round with a node, whose answer is lost.
    pub(crate) fn lost_round(&mut self, node: usize) {
        let outcome = self.client.sync(&mut Deaf(&mut self.nodes[node]));
        assert!(matches!(outcome, SyncOutcome::Failed { .. }));
    }

    /// What the device sees: id, version, title.
    pub(crate) fn titles(&self) -> Vec<(String, i64, Value)> {
        let rows = self.client.read_rows("notes").unwrap();
        let rows = rows.into_iter();
        rows.map(|row| (row.row_id, row.version, row.values["title"].clone()))
            .collect()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.titles().iter().any(|(row_id, ..)| row_id == id)
    }
}

/// A connection that sends and does not hear the answer.
struct Deaf<'a>(&'a mut HostTransport);

impl Transport for Deaf<'_> {
    fn sync(&mut self, request: &[u8]) -> Result<Vec<u8>, TransportError> {
        self.0.sync(request)?;
        Err(TransportError::new(
            "transport.failed",
            "the answer was lost",
        ))
    }

    fn realtime_sync(&mut self, request: &[u8]) -> Result<Vec<u8>, TransportError> {
        self.0.realtime_sync(request)
    }

    fn download_segment(
        &mut self,
        request: &SegmentRequest,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<u8>, TransportError> {
        self.0.download_segment(request, on_progress)
    }

    fn realtime_connect(&mut self) -> Result<(), TransportError> {
        self.0.realtime_connect()
    }

    fn realtime_send(&mut self, text: &str) -> Result<(), TransportError> {
        self.0.realtime_send(text)
    }

    fn realtime_close(&mut self) -> Result<(), TransportError> {
        self.0.realtime_close()
    }
}

//! Devices that are connected, and a test that waits for what must become of them: for the tests
//! with one server and for those with several nodes.
//!
//! A device does what a host of the client does: it hands on what its socket brought, syncs when
//! the client wants to, and connects again when the connection was lost. A test waits for a
//! condition and is woken by whatever comes; it fails when it waits for too long.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use syncular_client::{
    ClientLimits, RealtimeState, SyncClient, SyncOutcome,
    native_transport::{HostTransport, Inbound},
};

/// Far more than anything takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// A device that could not connect tries again after this, woken or not.
const RETRY: Duration = Duration::from_millis(20);

/// What the devices must come to agree with.
pub(crate) trait Truth {
    /// Its schema, as clients are given it.
    fn schema(&self) -> Value;

    /// The notes there are by id, with their versions and columns.
    fn notes(&self) -> Vec<(String, i64, Map<String, Value>)>;
}

/// What the tests' clients ask for: rows, inline or by reference, and no images.
pub(crate) fn limits() -> ClientLimits {
    ClientLimits {
        accept: Some(0b0011),
        ..ClientLimits::default()
    }
}

/// A note with every column, so that it is a row in any wire version.
pub(crate) fn whole_note(id: &str, team: &str, title: &str) -> Value {
    json!({
        "id": id, "team_id": team, "title": title, "stars": 1, "done": null, "meta": null,
        "body": null,
    })
}

/// Devices of one test.
pub(crate) struct Party {
    pub(crate) devices: Vec<Device>,
    schema: Value,
    wake: SyncSender<()>,
    woken: Receiver<()>,
}

/// The published client with its connection.
pub(crate) struct Device {
    pub(crate) client: SyncClient,
    pub(crate) transport: HostTransport,
    actor: String,
    /// Whether it wants to be connected.
    pub(crate) is_online: bool,
    /// Deltas that came, and rounds that were needed beside them.
    pub(crate) deltas: usize,
    pub(crate) rounds: usize,
    pub(crate) losses: usize,
    /// Whether the connection there is now has said hello: before that nobody knows what is new.
    is_greeted: bool,
    /// Whether its host wants a round, whatever the client says.
    is_asked: bool,
}

impl Party {
    pub(crate) fn new(truth: &impl Truth) -> Self {
        let (wake, woken) = sync_channel(1);
        Self {
            devices: Vec::new(),
            schema: truth.schema(),
            wake,
            woken,
        }
    }

    /// A device that listens to teams, connected and up to date. Returns its number.
    pub(crate) fn join(
        &mut self,
        url: &str,
        actor: &str,
        client_id: &str,
        teams: &[&str],
    ) -> usize {
        let number = self.add(url, actor, client_id, teams);
        self.devices[number].is_online = true;
        self.until("the device is connected and idle", |devices| {
            devices[number].is_idle()
        });
        number
    }

    /// A device that is not connected yet. Without teams it listens to nothing so far.
    pub(crate) fn add(&mut self, url: &str, actor: &str, client_id: &str, teams: &[&str]) -> usize {
        let mut client = SyncClient::new(client_id.to_owned(), &self.schema, limits()).unwrap();
        if !teams.is_empty() {
            subscribe(&mut client, "s1", teams);
        }
        self.devices.push(Device {
            client,
            transport: self.transport(url, actor),
            actor: actor.to_owned(),
            is_online: false,
            deltas: 0,
            rounds: 0,
            losses: 0,
            is_greeted: false,
            is_asked: false,
        });
        self.devices.len() - 1
    }

    fn transport(&self, url: &str, actor: &str) -> HostTransport {
        let config = json!({
            "baseUrl": url,
            "headers": { "authorization": format!("Bearer {actor}") },
            // A server may stand still without being dead.
            "requestTimeoutMs": 5_000,
        });
        let wake = self.wake.clone();
        let notify = Arc::new(move || {
            // Full means that it is known already.
            let _ = wake.try_send(());
        });
        HostTransport::from_config_with_notify(&config, Some(notify)).unwrap()
    }

    /// Has a device connect to another address from now on.
    pub(crate) fn move_to(&mut self, number: usize, url: &str) {
        let transport = self.transport(url, &self.devices[number].actor);
        let device = &mut self.devices[number];
        device.go_offline();
        device.transport = transport;
        device.is_online = true;
    }

    /// Lets the devices do what they do until this holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&[Device]) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            for device in &mut self.devices {
                device.pump();
            }
            if holds(&self.devices) {
                return;
            }
            assert!(Instant::now() < end, "it never came true that {what}");
            let is_restless = self.devices.iter().any(Device::is_restless);
            let patience = if is_restless { RETRY } else { PATIENCE };
            // The time is up, or somebody may try again: the loop finds out which.
            let _ = self.woken.recv_timeout(patience);
        }
    }

    /// Waits until every device holds what the server holds, and wants nothing more.
    #[track_caller]
    pub(crate) fn until_converged(&mut self, truth: &impl Truth) {
        self.until("everybody holds what the server holds", |devices| {
            let there = truth.notes();
            devices.iter().all(|device| {
                let rows = device.client.read_rows("notes").unwrap().into_iter();
                let here = rows.map(|row| (row.row_id, row.version, row.values));
                device.is_idle() && here.eq(there.iter().cloned())
            })
        });
    }
}

impl Device {
    /// Hands on what came and does what the client wants.
    fn pump(&mut self) {
        for inbound in self.transport.take_inbound() {
            match inbound {
                Inbound::Text(text) => {
                    self.is_greeted |= text.contains(r#""event":"hello""#);
                    self.client.on_realtime_text(&text);
                }
                Inbound::Binary(delta) => {
                    self.deltas += 1;
                    self.client.on_realtime_binary(&mut self.transport, &delta);
                }
                Inbound::Disconnected(error) => {
                    self.losses += 1;
                    self.is_greeted = false;
                    self.client.realtime_lost(&mut self.transport, &error);
                }
            }
        }
        if self.is_online && self.client.realtime_state() != RealtimeState::Connected {
            let connected = self.client.connect_realtime(&mut self.transport);
            if connected.is_err() {
                return;
            }
        }
        if self.is_online && self.wants_sync() {
            self.rounds += 1;
            self.is_asked = false;
            match self.client.sync_until_idle(&mut self.transport, None) {
                SyncOutcome::Ok(_) | SyncOutcome::Failed { .. } => {}
                other => panic!("the sync did not end: {other:?}"),
            }
        }
    }

    fn wants_sync(&self) -> bool {
        self.is_asked || self.client.sync_needed() || self.client.status_snapshot().outbox > 0
    }

    fn is_restless(&self) -> bool {
        let is_connected = self.client.realtime_state() == RealtimeState::Connected;
        self.is_online && (!is_connected || self.wants_sync())
    }

    /// Connected, and with nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.client.realtime_state() == RealtimeState::Connected
            && self.is_greeted
            && !self.wants_sync()
    }

    /// Has a round made at the next turn, as a host does that has subscribed to something.
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
    }

    pub(crate) fn go_offline(&mut self) {
        (self.is_online, self.is_greeted) = (false, false);
        self.client.disconnect_realtime(&mut self.transport);
    }

    pub(crate) fn put(&mut self, id: &str, team: &str, title: &str) {
        let mutation = syncular_client::Mutation::Upsert {
            table: "notes".to_owned(),
            values: whole_note(id, team, title).as_object().cloned().unwrap(),
            base_version: None,
        };
        self.client.mutate(vec![mutation]).unwrap();
    }

    pub(crate) fn title(&self, id: &str) -> Option<String> {
        let rows = self.client.read_rows("notes").unwrap();
        let row = rows.into_iter().find(|row| row.row_id == id)?;
        Some(row.values["title"].as_str().unwrap().to_owned())
    }

    pub(crate) fn present(&mut self, key: &str, doc: Option<Value>) {
        self.client
            .set_presence(&mut self.transport, key, doc.as_ref())
            .unwrap();
    }

    /// Who is present on a key, and with what.
    pub(crate) fn peers(&self, key: &str) -> Vec<(String, Value)> {
        let peers = self.client.presence(key).into_iter();
        let mut peers: Vec<_> = peers.map(|peer| (peer.client_id, peer.doc)).collect();
        peers.sort_by(|left, right| left.0.cmp(&right.0));
        peers
    }
}

pub(crate) fn subscribe(client: &mut SyncClient, id: &str, teams: &[&str]) {
    let teams = teams.iter().map(|&team| team.to_owned()).collect();
    let scopes = vec![("team_id".to_owned(), teams)];
    client
        .subscribe(id.to_owned(), "notes".to_owned(), scopes, None)
        .unwrap();
}

//! One life of the connection.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidewater_store::{
    Job,
    signals::{self, NodeId, Signal},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_postgres::{
    AsyncMessage, Client, Connection, Error,
    types::{ToSql, Type},
};

use super::{
    Order, Shared, SideConfig,
    pieces::{Assembler, cut},
    until_closed,
};
use crate::{announce::CHANNEL, error::describe};

/// An open connection that listens.
pub(super) struct Session<'a> {
    config: &'a SideConfig,
    shared: &'a Shared,
    client: Client,
    channel: String,
    /// Reads what the server sends; ends with the connection, and with us.
    reader: JoinSet<String>,
    held: BTreeSet<Job>,
    /// The number of the last keepalive that was sent, and of the last that arrived.
    sent: u64,
    heard: Arc<AtomicU64>,
    /// Texts sent over this connection.
    texts: u64,
}

/// Why a connection is not served any more.
pub(super) enum Ended {
    /// It was to be closed.
    Closed,
    /// It is gone, for this reason.
    Lost(String),
}

impl<'a> Session<'a> {
    /// Connects and listens.
    pub(super) async fn open(
        config: &'a SideConfig,
        shared: &'a Arc<Shared>,
    ) -> Result<Self, String> {
        let connected = config.address.connect(config.tls.clone()).await;
        let (client, connection) = connected.map_err(|error| describe(&error))?;
        let heard = Arc::new(AtomicU64::new(0));
        let mut reader = JoinSet::new();
        let receiver = Receiver {
            node: config.node.clone(),
            shared: Arc::clone(shared),
            heard: Arc::clone(&heard),
            assembler: Assembler::default(),
        };
        reader.spawn(receiver.read(connection));
        let channel = prepare(&client, config)
            .await
            .map_err(|error| describe(&error))?;
        Ok(Self {
            config,
            shared,
            client,
            channel,
            reader,
            held: BTreeSet::new(),
            sent: 0,
            heard,
            texts: 0,
        })
    }

    /// Serves until the connection is gone or is to be closed.
    pub(super) async fn serve(
        &mut self,
        orders: &mut mpsc::Receiver<Order>,
        closed: &mut watch::Receiver<bool>,
    ) -> Ended {
        let mut ticks = interval(self.config.keepalive);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let done = tokio::select! {
                () = until_closed(closed) => {
                    // Who cannot be told finds out by itself.
                    drop(self.send_all().await);
                    return Ended::Closed;
                }
                ended = self.reader.join_next() => {
                    let why = ended.and_then(Result::ok);
                    return Ended::Lost(why.unwrap_or_default());
                }
                Some(order) = orders.recv() => self.answer(order).await,
                () = self.shared.outbox.wait(), if self.config.listens => self.send_all().await,
                _ = ticks.tick() => self.keep_alive().await,
            };
            if let Err(why) = done {
                return Ended::Lost(why);
            }
        }
    }

    /// Whether a job is ours.
    async fn answer(&mut self, order: Order) -> Result<(), String> {
        let is_held = if self.held.contains(&order.job) {
            // Whether it is depends on whether the connection is still there.
            self.run("SELECT 1", &[]).await?;
            true
        } else {
            let key = i64::from(order.job.number());
            let rows = self.run(CLAIM, &[(&key, Type::INT8)]).await?;
            let row = rows.first().ok_or("no answer to a claim")?;
            row.try_get(0).map_err(|error| describe(&error))?
        };
        if is_held && self.held.insert(order.job) {
            tracing::info!(job = ?order.job, "this node does the job from now on");
        }
        // Whoever asked may have gone.
        let _ = order.reply.send(is_held);
        Ok(())
    }

    /// Sends what waits.
    async fn send_all(&mut self) -> Result<(), String> {
        while let Some(batch) = self.shared.outbox.take() {
            let anything = signals::encode(&self.config.node, &Signal::Anything);
            let texts = anything.into_iter().filter(|_| batch.dropped);
            let mut payloads = Vec::new();
            for text in texts.chain(batch.texts) {
                self.texts += 1;
                payloads.extend(cut(&text, &self.config.node, self.texts));
            }
            if let Err(why) = self.notify(&payloads).await {
                self.shared.outbox.dropped();
                return Err(why);
            }
        }
        Ok(())
    }

    /// Finds out whether the connection is there, and whether what is sent arrives.
    async fn keep_alive(&mut self) -> Result<(), String> {
        if !self.config.listens {
            return self.run("SELECT 1", &[]).await.map(drop);
        }
        if self.heard.load(Ordering::Relaxed) != self.sent {
            return Err(
                "a signal to ourselves did not arrive: if the connection goes through a \
                 pooler, give it a direct address"
                    .to_owned(),
            );
        }
        self.sent += 1;
        let payload = format!("{KEEPALIVE}{} {}", self.config.node, self.sent);
        self.notify(&[payload]).await
    }

    async fn notify(&self, payloads: &[String]) -> Result<(), String> {
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&self.channel, Type::TEXT), (&payloads, Type::TEXT_ARRAY)];
        self.run(NOTIFY, &params).await.map(drop)
    }

    async fn run(
        &self,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<tokio_postgres::Row>, String> {
        let answer = timeout(self.config.keepalive, self.client.query_typed(sql, params)).await;
        let answer = answer.map_err(|_| "nobody answered in time".to_owned())?;
        answer.map_err(|error| describe(&error))
    }
}

/// Sets the connection up and returns what it listens to.
///
/// A node that was stopped, but not ended, or that is cut off keeps its connection: the server
/// ends it after a while, which gives its locks to others.
async fn prepare(client: &Client, config: &SideConfig) -> Result<String, Error> {
    let silence = (config.keepalive * SILENT_KEEPALIVES)
        .as_millis()
        .to_string();
    let silence: (&(dyn ToSql + Sync), Type) = (&silence, Type::TEXT);
    // The setting is there from PostgreSQL 14 on.
    let limit = "SELECT set_config(name, $1, false) FROM pg_settings \
                 WHERE name = 'idle_session_timeout'";
    client.query_typed(limit, &[silence]).await?;
    let name = "SELECT set_config('application_name', \
                current_setting('application_name') || ' signals', false)";
    client.query_typed(name, &[]).await?;
    let channel = format!("SELECT {CHANNEL}");
    let rows = client.query_typed(&channel, &[]).await?;
    let channel: String = match rows.first() {
        Some(row) => row.try_get(0)?,
        None => String::new(),
    };
    if config.listens {
        // It has letters and digits only.
        client.batch_execute(&format!("LISTEN {channel}")).await?;
    }
    Ok(channel)
}

/// So many keepalives without a word, and the server ends the connection.
const SILENT_KEEPALIVES: u32 = 6;

/// What a keepalive begins with.
const KEEPALIVE: &str = "keepalive ";

const NOTIFY: &str = "SELECT pg_notify($1, q.payload) FROM unnest($2::text[]) AS q (payload)";

/// The schema's number keeps databases apart that share one server's database, and the number in
/// front keeps our locks from those of others.
const CLAIM: &str = "SELECT pg_try_advisory_lock(x'5444000000000000'::int8 \
    + quote_ident(current_schema())::regnamespace::oid::int8 * 65536 + $1)";

/// Takes what the server sends.
struct Receiver {
    node: NodeId,
    shared: Arc<Shared>,
    heard: Arc<AtomicU64>,
    assembler: Assembler,
}

impl Receiver {
    /// Reads until the connection is gone, and says why it is.
    async fn read<S, T>(mut self, mut connection: Connection<S, T>) -> String
    where
        S: AsyncRead + AsyncWrite + Unpin,
        T: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(message))) => self.take(message.payload()),
                Some(Ok(AsyncMessage::Notice(notice))) => {
                    tracing::debug!(code = notice.code().code(), "the database has a notice");
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return describe(&error),
                None => return "the connection was closed".to_owned(),
            }
        }
    }

    fn take(&mut self, payload: &str) {
        if let Some(keepalive) = payload.strip_prefix(KEEPALIVE) {
            let ours = keepalive.strip_prefix(self.node.as_str());
            let number = ours.and_then(|rest| rest.strip_prefix(' '));
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                self.heard.store(number, Ordering::Relaxed);
            }
            return;
        }
        let Some(text) = self.assembler.take(payload) else {
            return;
        };
        match signals::decode(&text) {
            Some((from, signal)) if from != self.node => {
                self.shared.subscribers.receive(&from, &signal);
            }
            Some(_) => {}
            None => tracing::debug!("a signal was not understood"),
        }
    }
}

/// How often to find out whether the connection is there.
pub(crate) const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(5);

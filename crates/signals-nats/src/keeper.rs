//! What goes on with the connection: signals in both directions, and whether they arrive.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, Event, Message, Subscriber};
use futures_util::StreamExt;
use tidewater_store::signals::{self, Signal};
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, timeout},
};

use crate::Shared;

pub(crate) struct Keeper {
    client: Client,
    shared: Arc<Shared>,
    subject: String,
    keepalive: Duration,
    /// The number of the last signal to ourselves, and of the last that arrived.
    sent: u64,
    heard: u64,
    /// Whether listeners were told that signals arrive.
    is_heard: bool,
}

/// What a signal to ourselves begins with.
const KEEPALIVE: &str = "keepalive ";

impl Keeper {
    pub(crate) fn new(
        client: Client,
        shared: Arc<Shared>,
        subject: String,
        keepalive: Duration,
    ) -> Self {
        Self {
            client,
            shared,
            subject,
            keepalive,
            sent: 0,
            heard: 0,
            is_heard: false,
        }
    }

    /// Runs until it is closed.
    pub(crate) async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut closed: watch::Receiver<bool>,
    ) {
        let Ok(mut messages) = self.client.subscribe(self.subject.clone()).await else {
            tracing::error!("NATS cannot be listened to");
            return;
        };
        let mut ticks = interval(self.keepalive);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = until_closed(&mut closed) => break,
                message = messages.next() => match message {
                    Some(message) => self.take(&message),
                    None => break,
                },
                Some(event) = events.recv() => self.happened(&event, &mut messages).await,
                () = self.shared.outbox.wait(), if self.is_heard => self.send_all().await,
                _ = ticks.tick() => self.keep_alive().await,
            }
        }
        if self.is_heard {
            self.send_all().await;
            drop(timeout(self.keepalive, self.client.flush()).await);
        }
        self.shared.subscribers.close();
    }

    fn take(&mut self, message: &Message) {
        let Ok(text) = std::str::from_utf8(&message.payload) else {
            return;
        };
        if let Some(keepalive) = text.strip_prefix(KEEPALIVE) {
            let ours = keepalive.strip_prefix(self.shared.node.as_str());
            let number = ours.and_then(|rest| rest.trim_start().parse().ok());
            if let Some(number) = number {
                self.heard = number;
                // An older one may have been on its way before something was lost.
                if number == self.sent && !std::mem::replace(&mut self.is_heard, true) {
                    self.shared.subscribers.resume();
                }
            }
            return;
        }
        match signals::decode(text) {
            Some((from, signal)) if from != self.shared.node => {
                self.shared.subscribers.receive(&from, &signal);
            }
            Some(_) => {}
            None => tracing::debug!("a signal was not understood"),
        }
    }

    async fn happened(&mut self, event: &Event, messages: &mut Subscriber) {
        tracing::debug!(%event, "something happened to the connection to NATS");
        match event {
            Event::Connected => self.call_ourselves().await,
            Event::Disconnected | Event::Closed => self.interrupt("the connection was lost"),
            Event::SlowConsumer(_) => {
                // What was dropped was behind what waits here.
                while let Some(Some(message)) =
                    futures_util::FutureExt::now_or_never(messages.next())
                {
                    self.take(&message);
                }
                self.interrupt("messages were dropped");
                self.call_ourselves().await;
            }
            Event::LameDuckMode
            | Event::Draining
            | Event::ServerError(_)
            | Event::ClientError(_) => {}
        }
    }

    /// Finds out whether signals arrive.
    async fn keep_alive(&mut self) {
        if self.heard != self.sent {
            self.interrupt("a signal to ourselves did not arrive");
        }
        self.call_ourselves().await;
    }

    async fn call_ourselves(&mut self) {
        self.sent += 1;
        let text = format!("{KEEPALIVE}{} {}", self.shared.node, self.sent);
        self.send(text).await;
    }

    async fn send_all(&mut self) {
        while let Some(batch) = self.shared.outbox.take() {
            let anything = signals::encode(&self.shared.node, &Signal::Anything);
            let texts = anything.into_iter().filter(|_| batch.dropped);
            for text in texts.chain(batch.texts) {
                if !self.send(text).await {
                    self.shared.outbox.dropped();
                    return;
                }
            }
        }
    }

    /// Whether it was sent, or waits inside the client to be.
    async fn send(&mut self, text: String) -> bool {
        let sending = self.client.publish(self.subject.clone(), text.into());
        let is_sent = matches!(timeout(self.keepalive, sending).await, Ok(Ok(())));
        if !is_sent {
            self.interrupt("nothing can be sent");
        }
        is_sent
    }

    fn interrupt(&mut self, why: &str) {
        if std::mem::take(&mut self.is_heard) {
            tracing::warn!(why, "signals of other nodes do not arrive over NATS");
            // What was sent last may have been lost on its way.
            self.shared.outbox.dropped();
            self.shared.subscribers.interrupt();
        }
    }
}

async fn until_closed(closed: &mut watch::Receiver<bool>) {
    // An error says that nobody is left who could close.
    drop(closed.wait_for(|closed| *closed).await);
}

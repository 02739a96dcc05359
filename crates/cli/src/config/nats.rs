//! `[nats]`: signals between nodes over NATS instead of PostgreSQL.
//!
//! PostgreSQL lets transactions that notify commit one after the other, which a cluster that
//! writes much feels. The address may hold a password: it is a secret, and can come from the
//! environment (`TIDEWATER_NATS__URL`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use tidewater_server::Secret;
use tidewater_signals_nats::NatsConfig;

use super::store::StoreSection;

/// `[nats]`
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NatsSection {
    /// Addresses, with commas between: `nats://host:4222`, `tls://host`.
    pub(crate) url: Secret,
    /// What the nodes of one database have in common, and those of another have not.
    pub(crate) subject: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) root_certificates: Option<PathBuf>,
}

impl Default for NatsSection {
    fn default() -> Self {
        Self {
            url: Secret::new(""),
            subject: "tidewater.signals".to_owned(),
            credentials_file: None,
            root_certificates: None,
        }
    }
}

impl NatsSection {
    pub(super) fn resolve(&mut self, folder: &Path) {
        for path in [&mut self.credentials_file, &mut self.root_certificates] {
            *path = path.take().map(|path| folder.join(path));
        }
    }

    /// Whether the section can be meant.
    pub(crate) fn check(&self, store: &StoreSection) -> anyhow::Result<()> {
        ensure!(
            store.has_other_nodes(),
            "nats carries signals between nodes, and with this store there is one node: remove \
             nats, or set store.kind to postgres without store.postgres.single_node"
        );
        self.to_nats().map(drop)
    }

    /// NATS as its crate takes it.
    pub(crate) fn to_nats(&self) -> anyhow::Result<NatsConfig> {
        ensure!(!self.url.is_empty(), "nats.url is not set");
        let config = NatsConfig::from_addresses(self.url.expose(), self.subject.clone());
        let mut config = config.context("nats")?;
        config.credentials = self.credentials_file.clone();
        config.root_certificates = self.root_certificates.clone();
        Ok(config)
    }
}

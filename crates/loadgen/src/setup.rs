//! Makes clients from the command line: identities, connections, runtime.

use std::{
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, ensure};
use tidewater_wire::WireVersion;

use crate::{
    args::{CommonArgs, FillArgs, ShapeArgs, TableArgs, Update},
    client::{Client, Identity},
    drive::Phase,
    http1::Connection,
    table::Table,
    target::Target,
    template::{Numbers, Template},
    workload::Workload,
};

/// A run's parameters, checked.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) common: CommonArgs,
    pub(crate) workload: Rc<Workload>,
    pub(crate) fill: FillArgs,
    target: Target,
    /// Header names with the templates of their values.
    headers: Vec<(String, Template)>,
}

/// Longer runs are several runs.
const DURATION_MAX: Duration = Duration::from_secs(3600);

impl Setup {
    pub(crate) fn new(
        common: &CommonArgs,
        table: &TableArgs,
        fill: &FillArgs,
        shape: Option<&ShapeArgs>,
    ) -> anyhow::Result<Self> {
        ensure!(
            common.duration <= DURATION_MAX && common.warmup <= DURATION_MAX,
            "a run takes at most {DURATION_MAX:?}"
        );
        ensure!(
            common.partitions <= common.clients,
            "each partition needs a client"
        );
        let target = Target::resolve(&common.url, common.allow_remote)?;
        let mut headers = vec![(
            "authorization".to_owned(),
            Template::parse(&format!("Bearer {}", common.token))?,
        )];
        for header in &common.headers {
            let (name, value) = header
                .split_once(':')
                .with_context(|| format!("header {header:?} has no colon"))?;
            ensure!(
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
                "header name {name:?} is not one"
            );
            headers.push((name.to_owned(), Template::parse(value.trim())?));
        }
        let version = WireVersion::from_number(common.wire).context("wire version is unknown")?;
        let rows = shape
            .and_then(|shape| shape.hot_rows)
            .map_or(fill.rows, |hot| hot.min(fill.rows));
        let inserts = shape.map_or(0, |shape| shape.inserts);
        ensure!(
            rows > 0 || inserts == 100 || shape.is_none(),
            "updates need rows: pass --rows, or --inserts 100"
        );
        let workload = Workload {
            table: Table::new(table.columns, table.scopes, table.lists)?,
            version,
            run_id: common.run_id.clone().unwrap_or_else(run_id_from_clock),
            seed: common.seed,
            rows: rows.max(1),
            operations: shape.map_or(1, |shape| shape.operations),
            insert_percent: inserts,
            patch: shape.is_some_and(|shape| shape.update == Update::Patch),
            own_list: false,
        };
        Ok(Self {
            common: common.clone(),
            workload: Rc::new(workload),
            fill: fill.clone(),
            target,
            headers,
        })
    }

    pub(crate) fn partition_of(&self, client: u32) -> u32 {
        client % self.common.partitions
    }

    /// The client with this number, not connected yet.
    pub(crate) fn client(&self, client: u32) -> Client {
        self.named_client(client, &format!("{}-{client}", self.workload.run_id))
    }

    /// Somebody in the partition who is not under load.
    pub(crate) fn observer(&self, partition: u32) -> Client {
        let name = format!("{}-observer-{partition}", self.workload.run_id);
        self.named_client(partition, &name)
    }

    fn named_client(&self, client: u32, name: &str) -> Client {
        let numbers = Numbers {
            actor: client % self.common.actors.unwrap_or(self.common.clients),
            partition: self.partition_of(client),
            client,
        };
        let headers = self
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}\r\n", value.fill(numbers)))
            .collect();
        let identity = Identity {
            client_id: name.into(),
            headers,
            version: self.workload.version,
            schema_version: self.workload.table.schema_version,
            accept_encoding: self.common.accept_encoding.clone(),
        };
        Client::new(identity, self.connection(self.common.timeout))
    }

    /// A connection to the server, not open yet.
    pub(crate) fn connection(&self, timeout: Duration) -> Connection {
        Connection::new(self.target.clone(), timeout)
    }

    /// The phase before anything is measured.
    pub(crate) fn warmup(&self) -> Phase {
        Phase {
            name: "warm-up",
            duration: self.common.warmup,
            count: None,
            ..self.measured()
        }
    }

    /// The measured phase.
    pub(crate) fn measured(&self) -> Phase {
        Phase {
            name: "load",
            duration: self.common.duration,
            count: self.common.count,
            rate: self.common.rate,
            server_pid: self.common.server_pid,
            quiet: self.common.quiet,
        }
    }
}

/// Milliseconds since 1970 in base 36: short, and unlike that of an earlier run.
fn run_id_from_clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut millis = now.map_or(0, |now| now.as_millis());
    let mut digits = Vec::new();
    while millis > 0 {
        let digit = u32::try_from(millis % 36).ok();
        digits.extend(digit.and_then(|digit| char::from_digit(digit, 36)));
        millis /= 36;
    }
    digits.iter().rev().collect()
}

//! What a run found, for people and for machines.
//!
//! CPU time is divided by operations, commits and rows alike; the reader takes what the question
//! was about. A problem of any kind makes a report bad, whatever its figures are.

mod table;

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    drive::Measured,
    measure::{OperationKind, Tally},
    process::Usage,
    setup::Setup,
    verify::Problems,
};

/// What came out of a command.
#[derive(Clone, Debug)]
pub enum Report {
    /// The schema document, as JSON text.
    Schema(String),
    /// A run's figures, and whether they are wanted as JSON.
    Run { run: Box<RunReport>, json: bool },
}

impl Report {
    /// Whether everything that was checked was right.
    pub fn is_ok(&self) -> bool {
        match self {
            Self::Schema(_) => true,
            Self::Run { run, .. } => run.is_ok(),
        }
    }
}

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The scenario's name on the command line.
    pub scenario: &'static str,
    /// What the caller named the run.
    pub label: String,
    /// Options that shape the load.
    pub parameters: BTreeMap<&'static str, String>,
    /// Measured time, until the last operation had ended.
    pub elapsed_seconds: f64,
    /// By kind of operation.
    pub operations: BTreeMap<OperationKind, OperationReport>,
    /// Failed exchanges by what they were.
    pub errors: BTreeMap<String, u64>,
    /// Arrivals that could not begin because all clients were waiting.
    pub unsent: u64,
    /// The server's process, where its id was given.
    pub server: Option<ProcessReport>,
    /// This process.
    pub generator: GeneratorReport,
    /// Cores that everything else on the machine used meanwhile; what was measured without the
    /// server's process counts as else. Figures are worth little when this is not near zero.
    pub others_cpu_share: f64,
    /// What was checked after the load.
    pub checked: Checked,
    /// What was wrong.
    pub problems: Problems,
}

/// Operations of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    pub count: u64,
    pub per_second: f64,
    pub commits: u64,
    pub commits_per_second: f64,
    pub rows: u64,
    pub rows_per_second: f64,
    pub response_bytes: u64,
    pub latency_us: LatencyReport,
}

/// Latencies in microseconds; of an open loop, from the intended start.
#[derive(Clone, Debug, Serialize)]
pub struct LatencyReport {
    pub min: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p95: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// What the server's process used.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    pub cpu_seconds: f64,
    /// Cores in use on average.
    pub cpu_share: f64,
    pub cpu_us_per_operation: Option<f64>,
    pub cpu_us_per_commit: Option<f64>,
    pub cpu_us_per_row: Option<f64>,
    pub rss_mib_before: f64,
    pub rss_mib_after: f64,
    pub peak_mib: f64,
    pub threads: u64,
    pub written_bytes_per_second: Option<f64>,
    pub write_calls_per_operation: Option<f64>,
    pub switches_per_operation: Option<f64>,
}

/// What this process used.
#[derive(Clone, Debug, Serialize)]
pub struct GeneratorReport {
    pub cpu_share: f64,
    pub cpu_us_per_operation: Option<f64>,
}

/// What was checked after the load.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Checked {
    /// Commits that the server acknowledged.
    pub acknowledged: u64,
    /// Of those, found in the log with the rows they wrote.
    pub found: u64,
    /// Of those, further back than the server gives the log out: it has a client that far behind
    /// start over.
    pub out_of_reach: u64,
    /// Commits in the log whose acknowledgement was lost on the way.
    pub unacknowledged: u64,
    /// Commits pushed again to see their stored result.
    pub replayed: u64,
    /// Rows that a bootstrap delivered.
    pub rows: u64,
}

impl RunReport {
    pub(crate) fn new(
        scenario: &'static str,
        setup: &Setup,
        measured: &Measured,
        checked: Checked,
        problems: Problems,
    ) -> Self {
        let elapsed = measured.elapsed;
        let total = |count: fn(&Tally) -> u64| measured.tallies.values().map(count).sum::<u64>();
        let operations = total(Tally::operations);
        let server_cpu = measured.server.map_or(Duration::ZERO, |(before, after)| {
            after.cpu.saturating_sub(before.cpu)
        });
        let known_cpu = measured.generator_cpu + server_cpu;
        Self {
            scenario,
            label: setup.common.label.clone(),
            parameters: parameters(setup),
            elapsed_seconds: elapsed.as_secs_f64(),
            operations: measured
                .tallies
                .iter()
                .map(|(&kind, tally)| (kind, OperationReport::new(tally, elapsed)))
                .collect(),
            errors: measured.errors.clone(),
            unsent: measured.unsent,
            server: measured.server.map(|(before, after)| {
                let totals = Totals {
                    operations,
                    commits: total(|tally| tally.commits),
                    rows: total(|tally| tally.rows),
                };
                ProcessReport::new(before, after, elapsed, totals)
            }),
            generator: GeneratorReport {
                cpu_share: share(measured.generator_cpu, elapsed),
                cpu_us_per_operation: us_per(measured.generator_cpu, operations),
            },
            others_cpu_share: share(measured.machine_cpu.saturating_sub(known_cpu), elapsed),
            checked,
            problems,
        }
    }

    /// Whether no exchange failed and everything that was checked was right.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty() && self.errors.is_empty() && self.unsent == 0
    }
}

/// What CPU time is divided by.
#[derive(Clone, Copy, Debug)]
struct Totals {
    operations: u64,
    commits: u64,
    rows: u64,
}

impl OperationReport {
    fn new(tally: &Tally, elapsed: Duration) -> Self {
        let per_second = |count: u64| to_f64(count) / elapsed.as_secs_f64();
        let latency = &tally.latency_us;
        Self {
            count: tally.operations(),
            per_second: per_second(tally.operations()),
            commits: tally.commits,
            commits_per_second: per_second(tally.commits),
            rows: tally.rows,
            rows_per_second: per_second(tally.rows),
            response_bytes: tally.bytes,
            latency_us: LatencyReport {
                min: latency.min(),
                mean: latency.mean(),
                p50: latency.value_at_quantile(0.5),
                p90: latency.value_at_quantile(0.9),
                p95: latency.value_at_quantile(0.95),
                p99: latency.value_at_quantile(0.99),
                p999: latency.value_at_quantile(0.999),
                max: latency.max(),
            },
        }
    }
}

impl ProcessReport {
    fn new(before: Usage, after: Usage, elapsed: Duration, totals: Totals) -> Self {
        let cpu = after.cpu.saturating_sub(before.cpu);
        let grown = |before: Option<u64>, after: Option<u64>| {
            before
                .zip(after)
                .map(|(before, after)| to_f64(after.saturating_sub(before)))
        };
        let operations = (totals.operations > 0).then(|| to_f64(totals.operations));
        Self {
            cpu_seconds: cpu.as_secs_f64(),
            cpu_share: share(cpu, elapsed),
            cpu_us_per_operation: us_per(cpu, totals.operations),
            cpu_us_per_commit: us_per(cpu, totals.commits),
            cpu_us_per_row: us_per(cpu, totals.rows),
            rss_mib_before: to_f64(before.rss_kib) / 1024.0,
            rss_mib_after: to_f64(after.rss_kib) / 1024.0,
            peak_mib: to_f64(after.peak_kib) / 1024.0,
            threads: after.threads,
            written_bytes_per_second: grown(before.written_bytes, after.written_bytes)
                .map(|bytes| bytes / elapsed.as_secs_f64()),
            switches_per_operation: grown(Some(before.switches), Some(after.switches))
                .zip(operations)
                .map(|(switches, operations)| switches / operations),
            write_calls_per_operation: grown(before.write_calls, after.write_calls)
                .zip(operations)
                .map(|(calls, operations)| calls / operations),
        }
    }
}

fn parameters(setup: &Setup) -> BTreeMap<&'static str, String> {
    let common = &setup.common;
    let workload = &setup.workload;
    let mut parameters = BTreeMap::from([
        ("url", common.url.clone()),
        ("wire", common.wire.to_string()),
        ("clients", common.clients.to_string()),
        ("partitions", common.partitions.to_string()),
        ("seed", common.seed.to_string()),
        ("run_id", workload.run_id.clone()),
        ("columns", workload.table.columns.len().to_string()),
        ("lists", workload.table.lists().to_string()),
        ("rows", setup.fill.rows.to_string()),
        ("rows_written", workload.rows.to_string()),
        ("operations", workload.operations.to_string()),
        ("inserts", workload.insert_percent.to_string()),
        ("patch", workload.patch.to_string()),
    ]);
    if let Some(rate) = common.rate {
        parameters.insert("rate", rate.to_string());
    }
    if let Some(names) = &common.accept_encoding {
        parameters.insert("accept_encoding", names.clone());
    }
    parameters
}

fn share(cpu: Duration, elapsed: Duration) -> f64 {
    cpu.as_secs_f64() / elapsed.as_secs_f64()
}

fn us_per(cpu: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| cpu.as_secs_f64() * 1e6 / to_f64(count))
}

#[expect(
    clippy::as_conversions,
    reason = "figures for people; 53 bits are plenty"
)]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

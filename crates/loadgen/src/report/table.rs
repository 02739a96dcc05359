//! The report as text, and as a line of JSON.

use std::fmt::{self, Display, Formatter};

use super::{OperationReport, ProcessReport, Report, RunReport};
use crate::measure::OperationKind;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schema(text) => writeln!(f, "{text}"),
            Self::Run { run, json: false } => run.fmt(f),
            Self::Run { run, json: true } => {
                let line = serde_json::to_string(run).map_err(|_| fmt::Error)?;
                writeln!(f, "{line}")
            }
        }
    }
}

impl Display for RunReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.scenario, self.label)?;
        for (name, value) in &self.parameters {
            write!(f, " {name}={value}")?;
        }
        writeln!(f, "\n  measured            {:.2} s", self.elapsed_seconds)?;
        for (kind, operations) in &self.operations {
            write_operations(f, *kind, operations)?;
        }
        if let Some(server) = &self.server {
            write_server(f, server)?;
        }
        writeln!(
            f,
            "  generator           {:.2} cores, {} us per operation; others {:.2} cores",
            self.generator.cpu_share,
            figure(self.generator.cpu_us_per_operation),
            self.others_cpu_share
        )?;
        let checked = &self.checked;
        writeln!(
            f,
            "  checked             {} of {} acknowledged commits, {} out of reach, {} more in the \
             log, {} replayed, {} rows",
            checked.found,
            checked.acknowledged,
            checked.out_of_reach,
            checked.unacknowledged,
            checked.replayed,
            checked.rows
        )?;
        for (label, count) in &self.errors {
            writeln!(f, "  ERROR               {count} x {label}")?;
        }
        if self.unsent > 0 {
            writeln!(f, "  ERROR               {} arrivals not sent", self.unsent)?;
        }
        for (kind, count) in self.problems.counts() {
            writeln!(f, "  PROBLEM             {count} x {kind:?}")?;
        }
        for example in self.problems.examples() {
            writeln!(f, "    {example}")?;
        }
        let verdict = if self.is_ok() { "ok" } else { "FAILED" };
        writeln!(f, "  {verdict}")
    }
}

fn write_operations(
    f: &mut Formatter<'_>,
    kind: OperationKind,
    operations: &OperationReport,
) -> fmt::Result {
    let name = match kind {
        OperationKind::Push => "push",
        OperationKind::Pull => "pull",
        OperationKind::Bootstrap => "bootstrap",
        OperationKind::Delta => "delta",
        OperationKind::Reconnect => "reconnect",
    };
    writeln!(
        f,
        "  {name:<19} {} requests, {:.1}/s; {:.1} commits/s; {:.1} rows/s; {} bytes received",
        operations.count,
        operations.per_second,
        operations.commits_per_second,
        operations.rows_per_second,
        operations.response_bytes
    )?;
    let latency = &operations.latency_us;
    writeln!(
        f,
        "    latency ms        p50 {} p90 {} p95 {} p99 {} p99.9 {} max {} mean {:.3}",
        ms(latency.p50),
        ms(latency.p90),
        ms(latency.p95),
        ms(latency.p99),
        ms(latency.p999),
        ms(latency.max),
        latency.mean / 1000.0
    )
}

fn write_server(f: &mut Formatter<'_>, server: &ProcessReport) -> fmt::Result {
    writeln!(
        f,
        "  server CPU          {} us per operation, {} per commit, {} per row; {:.2} cores",
        figure(server.cpu_us_per_operation),
        figure(server.cpu_us_per_commit),
        figure(server.cpu_us_per_row),
        server.cpu_share
    )?;
    writeln!(
        f,
        "  server memory       {:.1} MiB before, {:.1} after, {:.1} at its peak; {} threads",
        server.rss_mib_before, server.rss_mib_after, server.peak_mib, server.threads
    )?;
    writeln!(
        f,
        "  server system       {} bytes/s to storage; {} write calls and {} context switches \
         per operation",
        figure(server.written_bytes_per_second),
        figure(server.write_calls_per_operation),
        figure(server.switches_per_operation)
    )
}

fn ms(us: u64) -> String {
    format!("{}.{:03}", us / 1000, us % 1000)
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

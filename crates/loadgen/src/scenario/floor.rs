//! `floor`: pushes at a server that does nothing, to know what the generator itself costs.
//!
//! Figures of a real server that come near these are figures of the generator.

use clap::Parser as _;
use tidewater_wire::{PushOutcome, PushResult, Request, Response, ResponseFrame, ResponseHeader};

use super::push::Pusher;
use crate::{
    args::{FloorArgs, PushArgs},
    drive::run_phase,
    report::{Checked, RunReport},
    setup::Setup,
    stub::{Answer, Stub},
    verify::Problems,
};

const EPOCH: &str = "floor";

pub(super) async fn run(args: &FloorArgs) -> anyhow::Result<RunReport> {
    let stub = Stub::start(|| {
        let mut last_seq = 0;
        move |_: &str, body| acknowledge(&body, &mut last_seq)
    })?;
    let clients = args.clients.to_string();
    let duration = humantime::format_duration(args.duration).to_string();
    let push = PushArgs::try_parse_from([
        "floor",
        "--url",
        &stub.url(),
        "--clients",
        &clients,
        "--duration",
        &duration,
        "--quiet",
    ])?;
    let setup = Setup::new(&push.common, &push.table, &push.fill, Some(&push.shape))?;
    let mut pushers = Vec::new();
    for client in 0..args.clients {
        pushers.push(Pusher::start(&setup, client, 1).await?);
    }
    let (pushers, _) = run_phase(pushers, setup.warmup()).await?;
    let cpu_before = stub.cpu()?;
    let (_, mut measured) = run_phase(pushers, setup.measured()).await?;
    let stub_cpu = stub.cpu()?.saturating_sub(cpu_before);
    measured.generator_cpu = measured.generator_cpu.saturating_sub(stub_cpu);
    let checked = Checked::default();
    let mut report = RunReport::new("floor", &setup, &measured, checked, Problems::default());
    let operations: u64 = report.operations.values().map(|kind| kind.count).sum();
    let stub_us = stub_cpu.as_micros().checked_div(u128::from(operations));
    report
        .parameters
        .insert("stub_cpu_us_per_request", stub_us.unwrap_or(0).to_string());
    Ok(report)
}

/// Says that every commit was applied, or that the client must take the epoch.
fn acknowledge(body: &bytes::Bytes, last_seq: &mut i64) -> Answer {
    let Ok(request) = Request::decode(body) else {
        return (400, bytes::Bytes::new());
    };
    let parts = request.into_parts();
    let header = ResponseHeader {
        log_epoch: EPOCH.into(),
        latest_schema_version: Some(parts.header.schema_version),
        reset_required: parts.header.log_epoch.is_none(),
        ..ResponseHeader::default()
    };
    let mut frames = vec![ResponseFrame::Header(header)];
    for commit in parts.commits {
        *last_seq += 1;
        frames.push(ResponseFrame::PushResult(PushResult {
            client_commit_id: commit.client_commit_id,
            outcome: PushOutcome::Applied(*last_seq),
            results: Vec::new(),
        }));
    }
    let version = parts.version;
    match (Response { version, frames }).encode() {
        Ok(body) => (200, body),
        Err(_) => (500, bytes::Bytes::new()),
    }
}

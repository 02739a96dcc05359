//! `idle`: open connections that do nothing, and what the server uses meanwhile.

use std::time::{Duration, Instant};

use super::prepare;
use crate::{
    args::PullArgs,
    client::{default_pull_header, pull_of},
    drive::Measured,
    process::{self, Usage, machine_cpu},
    report::{Checked, RunReport},
    setup::Setup,
    verify::Problems,
};

pub(super) async fn run(args: &PullArgs) -> anyhow::Result<RunReport> {
    let setup = Setup::new(&args.common, &args.table, &args.fill, None)?;
    prepare(&setup).await?;
    let table = &setup.workload.table;
    let pull = pull_of(&table.name, &table.filter(None), -1, default_pull_header());
    let mut clients = Vec::new();
    for number in 0..args.common.clients {
        let mut client = setup.client(number);
        client.acquire_epoch(&pull).await?;
        clients.push(client);
    }
    tokio::time::sleep(args.common.warmup).await;
    if let Some(pid) = args.common.server_pid.filter(|_| args.common.reset_peak) {
        process::reset_peak(pid)?;
    }
    let read_server = || args.common.server_pid.map(Usage::read).transpose();
    let before = read_server()?;
    let machine_before = machine_cpu()?;
    let started = Instant::now();
    tokio::time::sleep(args.common.duration).await;
    let measured = Measured {
        began: started,
        elapsed: started.elapsed(),
        tallies: Default::default(),
        errors: Default::default(),
        unsent: 0,
        server: before.zip(read_server()?),
        generator_cpu: Duration::ZERO,
        machine_cpu: machine_cpu()?.saturating_sub(machine_before),
    };
    drop(clients);
    Ok(RunReport::new(
        "idle",
        &setup,
        &measured,
        Checked::default(),
        Problems::default(),
    ))
}

//! `sockets`: connections on which nothing happens, and what each costs the server in memory.
//!
//! At the end one commit is pushed, and every socket must bring it: what is measured is sockets
//! that work.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{fan_out, load_one, prepare, receiver};
use crate::{
    args::SocketArgs,
    drive::Measured,
    process::{Usage, machine_cpu},
    report::{Checked, RunReport},
    setup::Setup,
    verify::Problems,
};

pub(super) async fn run(args: &SocketArgs) -> anyhow::Result<RunReport> {
    let sockets = args.receivers.sockets;
    let common = receiver::spread(&args.common, sockets)?;
    let setup = Setup::new(&common, &args.table, &args.fill, None)?;
    let read_server = || common.server_pid.map(Usage::read).transpose();
    let at_start = read_server()?;
    prepare(&setup).await?;
    let listeners = receiver::prepare(&setup, &args.receivers, common.clients, sockets).await?;
    tokio::time::sleep(common.warmup).await;
    let before = read_server()?;
    let machine_before = machine_cpu()?;
    let opened = receiver::open(&listeners, None).await?;
    let (end, ended) = watch::channel(None);
    let patience = args.receivers.patience;
    let tasks = receiver::listen(listeners, opened, true, patience, &ended);
    tokio::time::sleep(common.warmup).await;
    let began = Instant::now();
    tokio::time::sleep(common.duration).await;
    let after = read_server()?;
    let mut measured = Measured {
        began,
        elapsed: began.elapsed(),
        tallies: Default::default(),
        errors: Default::default(),
        unsent: 0,
        server: before.zip(after),
        generator_cpu: Duration::ZERO,
        machine_cpu: machine_cpu()?.saturating_sub(machine_before),
    };
    let mut checked = Checked::default();
    let mut problems = Problems::default();
    let pushers = load_one(&setup).await?;
    let (acks, pushed) = fan_out::collect(&setup, pushers, &mut checked);
    let expected = receiver::expected(&setup, &acks, args.receivers.every_list);
    end.send_replace(Some(Arc::new(expected)));
    let arrived = receiver::gather(tasks, &mut problems).await;
    fan_out::add_deltas(&mut measured, &arrived, &pushed);
    let mut report = RunReport::new("sockets", &setup, &measured, checked, problems);
    report.parameters.insert("sockets", sockets.to_string());
    if let (Some(at_start), Some(before), Some(after)) = (at_start, before, after) {
        let mut figure = |name, since: Usage| {
            let grown = after.rss_kib.saturating_sub(since.rss_kib);
            let each = crate::report::to_f64(grown) / f64::from(sockets);
            report.parameters.insert(name, format!("{each:.1}"));
        };
        // What was freed by then is used again, so this is too little, and the other, with all
        // that was done to prepare, too much.
        figure("kib_per_socket", before);
        figure("kib_per_socket_since_start", at_start);
    }
    Ok(report)
}

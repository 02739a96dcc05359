//! `reconnect`: all sockets are lost at once, something is committed, and everybody comes back.
//! They are lost because this side closes them, or because the server is restarted under them.
//!
//! Latency counts from the moment all begin to the moment one has its socket, has pulled over it
//! what it missed, and has said so.

use std::{
    collections::BTreeMap,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::{
    fan_out,
    health::Probe,
    load_one, prepare,
    receiver::{self, Expected, Listener},
};
use crate::{
    args::ReconnectArgs,
    client::{SUBSCRIPTION_ID, advance},
    drive::{Measured, with_costs},
    error::RoundError,
    measure::{Done, OperationKind, Tally},
    report::{Checked, RunReport},
    setup::Setup,
    socket::Socket,
    verify::{ProblemKind, Problems},
};

pub(super) async fn run(args: &ReconnectArgs) -> anyhow::Result<RunReport> {
    let sockets = args.receivers.sockets;
    let mut common = receiver::spread(&args.common, sockets)?;
    let setup = Setup::new(&common, &args.table, &args.fill, None)?;
    prepare(&setup).await?;
    let listeners = receiver::prepare(&setup, &args.receivers, common.clients, sockets).await?;
    let opened = receiver::open(&listeners, None).await?;
    tokio::time::sleep(common.warmup).await;
    let mut problems = Problems::default();
    match &args.restart {
        None => drop(opened),
        Some(command) => {
            let pid = restart(command, opened, args.receivers.patience, &mut problems).await?;
            common.server_pid = pid.or(common.server_pid);
        }
    }
    let mut checked = Checked::default();
    let pushers = load_one(&setup).await?;
    let (acks, _) = fan_out::collect(&setup, pushers, &mut checked);
    let expected = receiver::expected(&setup, &acks, args.receivers.every_list);
    let probe = args.health.as_deref();
    let probe = probe.map(|path| Probe::start(&setup, path)).transpose()?;
    let began = Instant::now();
    let storm = come_back_all(listeners, &expected, &mut problems);
    let (returned, costs) = with_costs(common.server_pid, storm).await?;
    let health = probe.map(Probe::stop).transpose()?;
    let back = returned?;
    let measured = Measured {
        began,
        elapsed: costs.elapsed,
        tallies: [(OperationKind::Reconnect, back.tally)].into(),
        errors: back.errors,
        unsent: 0,
        server: costs.server,
        generator_cpu: costs.generator_cpu,
        machine_cpu: costs.machine_cpu,
    };
    drop(back.sockets);
    if let Some(health) = &health {
        problems.merge(&health.problems);
    }
    let mut report = RunReport::new("reconnect", &setup, &measured, checked, problems);
    let parameters = &mut report.parameters;
    parameters.insert("sockets", sockets.to_string());
    parameters.insert("restart", args.restart.is_some().to_string());
    if let Some(health) = health {
        parameters.insert("health_checks", health.checks.to_string());
        let longest = health.longest.as_secs_f64() * 1e3;
        parameters.insert("health_max_ms", format!("{longest:.1}"));
    }
    Ok(report)
}

/// Has the server restarted under open sockets. Gives its new process, if the command says.
async fn restart(
    command: &str,
    sockets: Vec<Socket>,
    patience: Duration,
    problems: &mut Problems,
) -> anyhow::Result<Option<u32>> {
    // They are read, or nobody would answer the server's goodbye.
    let mut ending = JoinSet::new();
    for mut socket in sockets {
        ending.spawn(async move { while socket.next().await.is_ok() {} });
    }
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = tokio::task::spawn_blocking(move || shell.output()).await?;
    let output = output.context("run the command that restarts the server")?;
    anyhow::ensure!(
        output.status.success(),
        "the command that restarts the server failed: {}",
        output.status
    );
    let ended = async { while ending.join_next().await.is_some() {} };
    if tokio::time::timeout(patience, ended).await.is_err() {
        let text = format!("{} sockets are still open after a restart", ending.len());
        problems.add(ProblemKind::Unfinished, text);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .next_back()
        .and_then(|pid| pid.trim().parse().ok()))
}

/// Everybody who is back.
struct Back {
    tally: Tally,
    errors: BTreeMap<String, u64>,
    /// Kept open to the end: a server that has let all in must hold all.
    sockets: Vec<Socket>,
}

async fn come_back_all(
    listeners: Vec<Listener>,
    expected: &Expected,
    problems: &mut Problems,
) -> anyhow::Result<Back> {
    let began = Instant::now();
    let mut returning = JoinSet::new();
    for listener in listeners {
        returning.spawn(come_back(listener));
    }
    let mut back = Back {
        tally: Tally::new(),
        errors: BTreeMap::new(),
        sockets: Vec::new(),
    };
    while let Some(returned) = returning.join_next().await {
        match returned? {
            Ok(returned) => {
                let took = returned.done.received.duration_since(began);
                back.tally.record(returned.done, took);
                let key = (returned.listener.partition, returned.listener.list);
                let last = expected.get(&key).and_then(|seqs| seqs.last().copied());
                let cursor = returned.listener.pull.subscriptions[0].cursor;
                if last.is_some_and(|last| cursor < last) {
                    let text = format!("back at {cursor}, and not at {last:?}");
                    problems.add(ProblemKind::LostCommit, text);
                }
                back.sockets.push(returned.socket);
            }
            Err(error) => *back.errors.entry(error.label()).or_default() += 1,
        }
    }
    Ok(back)
}

/// Somebody who is caught up again.
struct Returned {
    listener: Listener,
    socket: Socket,
    done: Done,
}

async fn come_back(mut listener: Listener) -> Result<Returned, RoundError> {
    let mut socket = listener.client.open_socket(None).await?;
    if !socket.hello.requires_sync {
        return Err(RoundError::unexpected(
            "nothing was missed, says the server",
        ));
    }
    let mut commits = 0;
    loop {
        let round = listener
            .client
            .socket_round(&mut socket, &listener.pull)
            .await?;
        let section = round.into_section(SUBSCRIPTION_ID)?;
        commits += u64::try_from(section.commits.len()).unwrap_or(u64::MAX);
        if advance(&mut listener.pull, section) {
            break;
        }
    }
    let cursor = listener.pull.subscriptions[0].cursor;
    socket.acknowledge(cursor).await?;
    Ok(Returned {
        listener,
        socket,
        done: Done {
            kind: OperationKind::Reconnect,
            commits,
            rows: 0,
            bytes: 0,
            received: Instant::now(),
        },
    })
}

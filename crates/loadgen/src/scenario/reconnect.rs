//! `reconnect`: all sockets are lost at once, something is committed, and everybody comes back.
//!
//! Latency counts from the moment all begin to the moment one has its socket, has pulled over it
//! what it missed, and has said so.

use std::time::Instant;

use tokio::task::JoinSet;

use super::{fan_out, load_one, prepare, receiver, receiver::Listener};
use crate::{
    args::SocketArgs,
    client::{SUBSCRIPTION_ID, advance},
    drive::Measured,
    error::RoundError,
    measure::{Done, OperationKind, Tally},
    process::{Usage, machine_cpu},
    report::{Checked, RunReport},
    setup::Setup,
    verify::{ProblemKind, Problems},
};

pub(super) async fn run(args: &SocketArgs) -> anyhow::Result<RunReport> {
    let sockets = args.receivers.sockets;
    let common = receiver::spread(&args.common, sockets)?;
    let setup = Setup::new(&common, &args.table, &args.fill, None)?;
    prepare(&setup).await?;
    let listeners = receiver::prepare(&setup, &args.receivers, common.clients, sockets).await?;
    let opened = receiver::open(&listeners, None).await?;
    tokio::time::sleep(common.warmup).await;
    drop(opened);
    let mut checked = Checked::default();
    let mut problems = Problems::default();
    let pushers = load_one(&setup).await?;
    let (acks, _) = fan_out::collect(&setup, pushers, &mut checked);
    let expected = receiver::expected(&setup, &acks, args.receivers.every_list);
    let read_server = || common.server_pid.map(Usage::read).transpose();
    let before = read_server()?;
    let machine_before = machine_cpu()?;
    let generator_before = Usage::read(std::process::id())?;
    let began = Instant::now();
    let mut returning = JoinSet::new();
    for listener in listeners {
        returning.spawn(come_back(listener));
    }
    let mut tally = Tally::new();
    let mut errors = std::collections::BTreeMap::new();
    // Kept open to the end: a server that has let all in must hold all.
    let mut back = Vec::new();
    while let Some(returned) = returning.join_next().await {
        match returned? {
            Ok(returned) => {
                tally.record(returned.done, returned.done.received.duration_since(began));
                let key = (returned.listener.partition, returned.listener.list);
                let last = expected.get(&key).and_then(|seqs| seqs.last().copied());
                let cursor = returned.listener.pull.subscriptions[0].cursor;
                if last.is_some_and(|last| cursor < last) {
                    let text = format!("back at {cursor}, and not at {last:?}");
                    problems.add(ProblemKind::LostCommit, text);
                }
                back.push(returned.socket);
            }
            Err(error) => *errors.entry(error.label()).or_default() += 1,
        }
    }
    let measured = Measured {
        began,
        elapsed: began.elapsed(),
        tallies: [(OperationKind::Reconnect, tally)].into(),
        errors,
        unsent: 0,
        server: before.zip(read_server()?),
        generator_cpu: Usage::read(std::process::id())?
            .cpu
            .saturating_sub(generator_before.cpu),
        machine_cpu: machine_cpu()?.saturating_sub(machine_before),
    };
    drop(back);
    let mut report = RunReport::new("reconnect", &setup, &measured, checked, problems);
    report.parameters.insert("sockets", sockets.to_string());
    Ok(report)
}

/// Somebody who is caught up again.
struct Returned {
    listener: Listener,
    socket: crate::socket::Socket,
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

//! `slow-readers`: most sockets are opened and never read, and the others must not notice.
//!
//! Those that are never read have a small window, so that the server has to keep what they do
//! not take. In the end it must have cut them off: each is read until it ends.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    check_writes,
    fan_out::{self, Timed},
    load, prepare, receiver,
};
use crate::{
    args::SlowArgs,
    process::Usage,
    report::{Checked, RunReport},
    setup::Setup,
    socket::Socket,
    verify::{ProblemKind, Problems},
};

/// The window of a socket that is never read.
const RECEIVE_BUFFER: u32 = 4_096;

pub(super) async fn run(args: &SlowArgs) -> anyhow::Result<RunReport> {
    let sockets = args.receivers.sockets;
    let common = receiver::spread(&args.common, sockets + args.stuck)?;
    let setup = Setup::new(&common, &args.table, &args.fill, Some(&args.shape))?;
    let mut observers = prepare(&setup).await?;
    let first = common.clients;
    let listeners = receiver::prepare(&setup, &args.receivers, first, sockets).await?;
    let stuck = receiver::prepare(&setup, &args.receivers, first + sockets, args.stuck).await?;
    let opened = receiver::open(&listeners, None).await?;
    let never_read = receiver::open(&stuck, Some(RECEIVE_BUFFER)).await?;
    let mut starts = Vec::new();
    for observer in &mut observers {
        starts.push(observer.head().await?);
    }
    let (end, ended) = watch::channel(None);
    let patience = args.receivers.patience;
    let tasks = receiver::listen(listeners, opened, true, patience, &ended);
    let mut pushers = Vec::new();
    for client in 0..common.clients {
        pushers.push(Timed::start(&setup, client, args.shape.commits).await?);
    }
    let (pushers, mut measured) = load(&setup, pushers).await?;
    let mut checked = Checked::default();
    let mut problems = Problems::default();
    let (acks, pushed) = fan_out::collect(&setup, pushers, &mut checked);
    let expected = receiver::expected(&setup, &acks, args.receivers.every_list);
    end.send_replace(Some(Arc::new(expected)));
    let arrived = receiver::gather(tasks, &mut problems).await;
    fan_out::add_deltas(&mut measured, &arrived, &pushed);
    if let (Some(pid), Some((_, after))) = (common.server_pid, measured.server.as_mut()) {
        *after = Usage::read(pid)?;
    }
    let cut_off = count_cut_off(never_read, patience).await;
    if cut_off < args.stuck {
        let text = format!(
            "{} sockets that do not read are still open",
            args.stuck - cut_off
        );
        problems.add(ProblemKind::Unfinished, text);
    }
    if !common.no_verify {
        let observers = &mut observers;
        check_writes(
            &setup,
            observers,
            &starts,
            &acks,
            &mut checked,
            &mut problems,
        )
        .await;
    }
    let mut report = RunReport::new("slow-readers", &setup, &measured, checked, problems);
    let parameters = &mut report.parameters;
    parameters.insert("sockets", sockets.to_string());
    parameters.insert("stuck", args.stuck.to_string());
    parameters.insert("cut_off", cut_off.to_string());
    fan_out::add_cost(&mut report);
    Ok(report)
}

/// How many of the sockets have ended when what is left in them is read.
async fn count_cut_off(sockets: Vec<Socket>, patience: Duration) -> u32 {
    tokio::time::sleep(patience).await;
    let mut cut_off = 0;
    for mut socket in sockets {
        let ended = async { while socket.next().await.is_ok() {} };
        if tokio::time::timeout(READ_TIME, ended).await.is_ok() {
            cut_off += 1;
        }
    }
    cut_off
}

/// What was under way to a socket is there at once; one that is alive has nothing more to say.
const READ_TIME: Duration = Duration::from_millis(200);

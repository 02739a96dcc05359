//! Runs a server until it is told to stop.

use std::{
    io::{self, Write as _},
    path::Path,
    sync::Arc,
};

use anyhow::Context as _;
use tidewater_server::Server;
use tokio::net::TcpListener;

use crate::{Failure, assemble, config::Config, descriptors, telemetry};

/// `serve`
pub(crate) fn serve(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file).map_err(Failure::Wrong)?;
    let plan = assemble::check(&config).map_err(Failure::Wrong)?;
    telemetry::start(&config.log).map_err(Failure::Wrong)?;
    tracing::info!(config = %config.to_json()?, "starting");
    descriptors::make_room(config.server.connections_max + config.realtime.sockets_max);
    runtime()?.block_on(async {
        // Before anybody is told that there is something to stop.
        let stop = stop_signal()?;
        let server = plan.open(&config).await?;
        let listener = listen(config.server.listen).await?;
        tracing::info!(address = %listener.local_addr()?, "listening");
        until_stopped(listener, server, stop).await
    })?;
    Ok(())
}

/// A runtime as wide as the machine.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

/// Takes the address before anything is promised to anybody.
pub(crate) async fn listen(address: std::net::SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))
}

/// Serves until `stop` ends, then lets what was begun end.
pub(crate) async fn until_stopped(
    listener: TcpListener,
    server: Arc<Server>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tidewater_server::serve(listener, server, async {
        stop.await;
        tracing::info!("stopping");
    })
    .await
    .context("close the database")?;
    tracing::info!("stopped");
    Ok(())
}

/// Ends with the first of the signals that ask a process to stop.
#[cfg(unix)]
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

#[cfg(not(unix))]
#[expect(clippy::unnecessary_wraps, reason = "the other platforms can fail")]
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    Ok(async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })
}

/// Writes data to standard output. A reader that has seen enough is no failure.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("write to standard output")
        }
        _ => Ok(()),
    }
}

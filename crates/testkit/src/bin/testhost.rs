//! A server that a harness in any language drives: see the README of this crate.
//!
//! Prints its port, alone on one line, and serves until standard input closes or SIGTERM comes.
//! Never shipped.

use std::{
    io::{Read, Write},
    net::Ipv4Addr,
    path::PathBuf,
};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use tidewater_testkit::{Host, StoreKind};
use tokio::{net::TcpListener, signal::unix, sync::oneshot};

/// Serves instances of the server under test.
#[derive(Parser)]
struct Options {
    /// The port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Which database instances live on.
    #[arg(long, value_enum, default_value = "memory")]
    store: StoreOption,
    /// Keeps instances in this folder and goes on with those that are there (SQLite only).
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreOption {
    Memory,
    Sqlite,
    Postgres,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    // Standard output belongs to the port.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let kind = match options.store {
        StoreOption::Memory => StoreKind::Memory,
        StoreOption::Sqlite => StoreKind::Sqlite,
        StoreOption::Postgres => StoreKind::Postgres,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))
        .await
        .context("listen")?;
    let address = listener.local_addr()?;
    let host = match options.data {
        None => Host::new(kind, address),
        Some(data) => Host::open(kind, data, address).await?,
    };
    let stop = stop()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", address.port())?;
    out.flush()?;
    drop(out);
    tokio::select! {
        served = axum::serve(listener, host.router()) => served.context("serve"),
        () = stop => Ok(()),
    }
}

/// Ends when whoever started this program is gone or says so.
fn stop() -> Result<impl Future<Output = ()>> {
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    let (closed, input_closed) = oneshot::channel();
    // Reading standard input cannot be canceled, so it has a thread that dies with the process.
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while std::io::stdin()
            .read(&mut buffer)
            .is_ok_and(|read| read > 0)
        {}
        let _ = closed.send(());
    });
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = input_closed => {}
        }
    })
}

//! A host on 127.0.0.1, on threads of its own, for tests that block on real sockets.

use std::{net::SocketAddr, sync::Arc};

use anyhow::Result;
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::watch,
};

use crate::{Host, Instance, InstanceSpec, StoreKind};

/// Serves a host until it is dropped.
pub struct TestServer {
    host: Arc<Host>,
    address: SocketAddr,
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
}

impl TestServer {
    /// Listens on a free port.
    pub fn start(kind: StoreKind) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let host = Host::new(kind, address);
        let (stop, mut stopped) = watch::channel(false);
        let router = host.router();
        runtime.spawn(async move {
            let stopped = async move {
                // An error means that the server is gone, which ends it as well.
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            axum::serve(listener, router)
                .with_graceful_shutdown(stopped)
                .await
        });
        Ok(Self {
            host,
            address,
            runtime: Some(runtime),
            stop,
        })
    }

    /// Makes an instance; its address is `http://127.0.0.1:port/i/{id}`.
    pub fn create(&self, spec: &InstanceSpec) -> Result<(String, Arc<Instance>)> {
        let (id, instance) = self.block_on(self.host.create(spec))?;
        Ok((format!("http://{}/i/{id}", self.address), instance))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs something on the threads of the server.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime
            .as_ref()
            .expect("it is taken when the server is dropped")
            .block_on(future)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

//! A server of HTTP/1.1 and nothing else, on a thread of its own.
//!
//! It answers by calling a function. The `floor` scenario measures the generator against it, and
//! tests put servers that misbehave behind it. It reads what our own client sends; it is no
//! server for anybody else.

use std::{
    cell::RefCell, net::SocketAddr, path::PathBuf, rc::Rc, sync::mpsc, thread::JoinHandle,
    time::Duration,
};

use anyhow::Context;
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::LocalSet,
};

use crate::process;

/// What a request gets: status and body.
pub(crate) type Answer = (u16, Bytes);

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    /// Where `/proc` tells about the thread.
    task: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stub {
    /// Starts a server whose answers are made by what `make` makes: path and body in.
    pub(crate) fn start<H>(make: impl FnOnce() -> H + Send + 'static) -> anyhow::Result<Self>
    where
        H: FnMut(&str, Bytes) -> Answer + 'static,
    {
        let (ready, started) = mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("stub".to_owned())
            .spawn(move || {
                let handler = Rc::new(RefCell::new(make()));
                drop(run(&ready, handler, stopped));
            })?;
        let (address, task) = started.recv().context("start the stub server")?;
        Ok(Self {
            address,
            task,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// CPU time of the server's thread so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        process::task_cpu(&self.task)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        // The thread ends when its other half is gone.
        self.stop = None;
        drop(self.thread.take().map(JoinHandle::join));
    }
}

fn run<H>(
    ready: &mpsc::SyncSender<(SocketAddr, PathBuf)>,
    handler: Rc<RefCell<H>>,
    stopped: oneshot::Receiver<()>,
) -> anyhow::Result<()>
where
    H: FnMut(&str, Bytes) -> Answer + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let task = PathBuf::from("/proc").join(std::fs::read_link("/proc/thread-self")?);
        ready.send((listener.local_addr()?, task))?;
        tokio::select! {
            result = accept(listener, handler) => result,
            _ = stopped => Ok(()),
        }
    }))
}

async fn accept<H>(listener: TcpListener, handler: Rc<RefCell<H>>) -> anyhow::Result<()>
where
    H: FnMut(&str, Bytes) -> Answer + 'static,
{
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::task::spawn_local(answer_all(stream, Rc::clone(&handler)));
    }
}

async fn answer_all<H>(mut stream: TcpStream, handler: Rc<RefCell<H>>)
where
    H: FnMut(&str, Bytes) -> Answer + 'static,
{
    let mut input = BytesMut::new();
    let mut output = Vec::new();
    loop {
        while let Some((path, body)) = take_request(&mut input) {
            let (status, body) = (handler.borrow_mut())(&path, body);
            output.clear();
            let len = body.len();
            let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {len}\r\n\r\n");
            output.extend_from_slice(head.as_bytes());
            output.extend_from_slice(&body);
            if stream.write_all(&output).await.is_err() {
                return;
            }
        }
        input.reserve(16 * 1024);
        if !matches!(stream.read_buf(&mut input).await, Ok(1..)) {
            return;
        }
    }
}

/// Takes a complete request from the front of `input`.
fn take_request(input: &mut BytesMut) -> Option<(String, Bytes)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(head_len) = request.parse(input).ok()? else {
        return None;
    };
    let length = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| str::from_utf8(header.value).ok()?.parse().ok())
        .unwrap_or(0);
    if input.len() - head_len < length {
        return None;
    }
    let path = request.path?.to_owned();
    input.advance(head_len);
    Some((path, input.split_to(length).freeze()))
}

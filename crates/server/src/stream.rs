//! A connection that gives up on a peer that stops reading.
//!
//! A response that nobody takes pins its buffers, its round and a connection for as long as the
//! peer likes. Here each write that has to wait starts a clock; the peer stops it by taking a
//! decent amount, or everything there is. One byte now and then does not.
//!
//! Closing is patient instead: a request may be refused while its body is still under way, and
//! closing at once would reset the connection and take the answer with it.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};

use crate::PROGRESS_BYTES_MIN;

/// A TCP connection with a deadline on writes and a patient close.
#[derive(Debug)]
pub(crate) struct PacedStream {
    stream: TcpStream,
    write_timeout: Duration,
    /// Runs while the peer lets us wait. Kept when it does not: timers are not free.
    stall: Option<Pin<Box<Sleep>>>,
    is_stalled: bool,
    /// Bytes taken since the peer began to let us wait.
    taken: usize,
    end_of_input: bool,
    closing: Option<Closing>,
}

/// The write side is closed; what still comes in is read and forgotten.
#[derive(Debug)]
struct Closing {
    deadline: Pin<Box<Sleep>>,
    bytes_left: usize,
}

impl PacedStream {
    pub(crate) fn new(stream: TcpStream, write_timeout: Duration) -> Self {
        Self {
            stream,
            write_timeout,
            stall: None,
            is_stalled: false,
            taken: 0,
            end_of_input: false,
            closing: None,
        }
    }

    /// Watches the outcome of a write.
    fn watch(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.taken += bytes;
                if self.taken >= PROGRESS_BYTES_MIN {
                    self.keeps_up();
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Pending => {
                ready!(self.poll_stall(context));
                // The peer's buffers are full: waiting for them to drain is what we just ended.
                let _ = self.stream.set_zero_linger();
                Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer stopped reading",
                )))
            }
            failed @ Poll::Ready(Err(_)) => failed,
        }
    }

    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let timeout = self.write_timeout;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        if !self.is_stalled {
            self.is_stalled = true;
            self.taken = 0;
            stall.as_mut().reset(Instant::now() + timeout);
        }
        stall.as_mut().poll(context)
    }

    fn keeps_up(&mut self) {
        self.is_stalled = false;
        self.taken = 0;
    }
}

impl AsyncRead for PacedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.end_of_input |= read.is_err() || buffer.filled().len() == before;
        Poll::Ready(read)
    }
}

impl AsyncWrite for PacedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when everything was written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.keeps_up();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let closing = match &mut this.closing {
            Some(closing) => closing,
            None => {
                ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
                if this.end_of_input {
                    return Poll::Ready(Ok(()));
                }
                this.closing.insert(Closing {
                    deadline: Box::pin(tokio::time::sleep(CLOSING_TIMEOUT)),
                    bytes_left: CLOSING_BYTES_MAX,
                })
            }
        };
        let mut scratch = [0; 4 * 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let read = buffer.filled().len();
                    closing.bytes_left = closing.bytes_left.saturating_sub(read);
                    if closing.bytes_left == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return closing.deadline.as_mut().poll(context).map(Ok),
            }
        }
    }
}

/// How long a client may go on sending after it was answered.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);
/// How much of it is read.
const CLOSING_BYTES_MAX: usize = 8 * 1024 * 1024;

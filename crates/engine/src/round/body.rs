//! The bytes of a response, made as fast as they are taken.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::stream;
use tidewater_wire::{ResponseFrame, WireVersion, put_end, put_response_frame};

use super::{CHUNK_BYTES_TARGET, Finish};
use crate::{RoundError, pull::PullRun};

/// A response: either one piece, or a stream of pieces. Failures after the first byte are
/// inside, as an ERROR frame, so the stream itself never fails.
pub struct RoundBody(Kind);

enum Kind {
    Whole(Option<Bytes>),
    Streamed(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl RoundBody {
    pub(super) fn whole(bytes: Bytes) -> Self {
        Self(Kind::Whole(Some(bytes)))
    }

    /// Takes the whole response if it is there already.
    pub fn try_into_whole(self) -> Result<Bytes, Self> {
        match self.0 {
            Kind::Whole(Some(bytes)) => Ok(bytes),
            kind => Err(Self(kind)),
        }
    }
}

impl Stream for RoundBody {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match &mut self.get_mut().0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take()),
            Kind::Streamed(pieces) => pieces.as_mut().poll_next(context),
        }
    }
}

/// Makes the first piece; a failure while nothing was pushed fails the request.
pub(super) async fn start(
    mut out: BytesMut,
    pull: Option<PullRun>,
    finish: Finish,
    pushed: bool,
) -> Result<RoundBody, RoundError> {
    let mut rest = Rest {
        version: finish.version(),
        pull,
        finish: Some(finish),
    };
    match rest.fill(&mut out).await {
        Ok(()) => {}
        Err(error) if pushed => rest.fail(&error, &mut out),
        Err(error) => return Err(error),
    }
    let first = out.freeze();
    if rest.finish.is_none() {
        return Ok(RoundBody::whole(first));
    }
    let pieces = stream::unfold((Some(first), rest), |(first, mut rest)| async move {
        if let Some(first) = first {
            return Some((first, (None, rest)));
        }
        rest.finish.as_ref()?;
        let mut out = BytesMut::new();
        if let Err(error) = rest.fill(&mut out).await {
            rest.fail(&error, &mut out);
        }
        Some((out.freeze(), (None, rest)))
    });
    Ok(RoundBody(Kind::Streamed(Box::pin(pieces))))
}

/// What is left of a response. Over when `finish` is taken.
struct Rest {
    version: WireVersion,
    pull: Option<PullRun>,
    finish: Option<Finish>,
}

impl Rest {
    /// Adds to `out` until it is a good size for one piece or the response is complete.
    async fn fill(&mut self, out: &mut BytesMut) -> Result<(), RoundError> {
        if let Some(pull) = &mut self.pull {
            loop {
                if !pull.step(out).await? {
                    break;
                }
                if out.len() >= CHUNK_BYTES_TARGET {
                    return Ok(());
                }
            }
        }
        let outcome = self.pull.take().map(PullRun::into_outcome);
        if let Some(finish) = self.finish.take() {
            finish.record(outcome).await?;
        }
        put_end(out);
        Ok(())
    }

    fn fail(&mut self, error: &RoundError, out: &mut BytesMut) {
        self.finish = None;
        put_response_frame(&ResponseFrame::Error(error.to_frame()), self.version, out)
            .expect("an error frame is small");
        put_end(out);
    }
}

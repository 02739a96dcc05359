//! Requests: which frame may follow which, and a request as its parts (§1.5).
//!
//! The grammar is one small state machine that reading and writing share, so this crate cannot
//! write what it would not read. The layouts of the frames are in `layout`.

mod layout;
#[cfg(test)]
mod tests;

use bytes::{Bytes, BytesMut};

use crate::{
    DecodeError, DecodeErrorKind, EncodeError, PullHeader, PushCommit, RequestFrame, RequestHeader,
    RoundFailure, Subscription, WireVersion,
    frame_type::{FrameType, MessageKind},
    message::{Envelope, RawFrames, put_end},
    reader::{Reader, invalid_at},
};

/// A request, frame by frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// Every frame but END, in order.
    pub frames: Vec<RequestFrame>,
}

/// A request, by what a server does with it. Unknown frames are gone.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestParts {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// Who asks.
    pub header: RequestHeader,
    /// Why the client's previous round failed.
    pub round_failure: Option<RoundFailure>,
    /// The push half, in order.
    pub commits: Vec<PushCommit>,
    /// The pull half.
    pub pull: Option<Pull>,
}

/// The pull half of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Pull {
    /// How much, and how.
    pub header: PullHeader,
    /// Of what, in order.
    pub subscriptions: Vec<Subscription>,
}

impl Request {
    /// Reads one complete request. Text and bytes of the result are slices of `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = Envelope::read_of(&mut reader, MessageKind::Request)?;
        Self::read_frames(bytes, reader, version)
    }

    /// Reads what follows the envelope.
    pub(crate) fn read_frames(
        bytes: &Bytes,
        reader: Reader<'_>,
        version: WireVersion,
    ) -> Result<Self, DecodeError> {
        let mut raw_frames = RawFrames::new(reader, envelope(version));
        let mut grammar = Grammar::default();
        let mut frames = Vec::new();
        loop {
            let end = raw_frames.position();
            let Some(raw) = raw_frames.next()? else {
                grammar.finish().map_err(|rule| invalid_at(end, rule))?;
                return Ok(Self { version, frames });
            };
            grammar
                .accept(raw.frame_type)
                .map_err(|rule| invalid_at(raw.offset, rule))?;
            frames.push(layout::read(bytes, raw, version)?);
        }
    }

    /// Writes the request, if it has an encoding.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut out = BytesMut::new();
        let mut grammar = Grammar::default();
        begin_request(self.version, &mut out);
        for frame in &self.frames {
            grammar
                .accept(layout::frame_type(frame))
                .map_err(EncodeError::Invalid)?;
            put_request_frame(frame, self.version, &mut out)?;
        }
        grammar.finish().map_err(EncodeError::Invalid)?;
        put_end(&mut out);
        Ok(out.freeze())
    }

    /// Sorts the frames by what a server does with them.
    ///
    /// # Panics
    ///
    /// When there is no header, or a subscription before the pull header. A decoded request has
    /// its frames in order.
    pub fn into_parts(self) -> RequestParts {
        let mut header = None;
        let mut round_failure = None;
        let mut commits = Vec::new();
        let mut pull: Option<Pull> = None;
        for frame in self.frames {
            match frame {
                RequestFrame::Header(frame) => header = Some(frame),
                RequestFrame::RoundFailure(frame) => round_failure = Some(frame),
                RequestFrame::PushCommit(commit) => commits.push(commit),
                RequestFrame::PullHeader(header) => {
                    pull = Some(Pull {
                        header,
                        subscriptions: Vec::new(),
                    });
                }
                RequestFrame::Subscription(subscription) => pull
                    .as_mut()
                    .expect("subscriptions follow the pull header")
                    .subscriptions
                    .push(subscription),
                RequestFrame::Unknown(_) => {}
            }
        }
        RequestParts {
            version: self.version,
            header: header.expect("a request begins with its header"),
            round_failure,
            commits,
            pull,
        }
    }
}

/// Writes the envelope of a request.
pub fn begin_request(version: WireVersion, out: &mut BytesMut) {
    envelope(version).put(out);
}

/// Writes one frame of a request, or nothing when the frame has no encoding in this version.
///
/// Fields that the version does not have are left out. Whether the frame may stand where it is
/// written is the caller's business; [`Request::encode`] checks that too.
pub fn put_request_frame(
    frame: &RequestFrame,
    version: WireVersion,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    layout::put(frame, version, out)
}

fn envelope(version: WireVersion) -> Envelope {
    Envelope {
        version,
        kind: MessageKind::Request,
    }
}

/// How far a request has come.
#[derive(Debug, Default)]
struct Grammar {
    stage: Stage,
    has_commits: bool,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Start,
    /// Directly after the header.
    Header,
    /// Something came, but no pull header.
    Push,
    Pull,
}

impl Grammar {
    /// Moves on by a frame, `None` being an unknown one; the error is the broken rule.
    fn accept(&mut self, frame: Option<FrameType>) -> Result<(), &'static str> {
        self.stage = match (self.stage, frame) {
            (Stage::Start, Some(FrameType::RequestHeader)) => Stage::Header,
            (Stage::Start, _) => return Err("first frame is not the header"),
            (_, Some(FrameType::RequestHeader)) => return Err("header comes twice"),
            (Stage::Header, Some(FrameType::RoundFailure)) => Stage::Push,
            (_, Some(FrameType::RoundFailure)) => {
                return Err("ROUND_FAILURE is not directly after the header");
            }
            (Stage::Pull, Some(FrameType::PushCommit)) => {
                return Err("PUSH_COMMIT comes after PULL_HEADER");
            }
            (_, Some(FrameType::PushCommit)) => {
                self.has_commits = true;
                Stage::Push
            }
            (Stage::Pull, Some(FrameType::PullHeader)) => return Err("PULL_HEADER comes twice"),
            (_, Some(FrameType::PullHeader)) => Stage::Pull,
            (Stage::Pull, Some(FrameType::Subscription)) => Stage::Pull,
            (_, Some(FrameType::Subscription)) => {
                return Err("SUBSCRIPTION comes before PULL_HEADER");
            }
            (_, Some(_)) => return Err(DecodeErrorKind::OTHER_KIND),
            (Stage::Header, None) => Stage::Push,
            (stage, None) => stage,
        };
        Ok(())
    }

    fn finish(&self) -> Result<(), &'static str> {
        match self.stage {
            Stage::Start => Err("message has no header"),
            Stage::Pull => Ok(()),
            Stage::Header | Stage::Push if self.has_commits => Ok(()),
            Stage::Header | Stage::Push => Err("request has neither commits nor a pull"),
        }
    }
}

//! Responses: which frame may follow which, and the pieces a producer streams them from (§1.6).
//!
//! The grammar is one small state machine that reading and writing share. A streaming producer
//! writes [`begin_response`], frames, [`crate::put_end`] and keeps the order itself; what
//! [`Response::encode`] writes is checked. The layouts of the frames are in `layout`.

mod layout;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use bytes::{Bytes, BytesMut};

pub(crate) use layout::commit::{put_change, put_head};

use crate::{
    DecodeError, DecodeErrorKind, EncodeError, OpResult, PushOutcome, PushResultDetails,
    ResponseFrame, WireVersion,
    frame_type::{FrameType, MessageKind},
    message::{Envelope, RawFrames, put_end},
    reader::{Reader, invalid_at},
    segment::check_rows_segment,
};

/// A response, frame by frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The wire version of the envelope.
    pub version: WireVersion,
    /// Every frame but END, in order.
    pub frames: Vec<ResponseFrame>,
}

impl Response {
    /// Reads one complete response. Text and bytes of the result are slices of `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = Envelope::read_of(&mut reader, MessageKind::Response)?;
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
            let offset = raw.offset;
            grammar
                .accept(raw.frame_type)
                .map_err(|rule| invalid_at(offset, rule))?;
            let frame = layout::read(bytes, raw, version)?;
            check_companion(&frame, frames.last()).map_err(|rule| invalid_at(offset, rule))?;
            frames.push(frame);
        }
    }

    /// Writes the response, if it has an encoding.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        let mut out = BytesMut::new();
        let mut grammar = Grammar::default();
        let mut last = None;
        begin_response(self.version, &mut out);
        for frame in &self.frames {
            grammar
                .accept(layout::frame_type(frame))
                .map_err(EncodeError::Invalid)?;
            check_companion(frame, last).map_err(EncodeError::Invalid)?;
            if let ResponseFrame::SegmentInline(segment) = frame {
                check_rows_segment(segment)
                    .map_err(|_| EncodeError::Invalid("payload is not a rows segment"))?;
            }
            put_response_frame(frame, self.version, &mut out)?;
            last = Some(frame);
        }
        grammar.finish().map_err(EncodeError::Invalid)?;
        put_end(&mut out);
        Ok(out.freeze())
    }
}

/// Writes the envelope of a response: 8 bytes that are the same for every outcome.
pub fn begin_response(version: WireVersion, out: &mut BytesMut) {
    envelope(version).put(out);
}

/// Writes one frame of a response, or nothing when the frame has no encoding in this version.
///
/// Fields that the version does not have are left out. Whether the frame may stand where it is
/// written, and whether an inline segment is one, is the caller's business;
/// [`Response::encode`] checks that too.
pub fn put_response_frame(
    frame: &ResponseFrame,
    version: WireVersion,
    out: &mut BytesMut,
) -> Result<(), EncodeError> {
    layout::put(frame, version, out)
}

fn envelope(version: WireVersion) -> Envelope {
    Envelope {
        version,
        kind: MessageKind::Response,
    }
}

/// Checks a companion against the result before it (§6.3.1): the two name the same commit, it
/// was rejected, and every entry speaks of one of its error records.
fn check_companion(
    frame: &ResponseFrame,
    before: Option<&ResponseFrame>,
) -> Result<(), &'static str> {
    let ResponseFrame::PushResultDetails(details) = frame else {
        return Ok(());
    };
    let PushResultDetails {
        client_commit_id,
        entries,
    } = details;
    let Some(ResponseFrame::PushResult(result)) = before else {
        return Err("PUSH_RESULT_DETAILS is not directly after a PUSH_RESULT");
    };
    if result.client_commit_id != *client_commit_id {
        return Err("PUSH_RESULT_DETAILS names another commit than its result");
    }
    if result.outcome != PushOutcome::Rejected {
        return Err("PUSH_RESULT_DETAILS belongs to a result that is not rejected");
    }
    let errors: BTreeSet<i32> = result
        .results
        .iter()
        .filter_map(|record| match record {
            OpResult::Error { op_index, .. } => Some(*op_index),
            OpResult::Applied { .. } | OpResult::Conflict { .. } => None,
        })
        .collect();
    if entries.iter().all(|entry| errors.contains(&entry.op_index)) {
        Ok(())
    } else {
        Err("PUSH_RESULT_DETAILS speaks of an operation without an error record")
    }
}

/// How far a response has come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Start,
    /// Directly after the header: the only place for a lease.
    Header,
    /// Results may still come.
    Results,
    /// Between two sections, or after the last one.
    Sections,
    /// Inside a section.
    Section(Content),
    /// After an error.
    Failed,
}

/// What an open section delivers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Content {
    Nothing,
    Commits,
    Segments,
}

#[derive(Debug, Default)]
struct Grammar {
    stage: Stage,
}

impl Grammar {
    /// Moves on by a frame, `None` being an unknown one; the error is the broken rule.
    fn accept(&mut self, frame: Option<FrameType>) -> Result<(), &'static str> {
        self.stage = match (self.stage, frame) {
            (Stage::Start, Some(FrameType::ResponseHeader)) => Stage::Header,
            (Stage::Start, _) => return Err("first frame is not the header"),
            (Stage::Failed, _) => return Err("frame comes after ERROR"),
            (stage, Some(frame)) => Self::after_header(stage, frame)?,
            (Stage::Header, None) => Stage::Results,
            (stage, None) => stage,
        };
        Ok(())
    }

    fn after_header(stage: Stage, frame: FrameType) -> Result<Stage, &'static str> {
        match (frame, stage) {
            (FrameType::ResponseHeader, _) => Err("header comes twice"),
            (FrameType::Lease, Stage::Header) => Ok(Stage::Results),
            (FrameType::Lease, _) => Err("LEASE is not directly after the header"),
            (FrameType::PushResult, Stage::Header | Stage::Results) => Ok(Stage::Results),
            (FrameType::PushResult, _) => Err("PUSH_RESULT comes after a section"),
            (FrameType::PushResultDetails, Stage::Results) => Ok(Stage::Results),
            (FrameType::PushResultDetails, _) => {
                Err("PUSH_RESULT_DETAILS is not directly after a PUSH_RESULT")
            }
            (FrameType::SubStart, Stage::Section(_)) => Err("section begins inside another"),
            (FrameType::SubStart, _) => Ok(Stage::Section(Content::Nothing)),
            (FrameType::Error, _) => Ok(Stage::Failed),
            (frame, Stage::Section(content)) => Self::inside_section(content, frame),
            (FrameType::Commit | FrameType::SegmentRef | FrameType::SegmentInline, _) => {
                Err("content is outside of a section")
            }
            (FrameType::SubEnd, _) => Err("section ends that did not begin"),
            _ => Err(DecodeErrorKind::OTHER_KIND),
        }
    }

    fn inside_section(content: Content, frame: FrameType) -> Result<Stage, &'static str> {
        match (frame, content) {
            (FrameType::Commit, Content::Nothing | Content::Commits) => {
                Ok(Stage::Section(Content::Commits))
            }
            (
                FrameType::SegmentRef | FrameType::SegmentInline,
                Content::Nothing | Content::Segments,
            ) => Ok(Stage::Section(Content::Segments)),
            (FrameType::Commit | FrameType::SegmentRef | FrameType::SegmentInline, _) => {
                Err("section mixes commits and segments")
            }
            (FrameType::SubEnd, _) => Ok(Stage::Sections),
            _ => Err(DecodeErrorKind::OTHER_KIND),
        }
    }

    fn finish(&self) -> Result<(), &'static str> {
        match self.stage {
            Stage::Start => Err("message has no header"),
            Stage::Section(_) => Err("message ends inside a section"),
            Stage::Header | Stage::Results | Stage::Sections | Stage::Failed => Ok(()),
        }
    }
}

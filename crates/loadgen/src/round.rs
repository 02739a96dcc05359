//! A response, sorted by what a client does with it.
//!
//! Parsing checks what every client checks: an epoch that stays the same, an answer to each
//! commit in order, an answer to each subscription in order. What the rows in it must be is
//! checked by `verify`.

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_wire::{
    CommitFrame, PushResult, Response, ResponseFrame, ResponseHeader, SegmentRef, SubEnd, SubStart,
    SubStatus, WireVersion,
};

use crate::error::RoundError;

/// A complete response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) header: ResponseHeader,
    pub(crate) results: Vec<PushResult>,
    pub(crate) sections: Vec<Section>,
}

/// The answer to one subscription.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Section {
    pub(crate) start: SubStart,
    pub(crate) commits: Vec<CommitFrame>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) end: SubEnd,
}

/// Bootstrap data as it was delivered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Segment {
    Inline(Bytes),
    Ref(SegmentRef),
}

impl Round {
    pub(crate) fn parse(body: &Bytes, version: WireVersion) -> Result<Self, RoundError> {
        let response = Response::decode(body)?;
        if response.version != version {
            return Err(RoundError::unexpected(
                "response has another wire version than its request",
            ));
        }
        let mut frames = response.frames.into_iter();
        let Some(ResponseFrame::Header(header)) = frames.next() else {
            return Err(RoundError::unexpected("response has no header"));
        };
        let mut round = Self {
            header,
            results: Vec::new(),
            sections: Vec::new(),
        };
        let mut open: Option<Section> = None;
        for frame in frames {
            round.take(frame, &mut open)?;
        }
        Ok(round)
    }

    /// Sorts in one frame. The grammar was checked by decoding: data stands inside of sections.
    fn take(&mut self, frame: ResponseFrame, open: &mut Option<Section>) -> Result<(), RoundError> {
        match frame {
            ResponseFrame::PushResult(result) => self.results.push(result),
            ResponseFrame::SubStart(start) => {
                *open = Some(Section {
                    start,
                    commits: Vec::new(),
                    segments: Vec::new(),
                    end: SubEnd {
                        next_cursor: 0,
                        bootstrap_state: None,
                    },
                });
            }
            ResponseFrame::Commit(commit) => in_section(open)?.commits.push(commit),
            ResponseFrame::SegmentRef(segment) => {
                in_section(open)?.segments.push(Segment::Ref(segment));
            }
            ResponseFrame::SegmentInline(bytes) => {
                in_section(open)?.segments.push(Segment::Inline(bytes));
            }
            ResponseFrame::SubEnd(end) => {
                in_section(open)?.end = end;
                self.sections.extend(open.take());
            }
            ResponseFrame::Error(error) => return Err(RoundError::Frame(error.code.to_string())),
            ResponseFrame::Header(_)
            | ResponseFrame::Lease(_)
            | ResponseFrame::PushResultDetails(_)
            | ResponseFrame::Unknown(_) => {}
        }
        Ok(())
    }

    /// The only section of a round with one subscription, which must be active.
    pub(crate) fn into_section(self, subscription: &str) -> Result<Section, RoundError> {
        let [section] = <[Section; 1]>::try_from(self.sections)
            .map_err(|_| RoundError::unexpected("round does not have one section"))?;
        if section.start.id != subscription {
            return Err(RoundError::unexpected("section names another subscription"));
        }
        let code = &section.start.reason_code;
        match section.start.status {
            SubStatus::Active => Ok(section),
            SubStatus::Reset => Err(RoundError::Reset(code.to_string())),
            SubStatus::Revoked => Err(RoundError::Unexpected(format!(
                "subscription is revoked {code}"
            ))),
        }
    }
}

fn in_section(open: &mut Option<Section>) -> Result<&mut Section, RoundError> {
    open.as_mut()
        .ok_or_else(|| RoundError::unexpected("data outside of a section"))
}

/// Checks that the results answer the commits, one by one and in order (§1.6).
pub(crate) fn check_results(results: &[PushResult], ids: &[ByteString]) -> Result<(), RoundError> {
    let answered = results.iter().map(|result| &result.client_commit_id);
    if answered.eq(ids) {
        Ok(())
    } else {
        Err(RoundError::unexpected(
            "results do not answer the commits in order",
        ))
    }
}

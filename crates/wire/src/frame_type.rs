//! The registry of frame types (§1.2): which byte has a layout, for whom and since when.
//!
//! A type without a layout in a wire version is *unknown* there and skipped; a type of the other
//! message kind is an error. Both sides of the codec ask this table and no other.

use crate::{DecodeErrorKind, WireVersion};

/// Ends every message; has no payload.
pub(crate) const END: u8 = 0x00;

/// Which side speaks (§1.2). The number is the byte in the envelope.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum MessageKind {
    Request,
    Response,
}

impl MessageKind {
    pub(crate) fn tag(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Response => 2,
        }
    }

    pub(crate) fn from_tag(tag: u8) -> Option<Self> {
        [Self::Request, Self::Response]
            .into_iter()
            .find(|kind| kind.tag() == tag)
    }

    /// The name in renderings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Response => "response",
        }
    }
}

/// Declares the registry: type, byte, name, kind and first wire version.
macro_rules! registry {
    ($($variant:ident $byte:literal $name:literal $kind:ident $since:ident;)+) => {
        /// A frame type with a layout, END excepted.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(crate) enum FrameType {
            $($variant,)+
        }

        impl FrameType {
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            pub(crate) fn byte(self) -> u8 {
                match self { $(Self::$variant => $byte,)+ }
            }

            /// The name in renderings and errors.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            pub(crate) fn kind(self) -> MessageKind {
                match self { $(Self::$variant => MessageKind::$kind,)+ }
            }

            fn since(self) -> WireVersion {
                match self { $(Self::$variant => WireVersion::$since,)+ }
            }
        }
    };
}

registry! {
    RequestHeader 0x01 "REQ_HEADER" Request V1;
    PushCommit 0x02 "PUSH_COMMIT" Request V1;
    PullHeader 0x03 "PULL_HEADER" Request V1;
    Subscription 0x04 "SUBSCRIPTION" Request V1;
    RoundFailure 0x05 "ROUND_FAILURE" Request V3;
    ResponseHeader 0x10 "RESP_HEADER" Response V1;
    PushResult 0x11 "PUSH_RESULT" Response V1;
    SubStart 0x12 "SUB_START" Response V1;
    Commit 0x13 "COMMIT" Response V1;
    SegmentRef 0x14 "SEGMENT_REF" Response V1;
    SegmentInline 0x15 "SEGMENT_INLINE" Response V1;
    SubEnd 0x16 "SUB_END" Response V1;
    Lease 0x19 "LEASE" Response V1;
    PushResultDetails 0x1b "PUSH_RESULT_DETAILS" Response V1;
    Error 0x1f "ERROR" Response V1;
}

impl FrameType {
    /// The layout of `byte` in `version`; `None` when it is unknown there.
    pub(crate) fn find(byte: u8, version: WireVersion) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|frame| frame.byte() == byte && frame.since() <= version)
    }

    /// Like [`Self::find`], and refuses a type of the other message kind.
    pub(crate) fn find_in(
        byte: u8,
        version: WireVersion,
        kind: MessageKind,
    ) -> Result<Option<Self>, DecodeErrorKind> {
        match Self::find(byte, version) {
            Some(frame) if frame.kind() != kind => {
                Err(DecodeErrorKind::Invalid(DecodeErrorKind::OTHER_KIND))
            }
            found => Ok(found),
        }
    }

    /// Whether no unknown frame may carry `byte` in `version`.
    pub(crate) fn is_registered(byte: u8, version: WireVersion) -> bool {
        byte == END || Self::find(byte, version).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_failure_is_unknown_before_version_3() {
        for version in WireVersion::ALL {
            let known = version == WireVersion::V3;
            assert_eq!(FrameType::find(0x05, version).is_some(), known);
            assert_eq!(FrameType::is_registered(0x05, version), known);
            let in_response = FrameType::find_in(0x05, version, MessageKind::Response);
            assert_eq!(in_response.is_err(), known);
        }
    }

    #[test]
    fn reserved_types_are_unknown() {
        let reserved = [0x17, 0x18, 0x1a].into_iter();
        for byte in reserved
            .chain(0x1c..=0x1e)
            .chain(0x20..=0x2f)
            .chain([6, 0xff])
        {
            for version in WireVersion::ALL {
                assert!(!FrameType::is_registered(byte, version), "{byte:#x}");
            }
        }
        assert!(FrameType::is_registered(END, WireVersion::V1));
    }
}

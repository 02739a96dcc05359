//! Ways to damage bytes: flips, cuts, splices, and whole frames moved, doubled or dropped.

use std::ops::Range;

use proptest::{prelude::*, sample::Index};

#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Truncate(Index),
    Remove(Index, u8),
    Insert(Index, Vec<u8>),
    /// Copies a part of the bytes over another place.
    Splice(Index, Index, u8),
    DoubleFrame(Index, Index),
    DropFrame(Index),
    SwapFrames(Index, Index),
    /// Changes the type of a frame and nothing else.
    RenameFrame(Index, u8),
    /// Appends to a frame's payload, with its length kept right.
    GrowFrame(Index, u8),
}

pub(crate) fn mutation() -> BoxedStrategy<Mutation> {
    let index = any::<Index>;
    let small = || prop_oneof![0..4_u8, any::<u8>()];
    let frame_type = prop_oneof![0..6_u8, 0x10..0x21_u8, any::<u8>()];
    prop_oneof![
        3 => (index(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        3 => (index(), small()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        1 => index().prop_map(Mutation::Truncate),
        1 => (index(), 1..5_u8).prop_map(|(at, len)| Mutation::Remove(at, len)),
        1 => (index(), prop::collection::vec(small(), 1..5))
            .prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        1 => (index(), index(), 1..12_u8)
            .prop_map(|(from, to, len)| Mutation::Splice(from, to, len)),
        2 => (index(), index()).prop_map(|(frame, at)| Mutation::DoubleFrame(frame, at)),
        1 => index().prop_map(Mutation::DropFrame),
        2 => (index(), index()).prop_map(|(left, right)| Mutation::SwapFrames(left, right)),
        1 => (index(), frame_type).prop_map(|(frame, byte)| Mutation::RenameFrame(frame, byte)),
        1 => (index(), small()).prop_map(|(frame, byte)| Mutation::GrowFrame(frame, byte)),
    ]
    .boxed()
}

/// Bytes without an envelope are mutated as bytes only.
pub(crate) fn byte_mutation() -> BoxedStrategy<Mutation> {
    mutation()
        .prop_filter("frames need an envelope", |mutation| {
            matches!(
                mutation,
                Mutation::Flip(..)
                    | Mutation::Set(..)
                    | Mutation::Truncate(..)
                    | Mutation::Remove(..)
                    | Mutation::Insert(..)
                    | Mutation::Splice(..)
            )
        })
        .boxed()
}

pub(crate) fn mutated(mut bytes: Vec<u8>, mutations: &[Mutation]) -> Vec<u8> {
    for mutation in mutations {
        if bytes.is_empty() {
            break;
        }
        apply(&mut bytes, mutation);
    }
    bytes
}

fn apply(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let len = bytes.len();
    match mutation {
        Mutation::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
        Mutation::Set(at, byte) => bytes[at.index(len)] = *byte,
        Mutation::Truncate(at) => bytes.truncate(at.index(len)),
        Mutation::Remove(at, count) => {
            let at = at.index(len);
            bytes.drain(at..len.min(at + usize::from(*count)));
        }
        Mutation::Insert(at, inserted) => {
            let at = at.index(len);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Mutation::Splice(from, to, count) => {
            let count = usize::from(*count).min(len);
            let from = from.index(len - count + 1);
            let to = to.index(len - count + 1);
            bytes.copy_within(from..from + count, to);
        }
        _ => apply_to_frames(bytes, mutation),
    }
}

fn apply_to_frames(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let frames = frames(bytes);
    if frames.is_empty() {
        return;
    }
    let frame = |index: &Index| frames[index.index(frames.len())].clone();
    match mutation {
        Mutation::DoubleFrame(index, at) => {
            let copy = bytes[frame(index)].to_vec();
            let at = frame(at).start;
            bytes.splice(at..at, copy);
        }
        Mutation::DropFrame(index) => drop(bytes.drain(frame(index))),
        Mutation::SwapFrames(left, right) => {
            let (left, right) = (frame(left), frame(right));
            if left.end <= right.start {
                let copy = bytes[left.clone()].to_vec();
                bytes.splice(right.end..right.end, copy);
                let moved = bytes[right].to_vec();
                bytes.splice(left, moved);
            }
        }
        Mutation::RenameFrame(index, byte) => bytes[frame(index).start] = *byte,
        Mutation::GrowFrame(index, byte) => {
            let frame = frame(index);
            let len = u32::try_from(frame.len() - 5 + 1).unwrap();
            bytes[frame.start + 1..frame.start + 5].copy_from_slice(&len.to_le_bytes());
            bytes.insert(frame.end, *byte);
        }
        _ => unreachable!("the others do not concern frames"),
    }
}

/// Where the frames of a message are, as far as they can be followed.
fn frames(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut frames = Vec::new();
    let mut start = 8;
    while let Some(head) = bytes.get(start..start + 5) {
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let end = start
            .saturating_add(5)
            .saturating_add(usize::try_from(len).unwrap());
        if end > bytes.len() {
            break;
        }
        frames.push(start..end);
        start = end;
    }
    frames
}

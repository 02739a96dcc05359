//! Any bytes as a rows segment: no panic, checking and decoding agree, and what is accepted is
//! written back byte for byte.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidewater_wire::{RowsSegment, check_rows_segment, render};

fuzz_target!(|data: &[u8]| {
    let decoded = RowsSegment::decode(data);
    assert_eq!(
        check_rows_segment(data).err(),
        decoded.as_ref().err().cloned()
    );
    if let Ok(segment) = decoded {
        assert_eq!(segment.encode(), data, "one segment has one encoding");
        render::rows_segment(&segment).expect("decoded rows are rows");
    }
});

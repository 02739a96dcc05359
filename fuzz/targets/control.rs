//! Any text as a control message, as rejection details and as a blob reference: no panic, and
//! what is understood means the same when it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidewater_wire::{
    BlobRef, RejectionDetails,
    control::{ClientControl, ServerControl},
};

fuzz_target!(|text: &str| {
    match ClientControl::parse(text) {
        Ok(ClientControl::Unknown) | Err(_) => {}
        Ok(message) => assert_eq!(ClientControl::parse(&message.to_text()), Ok(message)),
    }
    match ServerControl::parse(text) {
        Ok(ServerControl::Unknown) | Err(_) => {}
        Ok(message) => assert_eq!(ServerControl::parse(&message.to_text()), Ok(message)),
    }
    if let Some(reference) = BlobRef::parse(text) {
        assert_eq!(BlobRef::parse(&reference.to_text()), Some(reference));
    }
    // Its verdict has no second opinion here; the properties of the crate have one.
    let _verdict = RejectionDetails::check(text);
});

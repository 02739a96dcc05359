//! Canonical debug rendering (§11.1).

use serde_json::Value;

use crate::{
    Message, RowsSegment,
    row::{Column, Slot},
};

/// Renders a message.
pub fn message(_message: &Message) -> Value {
    unimplemented!()
}

/// Renders a rows segment.
pub fn rows_segment(_segment: &RowsSegment) -> Value {
    unimplemented!()
}

/// Renders a sparse row.
pub fn sparse_row(_columns: &[Column], _row: &[Slot<'_>]) -> Value {
    unimplemented!()
}

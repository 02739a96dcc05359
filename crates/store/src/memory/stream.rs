//! Rows piece by piece: the snapshot is kept and each piece is read when it is asked for.

use std::sync::Arc;

use async_trait::async_trait;

use super::state::State;
use crate::{RowPage, RowPieces, RowScan, RowStream, RowStreamRequest, StoreError};

/// Streams the rows of one state.
pub(super) fn stream(state: Arc<State>, request: RowStreamRequest) -> RowStream {
    let newest_change = request.filter.entries().first().and_then(|first| {
        state.newest_change(
            &request.partition,
            request.table,
            &first.variable,
            &first.values,
        )
    });
    let gate = state.gate(&request.partition);
    let scan = RowScan {
        partition: request.partition,
        table: request.table,
        filter: request.filter,
        after: None,
        rows_max: request.rows_max,
        bytes_max: request.bytes_max,
    };
    let next = Some(scan);
    RowStream::new(gate, newest_change, Pieces { state, next })
}

struct Pieces {
    state: Arc<State>,
    /// `None` after the last piece.
    next: Option<RowScan>,
}

#[async_trait]
impl RowPieces for Pieces {
    async fn next(&mut self) -> Result<Option<RowPage>, StoreError> {
        let Some(scan) = self.next.take() else {
            return Ok(None);
        };
        let page = self.state.scan_rows(&scan);
        if page.has_more {
            let last = page.rows().next_back().map(|row| row.row_id.to_owned());
            self.next = Some(RowScan {
                after: last,
                ..scan
            });
        }
        Ok(Some(page))
    }
}

//! All rows of a scope, piece by piece from one snapshot, and how large a scope is.
//!
//! A task reads ahead by one piece while its consumer works. It ends with the stream: a stream
//! that is dropped has its task canceled, and its connection rolls back before it serves anybody
//! else. Streams have connections of their own, so that what waits for a slow consumer is missing
//! to nobody.

use std::sync::Arc;

use async_trait::async_trait;
use tidewater_model::CommitSeq;
use tidewater_store::{
    Gate, RowPage, RowPieces, RowScan, RowStream, RowStreamRequest, ScopeSize, ScopeSizeRequest,
    StoreError, StoreErrorKind,
};
use tokio::{sync::mpsc, task::JoinHandle};

use crate::{
    driver::distinct,
    error::get,
    gate,
    layout::Layout,
    link::{Link, Mode, Pool},
    params::{Param, Step},
    scan::scan_rows,
    window,
};

const DURING: &str = "stream rows";

/// Begins a stream on a connection of `pool`.
pub(crate) async fn stream_rows(
    pool: &Pool,
    layout: Arc<Layout>,
    request: RowStreamRequest,
) -> Result<RowStream, StoreError> {
    let mut tries = 0;
    let (link, (gate, newest_change)) = loop {
        let mut link = pool.lease(DURING).await?;
        match read_head(&mut link, &layout, &request).await {
            Ok(head) => break (link, head),
            Err(error) if link.may_retry(&error, tries) => tries += 1,
            Err(error) => return Err(error),
        }
    };
    let (sender, pieces) = mpsc::channel(1);
    let task = tokio::spawn(send_pieces(link, layout, request, sender));
    Ok(RowStream::new(gate, newest_change, Pieces { pieces, task }))
}

/// Begins the snapshot and reads what guards it.
async fn read_head(
    link: &mut Link,
    layout: &Layout,
    request: &RowStreamRequest,
) -> Result<(Gate, Option<CommitSeq>), StoreError> {
    let mut steps = vec![link.begin(Mode::Read), gate::read(&[&request.partition])];
    if let Some(first) = request.filter.entries().first() {
        let table = layout.table(request.table).name();
        let partition = &request.partition;
        steps.push(window::newest(
            partition,
            table,
            &first.variable,
            &first.values,
        ));
    }
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let newest_change = match answers.get(2) {
        Some(rows) => window::only_newest(rows, DURING)?,
        None => None,
    };
    Ok((gate::only(&answers[1], DURING)?, newest_change))
}

type Sender = mpsc::Sender<Result<RowPage, StoreError>>;

/// Reads each piece when there is room for it.
async fn send_pieces(
    mut link: Link,
    layout: Arc<Layout>,
    request: RowStreamRequest,
    sender: Sender,
) {
    let mut scan = RowScan {
        partition: request.partition,
        table: request.table,
        filter: request.filter,
        after: None,
        rows_max: request.rows_max,
        bytes_max: request.bytes_max,
    };
    while let Ok(room) = sender.reserve().await {
        let page = scan_rows(&mut link, layout.table(scan.table), &scan, false).await;
        let has_more = page.as_ref().is_ok_and(|page| page.has_more);
        if let Ok(page) = &page {
            scan.after = page.rows().next_back().map(|row| row.row_id.to_owned());
        }
        room.send(page);
        if !has_more {
            return;
        }
    }
}

struct Pieces {
    pieces: mpsc::Receiver<Result<RowPage, StoreError>>,
    task: JoinHandle<()>,
}

#[async_trait]
impl RowPieces for Pieces {
    async fn next(&mut self) -> Result<Option<RowPage>, StoreError> {
        let next = self.pieces.recv().await.transpose()?;
        if next.is_none() && (&mut self.task).await.is_err() {
            // It did not come to its end, and so neither did the rows.
            return Err(StoreError::new(StoreErrorKind::Unavailable, DURING));
        }
        Ok(next)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How large a scope is, in one snapshot. Counting ends at the limit.
pub(crate) async fn scope_size(
    link: &mut Link,
    table: &str,
    request: &ScopeSizeRequest,
) -> Result<ScopeSize, StoreError> {
    const DURING: &str = "measure a scope";
    let params = vec![
        Param::text(request.partition.as_str()),
        Param::text(table),
        Param::text(&request.variable),
        Param::texts(distinct(&request.values)),
        Param::integer(request.after.to_i64()),
        Param::integer(request.through.to_i64()),
        Param::integer(i64::try_from(request.limit).unwrap_or(i64::MAX)),
    ];
    let steps = vec![Step::new(SIZE, params)];
    let answers = link.transact(Mode::Read, steps, DURING).await?;
    let Some(row) = answers[0].first() else {
        return Ok(ScopeSize::default());
    };
    let count = |column| -> Result<u64, StoreError> {
        let count: i64 = get(row, column, DURING)?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    Ok(ScopeSize {
        rows: count(0)?,
        commits: count(1)?,
    })
}

/// Partition, table, variable, values, after, through, limit.
const SIZE: &str = "SELECT (SELECT count(*) FROM (SELECT 1 FROM unnest($4::text[]) AS v (value) \
    CROSS JOIN LATERAL (SELECT 1 FROM sync_row_scopes r WHERE r.partition = $1 AND r.tbl = $2 \
    AND r.var = $3 AND r.value = v.value LIMIT $7) e LIMIT $7) n), \
    (SELECT count(*) FROM (SELECT 1 FROM unnest($4::text[]) AS v (value) \
    CROSS JOIN LATERAL (SELECT 1 FROM sync_change_scopes c WHERE c.partition = $1 AND c.tbl = $2 \
    AND c.var = $3 AND c.value = v.value AND c.commit_seq > greatest($5, coalesce((\
    SELECT horizon_seq FROM sync_partitions WHERE partition = $1), 0)) AND c.commit_seq <= $6 \
    LIMIT $7) e LIMIT $7) n)";

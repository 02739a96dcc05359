//! All rows of a scope, piece by piece from one snapshot.
//!
//! A thread of the store reads ahead by one piece and waits until it is taken. When nobody will
//! take it any more, the thread lets go of the snapshot. Streams have threads of their own: a
//! reader that waits for a slow consumer would be missing to everybody else.

use async_trait::async_trait;
use tidewater_store::{
    RowPage, RowPieces, RowScan, RowStream, RowStreamRequest, ScopeSize, ScopeSizeRequest,
    StoreError,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    driver::distinct,
    error::{disconnected, failed},
    readers::Readers,
    scan::{AboveEveryText, scan_rows},
    session::Session,
    window::newest_in_snapshot,
};

const DURING: &str = "stream rows";

/// Begins a stream on one of `threads`.
pub(crate) async fn stream_rows(
    threads: &Readers,
    request: RowStreamRequest,
) -> Result<RowStream, StoreError> {
    let (begun, begin) = oneshot::channel();
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    threads
        .begin(DURING, move |session| {
            let sent = session.snapshot(DURING, |session| {
                let head = read_head(session, &request)?;
                // Nobody waits for a stream that was given up before it began.
                if begun.send(head).is_ok() {
                    send_pieces(session, request, &sender)?;
                }
                Ok(())
            });
            if let Err(error) = sent {
                // Before the head was sent, the caller learns of it by the closed channel below.
                drop(sender.blocking_send(Err(error)));
            }
        })
        .await?;
    let mut pieces = Pieces(pieces);
    match begin.await {
        Ok((gate, newest_change)) => Ok(RowStream::new(gate, newest_change, pieces)),
        Err(_) => Err(match pieces.0.recv().await {
            Some(Err(error)) => error,
            Some(Ok(_)) | None => disconnected(DURING),
        }),
    }
}

/// Pieces that wait for the consumer, beside the one that the thread has read.
const PIECES_AHEAD: usize = 1;

type Head = (tidewater_store::Gate, Option<tidewater_model::CommitSeq>);

fn read_head(session: &mut Session<'_>, request: &RowStreamRequest) -> Result<Head, StoreError> {
    let gate = session.gate(&request.partition, DURING)?;
    let newest_change = match request.filter.entries().first() {
        Some(first) => newest_in_snapshot(
            session,
            &request.partition,
            request.table,
            &first.variable,
            &first.values,
        )?,
        None => None,
    };
    Ok((gate, newest_change))
}

type Sender = mpsc::Sender<Result<RowPage, StoreError>>;

fn send_pieces(
    session: &mut Session<'_>,
    request: RowStreamRequest,
    sender: &Sender,
) -> Result<(), StoreError> {
    let mut scan = RowScan {
        partition: request.partition,
        table: request.table,
        filter: request.filter,
        after: None,
        rows_max: request.rows_max,
        bytes_max: request.bytes_max,
    };
    loop {
        let page = scan_rows(session, &scan)?;
        let has_more = page.has_more;
        scan.after = page.rows().next_back().map(|row| row.row_id.to_owned());
        if sender.blocking_send(Ok(page)).is_err() || !has_more {
            return Ok(());
        }
    }
}

struct Pieces(mpsc::Receiver<Result<RowPage, StoreError>>);

#[async_trait]
impl RowPieces for Pieces {
    async fn next(&mut self) -> Result<Option<RowPage>, StoreError> {
        self.0.recv().await.transpose()
    }
}

/// How large a scope is, in one snapshot. Counting ends at the limit.
pub(crate) fn scope_size(
    session: &mut Session<'_>,
    request: &ScopeSizeRequest,
) -> Result<ScopeSize, StoreError> {
    const DURING: &str = "measure a scope";
    session.snapshot(DURING, |session| {
        let horizon = session.gate(&request.partition, DURING)?.horizon;
        let layout = session.layout();
        let table = layout.table(request.table).table.name.as_str();
        let partition = request.partition.as_str();
        let after = request.after.max(horizon.seq()).to_i64();
        let through = request.through.to_i64();
        let variable = request.variable.as_str();
        let mut size = ScopeSize::default();
        for value in distinct(&request.values) {
            let left = limit(request.limit - size.commits);
            let counted: Option<i64> = session
                .queries
                .count_commits_of_value
                .find(
                    &[
                        &partition, &table, &after, &through, &variable, &value, &left,
                    ],
                    |row| row.get(0),
                )
                .map_err(failed(DURING))?;
            size.commits += count(counted);
            let left = limit(request.limit - size.rows);
            let counted: Option<i64> = session
                .queries
                .count_rows_of_value
                .find(
                    &[
                        &partition,
                        &table,
                        &"",
                        &AboveEveryText,
                        &variable,
                        &value,
                        &left,
                    ],
                    |row| row.get(0),
                )
                .map_err(failed(DURING))?;
            size.rows += count(counted);
        }
        Ok(size)
    })
}

fn limit(left: u64) -> i64 {
    i64::try_from(left).unwrap_or(i64::MAX)
}

fn count(counted: Option<i64>) -> u64 {
    counted
        .and_then(|count| u64::try_from(count).ok())
        .unwrap_or(0)
}

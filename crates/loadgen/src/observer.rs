//! Somebody in a partition who is not under load: fills the table, reads the log and the rows.
//!
//! An observer pulls before the load begins, so the server knows that somebody still needs the
//! log from there on and does not prune it under the check.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use bytes::Bytes;
use bytestring::ByteString;
use tidewater_model::ScopeFilter;
use tidewater_wire::{
    MediaType, Pull, PullHeader, PushOutcome, SegmentRef, content_address, is_content_address,
};

use crate::{
    client::{Client, SUBSCRIPTION_ID, default_pull_header, pull_of},
    drive::note,
    error::RoundError,
    round::{Section, Segment},
    setup::Setup,
    verify::{
        ProblemKind, Problems,
        image::{Inspected, Inspector},
        log::{LogCheck, RowState, row_hash},
        rows::RowsCheck,
        section::check_section,
    },
    workload::{Planned, Workload},
};

/// Operations the protocol lets into one request.
const FILL_BATCH: u32 = 500;
/// Requests of one bootstrap, and of one walk over the log: more is a server that turns in circles.
const REQUESTS_MAX: u32 = 1_000_000;
/// How long the checks after a run may take.
const CHECK_TIME_MAX: Duration = Duration::from_secs(300);

/// A client that sees every list of its partition.
#[derive(Debug)]
pub(crate) struct Observer {
    client: Client,
    filter: ScopeFilter,
    table: ByteString,
}

impl Observer {
    /// Connects and learns the epoch.
    pub(crate) async fn start(setup: &Setup, partition: u32) -> Result<Self, RoundError> {
        let mut observer = Self {
            client: setup.observer(partition),
            filter: setup.workload.table.filter(None),
            table: setup.workload.table.name.clone(),
        };
        let pull = observer.pull(-1, default_pull_header());
        observer.client.acquire_epoch(&pull).await?;
        Ok(observer)
    }

    fn pull(&self, cursor: i64, header: PullHeader) -> Pull {
        pull_of(&self.table, &self.filter, cursor, header)
    }

    /// Pushes the rows of the table.
    pub(crate) async fn fill(
        &mut self,
        workload: &Workload,
        rows: u32,
        quiet: bool,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut first = 0;
        while first < rows {
            let batch = FILL_BATCH.min(rows - first);
            let planned = Planned {
                id: format!("{}-fill-{first}", workload.run_id).into(),
                writes: (first..first + batch)
                    .map(|index| workload.filled(index))
                    .collect(),
            };
            let round = self
                .client
                .round(vec![workload.encode(&planned)], None)
                .await?;
            let outcome = round.results.first().map(|result| result.outcome);
            anyhow::ensure!(
                matches!(outcome, Some(PushOutcome::Applied(_))),
                "fill the table: {:?}",
                round.results
            );
            first += batch;
        }
        if !quiet && rows > 0 {
            note(&format!("filled {rows} rows in {:.1?}", started.elapsed()));
        }
        Ok(())
    }

    /// The newest place in the log: what a bootstrap that takes only rows stands for.
    pub(crate) async fn head(&mut self) -> Result<i64, RoundError> {
        let header = PullHeader {
            limit_snapshot_rows: 1,
            max_snapshot_pages: 1,
            ..default_pull_header()
        };
        let pull = self.pull(-1, header);
        let round = self.client.round(Vec::new(), Some(&pull)).await?;
        Ok(round.into_section(SUBSCRIPTION_ID)?.end.next_cursor)
    }

    /// Walks over the log from `start` to its end, which it gives back.
    pub(crate) async fn read_log(
        &mut self,
        start: i64,
        check: &mut LogCheck<'_>,
        problems: &mut Problems,
    ) -> Result<i64, RoundError> {
        let began = Instant::now();
        let mut cursor = start;
        for _ in 0..REQUESTS_MAX {
            let pull = self.pull(cursor, default_pull_header());
            let round = self.client.round(Vec::new(), Some(&pull)).await?;
            let section = round.into_section(SUBSCRIPTION_ID)?;
            check_section(&section, cursor, &self.filter, problems);
            for commit in &section.commits {
                check.commit(commit);
            }
            cursor = section.end.next_cursor;
            if section.commits.is_empty() {
                return Ok(cursor);
            }
            if began.elapsed() > CHECK_TIME_MAX {
                problems.add(
                    ProblemKind::Unfinished,
                    format!("log read up to {cursor} only"),
                );
                return Ok(cursor);
            }
        }
        Err(RoundError::unexpected("the log does not end"))
    }

    /// Bootstraps, and holds the rows against what the log said last about them.
    pub(crate) async fn read_rows(
        &mut self,
        workload: &Workload,
        mut expected: HashMap<ByteString, RowState>,
        problems: &mut Problems,
    ) -> Result<u64, RoundError> {
        let header = PullHeader {
            limit_snapshot_rows: 10_000,
            max_snapshot_pages: 4,
            ..default_pull_header()
        };
        let filter = self.filter.clone();
        let mut check = RowsCheck::new(&workload.table, &filter);
        let mut pull = self.pull(-1, header);
        loop {
            let batch = bootstrap_round(&mut self.client, &mut pull).await?;
            for page in &batch.pages {
                check.page(page, |row_id, row_version, row| {
                    let is = RowState {
                        row_version,
                        hash: row_hash(row),
                    };
                    if expected.remove(row_id).is_some_and(|was| was != is) {
                        let text = format!("{row_id} is not what the log wrote last");
                        problems.add(ProblemKind::WrongContent, text);
                    }
                });
            }
            if batch.is_last {
                break;
            }
        }
        let (rows, found) = check.finish();
        problems.merge(&found);
        for row_id in expected.keys() {
            problems.add(ProblemKind::MissingRow, row_id);
        }
        Ok(rows)
    }
}

/// What one request of a bootstrap delivered.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Segments without content encoding, in order.
    pub(crate) pages: Vec<Bytes>,
    /// Where a page came from, if it was fetched.
    pub(crate) refs: Vec<Option<SegmentRef>>,
    /// Images, which are not kept.
    pub(crate) images: Vec<(SegmentRef, Inspected)>,
    /// Bytes of bodies, as they travelled.
    pub(crate) bytes: u64,
    pub(crate) is_last: bool,
}

/// Does one request of a bootstrap, fetches what it refers to, and moves `pull` on.
pub(crate) async fn bootstrap_round(
    client: &mut Client,
    pull: &mut Pull,
) -> Result<Batch, RoundError> {
    let request = client.encode(Vec::new(), Some(pull))?;
    let reply = client.send(&request).await?;
    let mut bytes = body_len(&reply.body);
    let Section {
        start,
        segments,
        end,
        ..
    } = client
        .parse(&reply.decoded()?)?
        .into_section(SUBSCRIPTION_ID)?;
    if !start.bootstrap {
        return Err(RoundError::unexpected("cursor -1 got no bootstrap"));
    }
    let scopes = pull.subscriptions[0].scopes.clone();
    let mut pages = Vec::with_capacity(segments.len());
    let mut refs = Vec::new();
    let mut images = Vec::new();
    for segment in segments {
        match segment {
            Segment::Inline(page) => {
                pages.push(page);
                refs.push(None);
            }
            Segment::Ref(reference) if reference.media_type == MediaType::Sqlite => {
                check_reference(&reference)?;
                let inspector = Inspector::new(true);
                let inspecting = client.inspect_segment(&reference, &scopes, inspector);
                let (inspected, travelled) = inspecting.await?;
                bytes += travelled;
                images.push((reference, inspected));
            }
            Segment::Ref(reference) => {
                check_reference(&reference)?;
                let reply = client.fetch_segment(&reference.segment_id, &scopes).await?;
                bytes += body_len(&reply.body);
                pages.push(reply.decoded()?);
                refs.push(Some(reference));
            }
        }
    }
    let is_last = end.bootstrap_state.is_none();
    pull.subscriptions[0].bootstrap_state = end.bootstrap_state;
    Ok(Batch {
        pages,
        refs,
        images,
        bytes,
        is_last,
    })
}

fn check_reference(reference: &SegmentRef) -> Result<(), RoundError> {
    if is_content_address(&reference.segment_id) {
        Ok(())
    } else {
        Err(RoundError::unexpected("segment id is no content address"))
    }
}

/// Holds the bytes of fetched segments against their references.
pub(crate) fn check_fetched(batch: &Batch, problems: &mut Problems) {
    for (page, reference) in batch.pages.iter().zip(&batch.refs) {
        let Some(reference) = reference else { continue };
        let len = i64::try_from(page.len()).unwrap_or(i64::MAX);
        if len != reference.byte_length
            || !page.starts_with(b"SSG2")
            || content_address(page) != *reference.segment_id
        {
            problems.add(ProblemKind::BadSegment, &reference.segment_id);
        }
    }
}

/// Holds an image against its reference. Its rows, if it is one.
pub(crate) fn check_image(
    reference: &SegmentRef,
    inspected: &Inspected,
    problems: &mut Problems,
) -> u64 {
    let rows = inspected.image_rows.unwrap_or(0);
    if u64::try_from(reference.byte_length) != Ok(inspected.byte_length)
        || u64::try_from(reference.row_count) != Ok(rows)
        || *inspected.id != *reference.segment_id
    {
        let text = format!("{}: {inspected:?}", reference.segment_id);
        problems.add(ProblemKind::BadSegment, text);
    }
    rows
}

pub(crate) fn body_len(body: &Bytes) -> u64 {
    u64::try_from(body.len()).unwrap_or(u64::MAX)
}

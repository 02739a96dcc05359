//! The pull half: one section per subscription, in order (§4).
//!
//! A section is decided (`plan`, `bootstrap`), read, checked (`gate`), and only then written, one
//! step at a time: a whole section of the log, or one snapshot page or image (`lanes`). Between two steps
//! nothing is held of the store, so a slow client costs its buffer and nothing else.
//!
//! **Invariant:** SUB_START is written when the section's first data has been read and checked.
//! An active section is never followed by news about its cursor.
//!
//! A subscription that has everything is answered from memory, without the store.

mod bootstrap;
mod gate;
mod image;
mod lanes;
mod page;
mod plan;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use bytes::BytesMut;
use bytestring::ByteString;
use tidewater_model::{CommitSeq, ErrorCode, Op, ScopeFilter};
use tidewater_schema::TableIndex;
use tidewater_store::{
    ChangeRef, ClientSubscription, RowKey, ScopeSizeRequest, StoredRow, Window, WindowRequest,
};
use tidewater_wire::{
    CommitWriter, PullHeader, ResponseFrame, SubEnd, SubStart, SubStatus, Subscription,
    put_response_frame, scope_digest,
};

use self::{
    bootstrap::{Progress, ResumeToken},
    plan::{Asked, Limits, Section},
};
pub(crate) use self::{page::PageOutcome, plan::furthest};
use crate::{
    RoundError,
    round::{RoundContext, SectionPlan},
};

/// What a pull says about its client, when it has ended well (§4.5).
pub(crate) struct PullOutcome {
    /// The least cursor over the sections that ended active.
    pub(crate) cursor: Option<CommitSeq>,
    /// Every subscription of the request, in order.
    pub(crate) subscriptions: Vec<ClientSubscription>,
    /// The sections that ended active and complete, in order.
    pub(crate) complete: Vec<CompleteSection>,
}

/// A section after which its client has everything up to some place.
pub(crate) struct CompleteSection {
    pub(crate) id: ByteString,
    pub(crate) table: TableIndex,
    pub(crate) effective: ScopeFilter,
    /// The cursor that the client was given.
    pub(crate) next_cursor: CommitSeq,
    /// Up to here the section brought every commit that its scopes see; the cursor may be lower,
    /// because it need not follow a log that has nothing for it.
    pub(crate) reached: CommitSeq,
}

/// A pull under way.
pub(crate) struct PullRun {
    context: Arc<RoundContext>,
    header: PullHeader,
    limits: Limits,
    plans: std::vec::IntoIter<SectionPlan>,
    /// What every active subscription of the request sees.
    views: Views,
    /// The bootstrap whose pages are being sent.
    open: Option<Bootstrap>,
    outcome: PullOutcome,
}

/// A section that was decided to be active.
struct ActiveSection {
    subscription: Subscription,
    table: TableIndex,
    effective: ScopeFilter,
}

/// How an active section ends.
struct End {
    next_cursor: CommitSeq,
    reached: CommitSeq,
    token: Option<String>,
}

/// A bootstrap section between two pages.
struct Bootstrap {
    section: ActiveSection,
    scope_digest: String,
    pin: CommitSeq,
    /// The pin at the start: between it and the head, nothing was written to the scope.
    first_pin: CommitSeq,
    is_resumed: bool,
    has_begun: bool,
    progress: Progress,
}

impl PullRun {
    pub(crate) fn new(
        context: Arc<RoundContext>,
        header: PullHeader,
        plans: Vec<SectionPlan>,
    ) -> Self {
        let subscriptions = Vec::with_capacity(plans.len());
        let views = Views::of(&plans);
        Self {
            views,
            context,
            header,
            limits: Limits::of(&header),
            plans: plans.into_iter(),
            open: None,
            outcome: PullOutcome {
                cursor: None,
                complete: Vec::with_capacity(subscriptions.capacity()),
                subscriptions,
            },
        }
    }

    /// Appends one whole step to `out` and tells whether there is more to come. After an error
    /// nothing but an ERROR frame may follow.
    pub(crate) async fn step(&mut self, out: &mut BytesMut) -> Result<bool, RoundError> {
        let bootstrap = match self.open.take() {
            Some(bootstrap) => Some(bootstrap),
            None => match self.plans.next() {
                Some(plan) => self.begin(plan, out).await?,
                None => None,
            },
        };
        if let Some(bootstrap) = bootstrap {
            self.send_page(bootstrap, out).await?;
        }
        Ok(self.open.is_some() || self.plans.len() > 0)
    }

    /// What is to be remembered, after the last step.
    pub(crate) fn into_outcome(self) -> PullOutcome {
        self.outcome
    }

    /// Answers a subscription, or returns the bootstrap that its pages are to be sent of.
    async fn begin(
        &mut self,
        plan: SectionPlan,
        out: &mut BytesMut,
    ) -> Result<Option<Bootstrap>, RoundError> {
        let SectionPlan {
            subscription,
            table,
            effective,
        } = plan;
        let asked = Asked {
            active: effective.is_some(),
            table: &subscription.table,
            cursor: subscription.cursor,
            resume_token: subscription.bootstrap_state.as_deref(),
        };
        let decided = plan::section(&asked, self.context.head, self.context.horizon);
        let Some(effective) = effective else {
            self.put_inactive(subscription, SubStatus::Revoked, out)?;
            return Ok(None);
        };
        let section = ActiveSection {
            subscription,
            table,
            effective,
        };
        match decided {
            Section::Revoked | Section::Reset => {
                self.put_inactive(section.subscription, SubStatus::Reset, out)?;
                Ok(None)
            }
            Section::Incremental(after) => {
                if self.is_far_behind(&section, after).await? {
                    self.put_inactive(section.subscription, SubStatus::Reset, out)?;
                } else {
                    self.send_log(section, after, out).await?;
                }
                Ok(None)
            }
            Section::Bootstrap => {
                let pin = self.choose_pin(&section).await?;
                Ok(Some(self.bootstrap(section, pin, None)))
            }
            Section::Resume(token) => Ok(Some(self.bootstrap(section, token.pin, Some(token)))),
        }
    }

    fn bootstrap(
        &self,
        section: ActiveSection,
        pin: CommitSeq,
        token: Option<ResumeToken>,
    ) -> Bootstrap {
        let is_resumed = token.is_some();
        let row_cursor = token.and_then(|token| token.row_cursor);
        Bootstrap {
            scope_digest: scope_digest(&section.effective),
            section,
            pin,
            first_pin: pin,
            is_resumed,
            has_begun: false,
            progress: Progress::new(row_cursor, self.limits.pages),
        }
    }

    /// Whether starting over is clearly cheaper than the log after a place (§8.4). Few clients are
    /// so far behind that this is asked at all.
    async fn is_far_behind(
        &self,
        section: &ActiveSection,
        after: CommitSeq,
    ) -> Result<bool, RoundError> {
        let engine = &self.context.engine;
        let commits_max = engine.parts.config.catch_up_commits_max;
        if self.context.head.get().saturating_sub(after.get()) <= commits_max {
            return Ok(false);
        }
        let first = &section.effective.entries()[0];
        let request = ScopeSizeRequest {
            partition: self.context.identity.partition.clone(),
            table: section.table,
            variable: first.variable.clone(),
            values: first.values.clone(),
            after,
            through: self.context.head,
            limit: commits_max.saturating_add(1),
        };
        let size = engine.store().scope_size(request).await?;
        Ok(plan::is_far_behind(size, commits_max))
    }

    /// The pin of a new bootstrap (§4.7).
    async fn choose_pin(&self, section: &ActiveSection) -> Result<CommitSeq, RoundError> {
        let RoundContext { head, horizon, .. } = *self.context;
        let table = self.context.engine.schema().table(section.table);
        let image_eligible = self.header.accept.images() && !table.has_encrypted_column();
        if !image_eligible || horizon.seq() >= head {
            return Ok(head);
        }
        let first = &section.effective.entries()[0];
        let partition = &self.context.identity.partition;
        let newest_change = self
            .context
            .engine
            .store()
            .newest_change(partition, section.table, &first.variable, &first.values)
            .await?;
        Ok(bootstrap::scope_pin(newest_change, head, horizon))
    }

    /// Sends the log after a place (§4.5).
    async fn send_log(
        &mut self,
        section: ActiveSection,
        after: CommitSeq,
        out: &mut BytesMut,
    ) -> Result<(), RoundError> {
        let head = self.context.head;
        let window = if after < head {
            Some(self.read_window(&section, after).await?)
        } else {
            None
        };
        if window
            .as_ref()
            .is_some_and(|window| window.gate.horizon.seq() > after)
        {
            return self.put_inactive(section.subscription, SubStatus::Reset, out);
        }
        let moved = match &window {
            Some(window) => self.moved_rows(&section, window).await?,
            None => BTreeSet::new(),
        };
        put_active_start(&self.context, &section, false, out)?;
        let mut next_cursor = head;
        if let Some(window) = &window {
            put_commits(&self.context, &section, window, &moved, out)?;
            if !window.exhausted {
                next_cursor = window.last_commit_seq().unwrap_or(after);
            }
        }
        let end = End {
            next_cursor,
            reached: next_cursor,
            token: None,
        };
        self.put_active_end(section, end, out)
    }

    /// The rows that the window deletes and that another subscription of the request now sees:
    /// they moved there. The client keeps one replica of a row, so a delete here would take away
    /// what that subscription brings (OQ-35).
    async fn moved_rows<'w>(
        &self,
        section: &ActiveSection,
        window: &'w Window,
    ) -> Result<BTreeSet<&'w str>, RoundError> {
        let others = self.views.others(section);
        if others.is_empty() {
            return Ok(BTreeSet::new());
        }
        let deleted: BTreeSet<&str> = window
            .commits()
            .flat_map(|commit| commit.changes())
            .filter(|change| change.op() == Op::Delete)
            .map(|change| change.row_id)
            .collect();
        if deleted.is_empty() {
            return Ok(deleted);
        }
        let keys = deleted
            .iter()
            .map(|row_id| RowKey {
                partition: self.context.identity.partition.clone(),
                table: section.table,
                row_id: (*row_id).into(),
            })
            .collect();
        let rows = self.context.engine.store().find_rows(keys).await?;
        let is_seen = |row: &StoredRow| others.iter().any(|view| view.matches(&row.scopes));
        Ok(deleted
            .into_iter()
            .zip(rows)
            .filter(|(_, row)| row.as_ref().is_some_and(is_seen))
            .map(|(row_id, _)| row_id)
            .collect())
    }

    async fn read_window(
        &self,
        section: &ActiveSection,
        after: CommitSeq,
    ) -> Result<Window, RoundError> {
        let engine = &self.context.engine;
        let request = WindowRequest {
            partition: self.context.identity.partition.clone(),
            table: section.table,
            filter: section.effective.clone(),
            after,
            through: self.context.head,
            changes_max: self.limits.changes,
            bytes_max: engine.parts.config.section_bytes_max,
        };
        let window = engine.store().read_window(request).await?;
        gate::admit(&self.context, &window.gate).await?;
        Ok(window)
    }

    /// A whole section that delivers nothing: the cursor comes back as it was sent.
    fn put_inactive(
        &mut self,
        subscription: Subscription,
        status: SubStatus,
        out: &mut BytesMut,
    ) -> Result<(), RoundError> {
        let reason = match status {
            SubStatus::Revoked => ErrorCode::ScopeRevoked,
            SubStatus::Reset | SubStatus::Active => ErrorCode::CursorExpired,
        };
        let start = SubStart {
            id: subscription.id.clone(),
            status,
            reason_code: reason.as_str().into(),
            effective_scopes: ScopeFilter::default(),
            bootstrap: false,
        };
        let end = SubEnd {
            next_cursor: subscription.cursor,
            bootstrap_state: None,
        };
        put(&self.context, ResponseFrame::SubStart(start), out)?;
        put(&self.context, ResponseFrame::SubEnd(end), out)?;
        self.remember(subscription, false);
        Ok(())
    }

    fn put_active_end(
        &mut self,
        section: ActiveSection,
        end: End,
        out: &mut BytesMut,
    ) -> Result<(), RoundError> {
        let End {
            next_cursor,
            reached,
            token,
        } = end;
        let complete = token.is_none();
        let end = SubEnd {
            next_cursor: next_cursor.to_i64(),
            bootstrap_state: token.map(Into::into),
        };
        put(&self.context, ResponseFrame::SubEnd(end), out)?;
        let cursor = &mut self.outcome.cursor;
        *cursor = Some(cursor.map_or(next_cursor, |least| least.min(next_cursor)));
        if complete {
            self.outcome.complete.push(CompleteSection {
                id: section.subscription.id.clone(),
                table: section.table,
                effective: section.effective,
                next_cursor,
                reached,
            });
        }
        self.remember(section.subscription, complete);
        Ok(())
    }

    fn remember(&mut self, subscription: Subscription, complete: bool) {
        self.outcome.subscriptions.push(ClientSubscription {
            id: subscription.id.into(),
            table: subscription.table.into(),
            scopes: subscription.scopes,
            complete: Some(complete),
            schema_version: Some(self.context.schema_version),
        });
    }
}

fn put_active_start(
    context: &RoundContext,
    section: &ActiveSection,
    bootstrap: bool,
    out: &mut BytesMut,
) -> Result<(), RoundError> {
    let start = SubStart {
        id: section.subscription.id.clone(),
        status: SubStatus::Active,
        reason_code: "".into(),
        effective_scopes: section.effective.clone(),
        bootstrap,
    };
    put(context, ResponseFrame::SubStart(start), out)
}

/// What the active subscriptions of a request see, by table.
struct Views(Vec<(ByteString, TableIndex, ScopeFilter)>);

impl Views {
    fn of(plans: &[SectionPlan]) -> Self {
        // A lone subscription of a table has no others: nothing need be kept for it.
        let is_shared = |table| {
            plans
                .iter()
                .filter(|plan| plan.table == table)
                .nth(1)
                .is_some()
        };
        let views = plans
            .iter()
            .filter(|plan| is_shared(plan.table))
            .filter_map(|plan| {
                let effective = plan.effective.clone()?;
                Some((plan.subscription.id.clone(), plan.table, effective))
            });
        Self(views.collect())
    }

    fn others(&self, section: &ActiveSection) -> Vec<&ScopeFilter> {
        let others = self
            .0
            .iter()
            .filter(|(id, table, _)| *table == section.table && *id != section.subscription.id);
        others.map(|(_, _, view)| view).collect()
    }
}

/// Copies the stored bytes of each change into a COMMIT frame, in the columns of the requester;
/// deletes of rows that moved are left out.
fn put_commits(
    context: &RoundContext,
    section: &ActiveSection,
    window: &Window,
    moved: &BTreeSet<&str>,
    out: &mut BytesMut,
) -> Result<(), RoundError> {
    let table: &str = &section.subscription.table;
    let is_sent =
        |change: &ChangeRef<'_>| change.op() == Op::Upsert || !moved.contains(change.row_id);
    for commit in window.commits() {
        if !moved.is_empty() && !commit.changes().any(|change| is_sent(&change)) {
            continue;
        }
        let seq = commit.commit_seq().to_i64();
        let mut frame =
            CommitWriter::begin(out, seq, commit.created_at_ms(), commit.actor(), table);
        for change in commit.changes().filter(is_sent) {
            let row = match change.row {
                Some((row_version, payload)) => {
                    Some((row_version, context.shown(section.table, payload)?))
                }
                None => None,
            };
            let row = row
                .as_ref()
                .map(|(row_version, row)| (*row_version, &**row));
            frame.change(change.row_id, row, change.scopes);
        }
        frame
            .finish()
            .map_err(|error| RoundError::internal(&error, "encode a commit"))?;
    }
    Ok(())
}

fn put(context: &RoundContext, frame: ResponseFrame, out: &mut BytesMut) -> Result<(), RoundError> {
    put_response_frame(&frame, context.version, out)
        .map_err(|error| RoundError::internal(&error, "encode a section"))
}

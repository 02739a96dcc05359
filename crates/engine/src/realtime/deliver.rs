//! Decides, per connection, what a commit becomes: a delta, a wake-up or nothing (§8.2).
//!
//! [`Flow`] is all that is remembered of a connection for it, and its methods are pure: places in,
//! verdicts out. A *suppressed* connection has missed a commit that its scopes see; it gets
//! nothing but wake-ups until it acknowledges that commit or a later one, however it pulled it.
//!
//! **Invariant:** a delta is sent only while nothing is missed.
//!
//! Suppression ends at the newest commit that was *missed*, not at the newest one there is: in a
//! busy partition a client could never catch up with commits that are none of its business.

use tidewater_model::CommitSeq;

/// What a commit that a connection's scopes see becomes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// The connection has it already.
    Covered,
    /// The round in flight brings it, if it ends well.
    Awaited,
    /// It is missed: the client must pull.
    Missed,
    /// It may be sent.
    Deliverable,
}

/// What to do about a wake-up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wake {
    /// None is on its way: send one.
    Send,
    /// One is on its way: let it say this too, if it still can.
    Amend,
}

/// Where a connection's round stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Round {
    #[default]
    None,
    InFlight {
        /// The newest commit that only this round can bring.
        awaited: Option<CommitSeq>,
    },
}

/// How a round ended that pulled and succeeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Pulled {
    /// The head it was answered for.
    pub(crate) head: CommitSeq,
    /// The least place that a registered section reached; the head when there is none.
    pub(crate) reached: CommitSeq,
    /// What the client will acknowledge when it has applied it.
    pub(crate) acknowledged_as: CommitSeq,
    /// Whether it registered anything that was not registered all the while.
    pub(crate) is_wider: bool,
}

/// What is remembered of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Flow {
    /// Commits up to here are not delivered any more.
    covered: CommitSeq,
    /// The newest commit missed; while there is one, the connection is suppressed.
    missed: Option<CommitSeq>,
    /// The client sees something else than before, and until it has pulled with that in mind it
    /// gets nothing. A pull that reaches this place was answered after the change.
    held: Option<CommitSeq>,
    /// What the wake-up on its way says.
    woken: Option<CommitSeq>,
    /// The client has said something since: it may have pulled where nobody here saw it, so the
    /// next commit it misses is worth another wake-up.
    was_heard: bool,
    acked: CommitSeq,
    /// What the client has for certain: by its record, or because it said so.
    confirmed: Option<CommitSeq>,
    /// What it will acknowledge when it has applied the last pull.
    promised: Option<CommitSeq>,
    /// An acknowledgment of the first place is one of the second: the client can only name the
    /// pin of a snapshot that it was sent at a later head.
    worth: Option<(CommitSeq, CommitSeq)>,
    round: Round,
    /// Reloads of the registrations on their way whose outcome may take scopes away.
    refreshes: u32,
    unacked: Unacked,
}

impl Flow {
    /// Begins with a client that has everything up to `cursor` in a log with this head.
    pub(crate) fn admit(&mut self, cursor: Option<CommitSeq>, head: CommitSeq) {
        self.covered = self.covered.max(head).max(cursor.unwrap_or_default());
        self.confirmed = cursor;
        if cursor.is_none_or(|cursor| cursor < head) {
            self.missed = self.missed.max(Some(head));
        }
    }

    /// Begins with the head of another log: nothing that was delivered or acknowledged counts.
    pub(crate) fn restart(&mut self, head: CommitSeq) {
        *self = Self {
            covered: head,
            missed: Some(head),
            round: self.round,
            refreshes: self.refreshes,
            ..Self::default()
        };
        if let Round::InFlight { awaited } = &mut self.round {
            *awaited = None;
        }
    }

    pub(crate) fn is_suppressed(&self) -> bool {
        self.missed.is_some() || self.held.is_some()
    }

    /// Commits up to here are not delivered any more.
    pub(crate) fn covered(&self) -> CommitSeq {
        self.covered
    }

    pub(crate) fn is_in_round(&self) -> bool {
        self.round != Round::None
    }

    /// What a commit becomes that the connection's scopes see. `is_own` says that the same client
    /// pushed it.
    pub(crate) fn judge(&self, seq: CommitSeq, is_own: bool) -> Verdict {
        if seq <= self.covered {
            Verdict::Covered
        } else if is_own && self.is_in_round() {
            Verdict::Awaited
        } else if self.is_suppressed() || self.refreshes > 0 || self.is_in_round() {
            Verdict::Missed
        } else {
            Verdict::Deliverable
        }
    }

    /// Whether another delta may be on its way.
    pub(crate) fn has_room(&self, unacked_max: u32) -> bool {
        self.unacked.count() < unacked_max
    }

    /// The commit was sent.
    pub(crate) fn sent(&mut self, seq: CommitSeq) {
        self.covered = self.covered.max(seq);
        self.unacked.sent(seq);
    }

    /// The commit waits for the end of the round.
    pub(crate) fn awaits(&mut self, seq: CommitSeq) {
        if let Round::InFlight { awaited } = &mut self.round {
            *awaited = (*awaited).max(Some(seq));
        }
    }

    /// The commit is missed. Tells what to do about a wake-up.
    pub(crate) fn miss(&mut self, seq: CommitSeq) -> Wake {
        self.missed = self.missed.max(Some(seq));
        if self.woken.is_some() && !self.was_heard {
            return Wake::Amend;
        }
        self.woken = Some(seq);
        self.was_heard = false;
        Wake::Send
    }

    /// What the client sees has changed, while this was the newest place: without a word to it,
    /// its deltas wait for a pull that was answered later.
    pub(crate) fn hold(&mut self, newest: CommitSeq) {
        self.held = self.held.max(Some(newest.next()));
    }

    /// The client has pulled where nobody here saw what became of it.
    pub(crate) fn heard(&mut self) {
        self.was_heard = self.woken.is_some();
    }

    /// The wake-up on its way says this place now.
    pub(crate) fn amended(&mut self, seq: CommitSeq) {
        self.woken = self.woken.max(Some(seq));
    }

    /// A round begins. `dropped` says that deltas were taken back which it must bring.
    pub(crate) fn round_started(&mut self, dropped: bool) {
        let awaited = dropped.then_some(self.covered);
        self.round = Round::InFlight { awaited };
        (self.woken, self.was_heard) = (None, false);
    }

    /// A round ended that failed or did not pull; returns what it should have brought.
    pub(crate) fn round_failed(&mut self) -> Option<CommitSeq> {
        match std::mem::take(&mut self.round) {
            Round::InFlight { awaited } => awaited,
            Round::None => None,
        }
    }

    /// A round ended that pulled, but for scopes that may not be those in force.
    pub(crate) fn round_outdated(&mut self, acknowledged_as: CommitSeq) {
        self.round_failed();
        self.promise(acknowledged_as);
    }

    /// A round ended that pulled; returns the newest place that it did not bring although it
    /// may have had to. `highest` is the newest commit that was looked at.
    pub(crate) fn round_pulled(&mut self, pulled: Pulled, highest: CommitSeq) -> Option<CommitSeq> {
        let awaited = self.round_failed();
        self.covered = self.covered.max(pulled.head);
        self.promise(pulled.acknowledged_as);
        // A section that ended early, or a snapshot older than the head.
        let is_short = pulled.reached < pulled.head || awaited > Some(pulled.reached);
        // What came during the round was held against the registrations of before.
        let is_late = pulled.is_wider && pulled.reached < highest;
        // It was asked for after the last change, and whatever is sent now arrives after it.
        self.held = None;
        if !is_short {
            self.worth = Some((pulled.acknowledged_as, pulled.head));
        }
        (is_short || is_late).then(|| pulled.head.max(highest).max(self.covered))
    }

    fn promise(&mut self, seq: CommitSeq) {
        self.promised = Some(seq).filter(|at| Some(*at) > self.confirmed);
    }

    /// The client says that it has everything up to here. Returns the place if it is news, and
    /// what to wake it up for: the wake-up on its way was for less than it misses.
    pub(crate) fn ack(&mut self, seq: CommitSeq) -> (Option<CommitSeq>, Option<CommitSeq>) {
        let news = (seq > self.acked).then_some(seq);
        self.acked = self.acked.max(seq);
        self.confirmed = self.confirmed.max(Some(seq));
        if self.promised <= Some(seq) {
            self.promised = None;
        }
        let seq = match self.worth {
            Some((at, worth)) if at <= seq => worth.max(seq),
            _ => seq,
        };
        self.unacked.acked(seq);
        self.covered = self.covered.max(seq);
        if self.missed.is_some_and(|missed| missed <= seq) {
            (self.missed, self.woken) = (None, None);
        }
        if self.held.is_some_and(|held| held <= seq) {
            self.held = None;
        }
        let is_short = self.missed.is_some() && self.woken.is_some_and(|woken| woken <= seq);
        if is_short {
            self.woken = self.missed;
        }
        self.was_heard = self.woken.is_some() && !is_short;
        (news, if is_short { self.missed } else { None })
    }

    /// What the client has for certain, if its record may say more: the response of a pull was
    /// recorded and may not have arrived.
    pub(crate) fn doubt(&self) -> Option<Option<CommitSeq>> {
        let is_doubtful = self.promised.is_some() || self.is_in_round();
        is_doubtful.then_some(self.confirmed)
    }

    /// A reload begins that may take scopes away: until it ends nothing is sent.
    pub(crate) fn refresh_started(&mut self) {
        self.refreshes += 1;
    }

    pub(crate) fn refresh_ended(&mut self) {
        self.refreshes = self.refreshes.saturating_sub(1);
    }
}

/// How many deltas are on their way, at most: those up to a mark and those after it. The mark
/// moves when the client has passed it, so a client that is always a little behind is not taken
/// for one that acknowledges nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Unacked {
    mark: CommitSeq,
    newest: CommitSeq,
    until_mark: u32,
    after_mark: u32,
}

impl Unacked {
    fn count(&self) -> u32 {
        self.until_mark.saturating_add(self.after_mark)
    }

    fn sent(&mut self, seq: CommitSeq) {
        self.newest = seq;
        self.after_mark = self.after_mark.saturating_add(1);
    }

    fn acked(&mut self, seq: CommitSeq) {
        if seq >= self.newest {
            (self.until_mark, self.after_mark) = (0, 0);
        } else if seq >= self.mark {
            (self.until_mark, self.after_mark) = (self.after_mark, 0);
        } else {
            return;
        }
        self.mark = self.newest;
    }
}

#[cfg(test)]
mod tests;

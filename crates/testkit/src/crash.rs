//! Kills a server again and again and checks that it kept its word (§2.1, §2.3).
//!
//! Clients on threads of their own push commits until the server is killed with SIGKILL in the
//! middle of it. It is started again, every client sends its whole outbox once more and goes on.
//! In the end one run without a kill is checked against what the clients know:
//!
//! * a commit that was ever acknowledged is answered `cached`, at the place it was given;
//! * the places of all commits are 1, 2, 3 … with no gap and none twice;
//! * the log holds them in that order, and the rows are what the log makes of them.
//!
//! Which server it is does not matter: it is a [`Victim`]. One seed decides what is written and
//! after how many acknowledgements the kill comes; where that finds the other clients is up to
//! the machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use tidewater_schema::Schema;
use tidewater_wire::{PushCommit, PushOutcome, PushResult, RowsSegment, Subscription, WireVersion};

use crate::{
    Dice, HttpClient,
    message::{Answer, Author, Section, commit, delete, teams},
    rows::row_to_json,
    schema::notes,
};

/// A server process on a database that outlives it.
///
/// It serves the schema [`notes`] in version 1, where every actor may see and write team t1.
pub trait Victim {
    /// Starts the process and returns the address of its mount, ready to be used.
    fn start(&mut self) -> Result<String>;

    /// Kills the process so that it cannot do anything about it, and waits until it is dead.
    fn kill(&mut self) -> Result<()>;

    /// The bearer token of one of the clients, by number.
    fn token(&self, client: usize) -> String;
}

/// How hard a server is tried.
#[derive(Clone, Copy, Debug)]
pub struct CrashPlan {
    /// Decides everything that the machine does not.
    pub seed: u64,
    /// How often it is killed.
    pub kills: usize,
    /// Clients that push at the same time.
    pub clients: usize,
    /// The most acknowledgements of new commits between a start and a kill.
    pub acknowledgements_max: u64,
}

/// What was found in the end.
#[derive(Clone, Copy, Debug)]
pub struct CrashReport {
    /// Commits in the log.
    pub commits: usize,
    /// Commits that were written although their client was not told: the kill came between.
    pub unheard: usize,
    /// Rows.
    pub rows: usize,
}

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the plan.
pub fn run(plan: CrashPlan, victim: &mut dyn Victim) -> Result<CrashReport> {
    let schema = notes(1).compile()?;
    let mut clients: Vec<Outbox> = (0..plan.clients)
        .map(|number| Outbox::new(number, plan.seed, &schema))
        .collect();
    let mut dice = Dice::new(plan.seed);
    for _ in 0..plan.kills {
        let url = victim.start()?;
        for (number, client) in clients.iter_mut().enumerate() {
            client.connect(&url, &victim.token(number));
        }
        let wanted = dice.below(plan.acknowledgements_max) + 1;
        push_until_killed(&mut clients, wanted, victim)?;
    }
    let url = victim.start()?;
    for (number, client) in clients.iter_mut().enumerate() {
        client.connect(&url, &victim.token(number));
        client.replay().context("replay everything")?;
    }
    check(&clients)
}

/// Lets every client push until the server is gone, which it is after so many acknowledgements.
fn push_until_killed(clients: &mut [Outbox], wanted: u64, victim: &mut dyn Victim) -> Result<()> {
    let (acknowledged, acknowledgements) = mpsc::channel();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for client in clients {
            let acknowledged = acknowledged.clone();
            threads.push(scope.spawn(move || client.push_until_lost(&acknowledged)));
        }
        drop(acknowledged);
        let mut heard = 0;
        // It ends early when every client has failed for another reason, which they tell below.
        while heard < wanted {
            match acknowledgements.recv_timeout(PATIENCE) {
                Ok(count) => heard += count,
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("the server does not answer"),
            }
        }
        victim.kill()?;
        for thread in threads {
            thread.join().expect("a client does not panic")?;
        }
        Ok(())
    })
}

/// One client and everything it ever wrote.
struct Outbox {
    http: HttpClient,
    number: usize,
    dice: Dice,
    sent: Vec<Sent>,
    /// Commits whose place was not known when they were sent again.
    unheard: usize,
}

struct Sent {
    commit: PushCommit,
    /// What it writes: row and title, `None` for a delete.
    writes: Vec<(String, Option<String>)>,
    /// Its place, once it was acknowledged.
    place: Option<i64>,
}

/// Commits in one request of a replay.
const REPLAYED_PER_REQUEST: usize = 50;

impl Outbox {
    fn new(number: usize, seed: u64, schema: &Arc<Schema>) -> Self {
        let version = WireVersion::ALL[number % WireVersion::ALL.len()];
        let author = Author::new(&format!("client-{number}"), version, schema);
        Self {
            http: HttpClient::new("", "", author),
            number,
            dice: Dice::new(seed ^ u64::try_from(number + 1).unwrap_or_default()),
            sent: Vec::new(),
            unheard: 0,
        }
    }

    /// Uses the server at another address from now on. The epoch stays as it was learned.
    fn connect(&mut self, url: &str, token: &str) {
        self.http = HttpClient::new(url, token, self.http.author.clone());
    }

    /// Replays the outbox, then pushes new commits until the server is gone.
    fn push_until_lost(&mut self, acknowledged: &mpsc::Sender<u64>) -> Result<()> {
        match self.replay() {
            Ok(()) => {}
            Err(error) => return lost(error),
        }
        loop {
            let count = usize::try_from(self.dice.below(3)).unwrap_or_default() + 1;
            let first = self.sent.len();
            for _ in 0..count {
                let next = self.write();
                self.sent.push(next);
            }
            match self.send(first) {
                Ok(()) => {}
                Err(error) => return lost(error),
            }
            if acknowledged
                .send(u64::try_from(count).unwrap_or_default())
                .is_err()
            {
                return Ok(());
            }
        }
    }

    /// Sends every commit again, from the first on.
    fn replay(&mut self) -> Result<()> {
        if self.http.author.version.has_epoch() && self.http.author.log_epoch.is_none() {
            self.http.acquire_epoch()?;
        }
        let mut first = 0;
        while first < self.sent.len() {
            let until = (first + REPLAYED_PER_REQUEST).min(self.sent.len());
            self.exchange(first, until)?;
            first = until;
        }
        Ok(())
    }

    fn send(&mut self, first: usize) -> Result<()> {
        self.exchange(first, self.sent.len())
    }

    /// Sends a part of the outbox and notes the places.
    fn exchange(&mut self, first: usize, until: usize) -> Result<()> {
        let commits = self.sent[first..until]
            .iter()
            .map(|sent| sent.commit.clone());
        let answer = self
            .http
            .send(self.http.author.request(commits.collect(), None))?;
        ensure!(!answer.header.reset_required, "the log epoch changed");
        ensure!(
            answer.results.len() == until - first,
            "a commit has no result"
        );
        let mut unheard = 0;
        for (sent, result) in self.sent[first..until].iter_mut().zip(answer.results) {
            unheard += usize::from(sent.note(&result)?);
        }
        self.unheard += unheard;
        Ok(())
    }

    /// The next commit: a row of its own, one that all clients write, sometimes a delete.
    fn write(&mut self) -> Sent {
        let (client, number) = (self.number, self.sent.len());
        let title = format!("{client}/{number}");
        let shared = format!("shared-{}", self.dice.below(8));
        let own = format!("own-{client}-{}", self.dice.below(40));
        let mut writes = vec![(own, Some(title.clone()))];
        if self.dice.one_in(2) {
            writes.push((shared, Some(title)));
        }
        if self.dice.one_in(4) {
            // A row with a name that is used once, so that nothing is written to its tombstone.
            let brief = format!("brief-{client}-{number}");
            writes.push((brief.clone(), Some("brief".to_owned())));
            writes.push((brief, None));
        }
        let operations = writes.iter().map(|(id, title)| match title {
            Some(title) => self.http.author.upsert("notes", &note(id, title), None),
            None => delete("notes", id),
        });
        let commit = commit(&format!("commit-{number}"), operations.collect());
        Sent {
            commit,
            writes,
            place: None,
        }
    }
}

impl Sent {
    /// Compares an answer with what was known. Returns whether the commit had been written
    /// without its client having heard of it.
    fn note(&mut self, result: &PushResult) -> Result<bool> {
        let id = &self.commit.client_commit_id;
        ensure!(result.client_commit_id == *id, "results are out of order");
        match (result.outcome, self.place) {
            (PushOutcome::Applied(_), Some(before)) => {
                bail!("commit {id} was acknowledged at {before} and is gone")
            }
            (PushOutcome::Cached(place), Some(before)) if place != before => {
                bail!("commit {id} was acknowledged at {before} and is now at {place}")
            }
            (PushOutcome::Applied(place), None) => {
                self.place = Some(place);
                Ok(false)
            }
            (PushOutcome::Cached(place), before) => {
                self.place = Some(place);
                Ok(before.is_none())
            }
            (PushOutcome::Rejected, _) => bail!("commit {id} was rejected: {result:?}"),
        }
    }
}

/// Whether a failure is that of a server that was killed. A refusal is not: it answered.
fn lost(error: anyhow::Error) -> Result<()> {
    let connection = error.chain().any(|cause| cause.is::<ureq::Error>());
    if connection { Ok(()) } else { Err(error) }
}

fn note(id: &str, title: &str) -> Value {
    json!({
        "id": id, "team_id": "t1", "title": title, "stars": 1, "done": null, "meta": null,
        "body": null,
    })
}

/// Compares the log and the rows with what the clients know.
fn check(clients: &[Outbox]) -> Result<CrashReport> {
    let mut by_place: BTreeMap<i64, &Sent> = BTreeMap::new();
    for sent in clients.iter().flat_map(|client| &client.sent) {
        let place = sent.place.context("a commit was never answered")?;
        let other = by_place.insert(place, sent);
        ensure!(other.is_none(), "two commits are at place {place}");
    }
    let dense = by_place
        .keys()
        .copied()
        .eq(1..=i64::try_from(by_place.len())?);
    ensure!(dense, "there are gaps: {:?}", by_place.keys());

    let reader = &clients[0].http;
    let mut expected: BTreeMap<&str, (i64, &str)> = BTreeMap::new();
    for (id, title) in by_place.values().flat_map(|sent| &sent.writes) {
        match title {
            Some(title) => {
                let row = expected.entry(id).or_insert((0, title));
                *row = (row.0 + 1, title);
            }
            None => {
                expected.remove(id.as_str());
            }
        }
    }
    let log = read_log(reader)?;
    let places: BTreeSet<i64> = by_place.keys().copied().collect();
    ensure!(
        log == places,
        "the log holds other commits than were acknowledged"
    );
    let rows = read_rows(reader)?;
    let rows: BTreeMap<&str, (i64, &str)> = rows
        .iter()
        .map(|(id, (version, title))| (&id[..], (*version, &title[..])))
        .collect();
    ensure!(
        rows == expected,
        "the rows are {rows:?} and not {expected:?}"
    );
    Ok(CrashReport {
        commits: by_place.len(),
        unheard: clients.iter().map(|client| client.unheard).sum(),
        rows: rows.len(),
    })
}

/// The places of all commits in the log, which come in order and once.
fn read_log(reader: &HttpClient) -> Result<BTreeSet<i64>> {
    let mut places = BTreeSet::new();
    let mut cursor = 0;
    loop {
        let section = pull(reader, teams("s1", &["t1"], cursor))?;
        if section.commits.is_empty() {
            return Ok(places);
        }
        for commit in &section.commits {
            ensure!(commit.commit_seq > cursor, "the log goes backwards");
            cursor = commit.commit_seq;
            places.insert(cursor);
        }
    }
}

/// All rows: id, version and title.
fn read_rows(reader: &HttpClient) -> Result<BTreeMap<String, (i64, String)>> {
    let schema = &reader.author.schema;
    let table = schema.table(schema.find("notes").context("the schema has notes")?);
    let mut rows = BTreeMap::new();
    let mut subscription = teams("s1", &["t1"], -1);
    loop {
        let section = pull(reader, subscription.clone())?;
        let referenced = section.references.iter().map(|reference| {
            let (status, bytes) = reader.segment(&reference.segment_id, r#"{"team_id":["t1"]}"#)?;
            ensure!(status == 200, "a segment cannot be fetched: {status}");
            Ok(bytes)
        });
        let referenced: Vec<Bytes> = referenced.collect::<Result<_>>()?;
        for segment in section.inline.iter().chain(&referenced) {
            for row in RowsSegment::decode(segment)?.blocks.concat() {
                let values = row_to_json(table, &row.row)?;
                let text = |name: &str| values[name].as_str().unwrap_or_default().to_owned();
                rows.insert(text("id"), (row.server_version, text("title")));
            }
        }
        let end = section.end.context("a section ends")?;
        if end.bootstrap_state.is_none() {
            return Ok(rows);
        }
        subscription.cursor = end.next_cursor;
        subscription.bootstrap_state = end.bootstrap_state;
    }
}

fn pull(reader: &HttpClient, subscription: Subscription) -> Result<Section> {
    let request = reader.author.request(Vec::new(), Some(vec![subscription]));
    let Answer {
        sections, error, ..
    } = reader.send(request)?;
    ensure!(error.is_none(), "the pull failed: {error:?}");
    sections
        .into_iter()
        .next()
        .context("the pull has no section")
}

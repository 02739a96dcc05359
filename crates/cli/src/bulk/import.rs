//! `tidewater import`: rows of a file into a table, in large commits.
//!
//! A commit's id is made from its rows, so running an import again, or going on after a crash,
//! applies nothing twice: what is there already is answered from the record.

use std::{
    io::{BufRead, BufReader, IsTerminal as _},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use bytes::{Bytes, BytesMut};
use clap::Args;
use futures_util::StreamExt as _;
use tidewater_engine::{Engine, Identity};
use tidewater_schema::Table;
use tidewater_wire::{
    Accept, ContentHasher, OpResult, Operation, OperationAction, PullHeader, PushCommit,
    PushOutcome, Request, RequestFrame, RequestHeader, Response, ResponseFrame, WireVersion,
};

use super::{
    Selection,
    rows::{RowReader, SourceRow},
};
use crate::{Failure, assemble, config::Config, run, telemetry};

/// Options of `tidewater import`.
#[derive(Args, Debug)]
pub(crate) struct ImportOptions {
    #[command(flatten)]
    selection: Selection,
    /// Rows in one commit.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    commit_rows: u32,
    /// The actor the log names as the author.
    #[arg(long, value_name = "NAME", default_value = "import")]
    actor: String,
    /// Leave out commits that are rejected, instead of ending at the first.
    #[arg(long)]
    keep_going: bool,
    /// The rows; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs an import.
pub(crate) fn import(options: &ImportOptions) -> Result<(), Failure> {
    let selection = &options.selection;
    let config = Config::load(&selection.config).map_err(Failure::Wrong)?;
    let plan = assemble::check(&config).map_err(Failure::Wrong)?;
    let index = selection.table(&plan.schema).map_err(Failure::Wrong)?;
    let format = selection.format(&options.file).map_err(Failure::Wrong)?;
    let schema = Arc::clone(&plan.schema);
    let input: Box<dyn BufRead> = if options.file.as_os_str() == "-" {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let file = std::fs::File::open(&options.file)
            .with_context(|| format!("open {}", options.file.display()))
            .map_err(Failure::Wrong)?;
        Box::new(BufReader::new(file))
    };
    let rows = RowReader::new(schema.table(index), format, input).map_err(Failure::Wrong)?;
    run::runtime()?.block_on(async {
        let engine = plan.open_for_operator(&config, options.commit_rows).await?;
        let session = Session::start(&engine, options).await?;
        let table = Arc::clone(schema.table(index));
        let imported = session.run(rows, &table).await;
        engine.close().await?;
        imported
    })
}

/// One client that pushes.
struct Session<'a> {
    engine: &'a Arc<Engine>,
    options: &'a ImportOptions,
    identity: Identity,
    log_epoch: String,
}

/// What became of the rows so far.
#[derive(Debug, Default)]
struct Progress {
    rows: u64,
    already_there: u64,
    rejected: u64,
}

impl<'a> Session<'a> {
    async fn start(
        engine: &'a Arc<Engine>,
        options: &'a ImportOptions,
    ) -> anyhow::Result<Session<'a>> {
        let partition = options.selection.partition.as_str();
        let identity = Identity::new(partition, options.actor.as_str());
        let mut session = Self {
            engine,
            options,
            identity,
            log_epoch: String::new(),
        };
        let response = session.round(Vec::new()).await?;
        let header = response.frames.into_iter().find_map(|frame| match frame {
            ResponseFrame::Header(header) => Some(header),
            _ => None,
        });
        session.log_epoch = header
            .context("a response has a header")?
            .log_epoch
            .to_string();
        Ok(session)
    }

    async fn run(&self, mut rows: RowReader<'_>, table: &Table) -> Result<(), Failure> {
        let mut progress = Progress::default();
        let mut reporter = Reporter::new();
        let size = usize::try_from(self.options.commit_rows).context("a commit has few rows")?;
        let mut commit = Vec::with_capacity(size);
        loop {
            let row = rows.next().map_err(Failure::Wrong)?;
            let ended = row.is_none();
            commit.extend(row);
            if commit.len() == size || (ended && !commit.is_empty()) {
                self.push(std::mem::take(&mut commit), table, &mut progress)
                    .await?;
                reporter.report(&progress);
            }
            if ended {
                break;
            }
        }
        let Progress {
            rows,
            already_there,
            rejected,
        } = progress;
        run::print(&format!(
            "{rows} rows imported, {already_there} of them before; {rejected} rejected\n"
        ))?;
        if rejected > 0 {
            return Err(Failure::Failed(anyhow::anyhow!(
                "{rejected} rows were rejected"
            )));
        }
        Ok(())
    }

    async fn push(
        &self,
        rows: Vec<SourceRow>,
        table: &Table,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let count = u64::try_from(rows.len()).context("a commit has few rows")?;
        let lines: Vec<u64> = rows.iter().map(|row| row.line).collect();
        let response = self.round(vec![commit_of(rows, table)]).await?;
        let result = response.frames.into_iter().find_map(|frame| match frame {
            ResponseFrame::PushResult(result) => Some(result),
            _ => None,
        });
        let result = result.context("a push is answered with a result")?;
        match result.outcome {
            PushOutcome::Applied(_) => progress.rows += count,
            PushOutcome::Cached(_) => {
                progress.rows += count;
                progress.already_there += count;
            }
            PushOutcome::Rejected => {
                progress.rejected += count;
                let complaint = rejection(&lines, &result.results);
                if !self.options.keep_going {
                    return Err(Failure::Failed(complaint));
                }
                telemetry::complain(&complaint);
            }
        }
        Ok(())
    }

    /// One round of wire version 2: full rows, and the last writer wins.
    async fn round(&self, commits: Vec<PushCommit>) -> anyhow::Result<Response> {
        let log_epoch = (!self.log_epoch.is_empty()).then(|| self.log_epoch.as_str().into());
        let header = RequestHeader {
            client_id: format!("import:{}", self.options.actor).into(),
            schema_version: self.engine.schema().version(),
            log_epoch,
        };
        let mut frames = vec![RequestFrame::Header(header)];
        if commits.is_empty() {
            frames.push(RequestFrame::PullHeader(PullHeader {
                limit_commits: 0,
                limit_snapshot_rows: 0,
                max_snapshot_pages: 0,
                accept: Accept::from_bits(1).expect("a defined bit"),
            }));
        }
        frames.extend(commits.into_iter().map(RequestFrame::PushCommit));
        let request = Request {
            version: WireVersion::V2,
            frames,
        }
        .encode()?;
        let mut body = self.engine.round(self.identity.clone(), request).await?;
        let mut bytes = BytesMut::new();
        while let Some(piece) = body.next().await {
            bytes.extend_from_slice(&piece);
        }
        let response = Response::decode(&bytes.freeze())?;
        for frame in &response.frames {
            if let ResponseFrame::Error(error) = frame {
                bail!("{}: {}", error.code, error.message);
            }
        }
        Ok(response)
    }
}

fn commit_of(rows: Vec<SourceRow>, table: &Table) -> PushCommit {
    let mut hasher = ContentHasher::new();
    hasher.update(table.name.as_bytes());
    let operations = rows
        .into_iter()
        .map(|row| {
            hasher.update(&row.payload);
            Operation {
                table: table.name.as_str().into(),
                row_id: row.row_id.into(),
                action: OperationAction::Upsert(Bytes::from(row.payload)),
                base_version: None,
            }
        })
        .collect();
    PushCommit {
        client_commit_id: hasher.finish().into(),
        operations,
    }
}

fn rejection(lines: &[u64], results: &[OpResult]) -> anyhow::Error {
    let (op_index, code, message) = match results.first() {
        Some(OpResult::Error {
            op_index,
            code,
            message,
            ..
        })
        | Some(OpResult::Conflict {
            op_index,
            code,
            message,
            ..
        }) => (*op_index, code, message),
        Some(OpResult::Applied { .. }) | None => return anyhow::anyhow!("a commit was rejected"),
    };
    let line = usize::try_from(op_index)
        .ok()
        .and_then(|index| lines.get(index))
        .copied();
    let (first, last) = (lines.first().copied(), lines.last().copied());
    anyhow::anyhow!(
        "line {}: {code}: {message} (lines {} to {} were not imported)",
        line.unwrap_or_default(),
        first.unwrap_or_default(),
        last.unwrap_or_default(),
    )
}

/// Tells a person how far it is, once a second.
struct Reporter {
    started: Instant,
    told: Instant,
    shown: bool,
}

impl Reporter {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            started: now,
            told: now,
            shown: std::io::stderr().is_terminal(),
        }
    }

    fn report(&mut self, progress: &Progress) {
        if !self.shown || self.told.elapsed() < Duration::from_secs(1) {
            return;
        }
        self.told = Instant::now();
        let seconds = self.started.elapsed().as_secs().max(1);
        telemetry::tell(&format!(
            "{} rows, {} a second",
            progress.rows,
            progress.rows / seconds
        ));
    }
}

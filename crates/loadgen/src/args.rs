//! The command line: one subcommand per scenario, and what they have in common.
//!
//! Figures are only comparable when the shape of the load is written down, so every option is
//! repeated in the report.

use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Drives load at a server of the sync protocol, and checks what it answers.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub scenario: Scenario,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Scenario {
    /// Print the schema document that a server must be configured with.
    Schema(TableArgs),
    /// Push commits.
    Push(PushArgs),
    /// Pull when there is nothing new.
    PullIdle(PullArgs),
    /// Pull the same window of commits of one change each, again and again.
    PullWindow(WindowArgs),
    /// Bootstrap the whole table, again and again.
    Bootstrap(BootstrapArgs),
    /// New devices that all come at once, each to bootstrap once.
    Storm(StormArgs),
    /// Devices that push and pull in one round, pull, and bootstrap.
    Mixed(MixedArgs),
    /// Hold connections, send nothing, and read the server's memory and CPU time.
    Idle(PullArgs),
    /// Push commits and see them arrive at sockets.
    FanOut(FanOutArgs),
    /// Hold sockets on which nothing happens: the server's memory for each.
    Sockets(SocketArgs),
    /// Lose all sockets at once, and have everybody back and caught up.
    Reconnect(ReconnectArgs),
    /// Push commits at sockets of which most are never read.
    SlowReaders(SlowArgs),
    /// Push at a server that does nothing: what the generator itself costs.
    Floor(FloorArgs),
}

/// The shape of the table.
#[derive(Clone, Debug, Parser)]
pub struct TableArgs {
    /// Columns of the table.
    #[arg(long, default_value_t = 6)]
    pub columns: usize,
    /// Scopes that each row carries.
    #[arg(long, default_value_t = 1)]
    pub scopes: usize,
    /// Lists that the rows are spread over: values of each scope.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub lists: u32,
}

/// What every run needs to know.
#[derive(Clone, Debug, Parser)]
pub struct CommonArgs {
    /// Base URL of the server, with the prefix its routes are mounted under.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Send load to an address that is not loopback. Only to servers that are yours.
    #[arg(long)]
    pub allow_remote: bool,
    /// Bearer token; {actor}, {partition} and {client} become numbers.
    #[arg(long, default_value = "actor-{actor}")]
    pub token: String,
    /// Another header, `name: value`, with the same places.
    #[arg(long = "header", value_name = "HEADER")]
    pub headers: Vec<String>,
    /// Wire version.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=3))]
    pub wire: u16,
    /// Clients, each with a connection and one request at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// Actors that the clients are spread over; as many as clients when absent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub actors: Option<u32>,
    /// Partitions that the clients are spread over; the token decides what they are.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub partitions: u32,
    /// Arrivals per second over all clients. Absent: each client as fast as it can.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Time before anything is measured.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub warmup: Duration,
    /// Time that is measured.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Measured operations after which a run ends, even before its time.
    #[arg(long)]
    pub count: Option<u64>,
    /// How long one exchange may take.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Decides what the rows are and which are written.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Begins client and commit ids; from the clock when absent.
    #[arg(long)]
    pub run_id: Option<String>,
    /// Process of the server: read its CPU time and memory from /proc.
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// Set the server's memory peak back before measuring, so that the report shows the run's.
    #[arg(long, requires = "server_pid")]
    pub reset_peak: bool,
    /// Leave out the checks after the run.
    #[arg(long)]
    pub no_verify: bool,
    /// Value of Accept-Encoding; none asks for identity.
    #[arg(long)]
    pub accept_encoding: Option<String>,
    /// A name for this run in its report.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// No progress on standard error.
    #[arg(long)]
    pub quiet: bool,
}

/// What is in the table before a run.
#[derive(Clone, Debug, Parser)]
pub struct FillArgs {
    /// Rows that are pushed before the run.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    pub rows: u32,
    /// The rows are there from an earlier run with the same seed.
    #[arg(long)]
    pub skip_fill: bool,
}

/// `push`
#[derive(Clone, Debug, Parser)]
pub struct PushArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    #[command(flatten)]
    pub shape: ShapeArgs,
}

/// The shape of commits.
#[derive(Clone, Debug, Parser)]
pub struct ShapeArgs {
    /// Operations in a commit.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub operations: u32,
    /// Commits in a request.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub commits: u32,
    /// Write to the first rows of the table only.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub hot_rows: Option<u32>,
    /// How many of 100 operations insert a new row; the others update one.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub inserts: u8,
    /// Which columns an update presents (wire version 3).
    #[arg(long, value_enum, default_value_t = Update::Full)]
    pub update: Update,
}

/// Which columns an update presents.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Update {
    /// All of them.
    Full,
    /// The key and two more.
    Patch,
}

/// `pull-idle` and `idle`
#[derive(Clone, Debug, Parser)]
pub struct PullArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
}

/// `pull-window`
#[derive(Clone, Debug, Parser)]
pub struct WindowArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    /// Commits of one change in the window.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub window: u32,
}

/// `bootstrap`
#[derive(Clone, Debug, Parser)]
pub struct BootstrapArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    /// Rows in a page; 0 leaves it to the server.
    #[arg(long, default_value_t = 0)]
    pub page_rows: i32,
    /// Pages in a response; 0 leaves it to the server.
    #[arg(long, default_value_t = 0)]
    pub pages: i32,
    /// Which deliveries the client takes.
    #[arg(long, value_enum, default_value_t = Lane::Rows)]
    pub lane: Lane,
    /// Push a commit before each bootstrap, so that nothing built for an earlier one fits.
    #[arg(long)]
    pub cold: bool,
}

/// Which deliveries a bootstrapping client takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Lane {
    /// Rows segments, inside of responses and by reference.
    Rows,
    /// Rows segments inside of responses only.
    Inline,
    /// Rows segments by reference only.
    External,
    /// Images where the server has them.
    Image,
}

/// `storm`
#[derive(Clone, Debug, Parser)]
pub struct StormArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    /// Rows in a page; 0 leaves it to the server.
    #[arg(long, default_value_t = 0)]
    pub page_rows: i32,
    /// Pages in a response; 0 leaves it to the server.
    #[arg(long, default_value_t = 0)]
    pub pages: i32,
    /// Which deliveries the new devices take.
    #[arg(long, value_enum, default_value_t = Lane::Image)]
    pub lane: Lane,
    /// Take signed URLs where the server has them.
    #[arg(long)]
    pub signed: bool,
    /// Push a commit before the storm, so that nothing built for an earlier one fits; without
    /// it, one device bootstraps before the others come.
    #[arg(long)]
    pub cold: bool,
    /// Devices that are there already, and push and pull meanwhile in lists of their own: all but
    /// the first list, which is the one that the new devices ask for.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub others: u32,
    /// Rounds per second of those devices together.
    #[arg(long, default_value_t = 50.0)]
    pub others_rate: f64,
}

/// `mixed`
#[derive(Clone, Debug, Parser)]
pub struct MixedArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Weight of rounds that push and pull.
    #[arg(long, default_value_t = 30)]
    pub push: u32,
    /// Weight of rounds that only pull.
    #[arg(long, default_value_t = 69)]
    pub pull: u32,
    /// Weight of whole bootstraps.
    #[arg(long, default_value_t = 1)]
    pub bootstrap: u32,
}

/// Those who listen.
#[derive(Clone, Debug, Parser)]
pub struct ReceiverArgs {
    /// Sockets. Each needs a file descriptor here and in the server; the limits of both are
    /// raised as far as the system lets them, which `ulimit -Hn` shows.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sockets: u32,
    /// Everybody listens to every list, not to one of them.
    #[arg(long)]
    pub every_list: bool,
    /// How long what is under way may take to arrive after the load.
    #[arg(long, default_value = "20s", value_parser = humantime::parse_duration)]
    pub patience: Duration,
}

/// `fan-out`
#[derive(Clone, Debug, Parser)]
pub struct FanOutArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub receivers: ReceiverArgs,
    /// Every delta is acknowledged, as published clients do.
    #[arg(long)]
    pub acknowledge: bool,
}

/// `sockets`
#[derive(Clone, Debug, Parser)]
pub struct SocketArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    #[command(flatten)]
    pub receivers: ReceiverArgs,
}

/// `reconnect`
#[derive(Clone, Debug, Parser)]
pub struct ReconnectArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    #[command(flatten)]
    pub receivers: ReceiverArgs,
    /// A command for `sh -c` that stops the server while all are connected and returns when it
    /// runs again. If it prints a number at the end, that is the new process. Absent: the sockets
    /// are closed from this side.
    #[arg(long, value_name = "COMMAND")]
    pub restart: Option<String>,
    /// A path that is asked for again and again while all come back, and must be answered 200
    /// within a second.
    #[arg(long, value_name = "PATH")]
    pub health: Option<String>,
}

/// `slow-readers`
#[derive(Clone, Debug, Parser)]
pub struct SlowArgs {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(flatten)]
    pub table: TableArgs,
    #[command(flatten)]
    pub fill: FillArgs,
    #[command(flatten)]
    pub shape: ShapeArgs,
    #[command(flatten)]
    pub receivers: ReceiverArgs,
    /// Sockets beside the others that are opened and never read.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub stuck: u32,
}

/// `floor`
#[derive(Clone, Debug, Parser)]
pub struct FloorArgs {
    /// Clients, each with a connection and one request at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub clients: u32,
    /// Time that is measured.
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    pub duration: Duration,
    /// Print one line of JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

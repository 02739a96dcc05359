//! Drives load at any server of the sync protocol, by URL, and checks what it answers.
//!
//! Behind `tidewater load`. It knows the wire and nothing of any server: the same run can be
//! pointed at two of them, so a claim can be a ratio. Figures come with a verdict: acknowledged
//! commits are looked for afterwards, and a server that lost one has no figures.
//!
//! One thread, one light connection per client, because the generator shares the machine with
//! what it measures; the `floor` scenario says what it costs itself.
//!
//! **Invariant:** a run ends by itself, and nothing is sent to an address that is not loopback
//! unless that was asked for (`target`).

mod args;
mod client;
mod descriptors;
mod drive;
mod error;
mod http1;
mod measure;
mod observer;
mod process;
mod report;
mod round;
mod scenario;
mod schedule;
mod setup;
mod socket;
mod stub;
mod table;
mod target;
mod template;
mod verify;
mod workload;

use anyhow::Context;

pub use args::{
    Args, BootstrapArgs, CommonArgs, FanOutArgs, FillArgs, FloorArgs, Lane, MixedArgs, PullArgs,
    PushArgs, ReceiverArgs, ReconnectArgs, Scenario, ShapeArgs, SlowArgs, SocketArgs, StormArgs,
    TableArgs, Update, WindowArgs,
};
pub use measure::OperationKind;
pub use report::{
    Checked, GeneratorReport, LatencyReport, OperationReport, ProcessReport, Report, RunReport,
};
pub use verify::{ProblemKind, Problems};

/// Does what the command line says, on a thread of its own.
///
/// Blocks until the run is over. Progress goes to standard error; what belongs on standard output
/// is the report's `Display`. An error means that the run could not be done at all.
pub fn run(args: Args) -> anyhow::Result<Report> {
    // Its own thread, so that it may be called from inside of a runtime too.
    std::thread::Builder::new()
        .name("load".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("start the runtime")?;
            runtime.block_on(scenario::run(args.scenario))
        })
        .context("start the load thread")?
        .join()
        .map_err(|_| anyhow::anyhow!("the load thread panicked"))?
}

//! The project's own commands: `cargo xtask ci` and `cargo xtask tidy`.
//!
//! What a pull request must pass is one command that runs the same on a laptop and on a build
//! machine. All logic is here, so that the build machine's configuration has none.

mod ci;
mod tidy;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci [STEP]...  everything a change must pass, or some of it:
                tidy, fmt, clippy, test, doc, deny, fuzz
  tidy          facts about the workspace that the compiler does not check
";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["ci", steps @ ..] if ci::are_steps(steps) => ci::run(steps),
        ["tidy"] => tidy::run(),
        _ => {
            say(USAGE);
            Ok(ExitCode::from(2))
        }
    }
}

/// Prints a line for whoever runs the command.
#[expect(clippy::print_stdout, reason = "the report is this program's output")]
fn say(line: impl std::fmt::Display) {
    println!("{line}");
}

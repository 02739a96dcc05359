//! `cargo xtask tidy`: facts about the workspace that the compiler does not check.
//!
//! Each rule returns one sentence per fault, and the same rules run as a test, so nobody has to
//! remember the command.

mod conformance;
mod layers;
mod manifests;
mod sources;

use std::process::ExitCode;

use crate::{say, workspace::Workspace};

/// Checks everything and reports.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let faults = faults()?;
    for fault in &faults {
        say(format_args!("tidy: {fault}"));
    }
    if faults.is_empty() {
        say("tidy: nothing to complain about");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Every fault of every rule.
pub(crate) fn faults() -> anyhow::Result<Vec<String>> {
    let workspace = Workspace::load()?;
    let files = workspace.files()?;
    let mut faults = layers::faults(&workspace)?;
    faults.extend(manifests::faults(&workspace)?);
    faults.extend(conformance::faults(&workspace)?);
    faults.extend(sources::faults(&workspace, &files)?);
    Ok(faults)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        let faults = super::faults().unwrap();
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}

//! What every manifest says, and that the architecture document names every crate.
//!
//! Versions, edition and lints are set once, in the workspace: a crate that sets its own would
//! be checked by other rules than its neighbors.

use crate::workspace::{Package, Workspace};

/// Lines that every manifest has.
const INHERITED: &[&str] = &[
    "version.workspace = true",
    "edition.workspace = true",
    "rust-version.workspace = true",
    "license.workspace = true",
    "publish.workspace = true",
    "[lints]\nworkspace = true",
];

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";

/// Every manifest that goes its own way, every crate that the documents forgot.
pub(super) fn faults(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let architecture = workspace.read(ARCHITECTURE)?;
    let mut faults = Vec::new();
    for package in &workspace.packages {
        let path = format!("{}/Cargo.toml", package.folder);
        faults.extend(manifest_faults(&path, &workspace.read(&path)?));
        faults.extend(name_faults(package, &architecture));
    }
    Ok(faults)
}

fn name_faults(package: &Package, architecture: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let folder = &package.folder;
    let name = folder.strip_prefix("crates/").unwrap_or(folder);
    let expected = match folder.strip_prefix("crates/") {
        Some(name) => format!("tidewater-{name}"),
        None => name.to_owned(),
    };
    if package.name != expected {
        faults.push(format!(
            "{folder}: the package is called {}, not {expected}",
            package.name
        ));
    }
    if !architecture.contains(&format!("`{name}`")) {
        faults.push(format!("{ARCHITECTURE} does not name `{name}`"));
    }
    faults
}

fn manifest_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults: Vec<String> = INHERITED
        .iter()
        .filter(|line| !text.contains(*line))
        .map(|line| format!("{path}: `{}` is missing", line.replace('\n', " ")))
        .collect();
    let mut in_dependencies = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') && line.ends_with(']') {
            in_dependencies = line.trim_end_matches(']').ends_with("dependencies");
            continue;
        }
        // A crate names itself by path to test with its own features on.
        let has_one_version = line.contains("workspace = true") || line.contains("path = \".\"");
        if in_dependencies && is_entry(line) && !has_one_version {
            faults.push(format!(
                "{path}: take `{}` from the workspace, so that it has one version",
                line.split(['=', '.', ' ']).next().unwrap_or_default()
            ));
        }
    }
    faults
}

/// Whether a line begins a dependency, and not a comment or the rest of one.
fn is_entry(line: &str) -> bool {
    line.contains('=') && line.starts_with(|first: char| first.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "\
[package]
name = \"tidewater-wire\"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
publish.workspace = true

[dependencies]
# A comment with = in it.
bytes.workspace = true
tokio = { workspace = true, features = [
  \"rt\",
] }

[dev-dependencies]
tidewater-wire = { path = \".\", features = [\"memory\"] }

[lints]
workspace = true
";

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(manifest_faults("Cargo.toml", text), expected);
    }

    #[test]
    fn a_manifest_inherits_what_the_workspace_sets() {
        check(MANIFEST, &[]);
        check(
            &MANIFEST.replace("edition.workspace = true", "edition = \"2021\""),
            &["Cargo.toml: `edition.workspace = true` is missing"],
        );
        check(
            &MANIFEST.replace("[lints]\nworkspace = true\n", ""),
            &["Cargo.toml: `[lints] workspace = true` is missing"],
        );
    }

    #[test]
    fn a_dependency_has_its_version_in_the_workspace() {
        let sentence = "Cargo.toml: take `bytes` from the workspace, so that it has one version";
        for other in ["bytes = \"1\"", "bytes = { version = \"1\" }"] {
            check(
                &MANIFEST.replace("bytes.workspace = true", other),
                &[sentence],
            );
        }
    }

    #[track_caller]
    fn check_name(name: &str, folder: &str, expected: &[&str]) {
        let package = Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: Vec::new(),
        };
        assert_eq!(name_faults(&package, "`wire`, `xtask`"), expected);
    }

    #[test]
    fn a_crate_is_called_like_its_folder_and_documented() {
        check_name("tidewater-wire", "crates/wire", &[]);
        check_name("xtask", "xtask", &[]);
        check_name(
            "wire",
            "crates/wire",
            &["crates/wire: the package is called wire, not tidewater-wire"],
        );
        check_name(
            "tidewater-sim",
            "crates/sim",
            &["docs/ARCHITECTURE.md does not name `sim`"],
        );
    }
}

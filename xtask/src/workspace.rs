//! The workspace as cargo and git know it: packages, their dependencies, files.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The packages of the workspace.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One package and what its manifest asks for.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Relative to the root.
    pub(crate) folder: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a manifest's dependencies.
#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// For tests and benchmarks only.
    pub(crate) dev: bool,
    pub(crate) features: Vec<String>,
}

/// The folder of the workspace's manifest.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_owned()
}

/// Cargo, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root());
    command
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn load() -> anyhow::Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--no-deps", "--format-version", "1"]);
        let metadata: Value = serde_json::from_str(&output(&mut command)?)?;
        let root = root();
        let packages = metadata["packages"].as_array().context("no packages")?;
        Ok(Self {
            packages: packages
                .iter()
                .map(|package| package_of(package, &root))
                .collect::<anyhow::Result<_>>()?,
            root,
        })
    }

    /// Reads a file by its path from the root.
    pub(crate) fn read(&self, path: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.root.join(path)).with_context(|| format!("read {path}"))
    }

    /// Every file that is or would be committed, by its path from the root.
    pub(crate) fn files(&self) -> anyhow::Result<Vec<String>> {
        if !self.root.join(".git").exists() {
            // An archive of the sources has nothing else in it, once cargo's folder is left out.
            let mut files = Vec::new();
            walk(&self.root, "", &mut files)?;
            return Ok(files);
        }
        let mut command = Command::new("git");
        command.current_dir(&self.root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let listing = output(&mut command)?;
        Ok(listing
            .split('\0')
            .filter(|path| !path.is_empty() && self.root.join(path).is_file())
            .map(str::to_owned)
            .collect())
    }

    /// Everything that `package` is built from, itself included, without what tests need.
    pub(crate) fn built_from(&self, package: &str) -> anyhow::Result<Vec<String>> {
        let mut command = cargo();
        command
            .args(["tree", "--edges", "normal", "--prefix", "none"])
            .args(["--format", "{p}", "--package", package]);
        let listing = output(&mut command)?;
        Ok(listing
            .lines()
            .filter_map(|line| line.split(' ').next())
            .map(str::to_owned)
            .collect())
    }
}

fn walk(root: &Path, folder: &str, files: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().display().to_string();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
        };
        let kind = entry.file_type()?;
        if kind.is_dir() && name != "target" {
            walk(root, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn package_of(package: &Value, root: &Path) -> anyhow::Result<Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned).context("not a string");
    let manifest = PathBuf::from(text(&package["manifest_path"])?);
    let folder = manifest.parent().context("a manifest without a folder")?;
    let folder = folder.strip_prefix(root)?.display().to_string();
    let dependencies = package["dependencies"]
        .as_array()
        .context("no dependencies")?
        .iter()
        .map(|dependency| {
            let features = dependency["features"].as_array().context("no features")?;
            Ok(Dependency {
                name: text(&dependency["name"])?,
                dev: dependency["kind"] == "dev",
                features: features.iter().map(text).collect::<anyhow::Result<_>>()?,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(Package {
        name: text(&package["name"])?,
        folder,
        dependencies,
    })
}

/// What a command prints, or why it failed.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}",
            command.get_program().display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

//! Where PostgreSQL's programs are, and as whom they are run.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const PROGRAMS: [&str; 4] = ["initdb", "postgres", "pg_ctl", "psql"];

/// Folders that hold one folder per installed version.
const INSTALLATIONS: [(&str, &str); 4] = [
    ("/usr/lib/postgresql", "bin"),
    ("/usr/lib64/postgresql", "bin"),
    ("/opt/homebrew/opt", "bin"),
    ("/usr/local/opt", "bin"),
];

/// The folder with all of the programs.
pub(crate) fn find() -> Result<PathBuf, String> {
    candidates()
        .into_iter()
        .find(|folder| PROGRAMS.iter().all(|name| folder.join(name).is_file()))
        .ok_or_else(|| {
            "these tests need PostgreSQL, and its programs (initdb, postgres, pg_ctl, psql) are \
             neither in the PATH, nor where pg_config says, nor in /usr/lib/postgresql: install \
             the package `postgresql` (apt-get install postgresql)"
                .to_owned()
        })
}

fn candidates() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    for folder in env::split_paths(&path) {
        // What stands in the PATH may be a link to where all of them are.
        let target = fs::canonicalize(folder.join("postgres"));
        if let Some(target) = target.ok().as_deref().and_then(Path::parent) {
            found.push(target.to_owned());
        }
        found.push(folder);
    }
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        found.push(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    for (parent, below) in INSTALLATIONS {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let mut versions: Vec<PathBuf> = entries.map(|entry| entry.path().join(below)).collect();
        versions.sort();
        found.extend(versions.into_iter().rev());
    }
    found
}

/// The user and group to become; `None` for one who is not root: PostgreSQL refuses to be.
pub(crate) fn unprivileged_user() -> Result<Option<(u32, u32)>, String> {
    let user = Command::new("id").arg("-u").output();
    let user = user.map_err(|error| format!("`id -u` cannot be run: {error}"))?;
    if String::from_utf8_lossy(&user.stdout).trim() != "0" {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let find = |wanted: &str| {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let is_wanted = fields.next() == Some(wanted);
            let user = fields.nth(1)?.parse().ok()?;
            let group = fields.next()?.parse().ok()?;
            is_wanted.then_some((user, group))
        })
    };
    find("postgres")
        .or_else(|| find("nobody"))
        .map(Some)
        .ok_or_else(|| {
            "PostgreSQL does not run as root, and there is neither a user `postgres` nor one \
             `nobody` to run it as"
                .to_owned()
        })
}

//! Which crate may depend on which: the arrows of `docs/ARCHITECTURE.md`.
//!
//! A line here is an architecture decision. The inner crates (`model`, `wire`, `schema`) must
//! not even be able to do I/O, so what they are built from is checked to the last dependency.

use crate::workspace::{Package, Workspace};

/// Which of our crates each crate may depend on. Crates that do not exist yet have their place.
const LAYERS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("wire", &["model"]),
    ("schema", &["wire", "model"]),
    ("store", &["schema", "wire", "model"]),
    ("store-sqlite", &["store", "schema", "wire", "model"]),
    ("store-postgres", &["store", "schema", "wire", "model"]),
    ("signals-nats", &["store", "model"]),
    ("objects", &["wire", "model"]),
    ("objects-sqlite", &["objects", "wire", "model"]),
    ("image", &["schema", "wire", "model"]),
    (
        "engine",
        &["store", "objects", "image", "schema", "wire", "model"],
    ),
    ("rules", &["engine", "store", "schema", "wire", "model"]),
    (
        "server",
        &["engine", "store", "objects", "schema", "wire", "model"],
    ),
    (
        "cli",
        &[
            "server",
            "loadgen",
            "rules",
            "engine",
            "store-sqlite",
            "store-postgres",
            "signals-nats",
            "store",
            "objects-sqlite",
            "objects",
            "schema",
            "wire",
            "model",
        ],
    ),
    ("loadgen", &["wire", "model"]),
    (
        "sim",
        &["engine", "store", "objects", "schema", "wire", "model"],
    ),
    (
        "testkit",
        &[
            "server",
            "engine",
            "store-sqlite",
            "store-postgres",
            "signals-nats",
            "pgtest",
            "store",
            "objects-sqlite",
            "objects",
            "schema",
            "wire",
            "model",
        ],
    ),
    ("pgtest", &[]),
    ("xtask", &[]),
];

/// What tests may use on top, in any crate.
const FOR_TESTS: &[&str] = &["testkit", "pgtest"];

/// Crates that do no I/O, whatever they are built from.
const PURE: &[&str] = &["model", "wire", "schema"];

/// What a crate would need to do I/O, to read a clock or to be random.
const IO: &[&str] = &[
    "async-std",
    "chrono",
    "getrandom",
    "hyper",
    "mio",
    "object_store",
    "rand",
    "reqwest",
    "rusqlite",
    "smol",
    "socket2",
    "tempfile",
    "time",
    "tokio",
    "tokio-postgres",
    "tracing",
    "ureq",
];

/// What a crate must not name in its manifest.
const UNKNOWN_TO: &[(&str, &[&str])] = &[
    (
        "store",
        &["axum", "http", "hyper", "rusqlite", "tokio-postgres"],
    ),
    (
        "objects",
        &["axum", "hyper", "rusqlite", "tokio-postgres", "tracing"],
    ),
    (
        "engine",
        &[
            "axum",
            "http",
            "hyper",
            "object_store",
            "reqwest",
            "rusqlite",
            "tokio-postgres",
        ],
    ),
    (
        "rules",
        &[
            "axum",
            "http",
            "hyper",
            "rusqlite",
            "tokio",
            "tokio-postgres",
        ],
    ),
    ("server", &["rusqlite", "tokio-postgres"]),
    ("loadgen", &["rusqlite", "tokio-postgres"]),
];

/// The engine runs its write lanes and its maintenance as tasks and waits with timers. It must
/// not open sockets or files.
const ENGINE_TOKIO_FEATURES: &[&str] = &["macros", "rt", "sync", "time"];

const PREFIX: &str = "tidewater-";

/// Every arrow that points the wrong way.
pub(super) fn faults(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let mut faults: Vec<String> = workspace.packages.iter().flat_map(arrow_faults).collect();
    for package in &workspace.packages {
        let name = short(&package.name);
        if PURE.contains(&name) {
            let built_from = workspace.built_from(&package.name)?;
            faults.extend(purity_faults(name, &built_from));
        }
    }
    Ok(faults)
}

/// A crate's name without the project's.
fn short(package: &str) -> &str {
    package.strip_prefix(PREFIX).unwrap_or(package)
}

fn arrow_faults(package: &Package) -> Vec<String> {
    let name = short(&package.name);
    let Some((_, allowed)) = LAYERS.iter().find(|(listed, _)| *listed == name) else {
        return vec![format!(
            "{name} has no layer: give it one in xtask/src/tidy/layers.rs and docs/ARCHITECTURE.md"
        )];
    };
    let mut faults = Vec::new();
    for dependency in &package.dependencies {
        if let Some(ours) = dependency.name.strip_prefix(PREFIX) {
            let for_tests = dependency.dev && (FOR_TESTS.contains(&ours) || ours == name);
            if !allowed.contains(&ours) && !for_tests {
                faults.push(format!("{name} must not depend on {ours}"));
            }
            continue;
        }
        let banned = UNKNOWN_TO
            .iter()
            .any(|(crate_, banned)| *crate_ == name && banned.contains(&&*dependency.name));
        if banned && !dependency.dev {
            faults.push(format!("{name} must not know {}", dependency.name));
        }
        if name == "engine" && dependency.name == "tokio" && !dependency.dev {
            faults.extend(tokio_faults(&dependency.features));
        }
    }
    faults
}

fn tokio_faults(features: &[String]) -> Vec<String> {
    features
        .iter()
        .filter(|feature| !ENGINE_TOKIO_FEATURES.contains(&feature.as_str()))
        .map(|feature| {
            format!(
                "engine must not use tokio's `{feature}`: it has {} only",
                ENGINE_TOKIO_FEATURES.join(", ")
            )
        })
        .collect()
}

fn purity_faults(name: &str, built_from: &[String]) -> Vec<String> {
    let mut faults: Vec<String> = built_from
        .iter()
        .filter(|dependency| IO.contains(&dependency.as_str()))
        .map(|dependency| format!("{name} does no I/O but is built from {dependency}"))
        .collect();
    if name == "model" && built_from.len() > 1 {
        faults.push("model depends on nothing but the standard library".to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    #[track_caller]
    fn check(name: &str, dependencies: &[(&str, bool, &[&str])], expected: &[&str]) {
        let package = Package {
            name: name.to_owned(),
            folder: String::new(),
            dependencies: dependencies
                .iter()
                .map(|(name, dev, features)| Dependency {
                    name: (*name).to_owned(),
                    dev: *dev,
                    features: features.iter().map(|&text| text.to_owned()).collect(),
                })
                .collect(),
        };
        assert_eq!(arrow_faults(&package), expected);
    }

    #[test]
    fn an_arrow_points_inwards_and_tests_may_use_the_testkit() {
        check("tidewater-engine", &[("tidewater-store", false, &[])], &[]);
        check(
            "tidewater-store",
            &[("tidewater-engine", false, &[])],
            &["store must not depend on engine"],
        );
        check("tidewater-store", &[("tidewater-testkit", true, &[])], &[]);
        check(
            "tidewater-store",
            &[("tidewater-testkit", false, &[])],
            &["store must not depend on testkit"],
        );
        check(
            "tidewater-server",
            &[("tidewater-store-sqlite", true, &[])],
            &["server must not depend on store-sqlite"],
        );
        check("xtask", &[("anyhow", false, &[])], &[]);
    }

    #[test]
    fn a_crate_without_a_layer_is_a_fault() {
        let sentence = "common has no layer: give it one in xtask/src/tidy/layers.rs and \
                        docs/ARCHITECTURE.md";
        check("tidewater-common", &[], &[sentence]);
    }

    #[test]
    fn the_engine_knows_neither_http_nor_sql_nor_sockets() {
        check(
            "tidewater-engine",
            &[("http", false, &[]), ("rusqlite", true, &[])],
            &["engine must not know http"],
        );
        check(
            "tidewater-engine",
            &[
                ("tokio", false, &["rt", "sync", "time", "net"]),
                ("tokio", true, &["test-util", "macros"]),
            ],
            &["engine must not use tokio's `net`: it has macros, rt, sync, time only"],
        );
    }

    #[track_caller]
    fn check_pure(name: &str, built_from: &[&str], expected: &[&str]) {
        let built_from: Vec<String> = built_from.iter().map(|&text| text.to_owned()).collect();
        assert_eq!(purity_faults(name, &built_from), expected);
    }

    #[test]
    fn the_inner_crates_cannot_do_io() {
        check_pure("wire", &["tidewater-wire", "bytes", "sha2"], &[]);
        check_pure(
            "wire",
            &["tidewater-wire", "bytes", "tokio"],
            &["wire does no I/O but is built from tokio"],
        );
        check_pure("model", &["tidewater-model"], &[]);
        check_pure(
            "model",
            &["tidewater-model", "serde"],
            &["model depends on nothing but the standard library"],
        );
    }
}

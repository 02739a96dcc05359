//! Environment variables over the configuration file.
//!
//! `TIDEWATER_SERVER__LISTEN=0.0.0.0:8787` sets `listen` of `[server]`: the prefix, then the keys
//! in capitals with two underscores between them. A value is TOML where it can be and text where
//! it cannot. A variable that names no key is refused like an unknown key of the file.

use anyhow::anyhow;
use toml::{Table, Value};

use super::Config;

const PREFIX: &str = "TIDEWATER_";
/// Names the configuration file, on the command line's behalf.
const FILE_VARIABLE: &str = "TIDEWATER_CONFIG";

/// The variables that mean us, in order of their names.
pub(super) fn environment() -> Vec<(String, String)> {
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let ours = name.starts_with(PREFIX) && name != FILE_VARIABLE;
        ours.then(|| (name, value.to_string_lossy().into_owned()))
    });
    let mut variables: Vec<_> = variables.collect();
    variables.sort();
    variables
}

/// Sets each variable, checking the document after each, so that an error names its variable.
pub(super) fn apply(mut table: Table, variables: Vec<(String, String)>) -> anyhow::Result<Config> {
    for (name, text) in variables {
        let keys = name.trim_start_matches(PREFIX).to_ascii_lowercase();
        let keys: Vec<&str> = keys.split("__").collect();
        table = set(&table, &keys, &text)
            .map_err(|error| anyhow!("environment variable {name}: {error}"))?;
    }
    table
        .try_into()
        .map_err(|error: toml::de::Error| anyhow!("{}", error.message()))
}

/// The document with one key set, if it is still one.
fn set(table: &Table, keys: &[&str], text: &str) -> Result<Table, String> {
    let typed = toml::from_str::<Table>(&format!("value = {text}"))
        .ok()
        // More than one key means that the text was not a value.
        .filter(|parsed| parsed.len() == 1)
        .and_then(|mut parsed| parsed.remove("value"));
    let mut first_error = None;
    for value in typed.into_iter().chain([Value::String(text.to_owned())]) {
        let mut candidate = table.clone();
        insert(&mut candidate, keys, value)?;
        match candidate.clone().try_into::<Config>() {
            Ok(_) => return Ok(candidate),
            Err(error) => {
                first_error.get_or_insert_with(|| error.message().to_owned());
            }
        }
    }
    Err(first_error.unwrap_or_default())
}

fn insert(table: &mut Table, keys: &[&str], value: Value) -> Result<(), String> {
    let [key, rest @ ..] = keys else {
        return Err("names no key".to_owned());
    };
    if rest.is_empty() {
        table.insert((*key).to_owned(), value);
        return Ok(());
    }
    let inner = table
        .entry(*key)
        .or_insert_with(|| Value::Table(Table::new()));
    match inner {
        Value::Table(inner) => insert(inner, rest, value),
        _ => Err(format!("{key} is not a section")),
    }
}

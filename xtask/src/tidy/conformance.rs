//! That every test which `docs/conformance.md` names is in the file it names.
//!
//! A table of short names begins the document (``| short | `file` |``). A cell of the others names
//! tests as ``short: `test_name` ``; a list in one cell is split by `<br>`.

use std::collections::BTreeMap;

use crate::workspace::Workspace;

const DOCUMENT: &str = "docs/conformance.md";

/// Every test that is named and not there.
pub(super) fn faults(workspace: &Workspace) -> anyhow::Result<Vec<String>> {
    let text = workspace.read(DOCUMENT)?;
    let mut sources = BTreeMap::new();
    let mut faults = Vec::new();
    for (short, path) in files(&text) {
        match workspace.read(path) {
            Ok(source) => drop(sources.insert(short, (path, source))),
            Err(_) => faults.push(format!("{DOCUMENT}: there is no {path}")),
        }
    }
    for claim in claims(&text) {
        let Some((path, source)) = sources.get(claim.short) else {
            let Claim { line, short, .. } = claim;
            faults.push(format!("{DOCUMENT}:{line}: no file is called {short:?}"));
            continue;
        };
        if !source.contains(&format!("fn {}(", claim.test)) {
            let Claim { line, test, .. } = claim;
            faults.push(format!("{DOCUMENT}:{line}: {path} has no test {test}"));
        }
    }
    Ok(faults)
}

/// A test that the document names.
#[derive(Debug, Eq, PartialEq)]
struct Claim<'a> {
    /// From 1.
    line: usize,
    short: &'a str,
    test: &'a str,
}

/// The table of short names.
fn files(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (short, path) = (cells.next()?, cells.next()?);
        let path = path.strip_prefix('`')?.strip_suffix('`')?;
        (cells.next().is_none() && path.ends_with(".rs")).then_some((short, path))
    })
}

fn claims(text: &str) -> Vec<Claim<'_>> {
    let mut claims = Vec::new();
    for (at, row) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with('|'))
    {
        for piece in row.split('|').flat_map(|cell| cell.split("<br>")) {
            let Some((short, rest)) = piece.trim().split_once(": `") else {
                continue;
            };
            // What is said before in prose is not a name of a file.
            if short.contains(' ') || short.contains('`') {
                continue;
            }
            let quoted = std::iter::once(rest.split('`').next().unwrap_or_default())
                .chain(rest.split('`').skip(1).skip(1).step_by(2));
            let tests = quoted.filter(|test| is_test_name(test));
            claims.extend(tests.map(|test| Claim {
                line: at + 1,
                short,
                test,
            }));
        }
    }
    claims
}

/// Names of tests are sentences; names of columns are not.
fn is_test_name(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    text.bytes().all(is_word) && text.bytes().filter(|byte| *byte == b'_').count() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_in_cells_and_lists_and_not_in_prose() {
        let text = "words: `not_a_test_here`\n\
            | push | `a/push.rs` |\n\
            | 1 | Takes `a_b_c`, see: `no_test_of_ours` | push: `one_two_three`, `four_five_six`<br>\
            log: `seven_eight_nine` (with `row_id`) | 3 |\n";
        assert_eq!(files(text).collect::<Vec<_>>(), [("push", "a/push.rs")]);
        let found: Vec<_> = claims(text)
            .into_iter()
            .map(|claim| (claim.line, claim.short, claim.test))
            .collect();
        assert_eq!(
            found,
            [
                (3, "push", "one_two_three"),
                (3, "push", "four_five_six"),
                (3, "log", "seven_eight_nine"),
            ]
        );
    }
}

//! What every source file looks like, and what no committed file contains.
//!
//! Tests are not counted in a file's length and may read files; they are files and folders
//! called `tests` and the `mod tests` at the end of a file.

use crate::workspace::Workspace;

/// Lines of code a file may have before it is two files.
const LINES_MAX: usize = 800;

/// Files that were longer when the rule was made, with their length then. Only remove or lower.
const LONG_FILES: &[(&str, usize)] = &[];

/// Lines a module doc may have before it is a document.
const DOC_LINES_MAX: usize = 20;

/// Marks of unfinished work. Written in two pieces, or this file would be a fault.
const UNFINISHED: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("#[ig", "nore"),
];

/// Folders of a machine on which nobody else works.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// What code without I/O does not call.
const IMPURE_CALLS: &[&str] = &[
    "std::env::",
    "std::fs",
    "std::io::std",
    "std::net",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
];

/// Where code does no I/O.
const PURE_FOLDERS: &[&str] = &[
    "crates/model/src/",
    "crates/wire/src/",
    "crates/schema/src/",
];

/// Every fault of every file.
pub(super) fn faults(workspace: &Workspace, files: &[String]) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in files {
        let bytes = std::fs::read(workspace.root.join(path))?;
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        faults.extend(text_faults(path, &text));
        if path.ends_with(".rs") && (path.starts_with("crates/") || path.starts_with("xtask/")) {
            faults.extend(source_faults(path, &text));
        }
    }
    Ok(faults)
}

fn text_faults(path: &str, text: &str) -> Vec<String> {
    MACHINE_PATHS
        .iter()
        .filter(|folder| names_folder(text, folder))
        .map(|folder| format!("{path}: {folder} exists on one machine only"))
        .collect()
}

/// Whether `folder` stands in the text as the beginning of an absolute path.
fn names_folder(text: &str, folder: &str) -> bool {
    text.match_indices(folder).any(|(at, _)| {
        !text[..at]
            .chars()
            .next_back()
            .is_some_and(|before| before.is_alphanumeric() || "._-}/~".contains(before))
    })
}

fn source_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//! ") {
        faults.push(format!("{path}: begin with a `//!` module doc"));
    }
    let doc_lines = text.lines().take_while(|line| line.starts_with("//!"));
    if doc_lines.count() > DOC_LINES_MAX {
        faults.push(format!(
            "{path}: the module doc has more than {DOC_LINES_MAX} lines"
        ));
    }
    for mark in UNFINISHED.iter().filter(|mark| text.contains(*mark)) {
        faults.push(format!(
            "{path}: finish it, `{mark}` is not a state to keep"
        ));
    }
    if is_test(path) {
        return faults;
    }
    let code = without_tests(text);
    faults.extend(length_fault(path, code.lines().count(), LONG_FILES));
    if PURE_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        for call in IMPURE_CALLS.iter().filter(|call| code.contains(*call)) {
            faults.push(format!("{path}: no I/O and no clock here, but `{call}`"));
        }
    }
    faults
}

fn length_fault(path: &str, lines: usize, long_files: &[(&str, usize)]) -> Option<String> {
    let listed = long_files.iter().find(|(listed, _)| *listed == path);
    let allowed = listed.map_or(LINES_MAX, |(_, lines)| *lines);
    if lines > allowed {
        return Some(format!(
            "{path}: {lines} lines, {allowed} allowed: split it"
        ));
    }
    if listed.is_some() && lines < allowed {
        return Some(format!(
            "{path}: {lines} lines now: lower its number in the list of long files, or remove it"
        ));
    }
    None
}

fn is_test(path: &str) -> bool {
    path.split('/')
        .any(|part| matches!(part, "tests" | "tests.rs" | "benches"))
}

/// The text before the `mod tests` that ends a file.
fn without_tests(text: &str) -> &str {
    let end = text
        .match_indices("\n#[cfg(test)]\nmod ")
        .find(|(at, mark)| {
            let rest = &text[at + mark.len()..];
            rest.lines().next().is_some_and(|line| line.ends_with('{'))
        })
        .map_or(text.len(), |(at, _)| at);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(source_faults(path, text), expected);
    }

    #[test]
    fn a_file_begins_with_a_short_module_doc() {
        check("crates/x/src/a.rs", "//! Doc.\n", &[]);
        check(
            "crates/x/src/a.rs",
            "mod a;\n",
            &["crates/x/src/a.rs: begin with a `//!` module doc"],
        );
        check(
            "crates/x/src/a.rs",
            &"//! Line.\n".repeat(21),
            &["crates/x/src/a.rs: the module doc has more than 20 lines"],
        );
    }

    #[test]
    fn unfinished_work_is_found_in_tests_too() {
        for mark in UNFINISHED {
            let sentence = format!("a/tests.rs: finish it, `{mark}` is not a state to keep");
            check("a/tests.rs", &format!("//! D.\n{mark}"), &[&sentence]);
        }
    }

    #[test]
    fn a_file_is_as_long_as_its_code() {
        let code = format!("//! Doc.\n{}", "x\n".repeat(799));
        let tests = format!("\n#[cfg(test)]\nmod tests {{\n{}}}\n", "x\n".repeat(99));
        check("crates/x/src/a.rs", &format!("{code}{tests}"), &[]);
        check(
            "crates/x/src/a.rs",
            &format!("{code}x\n{tests}"),
            &["crates/x/src/a.rs: 801 lines, 800 allowed: split it"],
        );
        check("crates/x/src/a/tests.rs", &format!("{code}x\n"), &[]);
        // A declaration of a module in another file ends nothing.
        let declared = format!(
            "//! Doc.\n\n#[cfg(test)]\nmod tests;\n{}",
            "x\n".repeat(799)
        );
        check(
            "crates/x/src/a.rs",
            &declared,
            &["crates/x/src/a.rs: 803 lines, 800 allowed: split it"],
        );
    }

    #[test]
    fn the_list_of_long_files_only_shrinks() {
        let listed = [("a.rs", 900)];
        assert_eq!(length_fault("a.rs", 900, &listed), None);
        assert_eq!(length_fault("b.rs", 800, &listed), None);
        let longer = length_fault("a.rs", 901, &listed).unwrap();
        assert_eq!(longer, "a.rs: 901 lines, 900 allowed: split it");
        let shorter = length_fault("a.rs", 899, &listed).unwrap();
        assert!(shorter.contains("lower its number"), "{shorter}");
    }

    #[test]
    fn the_inner_crates_call_nothing_impure() {
        let text = "//! D.\nlet now = SystemTime::now();\n";
        let sentence = "crates/wire/src/a.rs: no I/O and no clock here, but `SystemTime::now`";
        check("crates/wire/src/a.rs", text, &[sentence]);
        check("crates/store/src/a.rs", text, &[]);
        check("crates/wire/src/a/tests.rs", text, &[]);
        let tests = "//! D.\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        check("crates/wire/src/a.rs", tests, &[]);
    }

    #[test]
    fn no_file_names_a_folder_of_one_machine() {
        for folder in MACHINE_PATHS {
            let sentence = format!("a.md: {folder} exists on one machine only");
            assert_eq!(text_faults("a.md", &format!("see {folder}x")), [sentence]);
            let relative = format!("https://example.org/a{folder}b, ${{X}}{folder}c, .{folder}d");
            assert_eq!(text_faults("a.md", &relative), Vec::<String>::new());
        }
    }
}

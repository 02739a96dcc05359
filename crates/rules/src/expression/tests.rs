//! What expressions see and say, what does not compile, and that nothing runs for long.

use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tidewater_testkit::rows::full_row;

use super::*;
use crate::testing::schema;

fn everything() -> Json {
    json!({
        "id": "e1",
        "text": "hello",
        "whole": 42,
        "real": 1.5,
        "flag": true,
        "doc": "{\"tags\":[\"a\",\"b\"],\"n\":1,\"big\":18446744073709551615,\"deep\":{\"x\":[null]}}",
        "raw": {"$bytes": "00ff"},
        "file": format!("{{\"blobId\":\"sha256:{}\",\"byteLength\":9}}", "0".repeat(64)),
        "body": {"$bytes": "0000"},
        "pin": {"$bytes": "01"},
    })
}

/// One write of `everything`.
struct Write {
    row: Option<Json>,
    stored: Option<Json>,
}

impl Write {
    fn judge(&self, source: &str, steps: u64) -> Result<bool, EvaluationError> {
        let schema = schema();
        let table = schema.table(schema.find("everything").unwrap());
        let encode = |row: &Option<Json>| row.as_ref().map(|row| full_row(table, row).unwrap());
        let (row, stored) = (encode(&self.row), encode(&self.stored));
        let expression = match Expression::compile(source, table) {
            Ok(expression) => expression,
            Err(error) => panic!("{source}: {error}"),
        };
        let inputs = Inputs {
            op: if row.is_some() {
                tidewater_model::Op::Upsert
            } else {
                tidewater_model::Op::Delete
            },
            table,
            actor: "ada",
            partition: "acme",
            row: row.as_deref(),
            stored: stored.as_deref(),
        };
        expression.holds(&inputs, steps)
    }
}

fn insert(row: Json) -> Write {
    Write {
        row: Some(row),
        stored: None,
    }
}

#[track_caller]
fn check(source: &str, expected: bool) {
    let verdict = insert(everything()).judge(source, STEPS_DEFAULT);
    assert_eq!(verdict, Ok(expected), "{source}");
}

#[track_caller]
fn check_fails(source: &str, because: &str) {
    match insert(everything()).judge(source, STEPS_DEFAULT) {
        Ok(verdict) => panic!("{source} is {verdict}"),
        Err(error) => assert!(error.to_string().contains(because), "{source}: {error}"),
    }
}

#[track_caller]
fn check_refused(source: &str, because: &str) {
    let schema = schema();
    let table = schema.table(schema.find("everything").unwrap());
    match Expression::compile(source, table) {
        Ok(_) => panic!("{source} compiles"),
        Err(error) => assert!(error.contains(because), "{source}: {error}"),
    }
}

#[test]
fn columns_have_the_types_of_cel() {
    check(
        "row.id == 'e1' && row.text.startsWith('he') && size(row.text) == 5",
        true,
    );
    check(
        "row.whole == 42 && row.whole + 1 == 43 && type(row.whole) == int",
        true,
    );
    check(
        "row.real == 1.5 && type(row.real) == double && row.real < row.whole",
        true,
    );
    check("row.flag && type(row.flag) == bool", true);
    check(
        "row.raw == b'\\x00\\xff' && size(row.raw) == 2 && size(row.body) == 2",
        true,
    );
    check(
        "row.doc.tags == ['a', 'b'] && row.doc.n == 1 && 'n' in row.doc",
        true,
    );
    check(
        "row.doc.big == 18446744073709551615u && row.doc.deep.x[0] == null",
        true,
    );
    check(
        "row.file.byteLength == 9 && row.file.blobId.startsWith('sha256:')",
        true,
    );
    check("row['text'] == 'hello' && row.doc['n'] < 1.5", true);
    check(
        "op == 'upsert' && actor == 'ada' && partition == 'acme'",
        true,
    );
    check("row.text == 'other'", false);
}

#[test]
fn null_is_a_value_and_no_row_is_null() {
    let mut row = everything();
    row["text"] = Json::Null;
    row["doc"] = Json::Null;
    let judge = |source: &str| insert(row.clone()).judge(source, STEPS_DEFAULT);
    assert_eq!(
        judge("row.text == null && row.doc == null && has(row.text)"),
        Ok(true)
    );
    assert_eq!(judge("row.text == null || size(row.text) > 9"), Ok(true));
    assert!(judge("size(row.text) < 9").is_err());
    check("stored == null && row != null", true);
    check("stored == null || stored.flag == row.flag", true);
    check_fails("stored.flag == row.flag", "no matching overload");
    let delete = Write {
        row: None,
        stored: Some(everything()),
    };
    assert_eq!(
        delete.judge("op == 'delete' && row == null", STEPS_DEFAULT),
        Ok(true)
    );
    assert_eq!(
        delete.judge("op != 'delete' || !stored.flag", STEPS_DEFAULT),
        Ok(false)
    );
}

#[test]
fn loops_and_patterns_work_as_in_cel() {
    check(
        "row.doc.tags.all(t, size(t) == 1) && !row.doc.tags.exists(t, t == 'c')",
        true,
    );
    check("row.doc.tags.exists_one(t, t == 'a')", true);
    check("row.doc.tags.map(t, t + t) == ['aa', 'bb']", true);
    check("row.doc.tags.filter(t, t != 'a') == ['b']", true);
    check("row.doc.tags.map(t, t != 'a', t + '!') == ['b!']", true);
    check("[1, 2].all(x, [3, 4].exists(y, y > x))", true);
    check("['x', 1].exists(v, v == 1)", true);
    check("[0, 2].exists(v, 4 / v == 2)", true);
    check("row.doc.deep.all(key, key == 'x')", true);
    check(
        "row.text.matches('^h.*o$') && !matches(row.text, '^x')",
        true,
    );
    check("'Ärger'.matches(r'^\\p{L}+$')", true);
    check("has(row.doc.n) && !has(row.doc.m)", true);
    check("row.whole > 40 ? row.flag : false", true);
    check(
        "{'a': row.whole}['a'] == 42 && int('7') == 7 && string(7) == '7'",
        true,
    );
    check(
        "row.exists(column, column == 'text') && !('pin' in row)",
        true,
    );
}

#[test]
fn what_cannot_be_evaluated_is_a_failure_that_tells_nothing_of_the_row() {
    check_fails("row.whole / 0 == 1", "a division by zero");
    check_fails("row.whole % 0 == 1", "a division by zero");
    check_fails(
        "9223372036854775807 + row.whole > 0",
        "a number grew too large",
    );
    check_fails("(0 - 9223372036854775807 - 1) / (row.whole - 43) > 0", "");
    check_fails("-(0 - 9223372036854775807 - 1) > row.whole", "");
    check_fails("(0 - 9223372036854775807 - 1) % (row.whole - 43) > 0", "");
    check_fails("int(1.0e300 * row.real) > 0", "");
    check_fails("row.doc.missing == 1", "does not have the key");
    check_fails("row.doc[row.text] == 1", "does not have the key");
    check_fails("row.doc.tags[7] == 'a'", "shorter than the index");
    check_fails(
        "row.doc.tags[0 - row.whole] == 'a'",
        "shorter than the index",
    );
    check_fails("row.doc.tags[row.real] == 'a'", "`[]` failed");
    check_fails("row.text < row.whole", "no matching overload");
    check_fails("row.text + row.whole == ''", "type");
    check_fails("row.doc.tags + 1 == []", "type");
    check_fails("row.whole", "neither true nor false but of type int");
    check_fails("row.text", "neither true nor false but of type string");
    check_fails("row.whole.all(x, true)", "type");
    check_fails("int(row.text) == 1", "`int` failed");
    check_fails("{row.text: 1, 'hello': 2} == {}", "a map has a key twice");
    check_fails("{row.raw: 1} == {}", "");
    check_fails("row.text.contains(1)", "no matching overload");
    check_fails("row.whole.matches('a')", "`matches` failed");
    for source in [
        "row.text < 1",
        "row.doc.tags[row.text] == 1",
        "{[row.text]: 1} == {}",
        "!row.text",
    ] {
        let error = insert(everything())
            .judge(source, STEPS_DEFAULT)
            .unwrap_err();
        assert!(!error.to_string().contains("hello"), "{source}: {error}");
    }
}

#[test]
fn a_rule_that_cannot_be_right_does_not_compile() {
    check_refused("row.text ==", "line 1, column");
    check_refused("", "line 1, column");
    check_refused("row.titel == ''", "has no column `titel`");
    check_refused("has(row.titel)", "has no column `titel`");
    check_refused("stored.titel == ''", "has no column `titel`");
    check_refused("row['titel'] == ''", "has no column `titel`");
    check_refused("row.pin == b''", "encrypted by clients");
    check_refused("row['pin'] == b''", "encrypted by clients");
    check_refused("has(stored.pin)", "encrypted by clients");
    check_refused("title == ''", "there is no `title`");
    check_refused("now() > 0", "there is no function `now`");
    check_refused(
        "row.text.lowerAscii() == ''",
        "there is no function `lowerAscii`",
    );
    check_refused(
        "timestamp(row.text) > timestamp('x')",
        "there is no function `timestamp`",
    );
    check_refused("optional.of(1).hasValue()", "there is no");
    check_refused("row.?text == 1", "line 1");
    check_refused("[?row.text] == []", "line 1");
    check_refused("Message{a: 1} == null", "no type `Message`");
    check_refused("contains(row.text, 'a')", "is called as");
    check_refused("row.text.size(1) == 1", "takes 1 values and gets 2");
    check_refused("row.text.matches('[')", "the pattern");
    check_refused("row.text.matches(row.id)", "must be a text in quotes");
    check_refused("row.text.matches('a' + 'b')", "must be a text in quotes");
    check_refused(r"row.text.matches('(\\w{50}){50}')", "too large");
    check_refused("row.doc.tags.all(row, true)", "hides another");
    check_refused("row.doc.tags.all(x, [1].all(x, true))", "hides another");
    check_refused("row.doc.tags.all(op, true)", "hides another");
    check_refused("@charge(1) == 1", "line 1");
}

#[test]
fn a_row_is_read_only_as_far_as_it_is_named() {
    let schema = schema();
    let table = schema.table(schema.find("everything").unwrap());
    let columns = |source: &str| {
        let expression = Expression::compile(source, table).unwrap();
        (expression.row, expression.stored)
    };
    let named = |at: &[usize]| Columns::Named(at.iter().copied().collect());
    assert_eq!(columns("row.text == stored.id"), (named(&[1]), named(&[0])));
    assert_eq!(
        columns("row == null || null != stored"),
        (named(&[]), named(&[]))
    );
    assert_eq!(columns("row == stored"), (Columns::All, Columns::All));
    assert_eq!(columns("row[actor] == row.id"), (Columns::All, named(&[])));
    // A document that is too large to read does not matter to a rule that does not name it.
    let mut row = everything();
    row["doc"] = json!(format!("[{}1]", "1,".repeat(1_000_000)));
    assert_eq!(
        insert(row.clone()).judge("row.whole == 42", STEPS_DEFAULT),
        Ok(true)
    );
    let judged = insert(row).judge("row.doc != null", STEPS_DEFAULT);
    assert_eq!(judged, Err(EvaluationError::Spent));
}

/// Evaluates something hostile and checks that it ended soon; how does not matter.
#[track_caller]
fn check_bounded(row: &Json, source: &str) -> Result<bool, EvaluationError> {
    let started = Instant::now();
    let verdict = insert(row.clone()).judge(source, STEPS_DEFAULT);
    let took = started.elapsed();
    // Generous: tests are not optimized and machines are shared. Unbounded is days.
    assert!(
        took < Duration::from_secs(20),
        "{source:.100} took {took:?}"
    );
    verdict
}

#[test]
fn no_rule_makes_text_without_end() {
    let row = everything();
    let doubling = format!("['x']{} == []", ".map(x, x + x)".repeat(60));
    // The parser's own limit of nesting does not count calls in a row; ours does.
    check_refused(&doubling, "nests deeper");
    let doubling = format!(
        "['x']{} == []",
        ".map(x, ((x+x)+(x+x))+((x+x)+(x+x)))".repeat(9)
    );
    assert_eq!(check_bounded(&row, &doubling), Err(EvaluationError::Spent));
    let lists = format!(
        "[1]{} == []",
        ".map(x, [x,x,x,x,x,x,x,x,x,x,x,x])".repeat(9)
    );
    assert_eq!(check_bounded(&row, &lists), Err(EvaluationError::Spent));
    let maps = format!(
        "[1]{} == []",
        ".map(x, {1:x,2:x,3:x,4:x,5:x,6:x,7:x,8:x})".repeat(9)
    );
    assert_eq!(check_bounded(&row, &maps), Err(EvaluationError::Spent));
    let mut row = row;
    row["text"] = json!("x".repeat(100_000));
    let nested = format!(
        "[row.text]{} == []",
        ".map(x, string(bytes(x + x + x)))".repeat(8)
    );
    assert_eq!(check_bounded(&row, &nested), Err(EvaluationError::Spent));
}

#[test]
fn no_loop_runs_without_end() {
    let mut row = everything();
    row["doc"] = json!(format!("[{}1]", "1,".repeat(40_000)));
    for source in [
        "row.doc.all(a, row.doc.all(b, row.doc.all(c, a + b + c > 0)))",
        "row.doc.exists(a, row.doc.exists(b, row.doc.exists(c, a + b + c < 0)))",
        // The error of each turn is put aside, and the loop goes on.
        "row.doc.exists(a, row.doc.exists(b, b.nothing))",
        "row.doc.all(a, row.doc.all(b, b.nothing) || a.nothing)",
        "row.doc.exists_one(a, row.doc.exists_one(b, a + b == 0))",
        "row.doc.map(a, row.doc.map(b, row.doc)) == []",
        "row.doc.filter(a, row.doc.filter(b, a + b > 0) != []) == []",
        "row.doc.filter(a, row.doc == row.doc) == []",
        "row.doc.all(a, 2 in row.doc || true)",
        "row.doc.all(a, size(row.doc + row.doc) > 0)",
        "row.doc.all(a, [row.doc, row.doc, row.doc] != [])",
        "row.doc.all(a, {1: row.doc}[1][0] == 1)",
        "row.doc.exists(a, row.doc[0.5] == 1)",
        "row.doc.map(a, row.doc).map(a, a.map(b, row.doc)) == []",
        "(row.doc.exists(a, row.doc.exists(b, false)) ? 1 : 2) == 2 || true",
    ] {
        assert_eq!(
            check_bounded(&row, source),
            Err(EvaluationError::Spent),
            "{source}"
        );
    }
}

#[test]
fn no_row_makes_a_harmless_rule_run_for_long() {
    let sized = |bytes: usize| {
        let mut row = everything();
        row["text"] = json!("a".repeat(bytes));
        row
    };
    // As large as a request may be.
    assert_eq!(
        check_bounded(&sized(16 << 20), "size(row.text) < 1000"),
        Ok(false)
    );
    assert_eq!(
        check_bounded(&sized(16 << 20), "row.text.startsWith('b')"),
        Ok(false)
    );
    let search = check_bounded(&sized(16 << 20), "row.text.matches('^(a|aa)+$')");
    assert_eq!(search, Err(EvaluationError::Spent));
    assert_eq!(
        check_bounded(&sized(40_000), "row.text.matches('^(a|aa)+$')"),
        Ok(true)
    );
    assert_eq!(
        check_bounded(&sized(40_000), "row.text.matches('(a|aa)+b')"),
        Ok(false)
    );
    let mut row = everything();
    row["doc"] = json!(format!("{}1{}", "[".repeat(126), "]".repeat(126)));
    assert_eq!(
        check_bounded(&row, "row.doc == row.doc && size(row.doc) == 1"),
        Ok(true)
    );
    row["doc"] = json!(format!("\"{}\"", "\\u0061".repeat(1 << 19)));
    assert_eq!(check_bounded(&row, "size(row.doc) > 0"), Ok(true));
}

#[test]
fn the_longest_and_the_deepest_expressions_compile_or_do_not() {
    let fill = |open: &str, close: &str| {
        let times = (EXPRESSION_BYTES_MAX - 16) / (open.len() + close.len());
        format!("{}true{}", open.repeat(times), close.repeat(times))
    };
    let schema = schema();
    let table = schema.table(schema.find("everything").unwrap());
    for (open, close) in [
        ("(", ")"),
        ("[", "]"),
        ("!", ""),
        ("-", ""),
        ("true&&", ""),
        ("1+", ""),
        ("true?1:", ""),
        ("{1:", "}"),
        ("size(", ")"),
        ("[1].map(x,", ")"),
        ("", ".a"),
        ("", "[0]"),
        ("a.b(", ")"),
        ("", ".all(x,true)"),
        ("true||!", ""),
        ("'", "'"),
        ("(", ""),
        ("", ")"),
    ] {
        let _ = Expression::compile(&fill(open, close), table);
    }
    let long = format!("row.text == '{}'", "x".repeat(EXPRESSION_BYTES_MAX));
    check_refused(&long, "bytes");
}

/// The deepest expressions that compile, evaluated on a stack as small as a runtime's gets.
#[test]
fn the_deepest_expressions_run_on_a_small_stack() {
    let nests = [
        ("[", "]"),
        ("{1:", "}"),
        ("!(", ")"),
        ("dyn(", ")"),
        ("[1].map(x0,", ")"),
        ("(true ? ", " : false)"),
        ("1+(", ")"),
    ];
    for (open, close) in nests {
        let at = |depth: usize| {
            let body = (0..depth)
                .map(|at| open.replace("x0", &format!("x{at}")))
                .collect::<String>();
            format!("{body}true{} == 1", close.repeat(depth))
        };
        let schema = schema();
        let table = schema.table(schema.find("everything").unwrap());
        let depth = (0..EXPRESSION_DEPTH_MAX)
            .rev()
            .find(|depth| Expression::compile(&at(*depth), table).is_ok())
            .unwrap();
        assert!(depth >= 4, "{open} only nests {depth} times");
        let source = at(depth);
        std::thread::Builder::new()
            .stack_size(2 << 20)
            .spawn(move || insert(everything()).judge(&source, STEPS_DEFAULT).is_ok())
            .unwrap()
            .join()
            .unwrap();
    }
}

//! `import` and `export`: what goes in comes out, once, whatever happens in between.

use std::{
    fmt::Write as _,
    io::Write as _,
    process::{Output, Stdio},
    sync::Arc,
};

use tidewater_model::PartitionId;
use tidewater_schema::Schema;
use tidewater_store::Store as _;
use tidewater_store_sqlite::{SqliteConfig, SqliteStore};

use crate::{
    process::{Running, file, run, tidewater},
    sample::{list, titles},
};

const SCHEMA: &str = r#"{"irVersion": 1, "schemaVersion": 1, "tables": [
    {"name": "items", "primaryKey": "id", "scopes": ["team:{team}"],
     "columns": [
        {"name": "id", "type": "string", "nullable": false},
        {"name": "team", "type": "string", "nullable": false},
        {"name": "code", "type": "string", "nullable": true},
        {"name": "count", "type": "integer", "nullable": true},
        {"name": "ratio", "type": "float", "nullable": true},
        {"name": "done", "type": "boolean", "nullable": true},
        {"name": "raw", "type": "bytes", "nullable": true}],
     "indexes": [{"name": "items_code", "columns": ["code"], "unique": true}]}]}"#;

/// Rows of every type, of many teams, in the order of their keys.
const ROWS: &str = r#"{"id":"1","team":"t1","code":"a","count":-9007199254740991,"ratio":0.1,"done":true,"raw":{"$bytes":"00ff"}}
{"id":"10","team":"t2","code":"comma, \"quote\"","count":0,"ratio":{"$float":"NaN"},"done":false,"raw":null}
{"id":"2","team":"t1","code":"two\nlines","count":null,"ratio":-1e+300,"done":null,"raw":{"$bytes":"0a"}}
{"id":"ü","team":"*","code":null,"count":9007199254740991,"ratio":0.0,"done":true,"raw":null}
"#;

/// A folder with a configuration and its database.
struct Place {
    folder: tempfile::TempDir,
    config: String,
}

impl Place {
    fn new(schema: &str, variable: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        file(folder.path(), "schema.json", schema);
        let text = format!(
            "[schema]\npath = \"schema.json\"\n\
             [[auth.tokens]]\ntoken = \"demo-bob\"\nactor = \"bob\"\npartition = \"p\"\n\
             [scopes.actors.\"*\"]\n{variable} = [\"*\"]\n"
        );
        let config = file(folder.path(), "tidewater.toml", &text);
        Self { folder, config }
    }

    fn items() -> Self {
        Self::new(SCHEMA, "team")
    }

    fn arguments<'a>(&'a self, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec![command, "--config", &self.config, "--partition", "p"];
        if !more.contains(&"--table") {
            arguments.extend(["--table", "items"]);
        }
        arguments.extend(more);
        arguments
    }

    /// Imports rows from standard input.
    fn import(&self, rows: &str, more: &[&str]) -> Output {
        let mut arguments = self.arguments("import", more);
        arguments.push("-");
        if !more.contains(&"--format") {
            arguments.extend(["--format", "jsonl"]);
        }
        run(&arguments, rows.as_bytes())
    }

    fn export(&self, format: &str) -> String {
        let output = run(&self.arguments("export", &["--format", format]), b"");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The number of commits in the log.
    fn head(&self) -> u64 {
        let database = self.folder.path().join("tidewater.db");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let store = SqliteStore::open(SqliteConfig::file(&database)).unwrap();
            let schema = Arc::new(Schema::from_json(SCHEMA).unwrap());
            store.prepare(&schema).await.unwrap();
            let record = store.find_partition(&PartitionId::new("p")).await.unwrap();
            record.unwrap().head.get()
        })
    }
}

#[track_caller]
fn check(output: &Output, code: i32, out: &str, error: &str) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}{errors}");
    assert_eq!(text, out, "{errors}");
    assert!(errors.contains(error), "{errors}");
}

#[test]
fn rows_go_in_as_lines_of_json_and_come_out_so() {
    let place = Place::items();
    let rows = file(place.folder.path(), "rows.jsonl", ROWS);
    let output = run(&place.arguments("import", &[&rows]), b"");
    check(
        &output,
        0,
        "4 rows imported, 0 of them before; 0 rejected\n",
        "",
    );
    assert_eq!(place.export("jsonl"), ROWS);
}

#[test]
fn rows_come_out_as_csv_and_go_in_again() {
    let (first, second) = (Place::items(), Place::items());
    first.import(ROWS, &[]);
    let rows = first.folder.path().join("rows.csv");
    let rows = rows.to_str().unwrap();
    check(&run(&first.arguments("export", &[rows]), b""), 0, "", "");
    let text = std::fs::read_to_string(rows).unwrap();
    assert!(
        text.starts_with("id,team,code,count,ratio,done,raw\n"),
        "{text}"
    );
    let output = run(&second.arguments("import", &[rows]), b"");
    check(
        &output,
        0,
        "4 rows imported, 0 of them before; 0 rejected\n",
        "",
    );
    assert_eq!(second.export("jsonl"), ROWS);
    assert_eq!(second.export("csv"), text);
}

#[test]
fn columns_of_a_csv_file_have_any_order_and_may_be_missing() {
    let place = Place::items();
    let output = place.import("done,id,team\ntrue,b,t\n,a,t\n", &["--format", "csv"]);
    check(
        &output,
        0,
        "2 rows imported, 0 of them before; 0 rejected\n",
        "",
    );
    assert_eq!(
        place.export("csv"),
        "id,team,code,count,ratio,done,raw\na,t,,,,,\nb,t,,,,true,\n"
    );
}

#[test]
fn importing_again_applies_nothing_twice() {
    let place = Place::items();
    place.import(ROWS, &["--commit-rows", "3"]);
    assert_eq!(place.head(), 2);
    let again = place.import(ROWS, &["--commit-rows", "3"]);
    check(
        &again,
        0,
        "4 rows imported, 4 of them before; 0 rejected\n",
        "",
    );
    assert_eq!(place.head(), 2);
    assert_eq!(place.export("jsonl"), ROWS);
}

#[test]
fn rows_that_are_there_are_replaced() {
    let place = Place::items();
    place.import(ROWS, &[]);
    let changed = ROWS.replace("\"count\":0", "\"count\":7");
    let output = place.import(&changed, &[]);
    check(
        &output,
        0,
        "4 rows imported, 0 of them before; 0 rejected\n",
        "",
    );
    assert_eq!(place.export("jsonl"), changed);
}

#[test]
fn an_import_that_is_killed_goes_on_where_it_was() {
    const ROWS: usize = 8_000;
    let place = Place::items();
    let mut rows = String::new();
    let body = "x".repeat(100);
    for number in 0..ROWS {
        writeln!(
            rows,
            r#"{{"id":"{number:05}","team":"t1","code":"{number}-{body}","count":1,"ratio":null,"done":null,"raw":null}}"#
        )
        .unwrap();
    }
    let mut arguments = place.arguments("import", &["-"]);
    arguments.extend(["--format", "jsonl", "--commit-rows", "100"]);
    let mut child = tidewater(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // A pipe holds little: when this much was taken, most of it was imported. The rest is never
    // sent, so the process is not done.
    let sent = rows.len() / 2;
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&rows.as_bytes()[..sent]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(pipe);

    let imported = place.export("jsonl").lines().count();
    assert!((100..ROWS).contains(&imported), "{imported} rows");
    assert_eq!(imported % 100, 0, "a commit is there or not");
    let output = place.import(&rows, &["--commit-rows", "100"]);
    let out = format!("{ROWS} rows imported, {imported} of them before; 0 rejected\n");
    check(&output, 0, &out, "");
    assert!(place.export("jsonl") == rows, "the rows of the file");
    assert_eq!(place.head(), 80);
}

/// The third row has the code of the first.
const CLASH: &str = r#"{"id":"1","team":"t","code":"a"}
{"id":"2","team":"t","code":"b"}

{"id":"3","team":"t","code":"a"}
{"id":"4","team":"t","code":"d"}
{"id":"5","team":"t","code":"e"}
"#;

#[test]
fn a_rejected_row_is_named_by_its_line_and_ends_the_import() {
    let place = Place::items();
    let output = place.import(CLASH, &["--commit-rows", "2"]);
    check(&output, 1, "", "line 4: sync.constraint_violation");
    check(&output, 1, "", "(lines 4 to 5 were not imported)");
    assert_eq!(place.export("csv").lines().count(), 1 + 2);
}

#[test]
fn the_rules_of_the_configuration_bind_an_import() {
    let place = Place::items();
    let rules = "[[rules.validate]]\ntable = \"items\"\nexpr = \"row.code != 'bad'\"\n\
                 code = \"items.bad\"\nmessage = \"it is bad\"\n";
    let config = std::fs::read_to_string(&place.config).unwrap();
    std::fs::write(&place.config, config + rules).unwrap();
    let output = place.import("{\"id\":\"1\",\"team\":\"t\",\"code\":\"bad\"}\n", &[]);
    check(&output, 1, "", "line 1: items.bad: it is bad");
}

#[test]
fn an_import_that_was_rejected_is_told_the_same_again_until_its_rows_change() {
    let place = Place::items();
    let config = std::fs::read_to_string(&place.config).unwrap();
    let rules = "[[rules.validate]]\ntable = \"items\"\nexpr = \"row.code != 'bad'\"\n\
                 code = \"items.bad\"\nmessage = \"it is bad\"\n";
    std::fs::write(&place.config, format!("{config}{rules}")).unwrap();
    let rows = "{\"id\":\"1\",\"team\":\"t\",\"code\":\"good\"}\n\
                {\"id\":\"2\",\"team\":\"t\",\"code\":\"bad\"}\n";
    let first = place.import(rows, &["--commit-rows", "1"]);
    check(&first, 1, "", "line 2: items.bad: it is bad");
    assert_eq!(place.head(), 1);

    // The complaint is the one on record: the rule is gone, and nothing is judged again.
    std::fs::write(&place.config, &config).unwrap();
    let again = place.import(rows, &["--commit-rows", "1"]);
    check(&again, 1, "", "line 2: items.bad: it is bad");
    assert_eq!(again.stderr, first.stderr);
    assert_eq!(place.head(), 1);

    // Other rows are another commit.
    let changed = rows.replace("bad", "better");
    let output = place.import(&changed, &["--commit-rows", "1"]);
    let out = "2 rows imported, 1 of them before; 0 rejected\n";
    check(&output, 0, out, "");
    assert_eq!(place.head(), 2);
}

#[test]
fn an_import_that_keeps_going_leaves_out_what_is_rejected() {
    let place = Place::items();
    let output = place.import(CLASH, &["--commit-rows", "2", "--keep-going"]);
    let out = "3 rows imported, 0 of them before; 2 rejected\n";
    check(&output, 1, out, "line 4: sync.constraint_violation");
    let ids: Vec<String> = place
        .export("csv")
        .lines()
        .skip(1)
        .map(|line| line[..1].to_owned())
        .collect();
    assert_eq!(ids, ["1", "2", "5"]);
}

#[test]
fn what_is_wrong_with_the_input_is_told_with_its_line() {
    let place = Place::items();
    for (rows, error) in [
        (
            "{\"id\":\"1\",\"team\":\"t\"}\noops\n",
            "line 2 is no JSON object",
        ),
        ("{\"id\":\"1\"}\n", "line 1: column \"team\" needs a value"),
        ("{\"id\":\"1\",\"team\":\"t\",\"hue\":1}\n", "\"hue\""),
    ] {
        check(&place.import(rows, &[]), 2, "", error);
    }
    assert_eq!(place.export("jsonl"), "");
    let no_table = place.import("", &["--table", "nothing"]);
    check(&no_table, 2, "", "there is no table \"nothing\"");
    let no_file = run(&place.arguments("import", &["/nowhere.csv"]), b"");
    check(&no_file, 2, "", "open /nowhere.csv");
    let no_format = run(&place.arguments("import", &["/nowhere.txt"]), b"");
    check(&no_format, 2, "", "--format is needed");
}

#[test]
fn devices_receive_what_was_imported() {
    let place = Place::new(include_str!("../../assets/todo.schema.json"), "list_id");
    let arguments = ["serve", "--config", place.config.as_str()];
    let port = [("TIDEWATER_SERVER__LISTEN", "127.0.0.1:0")];
    let import = |title: &str| {
        let row = format!(
            r#"{{"id":"{title}","list_id":"home","title":"{title}","done":false,"added_by":"import","added_at_ms":1}}"#
        );
        let output = place.import(&row, &["--table", "todos"]);
        check(
            &output,
            0,
            "1 rows imported, 0 of them before; 0 rejected\n",
            "",
        );
    };
    import("milk");
    let mut server = Running::start(&arguments, &port);
    let mut bob = list("bob", &server.url_from_log(), place.folder.path());
    bob.obey("sync").unwrap();
    assert_eq!(titles(&bob), ["milk"], "in a bootstrap");
    drop(bob);
    assert_eq!(server.stop("-TERM"), Some(0));

    import("bread");
    let mut server = Running::start(&arguments, &port);
    let mut bob = list("bob", &server.url_from_log(), place.folder.path());
    bob.obey("sync").unwrap();
    let mut found = titles(&bob);
    found.sort_unstable();
    assert_eq!(found, ["bread", "milk"], "and in the log");
    assert_eq!(server.stop("-TERM"), Some(0));
}

#[test]
fn nothing_is_imported_or_exported_beside_a_running_server() {
    let place = Place::items();
    let mut server = Running::start(
        &["serve", "--config", &place.config],
        &[("TIDEWATER_SERVER__LISTEN", "127.0.0.1:0")],
    );
    server.url_from_log();
    let in_use = "sync.storage.database_in_use";
    check(&place.import(ROWS, &[]), 1, "", in_use);
    let export = place.arguments("export", &["--format", "csv"]);
    check(&run(&export, b""), 1, "", in_use);
    let earlier = file(place.folder.path(), "rows.csv", "from an earlier export");
    check(
        &run(&place.arguments("export", &[&earlier]), b""),
        1,
        "",
        in_use,
    );
    assert_eq!(
        std::fs::read_to_string(&earlier).unwrap(),
        "from an earlier export"
    );
    assert_eq!(server.stop("-TERM"), Some(0));
    assert_eq!(place.export("jsonl"), "");
}

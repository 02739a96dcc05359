//! Configurations that compile and those that do not, with the place of what is wrong.

use serde_json::json;

use super::*;
use crate::testing::schema;

fn parse(toml: &str) -> RulesConfig {
    toml::from_str(toml).unwrap()
}

const GOOD: &str = r#"
    steps_max = 5000

    [[validate]]
    table = "tasks"
    expr = "op == 'delete' || size(row.title) <= 200"
    code = "tasks.title_too_long"
    message = "A title has at most 200 characters."
    fields = ["title"]
    reason = "too_long"

    [[validate]]
    table = "tasks"
    expr = "stored.points == null"
    on = "delete"
    code = "tasks.has_points"
    message = "A task with points stays."

    [[validate]]
    table = "projects"
    expr = "row.id != ''"
    on = "upsert"
    code = "projects.no_id"
    message = "A project has an id."

    [[assert]]
    name = "points of a project"
    sql = "SELECT 1 FROM projects p WHERE points < (SELECT sum(points) FROM tasks WHERE project_id = p.id)"
    code = "projects.too_many_points"
    message = "The tasks of a project have more points than it."

    [[assert]]
    name = "authors"
    sql = "SELECT 1 WHERE :actor = 'nobody'"
    tables = ["tasks"]
    code = "tasks.nobody"
    message = "Nobody writes tasks."
"#;

#[test]
fn rules_become_validators_of_their_tables() {
    let config = parse(GOOD);
    let rules = Rules::compile(&config, &schema()).unwrap();
    assert!(rules.needs_sql());
    let mut hooks = Hooks::default();
    rules.install(&mut hooks);
    let tables: Vec<&str> = hooks.row_validators.keys().map(String::as_str).collect();
    assert_eq!(tables, ["projects", "tasks"]);
    // The rules of a table are one validator, so that a row is judged in one go.
    assert_eq!(hooks.row_validators["tasks"].len(), 1);
    assert_eq!(hooks.commit_validators.len(), 2);
    let tables: Vec<&String> = rules.assertions[0].tables.iter().collect();
    assert_eq!(tables, ["projects", "tasks"]);
    let tables: Vec<&String> = rules.assertions[1].tables.iter().collect();
    assert_eq!(tables, ["tasks"]);
}

#[test]
fn no_rules_are_rules() {
    let rules = Rules::compile(&RulesConfig::default(), &schema()).unwrap();
    assert!(!rules.needs_sql());
    let mut hooks = Hooks::default();
    rules.install(&mut hooks);
    assert!(hooks.row_validators.is_empty() && hooks.commit_validators.is_empty());
}

#[test]
fn a_configuration_survives_being_printed() {
    let config = parse(GOOD);
    let printed = toml::to_string(&config).unwrap();
    assert_eq!(parse(&printed), config);
    assert_eq!(parse(""), RulesConfig::default());
    assert!(toml::from_str::<RulesConfig>("unknown = 1").is_err());
    assert!(toml::from_str::<RulesConfig>("[[validate]]\ntable = 'tasks'").is_err());
}

/// The tables that the manual speaks of.
fn schema_of_the_manual() -> Schema {
    let table = |name: &str, columns: &[(&str, &str)]| {
        let columns: Vec<_> = columns
            .iter()
            .map(|(name, kind)| json!({"name": name, "type": kind, "nullable": false}))
            .collect();
        let scope = json!({"pattern": "team:{id}", "variable": "id", "column": "id"});
        json!({"name": name, "primaryKey": "id", "columns": columns, "scopes": [scope]})
    };
    let tasks = [
        ("id", "string"),
        ("project_id", "string"),
        ("title", "string"),
        ("cost", "integer"),
        ("locked", "boolean"),
    ];
    let projects = [("id", "string"), ("budget", "integer")];
    let tables = [table("tasks", &tasks), table("projects", &projects)];
    Schema::from_json(&json!({"version": 1, "tables": tables}).to_string()).unwrap()
}

#[test]
fn the_manual_is_right() {
    let manual = include_str!("../../../../docs/rules.md");
    let blocks = manual.split("```toml\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let toml = blocks.concat().replace("[[rules.", "[[");
    let config = parse(&toml);
    assert_eq!((config.validate.len(), config.assert.len()), (2, 1));
    Rules::compile(&config, &schema_of_the_manual()).unwrap();
    let numbers = |number: usize| {
        let text = number.to_string();
        match text.len() {
            4.. => format!("{},{}", &text[..text.len() - 3], &text[text.len() - 3..]),
            _ => text,
        }
    };
    for said in [
        format!(
            "{} bytes, {} levels",
            numbers(crate::EXPRESSION_BYTES_MAX),
            crate::EXPRESSION_DEPTH_MAX
        ),
        format!(
            "`rules.steps_max`, {}",
            numbers(crate::STEPS_DEFAULT.try_into().unwrap())
        ),
        format!(
            "{} rows",
            numbers(crate::sql::RECURSION_ROWS_MAX.try_into().unwrap())
        ),
    ] {
        assert!(manual.contains(&said), "{said}");
    }
}

#[track_caller]
fn check_refused(toml: &str, place: &str, because: &str) {
    let error = Rules::compile(&parse(toml), &schema()).unwrap_err();
    assert_eq!(error.place, place, "{error}");
    assert!(error.fault.contains(because), "{error}");
}

/// A rule with one line of its own.
fn rule(line: &str) -> String {
    let key = line.split('=').next().unwrap().trim();
    let lines = [
        "table = 'tasks'",
        "expr = 'true'",
        "code = 'tasks.bad'",
        "message = 'Bad.'",
    ];
    let others: Vec<&str> = lines
        .into_iter()
        .filter(|other| !other.starts_with(&format!("{key} ")))
        .collect();
    format!("[[validate]]\n{}\n{line}\n", others.join("\n"))
}

fn assertion(line: &str) -> String {
    rule(line)
        .replace("[[validate]]", "[[assert]]\nname = 'a'")
        .replace("table = 'tasks'\n", "")
        .replace(
            "expr = 'true'\n",
            if line.starts_with("sql") {
                ""
            } else {
                "sql = 'SELECT 1 FROM tasks'\n"
            },
        )
}

#[test]
fn a_rule_that_is_wrong_is_found_with_its_place() {
    for (line, place, because) in [
        ("table = 'missing'", "table", "no table `missing`"),
        ("expr = 'row.titel == 1'", "expr", "no column `titel`"),
        ("expr = 'row.pin == 1'", "expr", "encrypted by clients"),
        ("expr = 'row.title =='", "expr", "line 1, column"),
        ("code = ''", "code", "needs a code"),
        ("code = 'sync.mine'", "code", "reserved"),
        ("code = 'client.mine'", "code", "reserved"),
        ("message = ''", "message", "0 bytes"),
        ("fields = ['not a path']", "fields", "field path"),
        ("fields = ['a', 'a']", "fields", "twice"),
        ("reason = 'Some prose.'", "reason", "token"),
    ] {
        check_refused(&rule(line), &format!("rules.validate[0].{place}"), because);
    }
    let second = format!("{}{}", rule("expr = 'true'"), rule("expr = '1 +'"));
    check_refused(&second, "rules.validate[1].expr", "line 1, column");
    check_refused("steps_max = 0", "rules.steps_max", "must be from 1");
    check_refused("steps_max = 10000001", "rules.steps_max", "must be from 1");
}

#[test]
fn an_assertion_that_is_wrong_is_found_with_its_place() {
    for (line, place, because) in [
        ("sql = 'DELETE FROM tasks'", "sql", "SELECT"),
        ("sql = 'SELECT 1 FROM notes'", "sql", "not materialized"),
        (
            "sql = 'SELECT :what FROM tasks'",
            "sql",
            ":actor, :client, :commit",
        ),
        ("sql = 'SELECT 1'", "tables", "never be asked"),
        ("tables = []", "tables", "never be asked"),
        ("tables = ['missing']", "tables", "no table `missing`"),
        ("code = 'sync.mine'", "code", "reserved"),
        ("message = ''", "message", "0 bytes"),
    ] {
        check_refused(
            &assertion(line),
            &format!("rules.assert[0].{place}"),
            because,
        );
    }
    let twice = assertion("code = 'a'").repeat(2);
    check_refused(&twice, "rules.assert[1].name", "called `a` too");
    check_refused(
        &assertion("code = 'a'")
            .replace("'a'\nsql", "''\nsql")
            .replace("name = 'a'", "name = ''"),
        "rules.assert[0].name",
        "empty",
    );
}

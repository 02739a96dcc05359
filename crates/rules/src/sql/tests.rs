//! What is refused and why, what the rest becomes, and that it never sees another partition.

mod generated;

use rusqlite::{Connection, types::Value as Stored};
use tidewater_store::SqlValue;

use super::*;
use crate::testing::{partition, schema, store_shaped};

const NAMES: Placeholders<'static> = Placeholders::Named(&["actor", "client"]);

#[track_caller]
fn compiled(sql: &str) -> Query {
    match Query::compile(sql, &schema(), NAMES) {
        Ok(query) => query,
        Err(error) => panic!("{sql}: {error}"),
    }
}

#[track_caller]
fn check_refused(sql: &str, because: &str) {
    match Query::compile(sql, &schema(), NAMES) {
        Ok(query) => panic!("{sql} became {}", query.sql()),
        Err(error) => assert!(error.to_string().contains(because), "{sql}: {error}"),
    }
}

/// The rows of a compiled query as text, sorted.
fn rows(connection: &Connection, query: &Query, partition: &str) -> Vec<String> {
    let mut statement = connection.prepare(query.sql()).unwrap();
    let named = query.parameters().iter().map(|name| format!("the {name}"));
    let values: Vec<String> = std::iter::once(partition.to_owned()).chain(named).collect();
    let width = statement.column_count();
    let count = statement.parameter_count();
    let mut found: Vec<String> = statement
        .query_map(rusqlite::params_from_iter(&values[..count]), |row| {
            (0..width)
                .map(|at| row.get::<_, Stored>(at))
                .collect::<Result<Vec<_>, _>>()
        })
        .unwrap()
        .map(|row| format!("{:?}", row.unwrap()))
        .collect();
    found.sort();
    found
}

/// Runs a text for partition `a` of a database that has `a` and `b`.
#[track_caller]
fn check_rows(sql: &str, expected: &[&str]) {
    let found = rows(&store_shaped(&["a", "b"]), &compiled(sql), "a");
    let found: Vec<String> = found
        .iter()
        .map(|row| {
            row.replace("Text(\"", "")
                .replace("\")", "")
                .replace("Integer(", "")
                .replace(')', "")
        })
        .collect();
    assert_eq!(found, expected, "{sql} as {}", compiled(sql).sql());
}

#[test]
fn a_table_becomes_the_columns_of_its_partition() {
    let query = compiled("SELECT title FROM tasks WHERE points > 4 ;");
    assert_eq!(
        query.sql(),
        "SELECT title FROM (SELECT \"id\", \"project_id\", \"title\", \"points\" FROM \"tasks\" \
         WHERE _sync_partition = ?1) AS \"tasks\" WHERE points > 4"
    );
    assert_eq!(query.tables().len(), 1);
    check_rows(
        "SELECT title FROM tasks WHERE points > 4",
        &["[a-]", "[a-x'y]"],
    );
    check_rows("SELECT count(*) FROM tasks", &["[5]"]);
}

#[test]
fn an_alias_stays_and_names_may_be_quoted_in_every_way() {
    check_rows("SELECT t.id FROM tasks AS t WHERE t.points = 1", &["[t1]"]);
    check_rows("SELECT t.id FROM TASKS t WHERE T.Points = 1", &["[t1]"]);
    check_rows(
        "SELECT \"tasks\".id FROM \"tasks\" WHERE points = 1",
        &["[t1]"],
    );
    check_rows(
        "SELECT [tasks].[id] FROM [tasks] WHERE points = 1",
        &["[t1]"],
    );
    check_rows(
        "SELECT `t`.`id` FROM `tasks` AS `t` WHERE points = 1",
        &["[t1]"],
    );
    check_rows("SELECT count(*) FROM 'tasks'", &["[5]"]);
    check_rows(
        "SELECT count(*) FROM \"order\" WHERE \"from\" = 'x' OR \"a \"\"b\"\"\" = 'y'",
        &["[0]"],
    );
}

#[test]
fn every_place_for_a_table_is_found() {
    check_rows("SELECT count(*) FROM tasks, projects", &["[25]"]);
    check_rows(
        "SELECT count(*) FROM tasks CROSS JOIN projects p",
        &["[25]"],
    );
    check_rows(
        "SELECT count(*) FROM tasks t JOIN projects p ON p.id = t.id",
        &["[5]"],
    );
    check_rows(
        "SELECT count(*) FROM tasks t LEFT JOIN projects p USING (id)",
        &["[5]"],
    );
    check_rows("SELECT count(*) FROM tasks NATURAL JOIN projects", &["[5]"]);
    check_rows(
        "SELECT count(*) FROM (tasks t JOIN projects p ON p.id = t.id)",
        &["[5]"],
    );
    check_rows(
        "SELECT count(*) FROM (SELECT id FROM tasks UNION ALL SELECT id FROM projects)",
        &["[10]"],
    );
    check_rows(
        "SELECT id FROM tasks WHERE id IN (SELECT id FROM projects WHERE points = 2)",
        &["[t2]"],
    );
    check_rows(
        "SELECT (SELECT count(*) FROM projects) FROM tasks WHERE id = 't1'",
        &["[5]"],
    );
    check_rows(
        "SELECT count(*) FROM tasks t WHERE EXISTS (SELECT 1 FROM projects p WHERE p.id = t.id)",
        &["[5]"],
    );
    check_rows(
        "SELECT CASE WHEN 1 IN (SELECT points FROM tasks) THEN 'yes' END",
        &["[yes]"],
    );
    check_rows(
        "SELECT 1 ORDER BY (SELECT count(*) FROM tasks) LIMIT (SELECT count(*) FROM tasks)",
        &["[1]"],
    );
    check_rows(
        "SELECT sum(points) OVER (PARTITION BY (SELECT count(*) FROM projects)) AS total FROM tasks LIMIT 1",
        &["[19]"],
    );
    check_rows(
        "SELECT count(*) FROM tasks GROUP BY points HAVING points > (SELECT max(points) - 1 FROM projects)",
        &["[1]"],
    );
    check_rows(
        "VALUES ((SELECT count(*) FROM tasks)), (2)",
        &["[2]", "[5]"],
    );
}

#[test]
fn a_value_in_a_table_is_a_value_in_its_partition() {
    let both =
        "WITH ids(id) AS (SELECT id FROM tasks) SELECT count(*) FROM projects WHERE id IN ids";
    check_rows(both, &["[5]"]);
    let own = "WITH mine AS (SELECT title FROM tasks) SELECT 1 WHERE 'b-one' IN mine";
    check_rows(own, &[]);
    check_refused("SELECT 1 WHERE 1 IN main.tasks", "without a database");
    check_refused("SELECT 1 WHERE 1 IN sync_commits", "belongs to the server");
    check_refused(
        "SELECT 1 WHERE 1 IN pragma_table_list",
        "belongs to the server",
    );
    check_refused("SELECT 1 WHERE 1 IN json_each('[1]')", "table functions");
}

#[test]
fn a_common_table_shadows_a_table_after_its_own_body() {
    let shadowed = "WITH tasks AS (SELECT * FROM tasks WHERE points = 1) SELECT id FROM tasks";
    check_rows(shadowed, &["[t1]"]);
    assert_eq!(compiled(shadowed).tables().len(), 1);
    // Before its own clause, in a subquery of its own, and in a subquery that sees the outer one.
    check_rows(
        "SELECT (WITH tasks(n) AS (SELECT 7) SELECT n FROM tasks) AS inner_n, count(*) FROM tasks",
        &["[7, 5]"],
    );
    check_rows(
        "WITH tasks(n) AS (SELECT 7) SELECT (SELECT n FROM tasks) AS n FROM projects WHERE id = 't1'",
        &["[7]"],
    );
    // One that a name comes before does not see it.
    check_rows(
        "WITH first AS (SELECT count(*) AS n FROM tasks), tasks(n) AS (SELECT 7) \
         SELECT first.n, tasks.n FROM first, tasks",
        &["[5, 7]"],
    );
    check_refused(
        "WITH a AS (SELECT 1), A AS (SELECT 2) SELECT 1",
        "two common tables",
    );
    check_refused(
        "WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a",
        "no table `b`",
    );
    check_refused(
        "WITH _sync_common_0 AS (SELECT 1) SELECT 1",
        "belongs to the server",
    );
}

#[test]
fn a_recursive_common_table_says_when_it_ends() {
    check_rows(
        "WITH RECURSIVE up(id, n) AS (SELECT id, 0 FROM tasks WHERE id = 't1' \
         UNION ALL SELECT tasks.id, n + 1 FROM up JOIN tasks ON tasks.points = n + 2 LIMIT 100) \
         SELECT id, n FROM up",
        &["[t1, 0]", "[t2, 1]", "[t3, 2]"],
    );
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n";
    check_refused(endless, "needs a LIMIT");
    let long =
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n LIMIT 10001) SELECT x FROM n";
    check_refused(long, "needs a LIMIT");
    let late = endless.replace("FROM n) SELECT", "FROM n LIMIT 1 OFFSET 999999999) SELECT");
    check_refused(&late, "needs a LIMIT");
    check_refused(&late.replace("1 OFFSET 999999999", "-1"), "needs a LIMIT");
    check_refused(&late.replace("1 OFFSET 999999999", "9, 1"), "needs a LIMIT");
    let silent = "WITH n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n";
    check_refused(silent, "no table `n`");
    check_rows(
        "WITH RECURSIVE n(x) AS (SELECT 1) SELECT x FROM n",
        &["[1]"],
    );
}

#[test]
fn other_tables_are_out_of_reach() {
    for name in [
        "sync_commits",
        "SYNC_COMMITS",
        "\"sync_commits\"",
        "[sync_commits]",
        "`sync_commits`",
        "'sync_commits'",
    ] {
        check_refused(&format!("SELECT * FROM {name}"), "belongs to the server");
    }
    check_refused("SELECT * FROM sqlite_schema", "belongs to the server");
    check_refused(
        "SELECT * FROM pragma_database_list",
        "belongs to the server",
    );
    check_refused(
        "SELECT * FROM pragma_table_info('tasks')",
        "table functions",
    );
    check_refused("SELECT * FROM json_each('[1]')", "table functions");
    check_refused("SELECT * FROM main.tasks", "without a database");
    check_refused("SELECT * FROM temp.tasks", "without a database");
    check_refused("SELECT * FROM missing", "no table `missing`");
    check_refused("SELECT * FROM dbstat", "no table `dbstat`");
    check_refused("SELECT * FROM notes", "not materialized");
    check_refused("SELECT * FROM tasks AS sync_tasks", "belongs to the server");
    check_refused("SELECT * FROM tasks INDEXED BY sync_ix_a", "INDEXED BY");
}

#[test]
fn columns_are_the_applications() {
    check_refused("SELECT _sync_payload FROM tasks", "belongs to the server");
    check_refused(
        "SELECT tasks._sync_partition FROM tasks",
        "belongs to the server",
    );
    check_refused(
        "SELECT \"_sync_payload\" FROM tasks",
        "belongs to the server",
    );
    check_refused("SELECT pin FROM tasks", "encrypted by clients");
    check_refused("SELECT t.pin FROM tasks t", "encrypted by clients");
    check_refused("SELECT titel FROM tasks", "no column `titel`");
    check_refused(
        "SELECT t.name FROM tasks t, (SELECT 1 AS name) n",
        "no column `name`",
    );
    check_refused("SELECT x.id FROM tasks", "no table `x`");
    check_refused("SELECT x.* FROM tasks", "no table `x`");
    check_refused("SELECT main.tasks.id FROM tasks", "a database before");
    check_refused("SELECT rowid FROM tasks", "no column `rowid`");
    // In SQLite this would be a text, and the assertion would never fail.
    check_refused("SELECT 1 FROM tasks WHERE title = \"one\"", "single quotes");
    check_refused(
        "SELECT 1 FROM tasks JOIN projects USING (name)",
        "no column `name`",
    );
    check_rows(
        "SELECT * FROM tasks WHERE id = 't1'",
        &["[t1, p, a-one, 1]"],
    );
}

#[test]
fn only_one_select() {
    for sql in [
        "DELETE FROM tasks",
        "UPDATE tasks SET points = 1",
        "INSERT INTO tasks VALUES (1)",
        "REPLACE INTO tasks VALUES (1)",
        "DROP TABLE tasks",
        "CREATE TABLE x (a)",
        "CREATE VIEW x AS SELECT 1",
        "ATTACH DATABASE 'x' AS y",
        "PRAGMA writable_schema = 1",
        "VACUUM",
        "BEGIN",
        "EXPLAIN SELECT 1",
        "ANALYZE tasks",
    ] {
        assert!(Query::compile(sql, &schema(), NAMES).is_err(), "{sql}");
    }
    check_refused("", "0 statements");
    check_refused("SELECT 1; SELECT 2", "2 statements");
    check_refused("SELECT 1; DELETE FROM tasks", "2 statements");
    check_refused("WITH x AS (DELETE FROM tasks RETURNING id) SELECT 1", "");
    check_refused("SELECT 1 INTO tasks", "INTO");
    check_refused("SELEC 1", "Expected");
    check_rows("SELECT 1;;", &["[1]"]);
}

#[test]
fn what_the_walk_does_not_know_is_refused() {
    for (sql, because) in [
        (
            "SELECT load_extension('x')",
            "the function `load_extension`",
        ),
        ("SELECT zeroblob(1000000000)", "the function `zeroblob`"),
        ("SELECT printf('%1000000000d', 1)", "the function `printf`"),
        ("SELECT randomblob(9)", "the function `randomblob`"),
        ("SELECT main.count(1)", "without a database"),
        ("SELECT 1 WHERE 'a' REGEXP 'b'", "the operator `REGEXP`"),
        (
            "SELECT 1 FROM tasks WHERE title MATCH 'b'",
            "the operator `MATCH`",
        ),
        ("SELECT CAST(1 AS VARCHAR(5))", "the type"),
        ("SELECT 'a' COLLATE custom", "the collation"),
        ("SELECT * EXCLUDE (id) FROM tasks", "EXCLUDE"),
        ("SELECT 1 FROM tasks FETCH FIRST 1 ROWS ONLY", "FETCH"),
        ("SELECT ceil(1.5)", "not allowed"),
        ("SELECT 1 FROM tasks FOR UPDATE", "FOR UPDATE"),
        ("SELECT DISTINCT ON (id) id FROM tasks", "DISTINCT ON"),
        ("SELECT substring('abc' FROM 1)", "not allowed"),
        ("SELECT 1 FROM tasks AS t(a, b)", "a list of columns"),
        ("SELECT $x", "not allowed"),
        ("SELECT @x", "not allowed"),
        ("SELECT {fn count(1)}", "not allowed"),
        ("SELECT 1 # comment", "not allowed"),
    ] {
        check_refused(sql, because);
    }
}

#[test]
fn texts_that_databases_read_differently_are_refused() {
    for sql in [
        r"SELECT E'a\' FROM sync_commits --'",
        r"SELECT e'a\' FROM sync_commits --'",
        "SELECT $$ FROM sync_commits $$",
        "SELECT U&'a'",
        "SELECT \u{0} FROM tasks",
        "SELECT 1\u{0}; DELETE FROM tasks",
        "SELECT '\u{b}'",
    ] {
        check_refused(sql, "");
    }
    check_rows(
        r"SELECT 'a\' AS x, ' FROM sync_commits --' AS y",
        &[r"[a\\,  FROM sync_commits --]"],
    );
    check_rows(
        "SELECT 'it''s' AS x /* FROM sync_commits */ -- FROM sync_commits\n, 0x10 AS y",
        &["[it's, 16]"],
    );
    check_rows(
        "SELECT/**/id/**/FROM/**/tasks/**/WHERE/**/points=1",
        &["[t1]"],
    );
    check_rows("SELECT 1 /* open", &["[1]"]);
}

#[test]
fn values_are_bound_by_number() {
    let query = compiled("SELECT :client, :actor, :partition, :actor FROM tasks LIMIT 1");
    assert_eq!(query.parameters(), ["client", "actor"]);
    assert!(
        query.sql().starts_with("SELECT ?2, ?3, ?1, ?3 FROM"),
        "{}",
        query.sql()
    );
    check_rows(
        "SELECT :client, :actor, :partition FROM tasks LIMIT 1",
        &["[the client, the actor, a]"],
    );
    check_refused("SELECT :other", "there are :partition, :actor, :client");
    check_refused("SELECT ?", "is no value");
    check_refused("SELECT ?1", "not allowed");
    check_refused("SELECT 1 AS :actor", "");
    let bound = query.bind(&partition("a"), vec![SqlValue::Null, SqlValue::Null], 1);
    assert_eq!((bound.sql.as_str(), bound.rows_max), (query.sql(), 1));
}

#[test]
fn positional_values_are_numbered_in_the_order_of_the_text() {
    let positional =
        |sql: &str, count| Query::compile(sql, &schema(), Placeholders::Positional(count));
    let sql = "WITH a AS (SELECT ? AS x) SELECT ? FROM a WHERE x > ? ORDER BY ? LIMIT ?";
    let query = positional(sql, 5).unwrap();
    assert_eq!(
        query.sql(),
        "WITH \"_sync_common_0\" AS (SELECT ?2 AS x) SELECT ?3 FROM \"_sync_common_0\" AS \"a\" \
         WHERE x > ?4 ORDER BY ?5 LIMIT ?6"
    );
    assert!(
        positional(sql, 4)
            .unwrap_err()
            .to_string()
            .contains("5 values")
    );
    assert!(
        positional("SELECT :actor", 0)
            .unwrap_err()
            .to_string()
            .contains("write `?`")
    );
}

#[test]
fn forms_of_sqlite_keep_their_meaning() {
    for (sql, expected) in [
        (
            "SELECT 1 = 1 == 1, 7 % 4, 5 & 4 | 1, 1 << 3, ~0, 'a' || 'b', 1 <> 2, 3 IS NOT NULL",
            "[1, 3, 5, 8, -1, ab, 1, 1]",
        ),
        (
            "SELECT 5 BETWEEN 1 AND 9 AND 1, NOT 1 IN (2, 3), 'Ab' LIKE 'aB', 'x%' LIKE 'x\\%' ESCAPE '\\'",
            "[1, 1, 1, 1]",
        ),
        (
            "SELECT substr('abc', 2), trim(' a '), ltrim('xa', 'x'), replace('ab', 'b', 'c')",
            "[bc, a, a, ac]",
        ),
        (
            "SELECT CASE 2 WHEN 1 THEN 'a' WHEN 2 THEN 'b' ELSE 'c' END, iif(1, 2, 3), coalesce(NULL, 4)",
            "[b, 2, 4]",
        ),
        (
            "SELECT CAST('12' AS INTEGER), (1, 2) = (1, 2), x'6869' = CAST('hi' AS BLOB), 'a' = 'A' COLLATE NOCASE",
            "[12, 1, 1, 1]",
        ),
        (
            "SELECT '{\"a\":[1,2]}' ->> '$.a[1]', json_array_length('[1,2]'), json_extract('{\"a\":3}', '$.a')",
            "[2, 2, 3]",
        ),
        (
            "SELECT count(DISTINCT title), group_concat(id, '/') FILTER (WHERE points > 4) FROM (SELECT * FROM tasks ORDER BY id)",
            "[4, t4/t5]",
        ),
        (
            "SELECT id FROM tasks EXCEPT SELECT id FROM tasks WHERE points > 1 ORDER BY 1 LIMIT 2 OFFSET 0",
            "[t1]",
        ),
        (
            "SELECT max(n) FROM (SELECT row_number() OVER w AS n FROM tasks WINDOW w AS (ORDER BY points ROWS BETWEEN 1 PRECEDING AND CURRENT ROW))",
            "[5]",
        ),
        (
            "SELECT 1 IS DISTINCT FROM 2, NULL IS NOT DISTINCT FROM NULL, 1 IS TRUE, 0 IS NOT FALSE, 'a' GLOB 'a*'",
            "[1, 1, 1, 0, 1]",
        ),
        (
            "SELECT a.id FROM tasks a LEFT JOIN projects b ON b.id = a.id AND b.points > 99 WHERE b.id IS NULL AND a.id = 't1'",
            "[t1]",
        ),
        (
            "SELECT date('2024-02-29', '+1 day'), strftime('%Y', '2024-01-01'), typeof(CURRENT_TIMESTAMP)",
            "[2024-03-01, 2024, text]",
        ),
        ("SELECT id FROM tasks WHERE points = 1 LIMIT 0, 1", "[t1]"),
    ] {
        check_rows(sql, &[expected]);
    }
}

#[test]
fn the_longest_and_the_deepest_texts_end_in_a_sentence_or_a_query() {
    let chain = |link: &str, end: &str| {
        let links = (SQL_BYTES_MAX - 64) / link.len();
        format!("SELECT {}{end}", link.repeat(links))
    };
    for (link, end) in [
        ("1+", "1"),
        ("NOT ", "1"),
        ("-", "1"),
        ("(", "1"),
        ("(SELECT ", "1"),
        ("1,", "1"),
        ("CASE WHEN ", "1"),
        ("1 IN (", "1"),
        ("'a'||", "'a'"),
        ("1 ISNULL ", ""),
        ("abs(", "1"),
        ("1 UNION SELECT ", "1"),
        ("1 FROM tasks,", "1"),
        ("EXISTS(SELECT ", "1"),
        ("1 AND ", "1"),
        ("1 COLLATE NOCASE ", ""),
        ("'x'->", "'x'"),
        ("1 BETWEEN 0 AND ", "1"),
    ] {
        // Either is fine; what matters is that it comes back.
        let _ = Query::compile(&chain(link, end), &schema(), NAMES);
    }
    check_refused(&format!("SELECT '{}'", "x".repeat(SQL_BYTES_MAX)), "bytes");
}

//! Asks SQLite for its plan of every statement: an index answers each, at any size.
//!
//! A plan that says SCAN walks a table from end to end, and one that sorts holds its whole answer
//! in memory before the first row. Both look fine on the tables of a test.

use std::sync::Arc;

use rusqlite::Connection;
use tidewater_schema::Schema;

use crate::{catalog::Catalog, migrate, session::Session, statements::Queries};

/// Statements that touch no table, or one row of one.
const WITHOUT_TABLE: [&str; 10] = [
    "begin_snapshot",
    "begin_write",
    "commit",
    "rollback",
    "savepoint",
    "release",
    "rollback_to",
    "begin_stage",
    "rollback_stage",
    "release_stage",
];

fn schema() -> Arc<Schema> {
    let text = r#"{
        "irVersion": 1, "schemaVersion": 1,
        "tables": [
            {
                "name": "notes", "primaryKey": "id",
                "columns": [
                    {"name": "id", "type": "string", "nullable": false},
                    {"name": "team", "type": "string", "nullable": false},
                    {"name": "code", "type": "string", "nullable": true}
                ],
                "scopes": [{"pattern": "team:{team}", "variable": "team", "column": "team"}],
                "indexes": [
                    {"name": "notes_code", "columns": ["code"], "unique": true},
                    {"name": "notes_team", "columns": ["team"], "unique": false}
                ]
            },
            {
                "name": "documents", "primaryKey": "id",
                "columns": [
                    {"name": "id", "type": "string", "nullable": false},
                    {"name": "team", "type": "string", "nullable": false},
                    {"name": "body", "type": "json", "nullable": true}
                ],
                "scopes": [{"pattern": "team:{team}", "variable": "team", "column": "team"}],
                "indexes": [{"name": "documents_team", "columns": ["team"], "unique": false}]
            }
        ]
    }"#;
    Arc::new(Schema::from_json(text).unwrap())
}

fn plan(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap();
    // Unbound parameters are NULL, and make no difference to a plan.
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get(3).unwrap());
    }
    lines
}

#[track_caller]
fn check(connection: &Connection, name: &str, sql: &str) {
    for line in plan(connection, sql) {
        let scans = line.contains("SCAN") && !is_bounded(&line, name);
        assert!(!scans, "{name} walks a table: {line}\n{sql}");
        let sorts = line.contains("TEMP B-TREE") && !finds_one(sql);
        assert!(!sorts, "{name} sorts: {line}\n{sql}");
    }
}

/// A subquery with a limit, a row without a table, and a look at the first table of the catalog.
fn is_bounded(line: &str, name: &str) -> bool {
    line.contains("SCAN (subquery") || line.contains("CONSTANT ROW") || name == "ping"
}

/// A lookup in a unique index sorts the one row that it finds. With NULL it may be several.
fn finds_one(sql: &str) -> bool {
    sql.contains("INDEXED BY \"sync_ix_notes_code\"")
}

/// What the plans of a database depend on.
enum Shape {
    /// As we create it.
    Ours,
    /// With rowids everywhere, as the reference creates it.
    Reference,
}

fn prepared(shape: &Shape) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    if let Shape::Reference = shape {
        for table in crate::infrastructure::TABLES {
            let create = table.create.replace("WITHOUT ROWID", "");
            connection.execute_batch(&create).unwrap();
        }
        for table in schema().tables() {
            let create = crate::app_table::create(table).replace("WITHOUT ROWID", "");
            connection.execute_batch(&create).unwrap();
        }
    }
    migrate::prepare(&mut Session::new(&connection), &schema()).unwrap();
    connection
}

#[test]
fn an_index_answers_every_fixed_statement() {
    for shape in [Shape::Ours, Shape::Reference] {
        let connection = prepared(&shape);
        for (name, sql) in Queries::TEXTS {
            if !WITHOUT_TABLE.contains(name) {
                check(&connection, name, sql);
            }
        }
    }
}

#[test]
fn an_index_answers_every_statement_about_a_table() {
    for shape in [Shape::Ours, Shape::Reference] {
        let connection = prepared(&shape);
        let catalog = Catalog::read(&connection).unwrap();
        let layout = migrate::layout(&schema(), &catalog).unwrap();
        for table in &layout.tables {
            for sql in table.sql.texts() {
                check(&connection, &table.table.name, sql);
            }
        }
    }
}

#[test]
fn entries_of_a_row_are_found_by_the_row() {
    let connection = prepared(&Shape::Ours);
    for (name, index) in [
        ("clear_row_scopes", "sync_row_scopes_by_row"),
        ("prune_tombstones", "sync_tombstones_by_seq"),
        ("window_of_value", "sync_changes_by_table"),
        ("newest_before", "sync_commits_by_time"),
    ] {
        let found = Queries::TEXTS.iter().find(|(text, _)| *text == name);
        let (_, sql) = found.unwrap();
        let plan = plan(&connection, sql).join("\n");
        assert!(plan.contains(index), "{name}: {plan}");
    }
}

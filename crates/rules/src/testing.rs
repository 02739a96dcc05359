//! A schema for tests, and a database with the tables that a store makes of it.

use std::sync::Arc;

use rusqlite::Connection;
use serde_json::{Value, json};
use tidewater_model::PartitionId;
use tidewater_schema::Schema;

/// Tasks of projects; `order` and its columns have awkward names, `notes` has no columns in the
/// database, and of `vault` everything is encrypted.
pub(crate) fn schema() -> Arc<Schema> {
    let column = |name: &str, kind: &str| json!({"name": name, "type": kind, "nullable": false});
    let nullable = |name: &str, kind: &str| json!({"name": name, "type": kind, "nullable": true});
    let sealed = |name: &str| {
        json!({"name": name, "type": "bytes", "nullable": true, "encrypted": true,
               "declaredType": "string"})
    };
    let table = |name: &str, columns: Vec<Value>| {
        let key = columns[0]["name"].clone();
        let scope = json!({"pattern": format!("{name}:{{key}}"), "variable": "key", "column": key});
        json!({"name": name, "primaryKey": key, "columns": columns, "scopes": [scope]})
    };
    let tasks = table(
        "tasks",
        vec![
            column("id", "string"),
            column("project_id", "string"),
            column("title", "string"),
            nullable("points", "integer"),
            sealed("pin"),
        ],
    );
    let projects = table(
        "projects",
        vec![
            column("id", "string"),
            column("title", "string"),
            nullable("points", "integer"),
        ],
    );
    let everything = table(
        "everything",
        vec![
            column("id", "string"),
            nullable("text", "string"),
            nullable("whole", "integer"),
            nullable("real", "float"),
            nullable("flag", "boolean"),
            nullable("doc", "json"),
            nullable("raw", "bytes"),
            nullable("file", "blob_ref"),
            json!({"name": "body", "type": "crdt", "nullable": true, "crdtType": "yjs-doc"}),
            sealed("pin"),
        ],
    );
    let order = table(
        "order",
        vec![column("from", "string"), nullable("a \"b\"", "string")],
    );
    let mut notes = table("notes", vec![column("id", "string")]);
    notes["materialize"] = json!(false);
    let document = json!({
        "version": 1,
        "tables": [tasks, projects, everything, order, notes],
    });
    Arc::new(Schema::from_json(&document.to_string()).unwrap())
}

pub(crate) fn partition(name: &str) -> PartitionId {
    PartitionId::new(name)
}

/// Rows of both tables, three columns each: an id, a title that names the partition, points.
pub(crate) const ROWS: [(&str, &str, i64); 5] = [
    ("t1", "one", 1),
    ("t2", "two", 2),
    ("t3", "two", 3),
    ("t4", "x'y", 5),
    ("t5", "", 8),
];

/// Tables as a store has them, with the rows of these partitions.
pub(crate) fn store_shaped(partitions: &[&str]) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    for (table, columns) in [
        (
            "tasks",
            "id TEXT, project_id TEXT, title TEXT, points INTEGER, pin BLOB,",
        ),
        ("projects", "id TEXT, title TEXT, points INTEGER,"),
        ("\"order\"", "\"from\" TEXT, \"a \"\"b\"\"\" TEXT,"),
        ("notes", ""),
    ] {
        let statement = format!(
            "CREATE TABLE {table} (_sync_partition TEXT NOT NULL, _sync_row_id TEXT NOT NULL, \
             {columns} _sync_server_version INTEGER NOT NULL, _sync_scopes TEXT NOT NULL, \
             _sync_payload BLOB NOT NULL, PRIMARY KEY (_sync_partition, _sync_row_id))"
        );
        connection.execute(&statement, []).unwrap();
    }
    connection
        .execute_batch("CREATE TABLE sync_commits (id TEXT, body TEXT)")
        .unwrap();
    for partition in partitions {
        for (id, title, points) in ROWS {
            let title = format!("{partition}-{title}");
            let values = rusqlite::params![partition, id, title, points];
            for statement in [
                "INSERT INTO tasks VALUES (?1, ?2, ?2, 'p', ?3, ?4, ?1, 1, '{}', x'')",
                "INSERT INTO projects VALUES (?1, ?2, ?2, ?3, ?4, 1, '{}', x'')",
            ] {
                connection.execute(statement, values).unwrap();
            }
        }
    }
    connection
}

/// Tables with the application's columns only, and the rows of one partition.
pub(crate) fn plain(partition: &str) -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE tasks (id TEXT, project_id TEXT, title TEXT, points INTEGER);
             CREATE TABLE projects (id TEXT, title TEXT, points INTEGER);",
        )
        .unwrap();
    for (id, title, points) in ROWS {
        let values = rusqlite::params![id, format!("{partition}-{title}"), points];
        for statement in [
            "INSERT INTO tasks VALUES (?1, 'p', ?2, ?3)",
            "INSERT INTO projects VALUES (?1, ?2, ?3)",
        ] {
            connection.execute(statement, values).unwrap();
        }
    }
    connection
}

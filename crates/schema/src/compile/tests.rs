//! One test per rule of a schema document, each a small change to a valid one.

use proptest::prelude::*;
use serde_json::{Value, json};
use tidewater_model::ColumnType;
use tidewater_wire::row;

use crate::{OnDelete, Schema, SchemaCode, ScopePattern, Table};

/// A document in the IR form that uses everything.
fn document() -> Value {
    json!({
        "irVersion": 1,
        "schemaVersion": 2,
        "schemaVersions": [{"version": 1, "migrations": ["0001_init"]}],
        "tables": [
            {
                "name": "notes",
                "primaryKey": "id",
                "columns": [
                    {"name": "id", "type": "string", "nullable": false},
                    {"name": "team_id", "type": "string", "nullable": false},
                    {"name": "folder_id", "type": "string", "nullable": true},
                    {"name": "stars", "type": "integer", "nullable": false},
                    {"name": "body", "type": "crdt", "nullable": true, "crdtType": "yjs-doc"},
                    {"name": "pin", "type": "bytes", "nullable": true, "encrypted": true,
                     "declaredType": "string"},
                    {"name": "photo", "type": "blob_ref", "nullable": true}
                ],
                "scopes": [
                    {"pattern": "team:{team_id}", "variable": "team_id", "column": "team_id"}
                ],
                "indexes": [
                    {"name": "notes_folder", "columns": ["folder_id"], "unique": false},
                    {"name": "notes_stars", "columns": ["team_id", "stars"], "unique": true}
                ],
                "ftsIndexes": [{"name": "notes_fts", "columns": ["body"], "tokenize": "porter"}],
                "references": [
                    {"column": "folder_id", "parentTable": "folders", "onDelete": "SET NULL"}
                ],
                "extensions": {}
            },
            {
                "name": "folders",
                "primaryKey": "id",
                "columns": [
                    {"name": "id", "type": "string", "nullable": false},
                    {"name": "team_id", "type": "string", "nullable": false}
                ],
                "scopes": [
                    {"pattern": "team:{team_id}", "variable": "team_id", "column": "team_id"}
                ]
            }
        ],
        "subscriptions": [],
        "extensions": {}
    })
}

/// Replaces a value, or adds a member, or with `-` an item.
fn set(mut document: Value, pointer: &str, value: Value) -> Value {
    let (parent, member) = pointer.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Object(members) => {
            members.insert(member.to_owned(), value);
        }
        Value::Array(items) => match member {
            "-" => items.push(value),
            position => items[position.parse::<usize>().unwrap()] = value,
        },
        other => panic!("{parent} is {other}"),
    }
    document
}

/// The document with one value set.
fn with(pointer: &str, value: Value) -> Value {
    set(document(), pointer, value)
}

fn without(pointer: &str) -> Value {
    let mut changed = document();
    let (parent, member) = pointer.rsplit_once('/').unwrap();
    let parent = changed.pointer_mut(parent).unwrap();
    parent.as_object_mut().unwrap().remove(member).unwrap();
    changed
}

fn compile(document: &Value) -> Schema {
    match Schema::from_json(&document.to_string()) {
        Ok(schema) => schema,
        Err(error) => panic!("{error}"),
    }
}

fn notes(document: &Value) -> std::sync::Arc<Table> {
    let schema = compile(document);
    schema.table(schema.find("notes").unwrap()).clone()
}

#[track_caller]
fn refused(document: &Value, code: SchemaCode, place: &str, hint: &str) {
    match Schema::from_json(&document.to_string()) {
        Ok(_) => panic!("the document compiles"),
        Err(error) => {
            assert_eq!((error.code, error.place.as_str()), (code, place), "{error}");
            assert!(error.message.contains(hint), "{error}");
        }
    }
}

#[test]
fn the_document_form_of_the_generator_compiles() {
    let schema = compile(&document());
    assert_eq!(schema.version(), 2);
    let names: Vec<&str> = schema.tables().iter().map(|table| &*table.name).collect();
    assert_eq!(names, ["notes", "folders"]);

    let notes = schema.table(schema.find("notes").unwrap());
    assert_eq!(notes.columns[4].kind, ColumnType::Crdt);
    assert_eq!(notes.metas[4].crdt_type.as_deref(), Some("yjs-doc"));
    assert!(notes.metas[5].encrypted);
    assert_eq!(notes.metas[5].declared_type.as_deref(), Some("string"));
    assert_eq!(notes.primary_key, 0);
    assert_eq!(notes.indexes[1].columns, [1, 3]);
    assert!(notes.indexes[1].unique && !notes.indexes[0].unique);
    assert_eq!(notes.references[0].column, 2);
    assert_eq!(notes.references[0].parent, schema.find("folders").unwrap());
    assert_eq!(notes.references[0].on_delete, OnDelete::SetNull);
    assert!(notes.materialized);
}

#[test]
fn the_runtime_form_compiles() {
    let schema = compile(&json!({
        "version": 3,
        "tables": [{
            "name": "todo",
            "columns": [
                {"name": "id", "type": "integer", "nullable": false},
                {"name": "owner", "type": "string", "nullable": false}
            ],
            "primaryKey": "id",
            "scopes": ["user:{owner}", {"pattern": "key:{k}", "column": "id"}],
            "indexes": [{"name": "todo_owner", "columns": ["owner"]}]
        }]
    }));
    assert_eq!(schema.version(), 3);
    let todo = &schema.tables()[0];
    let pattern = |prefix: &str, variable: &str, column| ScopePattern {
        prefix: prefix.to_owned(),
        variable: variable.to_owned(),
        column,
    };
    assert_eq!(
        todo.scopes,
        [pattern("key", "k", 0), pattern("user", "owner", 1)]
    );
    assert!(!todo.indexes[0].unique);
}

#[test]
fn what_only_clients_use_and_what_nobody_knows_is_ignored() {
    for (pointer, value) in [
        ("/subscriptions", json!("anything")),
        ("/tables/0/ftsIndexes", json!(7)),
        ("/tables/0/extensions", json!([])),
        ("/tables/0/columns/0/comment", json!({"new": true})),
        ("/future", json!(1)),
        ("/tables/0/columns/0/crdtType", json!("yjs-doc")),
        ("/tables/0/columns/0/declaredType", json!("string")),
        ("/tables/0/columns/0/encrypted", json!(false)),
        ("/tables/1/indexes", json!(null)),
    ] {
        compile(&with(pointer, value));
    }
}

#[test]
fn the_document_is_an_object_of_a_known_format() {
    let not_json = Schema::from_json("{").unwrap_err();
    assert_eq!(not_json.code, SchemaCode::InvalidDocument);
    let code = SchemaCode::InvalidDocument;
    refused(&json!([]), code, "document", "expected an object");
    refused(&without("/tables"), code, "document", "`tables` is missing");
    let code = SchemaCode::UnsupportedIrVersion;
    refused(&with("/irVersion", json!(2)), code, "irVersion", "generate");
    refused(&with("/irVersion", json!("1")), code, "irVersion", "found");
}

#[test]
fn members_of_the_wrong_json_type_are_named() {
    let code = SchemaCode::InvalidDocument;
    for (pointer, value, place, hint) in [
        ("/tables", json!({}), "document", "`tables` must be a list"),
        ("/tables/0", json!(1), "tables[0]", "expected an object"),
        ("/tables/0/name", json!(1), "tables[0]", "must be a string"),
        (
            "/tables/0/primaryKey",
            json!(0),
            "tables.notes",
            "primaryKey",
        ),
        (
            "/tables/0/columns/3",
            json!("x"),
            "tables.notes.columns[3]",
            "expected",
        ),
        (
            "/tables/0/columns/3/name",
            json!(null),
            "tables.notes.columns[3]",
            "missing",
        ),
        (
            "/tables/0/columns/3/type",
            json!(2),
            "tables.notes.columns.stars",
            "`type`",
        ),
        (
            "/tables/0/columns/3/nullable",
            json!("no"),
            "tables.notes.columns.stars",
            "true or",
        ),
        (
            "/tables/0/columns/3/encrypted",
            json!(1),
            "tables.notes.columns.stars",
            "true or",
        ),
    ] {
        refused(&with(pointer, value), code, place, hint);
    }
    let place = "tables.notes.columns.stars";
    let hint = "`nullable` is missing";
    refused(&without("/tables/0/columns/3/nullable"), code, place, hint);
}

#[test]
fn members_of_scopes_indexes_and_references_are_named_too() {
    let code = SchemaCode::InvalidDocument;
    for (pointer, value, place, hint) in [
        (
            "/tables/0/scopes/0",
            json!(5),
            "tables.notes.scopes[0]",
            "expected an object",
        ),
        (
            "/tables/0/indexes/0/columns",
            json!(5),
            "tables.notes.indexes.notes_folder",
            "a list",
        ),
        (
            "/tables/0/indexes/0/columns/0",
            json!(5),
            "tables.notes.indexes.notes_folder",
            "string",
        ),
        (
            "/tables/0/references",
            json!("x"),
            "tables.notes",
            "`references` must be a list",
        ),
        (
            "/tables/0/materialize",
            json!("yes"),
            "tables.notes",
            "`materialize`",
        ),
    ] {
        refused(&with(pointer, value), code, place, hint);
    }
}

#[test]
fn the_schema_version_is_a_positive_32_bit_number() {
    for version in [
        json!(0),
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(1_u64 << 31),
    ] {
        refused(
            &with("/schemaVersion", version),
            SchemaCode::InvalidVersion,
            "schemaVersion",
            "whole number",
        );
    }
    let largest = with("/schemaVersion", json!(i32::MAX));
    assert_eq!(compile(&largest).version(), i32::MAX);
    let code = SchemaCode::InvalidVersion;
    refused(&without("/schemaVersion"), code, "schemaVersion", "missing");
    refused(
        &with("/version", json!(3)),
        code,
        "schemaVersion",
        "keep one",
    );
    compile(&with("/version", json!(2)));
}

#[test]
fn identifiers_fit_a_database_and_stay_out_of_the_servers_names() {
    let longest = "é".repeat(31);
    let long = "é".repeat(32);
    let faults = [
        ("", "empty"),
        ("sync_rows", "reserved"),
        ("SYNC_rows", "reserved"),
        ("_sync_x", "reserved"),
        ("_Syncing", "reserved"),
        ("sqlite_master", "reserved"),
        ("a\u{0}b", "control character"),
        (long.as_str(), "shorten"),
    ];
    for (name, hint) in faults {
        let code = SchemaCode::InvalidIdentifier;
        let place = format!("tables.{name}");
        refused(&with("/tables/1/name", json!(name)), code, &place, hint);
        let place = format!("tables.folders.columns.{name}");
        refused(
            &with("/tables/1/columns/1/name", json!(name)),
            code,
            &place,
            hint,
        );
        let place = format!("tables.notes.indexes.{name}");
        refused(
            &with("/tables/0/indexes/1/name", json!(name)),
            code,
            &place,
            hint,
        );
    }
    for name in [longest.as_str(), "synced", "sync", "select", "a b", "x\"y"] {
        compile(&with("/tables/0/name", json!(name)));
        let renamed = with("/tables/0/columns/3/name", json!(name));
        compile(&set(renamed, "/tables/0/indexes/1/columns/1", json!(name)));
        compile(&with("/tables/0/indexes/1/name", json!(name)));
    }
}

#[test]
fn names_are_unique_without_regard_to_ascii_case() {
    let code = SchemaCode::DuplicateName;
    for name in ["notes", "NOTES"] {
        let place = format!("tables.{name}");
        refused(&with("/tables/1/name", json!(name)), code, &place, "table");
    }
    for name in ["id", "Id"] {
        let place = format!("tables.notes.columns.{name}");
        refused(
            &with("/tables/0/columns/3/name", json!(name)),
            code,
            &place,
            "column",
        );
    }
    let of_another_table = json!([{"name": "Notes_Folder", "columns": ["id"]}]);
    refused(
        &with("/tables/1/indexes", of_another_table),
        code,
        "tables.folders.indexes.Notes_Folder",
        "index",
    );
}

#[test]
fn an_index_name_that_looks_like_another_ones_hash_is_a_duplicate() {
    let long = "i".repeat(60);
    let hash = crate::identifier::physical_index_name(&long)
        .trim_start_matches("sync_ix_")
        .to_owned();
    let changed = with("/tables/0/indexes/0/name", json!(long));
    refused(
        &set(changed, "/tables/0/indexes/1/name", json!(hash)),
        SchemaCode::DuplicateName,
        &format!("tables.notes.indexes.{hash}"),
        "rename",
    );
}

#[test]
fn every_column_type_has_a_name_and_no_other_exists() {
    for kind in ColumnType::ALL {
        let changed = with("/tables/0/columns/3/type", json!(kind.name()));
        compile(&set(
            changed,
            "/tables/0/columns/3/crdtType",
            json!("yjs-doc"),
        ));
    }
    refused(
        &with("/tables/0/columns/3/type", json!("text")),
        SchemaCode::InvalidColumn,
        "tables.notes.columns.stars",
        "use one of string, integer",
    );
}

#[test]
fn a_table_has_no_more_columns_than_a_segment_header_counts() {
    let columns: Vec<Value> = (0..=65_535)
        .map(|number| json!({"name": format!("c{number}"), "type": "string", "nullable": true}))
        .collect();
    refused(
        &with("/tables/1/columns", json!(columns)),
        SchemaCode::InvalidColumn,
        "tables.folders",
        "split the table",
    );
}

#[test]
fn the_primary_key_is_one_readable_column_that_is_never_null() {
    let code = SchemaCode::InvalidPrimaryKey;
    let place = "tables.folders";
    refused(
        &with("/tables/1/primaryKey", json!("key")),
        code,
        place,
        "not a column",
    );
    refused(
        &with("/tables/1/columns/0/nullable", json!(true)),
        code,
        place,
        "`nullable` to false",
    );
    for kind in ["float", "bytes", "blob_ref", "crdt"] {
        let changed = with("/tables/1/columns/0/type", json!(kind));
        let changed = set(changed, "/tables/1/columns/0/crdtType", json!("yjs-doc"));
        refused(
            &changed,
            code,
            place,
            "use a string, integer, boolean or json",
        );
    }
    let encrypted = json!({
        "name": "id", "type": "bytes", "nullable": false, "encrypted": true, "declaredType": "string",
    });
    refused(
        &with("/tables/1/columns/0", encrypted),
        code,
        place,
        "encrypted",
    );
    for kind in ["integer", "boolean", "json"] {
        let changed = with("/tables/0/columns/0/type", json!(kind));
        assert_eq!(notes(&changed).primary_key, 0);
    }
}

#[test]
fn a_table_without_a_scope_pattern_is_refused() {
    let code = SchemaCode::InvalidScope;
    refused(
        &without("/tables/0/scopes"),
        code,
        "tables.notes",
        "at least one",
    );
    refused(
        &with("/tables/0/scopes", json!([])),
        code,
        "tables.notes",
        "at least one",
    );
}

#[test]
fn a_scope_pattern_is_a_prefix_and_one_variable() {
    for pattern in [
        "",
        "team",
        "team:",
        "{team_id}",
        ":{team_id}",
        "team:{}",
        "team:{a:b}",
        "team:{a}{b}",
        "te{am:{a}",
        "te}am:{a}",
        "team:{a",
        "team:{{a}}",
        "team:{a}x",
        "team: {a}",
    ] {
        refused(
            &with("/tables/0/scopes/0", json!(pattern)),
            SchemaCode::InvalidScope,
            "tables.notes.scopes[0]",
            "write `prefix:{variable}`",
        );
    }
    let nested = with("/tables/1/scopes/0", json!("org:team:{team_id}"));
    let nested = set(nested, "/tables/0/scopes/0", json!("org:team:{team_id}"));
    assert_eq!(notes(&nested).scopes[0].prefix, "org:team");
}

#[test]
fn a_scope_names_its_variable_once_and_a_column_that_exists() {
    let code = SchemaCode::InvalidScope;
    let place = "tables.notes.scopes[0]";
    refused(
        &with("/tables/0/scopes/0/variable", json!("team")),
        code,
        place,
        "make them equal",
    );
    refused(
        &with("/tables/0/scopes/0/column", json!("team")),
        code,
        place,
        "does not exist",
    );
    refused(
        &with("/tables/0/scopes/0", json!("t:{team}")),
        code,
        place,
        "does not exist",
    );
    for short in [
        json!("team:{team_id}"),
        json!({"pattern": "team:{team_id}"}),
    ] {
        assert_eq!(
            notes(&with("/tables/0/scopes/0", short)).scopes[0].column,
            1
        );
    }
}

#[test]
fn a_scope_column_has_text_that_the_server_can_read() {
    for column in ["body", "pin"] {
        refused(
            &with("/tables/0/scopes/0/column", json!(column)),
            SchemaCode::InvalidScope,
            "tables.notes.scopes[0]",
            "must read a scope column",
        );
    }
    let plain_bytes = with("/tables/0/columns/3/type", json!("bytes"));
    refused(
        &set(plain_bytes, "/tables/0/scopes/0/column", json!("stars")),
        SchemaCode::InvalidScope,
        "tables.notes.scopes[0]",
        "must read a scope column",
    );
}

#[test]
fn one_variable_is_never_two_columns() {
    refused(
        &with(
            "/tables/0/scopes/-",
            json!({"pattern": "t:{team_id}", "column": "id"}),
        ),
        SchemaCode::InvalidScope,
        "tables.notes.scopes[1]",
        "use one column, or two variables",
    );
}

#[test]
fn prefixes_may_share_a_variable_and_equal_patterns_count_once() {
    let scopes = json!(["team:{team_id}", "org:{team_id}", "team:{team_id}"]);
    let changed = with("/tables/0/scopes", scopes.clone());
    let changed = set(changed, "/tables/1/scopes", scopes);
    let notes = notes(&changed);
    let patterns: Vec<String> = notes.scopes.iter().map(ScopePattern::pattern).collect();
    assert_eq!(patterns, ["org:{team_id}", "team:{team_id}"]);
    let stored = notes
        .stored_scopes(|_| Some(row::Value::String("t9")))
        .unwrap();
    assert_eq!(stored.iter().collect::<Vec<_>>(), [("team_id", "t9")]);
}

#[test]
fn scope_patterns_are_ordered_by_the_utf16_units_of_their_variables() {
    let scopes = json!([
        {"pattern": "a:{\u{E000}}", "column": "id"},
        {"pattern": "b:{\u{1F600}}", "column": "team_id"},
    ]);
    let changed = with("/tables/0/scopes", scopes.clone());
    let changed = set(changed, "/tables/1/scopes", scopes);
    let variables: Vec<String> = notes(&changed)
        .scopes
        .iter()
        .map(|scope| scope.variable.clone())
        .collect();
    assert_eq!(variables, ["\u{1F600}", "\u{E000}"]);
}

#[test]
fn a_crdt_column_names_its_merger() {
    let code = SchemaCode::InvalidCrdt;
    let place = "tables.notes.columns.body";
    refused(
        &without("/tables/0/columns/4/crdtType"),
        code,
        place,
        "add `crdtType`",
    );
    refused(
        &with("/tables/0/columns/4/crdtType", json!("")),
        code,
        place,
        "add `crdtType`",
    );
}

#[test]
fn an_encrypted_column_is_bytes_with_a_declared_type() {
    let code = SchemaCode::InvalidEncryption;
    let place = "tables.notes.columns.pin";
    refused(
        &without("/tables/0/columns/5/declaredType"),
        code,
        place,
        "add `declaredType`",
    );
    refused(
        &with("/tables/0/columns/5/declaredType", json!("")),
        code,
        place,
        "add",
    );
    refused(
        &with("/tables/0/columns/5/type", json!("string")),
        code,
        place,
        "set `type`",
    );
    refused(
        &with("/tables/0/columns/5/declaredType", json!("crdt")),
        code,
        place,
        "not both",
    );
    let place = "tables.notes.columns.body";
    refused(
        &with("/tables/0/columns/4/encrypted", json!(true)),
        code,
        place,
        "not both",
    );
}

#[test]
fn an_index_covers_at_least_one_known_column() {
    let code = SchemaCode::InvalidIndex;
    let place = "tables.notes.indexes.notes_stars";
    refused(
        &with("/tables/0/indexes/1/columns", json!([])),
        code,
        place,
        "at least one",
    );
    refused(
        &with("/tables/0/indexes/1/columns", json!(["x"])),
        code,
        place,
        "does not exist",
    );
    let missing = without("/tables/0/indexes/1/columns");
    refused(
        &missing,
        SchemaCode::InvalidDocument,
        place,
        "`columns` is missing",
    );
}

#[test]
fn a_reference_joins_a_column_to_an_existing_key_of_its_type() {
    let code = SchemaCode::InvalidReference;
    let place = "tables.notes.references.folder_id";
    refused(
        &with("/tables/0/references/0/parentTable", json!("x")),
        code,
        place,
        "add it or",
    );
    refused(
        &with("/tables/0/columns/2/type", json!("integer")),
        code,
        place,
        "same type",
    );
    refused(
        &with("/tables/0/references/0/column", json!("x")),
        code,
        "tables.notes.references.x",
        "does not exist",
    );
    let again = json!({"column": "folder_id", "parentTable": "notes"});
    refused(
        &with("/tables/0/references/-", again),
        code,
        place,
        "keep one",
    );
}

#[test]
fn both_sides_of_a_reference_have_the_same_scope_patterns() {
    for scopes in [
        json!(["org:{team_id}"]),
        json!(["team:{team_id}", "key:{id}"]),
    ] {
        refused(
            &with("/tables/1/scopes", scopes),
            SchemaCode::InvalidReference,
            "tables.notes.references.folder_id",
            "the same patterns",
        );
    }
    // Where the value is kept does not matter.
    compile(&with(
        "/tables/1/scopes",
        json!([{"pattern": "team:{team_id}", "column": "id"}]),
    ));
}

#[test]
fn a_reference_says_what_deleting_the_parent_does() {
    let code = SchemaCode::InvalidReference;
    let place = "tables.notes.references.folder_id";
    for action in ["NO ACTION", "SET DEFAULT", "cascade", ""] {
        let changed = with("/tables/0/references/0/onDelete", json!(action));
        refused(&changed, code, place, "`RESTRICT`, `CASCADE` or `SET NULL`");
    }
    for (action, expected) in [
        (json!(null), OnDelete::Restrict),
        (json!("RESTRICT"), OnDelete::Restrict),
        (json!("CASCADE"), OnDelete::Cascade),
        (json!("SET NULL"), OnDelete::SetNull),
    ] {
        let changed = with("/tables/0/references/0/onDelete", action);
        assert_eq!(notes(&changed).references[0].on_delete, expected);
    }
    refused(
        &with("/tables/0/columns/2/nullable", json!(false)),
        code,
        place,
        "may be NULL",
    );
}

#[test]
fn a_reference_needs_an_index_of_its_column_alone() {
    let code = SchemaCode::InvalidReference;
    let place = "tables.notes.references.folder_id";
    let wider = with("/tables/0/indexes/0/columns", json!(["folder_id", "stars"]));
    refused(&wider, code, place, "declare an index");
    let other = with("/tables/0/indexes/0/columns", json!(["stars"]));
    refused(&other, code, place, "declare an index");
    let unmaterialized = with("/tables/0/materialize", json!(false));
    refused(&unmaterialized, code, place, "set `materialize` to true");
}

#[test]
fn a_table_may_reference_itself() {
    let itself = with("/tables/0/references/0/parentTable", json!("notes"));
    let schema = compile(&itself);
    let notes = schema.find("notes").unwrap();
    assert_eq!(schema.table(notes).references[0].parent, notes);
}

#[track_caller]
fn check_materialized(readable: bool, materialize: Option<bool>, expected: bool) {
    let mut table = json!({
        "name": "secrets",
        "primaryKey": "id",
        "columns": [
            {"name": "id", "type": "string", "nullable": false},
            {"name": "owner", "type": "string", "nullable": false},
            {"name": "value", "type": "bytes", "nullable": true, "encrypted": true,
             "declaredType": "json"}
        ],
        "scopes": ["user:{owner}"]
    });
    if readable {
        let title = json!({"name": "title", "type": "string", "nullable": true});
        table["columns"].as_array_mut().unwrap().push(title);
    }
    if let Some(flag) = materialize {
        table["materialize"] = json!(flag);
    }
    let schema = compile(&json!({"version": 1, "tables": [table]}));
    assert_eq!(schema.tables()[0].materialized, expected);
}

#[test]
fn typed_columns_are_kept_unless_all_of_them_would_be_ciphertext() {
    check_materialized(false, None, false);
    check_materialized(true, None, true);
    check_materialized(false, Some(true), true);
    check_materialized(true, Some(false), false);
    let keys_only = with("/tables/1/columns/1/nullable", json!(true));
    let schema = compile(&keys_only);
    assert!(schema.table(schema.find("folders").unwrap()).materialized);
}

fn junk() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,70}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!({"name": "x", "pattern": "x:{id}", "columns": ["id"]})),
        prop::sample::select(vec![
            "id", "team_id", "notes", "folders", "crdt", "bytes", "SET NULL"
        ])
        .prop_map(Value::from),
    ]
}

/// Replaces, removes or repeats the value met at the `at`-th step of a walk.
fn mutate(value: &mut Value, at: &mut usize, junk: &Value) {
    if *at == 0 {
        *value = junk.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| mutate(item, at, junk)),
        Value::Object(members) => members.values_mut().for_each(|item| mutate(item, at, junk)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn a_document_with_values_replaced_compiles_or_is_refused(
        changes in prop::collection::vec((0_usize..160, junk()), 1..6)
    ) {
        let mut changed = document();
        for (at, junk) in changes {
            mutate(&mut changed, &mut at.clone(), &junk);
        }
        if let Ok(schema) = Schema::from_json(&changed.to_string()) {
            let layouts = schema.layouts();
            prop_assert_eq!(crate::Layouts::parse(&layouts.to_json()), Ok(layouts));
        }
    }

    #[test]
    fn a_document_with_bytes_replaced_compiles_or_is_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0x20_u8..0x7f), 1..8)
    ) {
        let mut bytes = document().to_string().into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let text = String::from_utf8(bytes).unwrap();
        let _ = Schema::from_json(&text);
    }

    #[test]
    fn any_text_compiles_or_is_refused(text in ".{0,200}") {
        let _ = Schema::from_json(&text);
        let _ = crate::Layouts::parse(&text);
    }
}

#[test]
fn a_document_nested_without_end_is_refused() {
    let deep = format!("{{\"tables\":{}", "[".repeat(100_000));
    assert_eq!(
        Schema::from_json(&deep).unwrap_err().code,
        SchemaCode::InvalidDocument
    );
}

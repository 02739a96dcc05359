//! Every accepted and every refused change between two versions of a schema.

use serde_json::json;

use super::*;

type Columns<'a> = &'a [(&'a str, &'a str, bool)];

const ID: (&str, &str, bool) = ("id", "string", false);
const TEAM: (&str, &str, bool) = ("team_id", "string", false);
const STARS: (&str, &str, bool) = ("stars", "integer", true);
const PHOTO: (&str, &str, bool) = ("photo", "blob_ref", true);

fn schema(version: i32, tables: &[(&str, Columns<'_>)]) -> Schema {
    let tables: Vec<_> = tables
        .iter()
        .map(|(name, columns)| {
            let columns: Vec<_> = columns
                .iter()
                .map(|(name, kind, nullable)| {
                    json!({"name": name, "type": kind, "nullable": nullable})
                })
                .collect();
            json!({
                "name": name, "primaryKey": "id", "columns": columns, "scopes": ["team:{team_id}"],
            })
        })
        .collect();
    Schema::from_json(&json!({"version": version, "tables": tables}).to_string()).unwrap()
}

fn between(
    stored: (i32, &[(&str, Columns<'_>)]),
    wanted: (i32, &[(&str, Columns<'_>)]),
) -> Result<MigrationPlan, MigrationRefusal> {
    let stored = Stored {
        version: stored.0,
        layouts: schema(stored.0, stored.1).layouts(),
    };
    MigrationPlan::between(Some(&stored), &schema(wanted.0, wanted.1))
}

#[track_caller]
fn check_plan(
    stored: (i32, &[(&str, Columns<'_>)]),
    wanted: (i32, &[(&str, Columns<'_>)]),
    summary: &str,
) {
    assert_eq!(between(stored, wanted).unwrap().to_string(), summary);
}

#[track_caller]
fn check_refused(
    stored: (i32, &[(&str, Columns<'_>)]),
    wanted: (i32, &[(&str, Columns<'_>)]),
    code: RefusalCode,
    place: (&str, &str),
    message: &str,
) {
    let refusal = between(stored, wanted).unwrap_err();
    assert_eq!(refusal.code, code, "{refusal}");
    let table = refusal.table.as_deref().unwrap_or_default();
    let column = refusal.column.as_deref().unwrap_or_default();
    assert_eq!((table, column), place, "{refusal}");
    assert!(refusal.message.contains(message), "{refusal}");
}

#[test]
fn a_new_database_gets_every_table() {
    let schema = schema(4, &[("notes", &[ID, TEAM]), ("folders", &[ID, TEAM])]);
    let plan = MigrationPlan::between(None, &schema).unwrap();
    assert!(!plan.is_current());
    assert_eq!(
        plan.to_string(),
        "new database at schema version 4\n  create table `notes`\n  create table `folders`"
    );
}

#[test]
fn the_same_version_with_the_same_columns_needs_nothing() {
    let notes: Columns<'_> = &[ID, TEAM, STARS];
    let folders: Columns<'_> = &[ID, TEAM];
    let plan = between(
        (2, &[("notes", notes), ("folders", folders)]),
        (2, &[("folders", folders), ("notes", notes)]),
    )
    .unwrap();
    assert!(plan.is_current());
    assert_eq!(plan.to_string(), "schema version 2: nothing to do");
}

#[test]
fn the_same_version_with_other_columns_is_refused() {
    let code = RefusalCode::StoredLayoutMismatch;
    let stored: (i32, &[(&str, Columns<'_>)]) = (2, &[("notes", &[ID, TEAM, STARS])]);
    for (columns, column, message) in [
        (
            &[ID, TEAM][..],
            "stars",
            "`stars` integer in the database and missing",
        ),
        (
            &[ID, TEAM, STARS, PHOTO],
            "photo",
            "missing in the database and `photo` blob_ref",
        ),
        (&[ID, TEAM, PHOTO], "photo", "column 3"),
        (&[TEAM, ID, STARS], "team_id", "column 1"),
        (
            &[ID, TEAM, ("stars", "float", true)],
            "stars",
            "`stars` float in the schema",
        ),
        (
            &[ID, TEAM, ("stars", "integer", false)],
            "stars",
            "integer not null in the schema",
        ),
    ] {
        check_refused(
            stored,
            (2, &[("notes", columns)]),
            code,
            ("notes", column),
            message,
        );
    }
    let notes: Columns<'_> = &[ID, TEAM, STARS];
    check_refused(
        stored,
        (2, &[("notes", notes), ("folders", &[ID, TEAM])]),
        code,
        ("folders", ""),
        "is not in the database",
    );
    check_refused(
        (2, &[("notes", notes), ("folders", &[ID, TEAM])]),
        (2, &[("notes", notes)]),
        code,
        ("folders", ""),
        "is not in the schema",
    );
}

#[test]
fn a_newer_database_is_refused_before_anything_is_compared() {
    check_refused(
        (3, &[("other", &[ID, TEAM])]),
        (2, &[("notes", &[ID, TEAM])]),
        RefusalCode::SchemaNewer,
        ("", ""),
        "serve the newer schema",
    );
}

#[test]
fn an_older_database_gains_tables_and_nullable_columns_and_loses_retired_tables() {
    check_plan(
        (
            1,
            &[
                ("notes", &[ID, TEAM]),
                ("zebra", &[ID, TEAM]),
                ("attic", &[ID, TEAM]),
                ("teams", &[ID, TEAM]),
            ],
        ),
        (
            4,
            &[
                ("folders", &[ID, TEAM]),
                ("teams", &[ID, TEAM]),
                ("notes", &[ID, TEAM, STARS, PHOTO]),
            ],
        ),
        "schema version 1 to 4\
         \n  drop table `attic` with all its rows\
         \n  drop table `zebra` with all its rows\
         \n  create table `folders`\
         \n  append to table `notes` and rewrite its rows: `stars` integer, `photo` blob_ref",
    );
}

#[test]
fn a_widened_table_knows_the_columns_of_its_stored_rows() {
    let plan = between(
        (1, &[("notes", &[ID, TEAM])]),
        (2, &[("notes", &[ID, TEAM, STARS])]),
    )
    .unwrap();
    let widened = &plan.widened[0];
    let names = |columns: &[Column]| -> Vec<String> {
        columns.iter().map(|column| column.name.clone()).collect()
    };
    assert_eq!(names(widened.before()), ["id", "team_id"]);
    assert_eq!(names(widened.appended()), ["stars"]);
}

#[test]
fn a_higher_version_with_the_same_columns_only_moves_the_marker() {
    let tables: &[(&str, Columns<'_>)] = &[("notes", &[ID, TEAM])];
    let plan = between((1, tables), (2, tables)).unwrap();
    assert!(!plan.is_current());
    assert_eq!(plan.to_string(), "schema version 1 to 2");
}

#[test]
fn columns_that_stored_rows_have_cannot_be_removed_or_changed() {
    let code = RefusalCode::SchemaIncompatible;
    let stored: (i32, &[(&str, Columns<'_>)]) = (1, &[("notes", &[ID, TEAM, STARS])]);
    for (columns, column, message) in [
        (&[ID, TEAM][..], "stars", "was removed"),
        (&[ID, TEAM, PHOTO, STARS], "photo", "column 3"),
        (
            &[ID, TEAM, ("rank", "integer", true)],
            "rank",
            "`stars` integer to `rank` integer",
        ),
        (&[TEAM, ID, STARS], "team_id", "column 1"),
        (
            &[ID, TEAM, ("stars", "float", true)],
            "stars",
            "to `stars` float",
        ),
        (
            &[ID, TEAM, ("stars", "integer", false)],
            "stars",
            "to `stars` integer not null",
        ),
    ] {
        check_refused(
            stored,
            (2, &[("notes", columns)]),
            code,
            ("notes", column),
            message,
        );
    }
}

#[test]
fn an_appended_column_is_nullable() {
    check_refused(
        (1, &[("notes", &[ID, TEAM])]),
        (
            2,
            &[("notes", &[ID, TEAM, STARS, ("rank", "float", false)])],
        ),
        RefusalCode::SchemaIncompatible,
        ("notes", "rank"),
        "make it nullable",
    );
}

#[test]
fn the_layouts_of_a_schema_have_the_stored_form() {
    let schema = schema(
        1,
        &[("notes", &[ID, TEAM, STARS]), ("folders", &[ID, TEAM])],
    );
    let layouts = schema.layouts();
    assert_eq!(
        layouts.to_json(),
        concat!(
            r#"{"notes":[{"name":"id","type":"string","nullable":false},"#,
            r#"{"name":"team_id","type":"string","nullable":false},"#,
            r#"{"name":"stars","type":"integer","nullable":true}],"#,
            r#""folders":[{"name":"id","type":"string","nullable":false},"#,
            r#"{"name":"team_id","type":"string","nullable":false}]}"#,
        )
    );
    assert_eq!(Layouts::parse(&layouts.to_json()), Ok(layouts));
}

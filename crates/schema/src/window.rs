//! The window: older schema versions that are served beside the current one (§9).
//!
//! Storage, authorization and validators know the current schema only. A client at an older
//! version of the window gets rows in the columns it knows, which are always the first columns of
//! today's: columns are appended and nothing else about them changes.
//!
//! **Invariant:** a schema has a window only if every older version in it reads as such a prefix,
//! so showing a row to an older client is cutting it off, and taking one is leaving the rest alone.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use tidewater_wire::row::{Column, decode_row, encode_row};

use crate::{Reference, Schema, Table, TableIndex};

/// A schema as clients of one version know it.
#[derive(Debug)]
pub struct SchemaView {
    version: i32,
    /// By the place of a table in the current schema; `None` where this version has no such table.
    tables: Vec<Option<TableView>>,
    by_name: BTreeMap<String, TableIndex>,
}

#[derive(Debug)]
struct TableView {
    /// As the version declares it.
    shown: Arc<Table>,
    /// As it is stored.
    stored: Arc<Table>,
}

/// Why a version cannot be served beside the current one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("schema version {version} cannot be served beside version {current}: {message}")]
pub struct WindowError {
    /// The older version.
    pub version: i32,
    /// The current one.
    pub current: i32,
    /// What is in the way.
    pub message: String,
}

impl SchemaView {
    /// The version.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Finds a table of this version, by its place in the current schema.
    pub fn find(&self, name: &str) -> Option<TableIndex> {
        self.by_name.get(name).copied()
    }

    /// A table as this version declares it; `None` when it has none there.
    pub fn table(&self, index: TableIndex) -> Option<&Arc<Table>> {
        Some(&self.tables.get(index.0)?.as_ref()?.shown)
    }

    /// The bytes of a stored row in the columns of this version. `None` when the version has no
    /// such table, or the bytes are no row of it.
    pub fn project<'a>(&self, index: TableIndex, payload: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let TableView { shown, stored } = self.tables.get(index.0)?.as_ref()?;
        let count = shown.columns.len();
        if count == stored.columns.len() {
            return Some(Cow::Borrowed(payload));
        }
        let fields = decode_row(&stored.columns, payload).ok()?;
        let values: Vec<Option<&[u8]>> = fields[..count]
            .iter()
            .map(|field| field.as_ref().map(|field| field.encoded))
            .collect();
        Some(Cow::Owned(encode_row(&values)))
    }

    /// Whether rows of this table are shown as they are stored.
    pub fn is_whole(&self, index: TableIndex) -> bool {
        let view = self.tables.get(index.0).and_then(Option::as_ref);
        view.is_some_and(|view| view.shown.columns.len() == view.stored.columns.len())
    }

    /// A schema as clients of its own version know it.
    pub(crate) fn of_itself(version: i32, tables: &[Arc<Table>]) -> Self {
        let views = tables.iter().map(|table| {
            Some(TableView {
                shown: Arc::clone(table),
                stored: Arc::clone(table),
            })
        });
        Self::assemble(version, views.collect())
    }

    fn assemble(version: i32, tables: Vec<Option<TableView>>) -> Self {
        let by_name = tables
            .iter()
            .enumerate()
            .filter_map(|(index, view)| {
                let name = view.as_ref()?.shown.name.clone();
                Some((name, TableIndex(index)))
            })
            .collect();
        Self {
            version,
            tables,
            by_name,
        }
    }
}

impl Schema {
    /// Serves older versions beside this one, newest first.
    ///
    /// # Errors
    ///
    /// When the versions do not fall strictly, or one of them differs in anything but added
    /// tables and appended nullable columns.
    pub fn with_window(mut self, older: Vec<Self>) -> Result<Self, WindowError> {
        let mut last = self.version();
        for schema in older {
            let refuse = |message| WindowError {
                version: schema.version(),
                current: self.version(),
                message,
            };
            if schema.version() >= last {
                return Err(refuse(format!(
                    "it does not come before version {last}: list older schemas newest first"
                )));
            }
            last = schema.version();
            let view = view(&self, &schema).map_err(refuse)?;
            self.views.push(Arc::new(view));
        }
        Ok(self)
    }

    /// How clients of a version see this schema; `None` for one that is not served.
    pub fn view(&self, version: i32) -> Option<&Arc<SchemaView>> {
        self.views.iter().find(|view| view.version == version)
    }

    /// The oldest version that is served.
    pub fn oldest_version(&self) -> i32 {
        self.views
            .last()
            .map_or_else(|| self.version(), |view| view.version)
    }
}

fn view(current: &Schema, older: &Schema) -> Result<SchemaView, String> {
    for table in older.tables() {
        let Some(index) = current.find(&table.name) else {
            return Err(format!(
                "table `{}` was retired: clients of that version must upgrade first",
                table.name
            ));
        };
        check(table, older, current.table(index), current)?;
    }
    let tables = current.tables().iter().map(|stored| {
        let index = older.find(&stored.name)?;
        Some(TableView {
            shown: Arc::clone(older.table(index)),
            stored: Arc::clone(stored),
        })
    });
    Ok(SchemaView::assemble(older.version(), tables.collect()))
}

/// Holds a table of an older version against today's.
fn check(before: &Table, older: &Schema, now: &Table, current: &Schema) -> Result<(), String> {
    let name = &before.name;
    let count = before.columns.len();
    for (at, column) in before.columns.iter().enumerate() {
        let same = now.columns.get(at) == Some(column) && now.metas[at] == before.metas[at];
        if !same {
            return Err(format!(
                "column `{}` of table `{name}` was changed or moved",
                column.name
            ));
        }
    }
    let required = |column: &&Column| !column.nullable;
    if let Some(column) = now.columns[count..].iter().find(required) {
        return Err(format!(
            "column `{}` was appended to table `{name}` as NOT NULL, and older clients do not \
             write it",
            column.name
        ));
    }
    if now.primary_key != before.primary_key {
        return Err(format!("table `{name}` got another primary key"));
    }
    if now.scopes != before.scopes {
        return Err(format!("table `{name}` got other scope patterns"));
    }
    let references = references(now, current, count);
    if references != self::references(before, older, count) {
        return Err(format!("table `{name}` got other references"));
    }
    Ok(())
}

/// The references of the first columns, with names in place of positions.
fn references<'a>(
    table: &'a Table,
    schema: &'a Schema,
    count: usize,
) -> Vec<(usize, &'a str, crate::OnDelete)> {
    let known = |reference: &&Reference| reference.column < count;
    table
        .references
        .iter()
        .filter(known)
        .map(|reference| {
            let parent = schema.table(reference.parent).name.as_str();
            (reference.column, parent, reference.on_delete)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};
    use tidewater_wire::row::Value;

    use super::*;

    fn document(version: i32) -> Json {
        json!({
            "version": version,
            "tables": [
                {
                    "name": "lists", "primaryKey": "id",
                    "columns": [
                        {"name": "id", "type": "string", "nullable": false},
                        {"name": "team_id", "type": "string", "nullable": false},
                    ],
                    "scopes": ["team:{team_id}"],
                },
                {
                    "name": "notes", "primaryKey": "id",
                    "columns": [
                        {"name": "id", "type": "string", "nullable": false},
                        {"name": "team_id", "type": "string", "nullable": false},
                        {"name": "list_id", "type": "string", "nullable": true},
                    ],
                    "scopes": ["team:{team_id}"],
                    "references": [{"column": "list_id", "parentTable": "lists"}],
                    "indexes": [{"name": "by_list", "columns": ["list_id"], "unique": false}],
                },
            ],
        })
    }

    fn compile(document: &Json) -> Schema {
        Schema::from_json(&document.to_string()).unwrap()
    }

    fn changed(version: i32, change: impl FnOnce(&mut Json)) -> Schema {
        let mut document = document(version);
        change(&mut document);
        compile(&document)
    }

    fn push(list: &mut Json, item: Json) {
        list.as_array_mut().unwrap().push(item);
    }

    /// Version 3: another table in front, two more columns in `notes`.
    fn current() -> Schema {
        changed(3, |document| {
            let tables = document["tables"].as_array_mut().unwrap();
            let mut added = tables[0].clone();
            added["name"] = json!("added");
            tables.insert(0, added);
            for name in ["stars", "color"] {
                let column = json!({"name": name, "type": "string", "nullable": true});
                push(&mut tables[2]["columns"], column);
            }
            push(
                &mut tables[2]["indexes"],
                json!({"name": "by_color", "columns": ["color"], "unique": false}),
            );
            push(
                &mut tables[2]["references"],
                json!({"column": "color", "parentTable": "added"}),
            );
        })
    }

    #[test]
    fn an_older_version_is_shown_the_first_columns() {
        let schema = current().with_window(vec![compile(&document(1))]).unwrap();
        assert_eq!(schema.oldest_version(), 1);
        let view = schema.view(1).unwrap();
        assert_eq!(view.find("added"), None);
        let notes = view.find("notes").unwrap();
        assert_eq!(
            notes,
            TableIndex(2),
            "places are those of the current schema"
        );
        assert_eq!(view.table(notes).unwrap().columns.len(), 3);
        assert!(!view.is_whole(notes) && view.is_whole(TableIndex(1)));
        let encoded = |text: &str| {
            let mut bytes = Vec::new();
            Value::String(text).encode(&mut bytes);
            bytes
        };
        let (id, team, color) = (encoded("n1"), encoded("t1"), encoded("red"));
        let stored = encode_row(&[Some(&id), Some(&team), None, None, Some(&color)]);
        let shown = view.project(notes, &stored).unwrap();
        assert_eq!(*shown, encode_row(&[Some(&id), Some(&team), None]));
        assert_eq!(view.project(notes, b"damage"), None);
        assert_eq!(view.project(TableIndex(0), &stored), None);
        let current = schema.view(3).unwrap();
        assert!(matches!(
            current.project(notes, &stored),
            Some(Cow::Borrowed(_))
        ));
        assert!(schema.view(2).is_none());
    }

    #[test]
    fn a_schema_without_a_window_serves_itself() {
        let schema = compile(&document(4));
        assert_eq!(schema.oldest_version(), 4);
        assert_eq!(schema.view(4).unwrap().version(), 4);
        assert!(schema.view(5).is_none());
    }

    #[track_caller]
    fn check_refused(older: Schema, message: &str) {
        let error = current().with_window(vec![older]).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }

    #[test]
    fn versions_fall_strictly() {
        check_refused(compile(&document(3)), "newest first");
        check_refused(compile(&document(4)), "newest first");
        let older = vec![compile(&document(1)), compile(&document(2))];
        assert!(current().with_window(older).is_err());
        let older = vec![compile(&document(2)), compile(&document(1))];
        assert!(current().with_window(older).is_ok());
    }

    #[test]
    fn whatever_is_more_than_appending_is_refused() {
        let older = changed(1, |document| {
            document["tables"][1]["columns"][2]["nullable"] = json!(false);
        });
        check_refused(older, "column `list_id`");
        let older = changed(1, |document| {
            document["tables"][0]["columns"][1]["name"] = json!("team");
            document["tables"][0]["scopes"] = json!(["team:{team}"]);
            document["tables"][1]["references"] = json!([]);
        });
        check_refused(older, "column `team`");
        let older = changed(1, |document| {
            document["tables"][1]["scopes"] = json!(["list:{list_id}"]);
            document["tables"][1]["references"] = json!([]);
        });
        check_refused(older, "scope patterns");
        let older = changed(1, |document| {
            document["tables"][1]["references"][0]["onDelete"] = json!("CASCADE");
        });
        check_refused(older, "references");
        let older = changed(1, |document| {
            let mut gone = document["tables"][0].clone();
            gone["name"] = json!("gone");
            push(&mut document["tables"], gone);
        });
        check_refused(older, "`gone` was retired");
        let required = changed(3, |document| {
            let column = json!({"name": "stars", "type": "string", "nullable": false});
            push(&mut document["tables"][1]["columns"], column);
        });
        let error = required
            .with_window(vec![compile(&document(1))])
            .unwrap_err();
        assert!(error.to_string().contains("NOT NULL"), "{error}");
    }
}

//! Schema documents, built in a line per column.
//!
//! The document is the one form that the server's compiler, the published client and a harness
//! in another language all read, so a test says its schema once.

use std::sync::Arc;

use serde_json::{Value, json};
use tidewater_schema::{Schema, SchemaError};

/// A schema under construction.
#[derive(Clone, Debug)]
pub struct SchemaDoc {
    version: i32,
    tables: Vec<Value>,
}

impl SchemaDoc {
    /// An empty schema of this version.
    pub fn new(version: i32) -> Self {
        Self {
            version,
            tables: Vec::new(),
        }
    }

    /// Adds a table.
    #[must_use]
    pub fn table(mut self, table: TableDoc) -> Self {
        self.tables.push(table.into_json());
        self
    }

    /// The document.
    pub fn json(&self) -> Value {
        json!({ "version": self.version, "tables": self.tables })
    }

    /// The document, compiled.
    pub fn compile(&self) -> Result<Arc<Schema>, SchemaError> {
        Schema::from_json(&self.json().to_string()).map(Arc::new)
    }
}

/// A table under construction. The first column is the primary key.
#[derive(Clone, Debug)]
pub struct TableDoc {
    name: String,
    columns: Vec<Value>,
    scopes: Vec<Value>,
    references: Vec<Value>,
    indexes: Vec<Value>,
}

impl TableDoc {
    /// A table without columns.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            columns: Vec::new(),
            scopes: Vec::new(),
            references: Vec::new(),
            indexes: Vec::new(),
        }
    }

    /// Adds a column that is never NULL.
    #[must_use]
    pub fn column(self, name: &str, kind: &str) -> Self {
        self.with_column(json!({ "name": name, "type": kind, "nullable": false }))
    }

    /// Adds a column that may be NULL.
    #[must_use]
    pub fn nullable(self, name: &str, kind: &str) -> Self {
        self.with_column(json!({ "name": name, "type": kind, "nullable": true }))
    }

    /// Adds a scope whose variable is a column: `scope("team", "team_id")`.
    #[must_use]
    pub fn scope(mut self, prefix: &str, column: &str) -> Self {
        let pattern = format!("{prefix}:{{{column}}}");
        self.scopes
            .push(json!({ "pattern": pattern, "variable": column, "column": column }));
        self
    }

    /// Makes a column refer to the primary key of another table, with the index this needs.
    #[must_use]
    pub fn reference(mut self, column: &str, parent: &str, on_delete: &str) -> Self {
        self.references
            .push(json!({ "column": column, "parentTable": parent, "onDelete": on_delete }));
        let index = format!("{}_{column}", self.name);
        self.index(&index, &[column], false)
    }

    /// Declares an index.
    #[must_use]
    pub fn index(mut self, name: &str, columns: &[&str], unique: bool) -> Self {
        self.indexes
            .push(json!({ "name": name, "columns": columns, "unique": unique }));
        self
    }

    fn with_column(mut self, column: Value) -> Self {
        self.columns.push(column);
        self
    }

    fn into_json(self) -> Value {
        let primary_key = self.columns.first().map(|column| column["name"].clone());
        json!({
            "name": self.name,
            "primaryKey": primary_key,
            "columns": self.columns,
            "scopes": self.scopes,
            "references": self.references,
            "indexes": self.indexes,
        })
    }
}

/// The schema most tests need: notes of a team, with a column of several types.
pub fn notes(version: i32) -> SchemaDoc {
    SchemaDoc::new(version).table(notes_table())
}

/// The table of [`notes`].
pub fn notes_table() -> TableDoc {
    TableDoc::new("notes")
        .column("id", "string")
        .column("team_id", "string")
        .nullable("title", "string")
        .nullable("stars", "integer")
        .nullable("done", "boolean")
        .nullable("meta", "json")
        .nullable("body", "bytes")
        .scope("team", "team_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_built_document_compiles_with_scopes_and_references() {
        let folders = TableDoc::new("folders")
            .column("id", "string")
            .column("team_id", "string")
            .scope("team", "team_id");
        let notes = notes_table().nullable("folder_id", "string").reference(
            "folder_id",
            "folders",
            "SET NULL",
        );
        let schema = SchemaDoc::new(3).table(folders).table(notes);
        let compiled = schema.compile().unwrap();
        assert_eq!(compiled.version(), 3);
        let notes = compiled.table(compiled.find("notes").unwrap());
        assert_eq!(notes.scopes[0].key("t1"), "team:t1");
        assert_eq!(notes.references.len(), 1);
    }
}

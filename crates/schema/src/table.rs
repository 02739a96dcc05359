//! The compiled schema: immutable, shared, with every name resolved to a position.

use std::{collections::BTreeMap, sync::Arc};

use tidewater_model::StoredScopes;
use tidewater_wire::row::{Column, Value};

use crate::{SchemaView, identifier::physical_index_name};

/// A table's place in its schema, in declaration order.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TableIndex(pub usize);

/// One compiled schema version.
#[derive(Debug)]
pub struct Schema {
    version: i32,
    tables: Vec<Arc<Table>>,
    by_name: BTreeMap<String, TableIndex>,
    /// How clients of each version that is served see it: its own first, then older ones.
    pub(crate) views: Vec<Arc<SchemaView>>,
}

impl Schema {
    /// Assembles tables whose rules were checked by the compiler.
    pub(crate) fn assemble(version: i32, tables: Vec<Table>) -> Self {
        let by_name = tables
            .iter()
            .enumerate()
            .map(|(index, table)| (table.name.clone(), TableIndex(index)))
            .collect();
        let tables: Vec<_> = tables.into_iter().map(Arc::new).collect();
        let view = SchemaView::of_itself(version, &tables);
        Self {
            version,
            tables,
            by_name,
            views: vec![Arc::new(view)],
        }
    }

    /// The version clients must name in their requests.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The tables in declaration order.
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// The table at `index`.
    ///
    /// # Panics
    ///
    /// When the index belongs to another schema.
    pub fn table(&self, index: TableIndex) -> &Arc<Table> {
        &self.tables[index.0]
    }

    /// Finds a table by name.
    pub fn find(&self, name: &str) -> Option<TableIndex> {
        self.by_name.get(name).copied()
    }

    /// Whether some table declares `variable` as a scope variable.
    pub fn declares_variable(&self, variable: &str) -> bool {
        self.tables
            .iter()
            .any(|table| table.scope(variable).is_some())
    }
}

/// One compiled table.
#[derive(Debug)]
pub struct Table {
    /// The name, in the protocol and in the database.
    pub name: String,
    /// The columns in declaration order: the order of the row codec.
    pub columns: Vec<Column>,
    /// What the codec does not need to know about each column, in the same order.
    pub metas: Vec<ColumnMeta>,
    /// Position of the primary-key column.
    pub primary_key: usize,
    /// The scope patterns, by ascending UTF-16 order of their variables. At least one. Two
    /// prefixes may share a variable; then they share its column.
    pub scopes: Vec<ScopePattern>,
    /// Declared indexes.
    pub indexes: Vec<Index>,
    /// Declared references, in declaration order.
    pub references: Vec<Reference>,
    /// Whether the database keeps typed columns beside the payload.
    pub materialized: bool,
}

impl Table {
    /// Position of the column with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The pattern of this scope variable.
    pub fn scope(&self, variable: &str) -> Option<&ScopePattern> {
        self.scopes
            .iter()
            .find(|pattern| pattern.variable == variable)
    }

    /// Whether the column at this position decides authorization.
    pub fn is_scope_column(&self, column: usize) -> bool {
        self.scopes.iter().any(|pattern| pattern.column == column)
    }

    /// Whether some column is encrypted: such a table is never served as an image (§5.11).
    pub fn has_encrypted_column(&self) -> bool {
        self.metas.iter().any(|meta| meta.encrypted)
    }

    /// The scopes of a row with these values, by position; `None` when a scope column is NULL
    /// or has no text (§3.1).
    pub fn stored_scopes<'a>(
        &self,
        value: impl Fn(usize) -> Option<Value<'a>>,
    ) -> Option<StoredScopes> {
        let mut pairs: Vec<(String, String)> = Vec::with_capacity(self.scopes.len());
        for pattern in &self.scopes {
            // Two prefixes may share a variable, and then its column: one value is enough.
            if pairs
                .last()
                .is_some_and(|(variable, _)| *variable == pattern.variable)
            {
                continue;
            }
            let text = value(pattern.column)?.render()?.into_owned();
            pairs.push((pattern.variable.clone(), text));
        }
        StoredScopes::new(pairs)
    }
}

/// Facts about a column that never travel on the wire.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ColumnMeta {
    /// The merger of a `crdt` column, for example `yjs-doc`.
    pub crdt_type: Option<String>,
    /// Whether clients encrypt the column; its type is then `bytes`.
    pub encrypted: bool,
    /// The type inside an encrypted column.
    pub declared_type: Option<String>,
}

/// One scope pattern, `prefix:{variable}` (§3.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScopePattern {
    /// Text before the colon.
    pub prefix: String,
    /// The variable.
    pub variable: String,
    /// Position of the column that holds the value.
    pub column: usize,
}

impl ScopePattern {
    /// The pattern as it is written in a schema.
    pub fn pattern(&self) -> String {
        format!("{}:{{{}}}", self.prefix, self.variable)
    }

    /// The scope key of a value: `prefix:value`.
    pub fn key(&self, value: &str) -> String {
        format!("{}:{value}", self.prefix)
    }
}

/// A declared index.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Index {
    /// Its declared name.
    pub name: String,
    /// Positions of its columns.
    pub columns: Vec<usize>,
    /// Whether values are unique, per partition.
    pub unique: bool,
}

impl Index {
    /// Its name in the database. Unique in the schema, and never the name of a table.
    pub fn physical_name(&self) -> String {
        physical_index_name(&self.name)
    }
}

/// A declared reference to another table's primary key (§6.11).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reference {
    /// Position of the child's column.
    pub column: usize,
    /// The parent table.
    pub parent: TableIndex,
    /// What deleting the parent does.
    pub on_delete: OnDelete,
}

/// What deleting a referenced row does to the rows that reference it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnDelete {
    /// The delete is refused.
    #[default]
    Restrict,
    /// They are deleted as well.
    Cascade,
    /// Their reference becomes NULL.
    SetNull,
}

//! What the database says about its own tables and indexes, where unqualified names lead.

use tidewater_store::StoreError;
use tokio_postgres::Row;

use crate::{error::get, link::Link, params::Step};

/// The tables and indexes of a database, as they are now.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    tables: Vec<TableInfo>,
    /// What the server's settings say about what we rely on.
    pub(crate) encoding: String,
    pub(crate) synchronous_commit: String,
}

/// A table.
#[derive(Debug)]
pub(crate) struct TableInfo {
    pub(crate) name: String,
    /// By their place in the table.
    pub(crate) columns: Vec<ColumnInfo>,
    pub(crate) indexes: Vec<IndexInfo>,
}

/// A column of a table.
#[derive(Debug)]
pub(crate) struct ColumnInfo {
    pub(crate) name: String,
    pub(crate) sql_type: String,
    pub(crate) not_null: bool,
    /// Whether texts in it are compared byte by byte.
    pub(crate) is_bytewise: bool,
}

/// An index of a table.
#[derive(Debug)]
pub(crate) struct IndexInfo {
    pub(crate) name: String,
    pub(crate) unique: bool,
    pub(crate) primary: bool,
    /// Whether it was created by a statement of its own, and not by a constraint.
    pub(crate) free_standing: bool,
    /// Whether it covers only some rows, or is not to be used.
    pub(crate) partial: bool,
    /// Its columns; `None` for an expression.
    pub(crate) columns: Vec<Option<String>>,
}

const SETTINGS: &str =
    "SELECT current_setting('server_encoding'), current_setting('synchronous_commit')";

const COLUMNS: &str = "SELECT c.relname::text, a.attname::text, \
    format_type(a.atttypid, a.atttypmod), a.attnotnull, \
    a.attcollation = 0 OR k.collname IN ('C', 'POSIX') \
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 \
    AND NOT a.attisdropped LEFT JOIN pg_collation k ON k.oid = a.attcollation \
    WHERE c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid) \
    AND c.relnamespace <> 'pg_catalog'::regnamespace ORDER BY c.relname, a.attnum";

const INDEXES: &str = "SELECT t.relname::text, i.relname::text, x.indisunique, x.indisprimary, \
    NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = x.indexrelid \
    AND k.contype IN ('p', 'u', 'x')), x.indpred IS NOT NULL OR NOT x.indisvalid, \
    ARRAY(SELECT a.attname::text FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS k (num, place) \
    LEFT JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.num AND k.num <> 0 \
    WHERE k.place <= x.indnkeyatts ORDER BY k.place) \
    FROM pg_index x JOIN pg_class t ON t.oid = x.indrelid JOIN pg_class i ON i.oid = x.indexrelid \
    WHERE t.relkind IN ('r', 'p') AND pg_table_is_visible(t.oid) \
    AND t.relnamespace <> 'pg_catalog'::regnamespace ORDER BY t.relname, i.relname";

impl Catalog {
    /// Reads it, in the link's transaction.
    pub(crate) async fn read(link: &mut Link, during: &'static str) -> Result<Self, StoreError> {
        let steps = [SETTINGS, COLUMNS, INDEXES].map(|sql| Step::once(sql, Vec::new()));
        let answers = link.fly(&steps, during).await?.rows(during)?;
        let mut catalog = Self::default();
        if let Some(row) = answers[0].first() {
            catalog.encoding = get(row, 0, during)?;
            catalog.synchronous_commit = get(row, 1, during)?;
        }
        for row in &answers[1] {
            let column = column(row, during)?;
            catalog.table(get(row, 0, during)?).columns.push(column);
        }
        for row in &answers[2] {
            let index = index(row, during)?;
            catalog.table(get(row, 0, during)?).indexes.push(index);
        }
        Ok(catalog)
    }

    fn table(&mut self, name: &str) -> &mut TableInfo {
        let at = self.tables.iter().position(|table| table.name == name);
        let at = at.unwrap_or_else(|| {
            self.tables.push(TableInfo {
                name: name.to_owned(),
                columns: Vec::new(),
                indexes: Vec::new(),
            });
            self.tables.len() - 1
        });
        &mut self.tables[at]
    }

    /// A table by its name.
    pub(crate) fn find(&self, name: &str) -> Option<&TableInfo> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// Every table.
    pub(crate) fn tables(&self) -> &[TableInfo] {
        &self.tables
    }
}

fn column(row: &Row, during: &'static str) -> Result<ColumnInfo, StoreError> {
    Ok(ColumnInfo {
        name: get(row, 1, during)?,
        sql_type: get(row, 2, during)?,
        not_null: get(row, 3, during)?,
        is_bytewise: get(row, 4, during)?,
    })
}

fn index(row: &Row, during: &'static str) -> Result<IndexInfo, StoreError> {
    Ok(IndexInfo {
        name: get(row, 1, during)?,
        unique: get(row, 2, during)?,
        primary: get(row, 3, during)?,
        free_standing: get(row, 4, during)?,
        partial: get(row, 5, during)?,
        columns: get(row, 6, during)?,
    })
}

impl TableInfo {
    /// A column by its name.
    pub(crate) fn column(&self, name: &str) -> Option<&ColumnInfo> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Whether it has an index of this name.
    pub(crate) fn has_index(&self, name: &str) -> bool {
        self.indexes.iter().any(|index| index.name == name)
    }
}

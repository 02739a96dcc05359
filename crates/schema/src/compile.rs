//! Compiles a schema document: the rules about tables, columns, keys, scopes and indexes.
//!
//! Two forms are read. The IR document (`irVersion` 1) is what the generator writes to a file;
//! the runtime form is the object of its generated module, with `version` for `schemaVersion`
//! and shorter scopes. What only clients use (full-text indexes, subscriptions, extensions,
//! history) is not looked at.
//!
//! **Invariant:** a [`Schema`] exists only if every rule holds, so nothing behind it checks a
//! name, a position or a type again.
//!
//! Not here: the rules between tables, which are in `references`.

use serde_json::Value;
use tidewater_model::{ColumnType, limits::COLUMNS_PER_TABLE_MAX, utf16_cmp};
use tidewater_wire::row::Column;

use crate::{
    ColumnMeta, Index, Schema, SchemaCode, SchemaError, ScopePattern, Table,
    document::{Object, invalid, item_text},
    identifier::{NamesInUse, check_identifier, physical_index_name},
    references::{self, DeclaredReference},
};

/// The only document format there is.
const IR_VERSION: i64 = 1;

impl Schema {
    /// Compiles a schema document in the IR or the runtime form.
    ///
    /// The caller bounds the size of `text`; nesting is bounded by the JSON reader.
    pub fn from_json(text: &str) -> Result<Self, SchemaError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| invalid("document", format!("the text is not JSON: {error}")))?;
        let document = Object::new(&value, "document")?;
        check_ir_version(&document)?;
        let version = schema_version(&document)?;

        let mut names = NamesInUse::default();
        let mut index_names = NamesInUse::default();
        let mut tables = Vec::new();
        let mut declared = Vec::new();
        for (position, item) in document.list("tables")?.iter().enumerate() {
            let object = Object::new(item, format!("tables[{position}]"))?;
            let name = object.text("name")?;
            let object = object.at(format!("tables.{name}"));
            check_identifier(name, &object.place)?;
            if !names.take(name) {
                return Err(duplicate(&object.place, "table of this schema"));
            }
            tables.push(compile_table(name, &object, &mut index_names)?);
            declared.push(references::declared(&object)?);
        }
        link(&mut tables, &declared)?;
        Ok(Self::assemble(version, tables))
    }
}

fn link(tables: &mut [Table], declared: &[Vec<DeclaredReference<'_>>]) -> Result<(), SchemaError> {
    let mut linked = Vec::with_capacity(tables.len());
    for (child, references) in tables.iter().zip(declared) {
        linked.push(references::link(tables, child, references)?);
    }
    for (table, references) in tables.iter_mut().zip(linked) {
        table.references = references;
    }
    Ok(())
}

fn check_ir_version(document: &Object<'_>) -> Result<(), SchemaError> {
    match document.find("irVersion") {
        None => Ok(()),
        Some(version) if version.as_i64() == Some(IR_VERSION) => Ok(()),
        Some(version) => Err(SchemaError::new(
            SchemaCode::UnsupportedIrVersion,
            "irVersion",
            format!(
                "this server reads irVersion {IR_VERSION}, found {version}: \
                 generate the document with a matching generator"
            ),
        )),
    }
}

fn schema_version(document: &Object<'_>) -> Result<i32, SchemaError> {
    let refuse =
        |message: String| SchemaError::new(SchemaCode::InvalidVersion, "schemaVersion", message);
    let named = document.find("schemaVersion");
    let alias = document.find("version");
    if let (Some(named), Some(alias)) = (named, alias)
        && named != alias
    {
        return Err(refuse(format!(
            "`schemaVersion` is {named} and `version` is {alias}: keep one of them"
        )));
    }
    let Some(value) = named.or(alias) else {
        return Err(refuse(
            "the schema version is missing: add `schemaVersion`".to_owned(),
        ));
    };
    value
        .as_i64()
        .and_then(|version| i32::try_from(version).ok())
        .filter(|version| *version >= 1)
        .ok_or_else(|| {
            refuse(format!(
                "the schema version must be a whole number from 1 to {}, found {value}",
                i32::MAX
            ))
        })
}

fn compile_table(
    name: &str,
    object: &Object<'_>,
    index_names: &mut NamesInUse,
) -> Result<Table, SchemaError> {
    let (columns, metas) = compile_columns(object)?;
    let mut table = Table {
        name: name.to_owned(),
        columns,
        metas,
        primary_key: 0,
        scopes: Vec::new(),
        indexes: Vec::new(),
        references: Vec::new(),
        materialized: true,
    };
    table.primary_key = compile_primary_key(object, &table)?;
    table.scopes = compile_scopes(object, &table)?;
    table.indexes = compile_indexes(object, &table, index_names)?;
    table.materialized = object
        .find_flag("materialize")?
        .unwrap_or_else(|| has_readable_content(&table));
    Ok(table)
}

fn compile_columns(object: &Object<'_>) -> Result<(Vec<Column>, Vec<ColumnMeta>), SchemaError> {
    let items = object.list("columns")?;
    if items.len() > COLUMNS_PER_TABLE_MAX {
        return Err(SchemaError::new(
            SchemaCode::InvalidColumn,
            &object.place,
            format!(
                "{} columns, and a segment describes {COLUMNS_PER_TABLE_MAX}: split the table",
                items.len()
            ),
        ));
    }
    let mut names = NamesInUse::default();
    let mut columns = Vec::with_capacity(items.len());
    let mut metas = Vec::with_capacity(items.len());
    for (position, item) in items.iter().enumerate() {
        let column = Object::new(item, format!("{}.columns[{position}]", object.place))?;
        let name = column.text("name")?;
        let column = column.at(format!("{}.columns.{name}", object.place));
        check_identifier(name, &column.place)?;
        if !names.take(name) {
            return Err(duplicate(&column.place, "column of this table"));
        }
        let kind = column_type(&column)?;
        columns.push(Column {
            name: name.to_owned(),
            kind,
            nullable: column.flag("nullable")?,
        });
        metas.push(column_meta(&column, kind)?);
    }
    Ok((columns, metas))
}

fn column_type(column: &Object<'_>) -> Result<ColumnType, SchemaError> {
    let name = column.text("type")?;
    ColumnType::from_name(name).ok_or_else(|| {
        SchemaError::new(
            SchemaCode::InvalidColumn,
            &column.place,
            format!(
                "unknown type `{name}`: use one of {}",
                ColumnType::ALL.map(ColumnType::name).join(", ")
            ),
        )
    })
}

fn column_meta(column: &Object<'_>, kind: ColumnType) -> Result<ColumnMeta, SchemaError> {
    let mut meta = ColumnMeta::default();
    if column.find_flag("encrypted")?.unwrap_or(false) {
        meta.encrypted = true;
        meta.declared_type = Some(declared_type(column, kind)?);
    }
    if kind == ColumnType::Crdt {
        let crdt_type = column.find_text("crdtType")?.unwrap_or_default();
        if crdt_type.is_empty() {
            return Err(SchemaError::new(
                SchemaCode::InvalidCrdt,
                &column.place,
                "a crdt column must name its merger: add `crdtType`, for example `yjs-doc`",
            ));
        }
        meta.crdt_type = Some(crdt_type.to_owned());
    }
    Ok(meta)
}

fn declared_type(column: &Object<'_>, kind: ColumnType) -> Result<String, SchemaError> {
    let refuse = |message: String| {
        Err(SchemaError::new(
            SchemaCode::InvalidEncryption,
            &column.place,
            message,
        ))
    };
    let declared = column.find_text("declaredType")?.unwrap_or_default();
    if kind == ColumnType::Crdt || declared == ColumnType::Crdt.name() {
        return refuse(
            "the server cannot merge what it cannot read: make the column `encrypted` or `crdt`, \
             not both"
                .to_owned(),
        );
    }
    if kind != ColumnType::Bytes {
        return refuse(format!(
            "an encrypted column is `bytes` to the server, found `{}`: set `type` to `bytes` and \
             `declaredType` to the type inside",
            kind.name()
        ));
    }
    if declared.is_empty() {
        return refuse(
            "an encrypted column must say which type is inside: add `declaredType`".to_owned(),
        );
    }
    Ok(declared.to_owned())
}

fn compile_primary_key(object: &Object<'_>, table: &Table) -> Result<usize, SchemaError> {
    let refuse =
        |message: String| SchemaError::new(SchemaCode::InvalidPrimaryKey, &object.place, message);
    let name = object.text("primaryKey")?;
    let position = table.column(name).ok_or_else(|| {
        refuse(format!(
            "primary key `{name}` is not a column: name one of the table's columns"
        ))
    })?;
    let column = &table.columns[position];
    if table.metas[position].encrypted {
        return Err(refuse(format!(
            "primary key `{name}` is encrypted: the server must read it; choose another column"
        )));
    }
    if !identifies_rows(column.kind) {
        return Err(refuse(format!(
            "primary key `{name}` is {}: use a string, integer, boolean or json column",
            column.kind.name()
        )));
    }
    if column.nullable {
        return Err(refuse(format!(
            "primary key `{name}` may be NULL: set `nullable` to false"
        )));
    }
    Ok(position)
}

/// Whether every value of the type has one text that names a row.
fn identifies_rows(kind: ColumnType) -> bool {
    match kind {
        ColumnType::String | ColumnType::Integer | ColumnType::Boolean | ColumnType::Json => true,
        ColumnType::Float | ColumnType::Bytes | ColumnType::BlobRef | ColumnType::Crdt => false,
    }
}

fn compile_scopes(object: &Object<'_>, table: &Table) -> Result<Vec<ScopePattern>, SchemaError> {
    let mut scopes: Vec<ScopePattern> = Vec::new();
    for (position, item) in object.find_list("scopes")?.iter().enumerate() {
        let place = format!("{}.scopes[{position}]", object.place);
        let pattern = compile_scope(item, &place, table)?;
        let other = scopes
            .iter()
            .find(|other| other.variable == pattern.variable && other.column != pattern.column);
        if let Some(other) = other {
            return Err(SchemaError::new(
                SchemaCode::InvalidScope,
                place,
                format!(
                    "variable `{}` is column `{}` and column `{}`: use one column, or two variables",
                    pattern.variable,
                    table.columns[other.column].name,
                    table.columns[pattern.column].name,
                ),
            ));
        }
        if !scopes.contains(&pattern) {
            scopes.push(pattern);
        }
    }
    if scopes.is_empty() {
        return Err(SchemaError::new(
            SchemaCode::InvalidScope,
            &object.place,
            "nobody could be allowed to see this table: add at least one scope pattern, \
             for example `team:{team_id}`",
        ));
    }
    scopes.sort_by(|left, right| {
        utf16_cmp(&left.variable, &right.variable)
            .then_with(|| utf16_cmp(&left.prefix, &right.prefix))
    });
    Ok(scopes)
}

fn compile_scope(item: &Value, place: &str, table: &Table) -> Result<ScopePattern, SchemaError> {
    let refuse = |message: String| SchemaError::new(SchemaCode::InvalidScope, place, message);
    let (pattern, named, column) = match item {
        Value::String(pattern) => (pattern.as_str(), None, None),
        other => {
            let scope = Object::new(other, place)?;
            (
                scope.text("pattern")?,
                scope.find_text("variable")?,
                scope.find_text("column")?,
            )
        }
    };
    let (prefix, variable) = parse_pattern(pattern).ok_or_else(|| {
        refuse(format!(
            "`{pattern}` is not a scope pattern: write `prefix:{{variable}}`"
        ))
    })?;
    if let Some(named) = named
        && named != variable
    {
        return Err(refuse(format!(
            "pattern `{pattern}` has variable `{variable}`, and `variable` says `{named}`: \
             make them equal"
        )));
    }
    let column = column.unwrap_or(variable);
    let position = table.column(column).ok_or_else(|| {
        refuse(format!(
            "column `{column}` does not exist: set `column` to the one that holds `{variable}`"
        ))
    })?;
    if matches!(
        table.columns[position].kind,
        ColumnType::Bytes | ColumnType::Crdt
    ) {
        return Err(refuse(format!(
            "the server must read a scope column as text, and `{column}` is {}: \
             use a column of another type that is not encrypted",
            table.columns[position].kind.name()
        )));
    }
    Ok(ScopePattern {
        prefix: prefix.to_owned(),
        variable: variable.to_owned(),
        column: position,
    })
}

/// Splits `prefix:{variable}`.
fn parse_pattern(pattern: &str) -> Option<(&str, &str)> {
    let (prefix, rest) = pattern.split_once(":{")?;
    let variable = rest.strip_suffix('}')?;
    let well_formed = !prefix.is_empty()
        && !prefix.contains(['{', '}'])
        && !variable.is_empty()
        && !variable.contains(['{', '}', ':']);
    well_formed.then_some((prefix, variable))
}

fn compile_indexes(
    object: &Object<'_>,
    table: &Table,
    names: &mut NamesInUse,
) -> Result<Vec<Index>, SchemaError> {
    let mut indexes = Vec::new();
    for (position, item) in object.find_list("indexes")?.iter().enumerate() {
        let index = Object::new(item, format!("{}.indexes[{position}]", object.place))?;
        let name = index.text("name")?;
        let index = index.at(format!("{}.indexes.{name}", object.place));
        check_identifier(name, &index.place)?;
        if !names.take(&physical_index_name(name)) {
            return Err(duplicate(&index.place, "index of this schema"));
        }
        let mut columns = Vec::new();
        for column in index.list("columns")? {
            let column = item_text(column, &index.place)?;
            columns.push(table.column(column).ok_or_else(|| {
                SchemaError::new(
                    SchemaCode::InvalidIndex,
                    &index.place,
                    format!("column `{column}` does not exist: remove it or add the column"),
                )
            })?);
        }
        if columns.is_empty() {
            return Err(SchemaError::new(
                SchemaCode::InvalidIndex,
                &index.place,
                "the index has no columns: name at least one",
            ));
        }
        indexes.push(Index {
            name: name.to_owned(),
            columns,
            unique: index.find_flag("unique")?.unwrap_or(false),
        });
    }
    Ok(indexes)
}

/// Whether typed columns would show more than keys, scopes and ciphertext (§5.11).
fn has_readable_content(table: &Table) -> bool {
    !table.has_encrypted_column()
        || (0..table.columns.len()).any(|column| {
            column != table.primary_key
                && !table.is_scope_column(column)
                && !table.metas[column].encrypted
        })
}

fn duplicate(place: &str, what: &str) -> SchemaError {
    SchemaError::new(
        SchemaCode::DuplicateName,
        place,
        format!("another {what} has this name: rename one of them (ASCII case does not count)"),
    )
}

#[cfg(test)]
mod tests;

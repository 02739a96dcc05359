//! Declared references between tables, and what makes one enforceable (§6.11).
//!
//! A delete must find the rows that reference the deleted one, and may delete or change them
//! without asking who is allowed to. Hence the rules: an index finds them, the same scope
//! patterns on both sides keep the effect within what the author could see.

use std::collections::BTreeSet;

use crate::{OnDelete, Reference, SchemaCode, SchemaError, Table, TableIndex, document::Object};

/// A reference as written: names, not positions.
pub(crate) struct DeclaredReference<'a> {
    place: String,
    column: &'a str,
    parent: &'a str,
    on_delete: OnDelete,
}

/// Reads the references of a table.
pub(crate) fn declared<'a>(table: &Object<'a>) -> Result<Vec<DeclaredReference<'a>>, SchemaError> {
    let mut references = Vec::new();
    for (position, item) in table.find_list("references")?.iter().enumerate() {
        let reference = Object::new(item, format!("{}.references[{position}]", table.place))?;
        let column = reference.text("column")?;
        let reference = reference.at(format!("{}.references.{column}", table.place));
        references.push(DeclaredReference {
            column,
            parent: reference.text("parentTable")?,
            on_delete: on_delete(&reference)?,
            place: reference.place,
        });
    }
    Ok(references)
}

fn on_delete(reference: &Object<'_>) -> Result<OnDelete, SchemaError> {
    match reference.find_text("onDelete")? {
        None | Some("RESTRICT") => Ok(OnDelete::Restrict),
        Some("CASCADE") => Ok(OnDelete::Cascade),
        Some("SET NULL") => Ok(OnDelete::SetNull),
        Some(other) => Err(refuse(
            &reference.place,
            format!("`onDelete` is `{other}`: use `RESTRICT`, `CASCADE` or `SET NULL`"),
        )),
    }
}

/// Resolves the references of `child` against all tables.
pub(crate) fn link(
    tables: &[Table],
    child: &Table,
    references: &[DeclaredReference<'_>],
) -> Result<Vec<Reference>, SchemaError> {
    let mut linked: Vec<Reference> = Vec::with_capacity(references.len());
    for declared in references {
        let reference = link_one(tables, child, declared)?;
        if linked.iter().any(|other| other.column == reference.column) {
            return Err(refuse(
                &declared.place,
                "the column has a reference already: keep one of them",
            ));
        }
        linked.push(reference);
    }
    Ok(linked)
}

fn link_one(
    tables: &[Table],
    child: &Table,
    declared: &DeclaredReference<'_>,
) -> Result<Reference, SchemaError> {
    let refuse = |message: String| refuse(&declared.place, message);
    let column = child.column(declared.column).ok_or_else(|| {
        refuse(format!(
            "column `{}` does not exist: name a column of this table",
            declared.column
        ))
    })?;
    let position = tables
        .iter()
        .position(|table| table.name == declared.parent)
        .ok_or_else(|| {
            refuse(format!(
                "table `{}` does not exist: add it or remove the reference",
                declared.parent
            ))
        })?;
    let parent = &tables[position];
    let key = &parent.columns[parent.primary_key];
    let own = &child.columns[column];
    if own.kind != key.kind {
        return Err(refuse(format!(
            "the column is {} and the key of `{}` is {}: give both the same type",
            own.kind.name(),
            parent.name,
            key.kind.name(),
        )));
    }
    if patterns(child) != patterns(parent) {
        return Err(refuse(format!(
            "the scope patterns differ from those of `{}`: give both tables the same patterns",
            parent.name
        )));
    }
    if declared.on_delete == OnDelete::SetNull && !own.nullable {
        return Err(refuse(
            "`SET NULL` needs a column that may be NULL: set `nullable` to true, or use \
             `RESTRICT` or `CASCADE`"
                .to_owned(),
        ));
    }
    if !child.indexes.iter().any(|index| index.columns == [column]) {
        return Err(refuse(format!(
            "nothing finds the rows of a deleted parent: declare an index on `{}` alone",
            declared.column
        )));
    }
    if !child.materialized {
        return Err(refuse(
            "the database keeps no typed columns of this table, so its indexes do not exist: \
             set `materialize` to true"
                .to_owned(),
        ));
    }
    Ok(Reference {
        column,
        parent: TableIndex(position),
        on_delete: declared.on_delete,
    })
}

fn patterns(table: &Table) -> BTreeSet<String> {
    table
        .scopes
        .iter()
        .map(crate::ScopePattern::pattern)
        .collect()
}

fn refuse(place: &str, message: impl Into<String>) -> SchemaError {
    SchemaError::new(SchemaCode::InvalidReference, place, message)
}

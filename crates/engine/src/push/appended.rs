//! Carries out the references of a commit: feeds `references` with rows and appends what it says.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidewater_model::{ErrorCode, Op};
use tidewater_schema::Table;
use tidewater_store::{
    ChangeKind, Child, ChildQuestion, LoadRequest, ResultRecord, RowKey, RowState, StoredRow,
};
use tidewater_wire::{
    RejectionDetails,
    row::{decode_row, encode_row},
};

use super::{
    candidate::Candidate,
    column_versions::ColumnVersions,
    commit::{Draft, Trace, error_record},
    ground::{Ground, Stop},
    references::{
        self, Appended, AppendedKind, Parent, Parents, References, RowRef, Step, Touched,
        Violation, ViolationKind,
    },
};
use crate::RoundError;

/// Checks and completes the commit by its declared references (§6.11).
pub(super) async fn append(
    draft: &mut Draft<'_>,
    candidate: &mut Candidate,
    ground: &mut Ground<'_>,
) -> Result<(), Stop> {
    let schema = draft.engine.schema().clone();
    let limit = draft.engine.parts.config.appended_operations_max;
    let mut references = References::new(&schema, touched(draft)?, limit);
    let mut step = references.start();
    loop {
        step = match step {
            Step::Parents(rows) => {
                let existing = load_existing(draft, candidate, ground, rows).await?;
                references.parents_exist(&existing)
            }
            Step::Children(questions) => {
                let answers = load_children(draft, ground, &questions).await?;
                references.children(&questions, &answers)
            }
            Step::Reject(violation) => return Err(rejection(&violation)),
            Step::Done(appended) => return apply(draft, candidate, ground, appended).await,
        };
    }
}

/// The rows that the client operations touched, each with its first and last state. Deleting
/// what is gone by then is not a touch: the delete before it is to blame for what follows.
fn touched(draft: &Draft<'_>) -> Result<Vec<Touched>, Stop> {
    let mut order: Vec<(&RowKey, &Option<StoredRow>, &Trace)> = Vec::new();
    let mut places: BTreeMap<&RowKey, usize> = BTreeMap::new();
    for trace in &draft.traces {
        match places.get(&trace.key) {
            Some(_) if trace.before.is_none() && trace.after.is_none() => {}
            Some(&place) => order[place].2 = trace,
            None => {
                places.insert(&trace.key, order.len());
                order.push((&trace.key, &trace.before, trace));
            }
        }
    }
    order
        .into_iter()
        .map(|(key, first, last)| {
            let table = draft.table(key);
            let after = match &last.after {
                None => None,
                Some(after) => Some(parents(table, first.as_ref(), after)?),
            };
            let row = RowRef {
                table: key.table,
                row_id: key.row_id.clone(),
            };
            Ok(Touched {
                row,
                existed: first.is_some(),
                op_index: last.op_index,
                after,
            })
        })
        .collect()
}

/// The parents a row names, and which of them it did not name before.
fn parents(table: &Table, before: Option<&StoredRow>, after: &StoredRow) -> Result<Parents, Stop> {
    if table.references.is_empty() {
        return Ok(Parents::default());
    }
    let read = |row: &StoredRow| -> Result<Vec<Option<String>>, Stop> {
        let fields = decode_row(&table.columns, &row.payload)
            .map_err(|error| RoundError::internal(&error, "decode a stored row"))?;
        let values = table.references.iter().map(|reference| {
            let field = fields[reference.column].as_ref()?;
            field.value.render().map(|text| text.into_owned())
        });
        Ok(values.collect())
    };
    let was = before.map(read).transpose()?;
    let parents = read(after)?
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            let row_id = value?;
            let changed = was
                .as_ref()
                .is_none_or(|was| was[index].as_deref() != Some(row_id.as_str()));
            Some(Parent {
                row_id: row_id.into(),
                changed,
            })
        })
        .collect();
    Ok(Parents(parents))
}

async fn load_existing(
    draft: &Draft<'_>,
    candidate: &mut Candidate,
    ground: &mut Ground<'_>,
    rows: Vec<RowRef>,
) -> Result<Vec<RowRef>, Stop> {
    load(draft, candidate, ground, &rows).await?;
    Ok(rows
        .into_iter()
        .filter(|row| candidate.row(&draft.key(row)).row.is_some())
        .collect())
}

/// Loads rows that the group has not seen yet. Those it has seen may differ from the database.
async fn load(
    draft: &Draft<'_>,
    candidate: &mut Candidate,
    ground: &mut Ground<'_>,
    rows: &[RowRef],
) -> Result<(), Stop> {
    let unseen: Vec<RowKey> = rows
        .iter()
        .map(|row| draft.key(row))
        .filter(|key| !candidate.knows(key))
        .collect();
    if unseen.is_empty() {
        return Ok(());
    }
    let wanted = LoadRequest {
        rows: unseen.clone(),
        ..LoadRequest::default()
    };
    let loaded = ground.txn().load(wanted).await?;
    candidate.learn(unseen, loaded.rows, loaded.tombstones);
    Ok(())
}

async fn load_children(
    draft: &Draft<'_>,
    ground: &mut Ground<'_>,
    questions: &[references::ChildQuestion],
) -> Result<Vec<Vec<references::Child>>, Stop> {
    let wanted = questions
        .iter()
        .map(|question| {
            let table = draft.engine.schema().table(question.table);
            ChildQuestion {
                partition: draft.author.partition.clone(),
                table: question.table,
                column: table.references[question.reference].column,
                parents: question.parents.clone(),
                limit: question.limit,
            }
        })
        .collect();
    let txn = ground.show(draft.author.partition, &draft.changes).await?;
    let answers = txn.load_children(wanted).await?;
    let pairs = |children: Vec<Child>| {
        children
            .into_iter()
            .map(|child| (child.parent, child.row_id))
            .collect()
    };
    Ok(answers.into_iter().map(pairs).collect())
}

async fn apply(
    draft: &mut Draft<'_>,
    candidate: &mut Candidate,
    ground: &mut Ground<'_>,
    appended: Vec<Appended>,
) -> Result<(), Stop> {
    if appended.is_empty() {
        return Ok(());
    }
    let rows: Vec<RowRef> = appended
        .iter()
        .map(|appended| appended.row.clone())
        .collect();
    load(draft, candidate, ground, &rows).await?;
    for (number, appended) in appended.into_iter().enumerate() {
        let key = draft.key(&appended.row);
        let before = candidate.row(&key).row.clone();
        let Some(stored) = before else {
            tracing::error!("a child row vanished while its commit was decided");
            let error = RoundError::new(ErrorCode::InternalError, "internal server error");
            return Err(Stop::Fail(error));
        };
        let (op, kind, after) = match appended.kind {
            AppendedKind::Delete => (
                Op::Delete,
                ChangeKind::Delete {
                    scopes: stored.scopes.clone(),
                },
                None,
            ),
            AppendedKind::SetNull(columns) => {
                let after = without_references(draft.table(&key), &stored, &columns)?;
                let row = RowState {
                    row_version: after.row_version,
                    scopes: after.scopes.clone(),
                    payload: after.payload.clone(),
                    column_versions: after.column_versions.clone(),
                    blob_ids: None,
                };
                let scopes_before = Some(stored.scopes.clone());
                (
                    Op::Upsert,
                    ChangeKind::Upsert { row, scopes_before },
                    Some(after),
                )
            }
        };
        let op_index = i32::try_from(draft.commit.operations.len() + number)
            .expect("appended operations are bounded");
        let trace = Trace {
            op_index,
            origin: appended.origin,
            key,
            op,
            before: Some(stored),
            after,
        };
        draft.take(trace, Some(kind), candidate, ground).await?;
    }
    Ok(())
}

/// The row with these columns NULL. Its scopes stay what they were: no reference moves a row.
fn without_references(
    table: &Table,
    stored: &StoredRow,
    columns: &[usize],
) -> Result<StoredRow, Stop> {
    let corrupt = |error: &dyn std::error::Error| {
        Stop::Fail(RoundError::internal(error, "decode a stored row"))
    };
    let fields = decode_row(&table.columns, &stored.payload).map_err(|error| corrupt(&error))?;
    let mut versions = ColumnVersions::decode(
        stored.column_versions.as_deref(),
        stored.row_version,
        table.columns.len(),
    )
    .map_err(|error| corrupt(&error))?;
    let row_version = stored.row_version + 1;
    let mut values: Vec<Option<&[u8]>> = fields
        .iter()
        .map(|field| field.as_ref().map(|field| field.encoded))
        .collect();
    for &column in columns {
        values[column] = None;
        versions.advance(column, row_version);
    }
    Ok(StoredRow {
        row_version,
        scopes: stored.scopes.clone(),
        payload: encode_row(&values).into(),
        column_versions: Some(Bytes::from(versions.encode())),
    })
}

fn rejection(violation: &Violation) -> Stop {
    let (message, told) = match &violation.kind {
        ViolationKind::MissingParent {
            column,
            parent,
            row_id,
        } => (
            "the parent row does not exist",
            details(
                "missing_parent",
                Some(column),
                &[("parent", parent), ("row", row_id)],
            ),
        ),
        ViolationKind::RestrictedDelete { child } => (
            "another row still refers to this one",
            details("restricted_delete", None, &[("child", child)]),
        ),
        ViolationKind::CascadeLimit => (
            "the delete would change too many rows",
            details("cascade_limit", None, &[]),
        ),
    };
    let mut record = error_record(violation.op_index, ErrorCode::ReferenceViolation, message);
    if let ResultRecord::Error { details, .. } = &mut record {
        *details = told;
    }
    Stop::Reject(Box::new(record))
}

/// The reason with as much of the rest as is fit to be shown: names and keys may be no field
/// paths and no values of a reference (§6.3.1).
fn details(reason: &str, column: Option<&str>, references: &[(&str, &str)]) -> Option<String> {
    let mut told = RejectionDetails::new().reason(reason);
    let columns = column.map(|column| told.clone().field_path(column));
    told = columns.filter(is_sound).unwrap_or(told);
    for (key, value) in references {
        told = Some(told.clone().reference(*key, *value))
            .filter(is_sound)
            .unwrap_or(told);
    }
    told.build().ok().map(|text| text.to_string())
}

fn is_sound(details: &RejectionDetails) -> bool {
    details.clone().build().is_ok()
}

//! Declared references of a commit: which parents must exist, what a delete takes along (§6.11).
//!
//! Decided on the state after all client operations, order-independent: first the parents that
//! written rows name, then the closure of cascades, then what a restriction still holds back,
//! then what loses its reference. A row that only loses a reference is not deleted, so its own
//! children stay; and a row that is deleted by one reference is deleted, whatever another says.
//!
//! Pure: [`References`] asks for rows in bulk through [`Step`] and is told what exists. A delete
//! of one parent costs one question per level of its tree, not one per row.

use std::collections::{BTreeMap, BTreeSet};

use bytestring::ByteString;
use tidewater_schema::{OnDelete, Reference, Schema, TableIndex};

/// A row, within the partition of the commit.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RowRef {
    pub(super) table: TableIndex,
    pub(super) row_id: ByteString,
}

/// A row that client operations wrote or deleted, in the order of first touch.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub(super) row: RowRef,
    /// Whether it existed before the commit.
    pub(super) existed: bool,
    /// Of the last operation on it.
    pub(super) op_index: i32,
    /// Its state after the operations; `None` when it is deleted.
    pub(super) after: Option<Parents>,
}

/// The parents that a row names, by the table's references in declaration order.
#[derive(Clone, Debug, Default)]
pub(super) struct Parents(pub(super) Vec<Option<Parent>>);

/// The value of one reference column.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    /// The parent's primary key as text.
    pub(super) row_id: ByteString,
    /// Whether the commit set it: it is new or differs from the row before.
    pub(super) changed: bool,
}

/// Asks for the rows that name one of these parents in one column.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct ChildQuestion {
    /// The children's table.
    pub(super) table: TableIndex,
    /// The reference, by its place in the table.
    pub(super) reference: usize,
    /// The parents, in the order the children are wanted.
    pub(super) parents: Vec<ByteString>,
    /// Most children wanted over all parents.
    pub(super) limit: usize,
}

/// A child and the parent it names, by parent as asked and then by row id.
pub(super) type Child = (ByteString, ByteString);

/// What happens next.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Tell whether these rows exist now; answer with [`References::parents_exist`].
    Parents(Vec<RowRef>),
    /// Tell the children; answer with [`References::children`].
    Children(Vec<ChildQuestion>),
    /// The commit is refused.
    Reject(Violation),
    /// These operations are appended, in order.
    Done(Vec<Appended>),
}

/// Why a commit is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Violation {
    /// The operation that is blamed.
    pub(super) op_index: i32,
    pub(super) kind: ViolationKind,
}

/// The reasons of §6.11.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum ViolationKind {
    /// A written row names a parent that is not there.
    MissingParent {
        /// The reference column.
        column: String,
        /// The parent's table.
        parent: String,
        /// The key that is not there.
        row_id: ByteString,
    },
    /// A deleted row still has a child that may not lose it.
    RestrictedDelete {
        /// The child's table.
        child: String,
    },
    /// The delete would take too many rows along.
    CascadeLimit,
}

/// An operation that references add to the commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Appended {
    pub(super) row: RowRef,
    /// The client's delete that caused it.
    pub(super) origin: i32,
    pub(super) kind: AppendedKind,
}

/// What an appended operation does.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum AppendedKind {
    /// Deletes the row.
    Delete,
    /// Sets these columns to NULL.
    SetNull(Vec<usize>),
}

/// The decision in progress.
pub(super) struct References<'a> {
    schema: &'a Schema,
    touched: Vec<Touched>,
    limit: usize,
    phase: Phase,
    /// Every row that is gone in the end, with the delete that caused it.
    deleted: BTreeMap<RowRef, i32>,
    /// The same in the order they were found.
    deleted_in_order: Vec<RowRef>,
    cascaded: Vec<Appended>,
    nulled: Vec<Appended>,
}

enum Phase {
    Parents,
    /// The deleted rows whose children are not asked for yet start here.
    Cascade(usize),
    Restrict,
    SetNull,
}

impl<'a> References<'a> {
    /// Begins with what the client operations did; at most `limit` operations are appended.
    pub(super) fn new(schema: &'a Schema, touched: Vec<Touched>, limit: usize) -> Self {
        let mut this = Self {
            schema,
            touched,
            limit,
            phase: Phase::Parents,
            deleted: BTreeMap::new(),
            deleted_in_order: Vec::new(),
            cascaded: Vec::new(),
            nulled: Vec::new(),
        };
        for touched in &this.touched {
            if touched.existed && touched.after.is_none() {
                this.deleted.insert(touched.row.clone(), touched.op_index);
                this.deleted_in_order.push(touched.row.clone());
            }
        }
        this
    }

    /// The first step. A commit that writes no reference and deletes no parent is done here.
    pub(super) fn start(&mut self) -> Step {
        let touched: BTreeSet<&RowRef> = self.touched.iter().map(|touched| &touched.row).collect();
        let mut unknown = BTreeSet::new();
        for (_, reference, parent) in self.checked_parents() {
            let row = RowRef {
                table: reference.parent,
                row_id: parent.row_id.clone(),
            };
            if !touched.contains(&row) {
                unknown.insert(row);
            }
        }
        if unknown.is_empty() {
            return self.parents_exist(&[]);
        }
        Step::Parents(unknown.into_iter().collect())
    }

    /// Takes the rows of [`Step::Parents`] that exist.
    pub(super) fn parents_exist(&mut self, existing: &[RowRef]) -> Step {
        let mut present: BTreeSet<&RowRef> = existing.iter().collect();
        present.extend(
            self.touched
                .iter()
                .filter(|touched| touched.after.is_some())
                .map(|touched| &touched.row),
        );
        let missing = self
            .checked_parents()
            .find_map(|(touched, reference, parent)| {
                let row = RowRef {
                    table: reference.parent,
                    row_id: parent.row_id.clone(),
                };
                if present.contains(&row) {
                    return None;
                }
                let table = self.schema.table(touched.row.table);
                Some(Violation {
                    op_index: touched.op_index,
                    kind: ViolationKind::MissingParent {
                        column: table.columns[reference.column].name.clone(),
                        parent: self.schema.table(reference.parent).name.clone(),
                        row_id: parent.row_id.clone(),
                    },
                })
            });
        match missing {
            Some(violation) => Step::Reject(violation),
            None => self.cascade(0),
        }
    }

    /// Takes the answers to [`Step::Children`], one list per question.
    pub(super) fn children(&mut self, questions: &[ChildQuestion], answers: &[Vec<Child>]) -> Step {
        match self.phase {
            Phase::Parents => unreachable!("no children are asked for in this phase"),
            Phase::Cascade(next) => self.take_cascade(next, questions, answers),
            Phase::Restrict => self.take_restrict(questions, answers),
            Phase::SetNull => self.take_set_null(questions, answers),
        }
    }

    /// The references that must name an existing parent: those the commit set, and those whose
    /// parent it deletes. Rows that dangle from before the feature stay editable (OQ-8).
    fn checked_parents(&self) -> impl Iterator<Item = (&Touched, &Reference, &Parent)> {
        self.touched.iter().flat_map(move |touched| {
            let references = &self.schema.table(touched.row.table).references;
            let parents = touched.after.iter().flat_map(|after| &after.0);
            references
                .iter()
                .zip(parents)
                .filter_map(move |(reference, parent)| {
                    let parent = parent.as_ref()?;
                    let row = RowRef {
                        table: reference.parent,
                        row_id: parent.row_id.clone(),
                    };
                    let checked = parent.changed || self.deleted.contains_key(&row);
                    checked.then_some((touched, reference, parent))
                })
        })
    }

    /// Asks for the children of the rows deleted since `next`, level by level.
    fn cascade(&mut self, next: usize) -> Step {
        let level = self.deleted_in_order[next..].to_vec();
        let limit = self.limit + self.deleted.len() + 1;
        let questions = self.questions(&level, OnDelete::Cascade, limit);
        if questions.is_empty() {
            return self.restrict();
        }
        self.phase = Phase::Cascade(self.deleted_in_order.len());
        Step::Children(questions)
    }

    fn take_cascade(
        &mut self,
        next: usize,
        questions: &[ChildQuestion],
        answers: &[Vec<Child>],
    ) -> Step {
        for (question, children) in questions.iter().zip(answers) {
            for (parent, child) in children {
                let row = RowRef {
                    table: question.table,
                    row_id: child.clone(),
                };
                if self.deleted.contains_key(&row) {
                    continue;
                }
                let origin = self.origin(question, parent);
                if self.cascaded.len() == self.limit {
                    return cascade_limit(origin);
                }
                self.deleted.insert(row.clone(), origin);
                self.deleted_in_order.push(row.clone());
                self.cascaded.push(Appended {
                    row,
                    origin,
                    kind: AppendedKind::Delete,
                });
            }
        }
        self.cascade(next)
    }

    fn restrict(&mut self) -> Step {
        // Of the rows found, at most the deleted ones do not count.
        let limit = self.deleted.len() + 1;
        let deleted = self.deleted_in_order.clone();
        let questions = self.questions(&deleted, OnDelete::Restrict, limit);
        if questions.is_empty() {
            return self.set_null();
        }
        self.phase = Phase::Restrict;
        Step::Children(questions)
    }

    fn take_restrict(&mut self, questions: &[ChildQuestion], answers: &[Vec<Child>]) -> Step {
        for (question, children) in questions.iter().zip(answers) {
            for (parent, child) in children {
                let row = RowRef {
                    table: question.table,
                    row_id: child.clone(),
                };
                if !self.deleted.contains_key(&row) {
                    let child = self.schema.table(question.table).name.clone();
                    return Step::Reject(Violation {
                        op_index: self.origin(question, parent),
                        kind: ViolationKind::RestrictedDelete { child },
                    });
                }
            }
        }
        self.set_null()
    }

    fn set_null(&mut self) -> Step {
        let limit = self.limit + self.deleted.len() + 1;
        let deleted = self.deleted_in_order.clone();
        let questions = self.questions(&deleted, OnDelete::SetNull, limit);
        if questions.is_empty() {
            return self.done();
        }
        self.phase = Phase::SetNull;
        Step::Children(questions)
    }

    fn take_set_null(&mut self, questions: &[ChildQuestion], answers: &[Vec<Child>]) -> Step {
        let mut places: BTreeMap<RowRef, usize> = BTreeMap::new();
        for (question, children) in questions.iter().zip(answers) {
            let column = self.reference(question).column;
            for (parent, child) in children {
                let row = RowRef {
                    table: question.table,
                    row_id: child.clone(),
                };
                if self.deleted.contains_key(&row) {
                    continue;
                }
                let origin = self.origin(question, parent);
                if let Some(&place) = places.get(&row) {
                    if let AppendedKind::SetNull(columns) = &mut self.nulled[place].kind {
                        columns.push(column);
                    }
                    continue;
                }
                if self.cascaded.len() + self.nulled.len() == self.limit {
                    return cascade_limit(origin);
                }
                places.insert(row.clone(), self.nulled.len());
                let kind = AppendedKind::SetNull(vec![column]);
                self.nulled.push(Appended { row, origin, kind });
            }
        }
        self.done()
    }

    fn done(&mut self) -> Step {
        let mut appended = std::mem::take(&mut self.cascaded);
        appended.append(&mut self.nulled);
        Step::Done(appended)
    }

    /// One question per reference with this rule whose parent table lost rows, in schema order.
    fn questions(&self, rows: &[RowRef], rule: OnDelete, limit: usize) -> Vec<ChildQuestion> {
        let mut questions = Vec::new();
        for (index, table) in self.schema.tables().iter().enumerate() {
            for (reference, declared) in table.references.iter().enumerate() {
                if declared.on_delete != rule {
                    continue;
                }
                let parents: Vec<ByteString> = rows
                    .iter()
                    .filter(|row| row.table == declared.parent)
                    .map(|row| row.row_id.clone())
                    .collect();
                if !parents.is_empty() {
                    let table = TableIndex(index);
                    questions.push(ChildQuestion {
                        table,
                        reference,
                        parents,
                        limit,
                    });
                }
            }
        }
        questions
    }

    fn reference(&self, question: &ChildQuestion) -> &Reference {
        &self.schema.table(question.table).references[question.reference]
    }

    /// The client's delete that took the parent away.
    fn origin(&self, question: &ChildQuestion, parent: &ByteString) -> i32 {
        let row = RowRef {
            table: self.reference(question).parent,
            row_id: parent.clone(),
        };
        *self
            .deleted
            .get(&row)
            .expect("children are asked for of deleted rows only")
    }
}

fn cascade_limit(op_index: i32) -> Step {
    Step::Reject(Violation {
        op_index,
        kind: ViolationKind::CascadeLimit,
    })
}

#[cfg(test)]
mod tests;

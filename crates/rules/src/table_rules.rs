//! The expressions of one table, as a validator of its writes (§6.7).

use async_trait::async_trait;
use tidewater_engine::{CandidateReader, Rejection, RowValidator, RowWrite, ValidatorError};
use tidewater_model::Op;

use crate::{
    config::WriteKind,
    expression::{EvaluationError, Expression, Inputs},
};

/// Rules in the order of the configuration; the first that does not hold rejects.
#[derive(Debug)]
pub(crate) struct TableRules {
    steps_max: u64,
    rules: Vec<TableRule>,
}

/// One compiled rule.
#[derive(Debug)]
pub(crate) struct TableRule {
    /// Where it stands in the configuration.
    pub(crate) place: String,
    pub(crate) on: Option<WriteKind>,
    pub(crate) expression: Expression,
    pub(crate) rejection: Rejection,
}

/// A rule that came to no verdict.
#[derive(Debug, thiserror::Error)]
#[error("{place}, asked about {asked}: {source}")]
struct NoVerdict {
    place: String,
    asked: &'static str,
    source: EvaluationError,
}

impl TableRules {
    pub(crate) fn new(steps_max: u64) -> Self {
        Self {
            steps_max,
            rules: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, rule: TableRule) {
        self.rules.push(rule);
    }
}

impl TableRule {
    fn judges(&self, op: Op) -> bool {
        match self.on {
            None => true,
            Some(WriteKind::Upsert) => op == Op::Upsert,
            Some(WriteKind::Delete) => op == Op::Delete,
        }
    }
}

#[async_trait]
impl RowValidator for TableRules {
    async fn validate(
        &self,
        write: &RowWrite<'_>,
        _reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError> {
        let inputs = Inputs {
            op: write.op,
            table: write.table,
            actor: write.actor.as_str(),
            partition: write.partition.as_str(),
            row: write.row.map(|row| row.payload),
            stored: write.stored.map(|row| row.payload),
        };
        for rule in self.rules.iter().filter(|rule| rule.judges(write.op)) {
            match rule.expression.holds(&inputs, self.steps_max) {
                Ok(true) => {}
                Ok(false) => return Err(rule.rejection.clone().into()),
                Err(source) => {
                    let place = rule.place.clone();
                    let failure = NoVerdict {
                        place,
                        asked: asked(write),
                        source,
                    };
                    return Err(ValidatorError::Failed(Box::new(failure)));
                }
            }
        }
        Ok(())
    }
}

/// What `row` and `stored` were: without a row they are null, which rules forget.
fn asked(write: &RowWrite<'_>) -> &'static str {
    match (write.op, write.stored) {
        (Op::Delete, _) => "a delete (row is null)",
        (Op::Upsert, None) => "an insert (stored is null)",
        (Op::Upsert, Some(_)) => "an update",
    }
}

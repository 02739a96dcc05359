//! SQL that must find nothing, as a validator of whole commits (§6.8).

use std::collections::BTreeSet;

use async_trait::async_trait;
use tidewater_engine::{
    CandidateCommit, CandidateReader, CommitValidator, ReadError, Rejection, ValidatorError,
};
use tidewater_store::SqlValue;

use crate::sql::Query;

/// One compiled assertion.
#[derive(Debug)]
pub(crate) struct Assertion {
    pub(crate) name: String,
    pub(crate) query: Query,
    /// It judges commits that touch one of these.
    pub(crate) tables: BTreeSet<String>,
    pub(crate) rejection: Rejection,
}

/// An assertion that could not be asked.
#[derive(Debug, thiserror::Error)]
#[error("assertion `{name}`: {source}")]
struct NotAsked {
    name: String,
    source: ReadError,
}

impl Assertion {
    /// What a text may ask for, beside `:partition`.
    pub(crate) const PARAMETERS: [&'static str; 3] = ["actor", "client", "commit"];
}

#[async_trait]
impl CommitValidator for Assertion {
    async fn validate(
        &self,
        commit: &CandidateCommit<'_>,
        reader: &dyn CandidateReader,
    ) -> Result<(), ValidatorError> {
        let mut operations = commit.operations.iter();
        let touching = operations.find(|operation| self.tables.contains(&operation.table.name));
        let Some(touching) = touching else {
            return Ok(());
        };
        let values = self.query.parameters().iter().map(|name| {
            SqlValue::Text(match name.as_str() {
                "actor" => commit.actor.as_str().to_owned(),
                "client" => commit.client.as_str().to_owned(),
                _ => commit.client_commit_id.to_owned(),
            })
        });
        let query = self.query.bind(commit.partition, values.collect(), 1);
        match reader.query(query).await {
            Ok(found) if found.is_empty() => Ok(()),
            // The rows do not say which operation made them wrong: the first that may have.
            Ok(_) => Err(self
                .rejection
                .clone()
                .at_operation(touching.op_index)
                .into()),
            Err(source) => {
                let failure = NotAsked {
                    name: self.name.clone(),
                    source,
                };
                Err(ValidatorError::Failed(Box::new(failure)))
            }
        }
    }
}

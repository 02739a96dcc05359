//! Finds out whether a pooler between us and the database would lose prepared statements.
//!
//! PgBouncer in transaction mode gives each transaction any connection to the server. Unless it
//! keeps track of prepared statements, one that was prepared on one of them is unknown on the
//! next, or worse: it is another node's statement of the same name. So before anything is
//! written, one connection prepares a statement and uses it while another one holds what it was
//! prepared on.

use std::time::Duration;

use tidewater_store::{StoreError, StoreErrorKind};
use tokio_postgres::types::Type;

use crate::{
    link::{Link, Mode, Pool},
    params::{Param, Step},
};

const DURING: &str = "look for a pooler";

/// Refuses to go on where prepared statements are used and lost.
pub(crate) async fn check(pool: &Pool, other: &Pool) -> Result<(), StoreError> {
    if !pool.prepares() {
        return Ok(());
    }
    let mut one = pool.lease(DURING).await?;
    let mut two = other.lease(DURING).await?;
    for _ in 0..ROUNDS {
        ask(&mut one).await?;
        let holding = [two.begin(Mode::Read), Step::command("SELECT 1")];
        two.fly(&holding, DURING).await?.rows(DURING)?;
        // A server answers at once: nobody holds anything that it needs.
        match tokio::time::timeout(PATIENCE, ask(&mut one)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if is_lost(&error) => return Err(refused()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(refused()),
        }
        two.commit(Vec::new(), DURING).await?;
    }
    Ok(())
}

async fn ask(link: &mut Link) -> Result<(), StoreError> {
    let steps = vec![Step::new(
        "SELECT $1::text",
        vec![Param::new("answers", Type::TEXT)],
    )];
    link.transact(Mode::Read, steps, DURING).await.map(drop)
}

/// Other clients of the pooler may take what was meant to be held.
const ROUNDS: usize = 3;

const PATIENCE: Duration = Duration::from_secs(5);

/// `invalid_sql_statement_name`, as the detail of a failure has it.
fn is_lost(error: &StoreError) -> bool {
    let detail = error.detail.as_deref().unwrap_or_default();
    detail.contains("SQLSTATE 26000")
}

fn refused() -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Unavailable, DURING);
    error.detail = Some(
        "a pooler gives each transaction another connection, and prepared statements are lost: \
         set store.postgres.prepared_statements to false, or have PgBouncer (1.21 or later) keep \
         them with max_prepared_statements"
            .to_owned(),
    );
    error
}

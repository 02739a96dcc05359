//! Notices a database that went back in time (§2.1).
//!
//! A database that was restored gives out places of its log a second time, and clients that saw
//! the first ones would never see the second. So `sync_restore_guard` says where it was written:
//! by which transaction, in which database, cluster and timeline. A restored dump was written by
//! another transaction, a copied database has another number, and a cluster that was recovered to
//! a point in time, or that a standby took over, is on another timeline. Such a database is
//! refused until an operator rotates its epochs or vouches for it, and a server that is running
//! writes nothing on a timeline that it did not begin on. docs/adr/0008 has what this cannot see.
//!
//! Where standbys are synchronous, a new timeline has lost nothing, and an operator may say so.

use tidewater_store::{StorageCode, StoreError, StoreErrorKind};
use tokio_postgres::Row;

use crate::{
    error::get,
    link::{Link, Mode},
    params::Step,
};

const DURING: &str = "look for signs of a restore";

/// The timeline of the cluster, as its log's files have it in their names.
pub(crate) const TIMELINE: &str = "left(pg_walfile_name(pg_current_wal_lsn()), 8)";

/// Says for the first time where the database is, in the transaction that creates the table.
pub(crate) const IDENTIFY: &str = "INSERT INTO sync_restore_guard \
    (id, database_id, written_by, database_oid) \
    SELECT 1, gen_random_uuid()::text, txid_current(), oid::int8 \
    FROM pg_database WHERE datname = current_database() ON CONFLICT (id) DO NOTHING";

/// Says where it is now.
const ADOPT: &str = "UPDATE sync_restore_guard SET written_by = txid_current(), \
    cluster_id = NULL, timeline = NULL, database_oid = (SELECT oid::int8 FROM pg_database \
    WHERE datname = current_database()) WHERE id = 1";

/// Says in which cluster it is: apart from the rest, because not everywhere one may ask.
const PLACE: &str = "UPDATE sync_restore_guard SET written_by = txid_current(), \
    cluster_id = (SELECT system_identifier::text FROM pg_control_system()), \
    timeline = left(pg_walfile_name(pg_current_wal_lsn()), 8) WHERE id = 1";

const IDENTITY: &str = "SELECT g.xmin::text = (g.written_by % 4294967296)::text, \
    g.database_oid = (SELECT oid::int8 FROM pg_database WHERE datname = current_database()), \
    g.cluster_id, g.timeline, (SELECT coalesce(sum(max_commit_seq), 0)::int8 FROM sync_partitions) \
    FROM sync_restore_guard g WHERE g.id = 1";

/// Where the database is.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Place {
    cluster_id: String,
    timeline: String,
}

/// What the database says about itself.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Identity {
    is_original: bool,
    is_same_database: bool,
    /// `None` where nobody may ask, or asked.
    place: Option<Place>,
    commits: i64,
}

/// Why a database is not served.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Sign {
    Dump,
    Copy,
    OtherCluster,
    Timeline { was: String, is: String },
}

impl Sign {
    /// For the operator.
    fn sentence(&self) -> String {
        let what = match self {
            Self::Dump => "was filled from a dump".to_owned(),
            Self::Copy => "is a copy of another one".to_owned(),
            Self::OtherCluster => "was served from another cluster before".to_owned(),
            Self::Timeline { was, is } => format!(
                "is on timeline {is} and was served on {was}: its cluster was restored, or a \
                 standby took over"
            ),
        };
        format!(
            "the database {what}. Run `tidewater epoch rotate --all`, so that devices start over \
             from what it holds; or, if nothing was lost, `tidewater epoch keep`"
        )
    }
}

/// Decides whether a database may be served; `here` is where it is, if that matters.
fn judge(identity: &Identity, here: Option<&Place>) -> Result<(), Sign> {
    // Nothing was ever written: whoever was here before cannot be mistaken for it.
    if identity.commits == 0 {
        return Ok(());
    }
    if !identity.is_original {
        return Err(Sign::Dump);
    }
    if !identity.is_same_database {
        return Err(Sign::Copy);
    }
    match (&identity.place, here) {
        (Some(was), Some(is)) if was.cluster_id != is.cluster_id => Err(Sign::OtherCluster),
        (Some(was), Some(is)) if was.timeline != is.timeline => Err(Sign::Timeline {
            was: was.timeline.clone(),
            is: is.timeline.clone(),
        }),
        _ => Ok(()),
    }
}

/// Refuses a database that shows signs of a restore, unless they are accepted. The timeline that
/// writes are made on from now on, if that matters.
pub(crate) async fn check(
    link: &mut Link,
    accept_restored: bool,
    accept_timelines: bool,
) -> Result<Option<String>, StoreError> {
    let answers = link.transact(Mode::Read, vec![Step::once(IDENTITY, Vec::new())], DURING);
    let answers = answers.await?;
    let here = if accept_timelines {
        None
    } else {
        Some(place(link).await?)
    };
    let timeline = here.as_ref().map(|place| place.timeline.clone());
    let Some(row) = answers[0].first() else {
        return Ok(timeline);
    };
    let identity = identity(row)?;
    let judged = judge(&identity, here.as_ref());
    if !accept_restored {
        let refused = |sign: Sign| {
            StoreError::refused(StorageCode::DatabaseRestored, DURING, sign.sentence())
        };
        judged.map_err(refused)?;
        let is_settled =
            identity.is_original && identity.is_same_database && identity.place == here;
        if !is_settled && (identity.commits == 0 || identity.place.is_none() || here.is_none()) {
            adopt(link, accept_timelines).await?;
        }
    }
    Ok(timeline)
}

/// Takes the database for what is served from here on.
pub(crate) async fn adopt(link: &mut Link, accept_timelines: bool) -> Result<(), StoreError> {
    let sql = if accept_timelines {
        vec![Step::once(ADOPT, Vec::new())]
    } else {
        vec![Step::once(ADOPT, Vec::new()), Step::once(PLACE, Vec::new())]
    };
    link.transact(Mode::Write, sql, DURING).await.map(drop)
}

/// A write was about to be made on another timeline than the one that was checked.
pub(crate) fn left_behind(is: &str, was: &str, during: &'static str) -> StoreError {
    let mut error = StoreError::new(StoreErrorKind::Unavailable, during);
    error.detail = Some(format!(
        "the cluster of the database went from timeline {was} to {is}: a standby took over, or it \
         was restored. Nothing is written until this server is started again, which looks at what \
         that means"
    ));
    error
}

async fn place(link: &mut Link) -> Result<Place, StoreError> {
    let sql = format!("SELECT system_identifier::text, {TIMELINE} FROM pg_control_system()");
    let answers = link.transact(Mode::Read, vec![Step::once(sql, Vec::new())], DURING);
    let answers = answers.await.map_err(|mut error| {
        let detail = error.detail.take().unwrap_or_default();
        error.detail = Some(format!(
            "{detail}. The database does not tell its timeline; set store.accept_new_timelines \
             if that is so by intention"
        ));
        error
    })?;
    let row = &answers[0][0];
    Ok(Place {
        cluster_id: get(row, 0, DURING)?,
        timeline: get(row, 1, DURING)?,
    })
}

fn identity(row: &Row) -> Result<Identity, StoreError> {
    let cluster_id: Option<String> = get(row, 2, DURING)?;
    let timeline: Option<String> = get(row, 3, DURING)?;
    let place = cluster_id.zip(timeline);
    Ok(Identity {
        is_original: get(row, 0, DURING)?,
        is_same_database: get(row, 1, DURING)?,
        place: place.map(|(cluster_id, timeline)| Place {
            cluster_id,
            timeline,
        }),
        commits: get(row, 4, DURING)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(cluster_id: &str, timeline: &str) -> Place {
        Place {
            cluster_id: cluster_id.to_owned(),
            timeline: timeline.to_owned(),
        }
    }

    #[test]
    fn a_database_is_served_where_it_says_that_it_is() {
        let same = Identity {
            is_original: true,
            is_same_database: true,
            place: Some(place("a", "00000001")),
            commits: 5,
        };
        let dump = Identity {
            is_original: false,
            ..same.clone()
        };
        let copy = Identity {
            is_same_database: false,
            ..same.clone()
        };
        let empty = Identity {
            commits: 0,
            ..dump.clone()
        };
        let unplaced = Identity {
            place: None,
            ..same.clone()
        };
        let here = || Some(place("a", "00000001"));
        let later = || Some(place("a", "00000002"));
        let timeline = Sign::Timeline {
            was: "00000001".to_owned(),
            is: "00000002".to_owned(),
        };
        for (identity, here, expected) in [
            (&same, here(), Ok(())),
            (&same, later(), Err(timeline)),
            (&same, Some(place("b", "00000001")), Err(Sign::OtherCluster)),
            // The operator says that standbys are synchronous.
            (&same, None, Ok(())),
            (&unplaced, later(), Ok(())),
            (&dump, here(), Err(Sign::Dump)),
            (&dump, None, Err(Sign::Dump)),
            (&copy, here(), Err(Sign::Copy)),
            (&empty, later(), Ok(())),
        ] {
            let case = format!("{identity:?} {here:?}");
            assert_eq!(judge(identity, here.as_ref()), expected, "{case}");
        }
    }
}

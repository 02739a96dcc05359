//! Whether a database agrees with itself: for one that was restored, before it is served.
//!
//! All of it is read in one snapshot, beside servers that go on. It finds what a restore leaves
//! behind that took one table and not another, or stopped halfway: what is stored twice, in two
//! forms, must say the same.

use tidewater_store::StoreError;

use crate::{
    error::get,
    layout::Layout,
    link::{Link, Mode},
    params::{Param, Step},
    statements::quoted,
};

const DURING: &str = "verify the database";

/// What does not agree, a sentence each. The link's transaction is left to be ended.
pub(crate) async fn verify(link: &mut Link, layout: &Layout) -> Result<Vec<String>, StoreError> {
    let beginning = [
        link.begin(Mode::Read),
        Step::command(
            "SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; \
             SET LOCAL enable_sort = on",
        ),
    ];
    link.fly(&beginning, DURING).await?.rows(DURING)?;
    let mut faults = Vec::new();
    for (what, sql) in &OF_THE_LOG {
        count(link, (*sql).to_owned(), Vec::new(), what, &mut faults).await?;
    }
    for table in &layout.tables {
        let name = table.name();
        for (what, sql) in &OF_A_TABLE {
            let sql = sql.replace("{table}", &quoted(name));
            let what = format!("{what} of table `{name}`");
            count(link, sql, vec![Param::text(name)], &what, &mut faults).await?;
        }
    }
    Ok(faults)
}

async fn count(
    link: &mut Link,
    sql: String,
    params: Vec<Param<'_>>,
    what: &str,
    faults: &mut Vec<String>,
) -> Result<(), StoreError> {
    let steps = [Step::once(sql, params)];
    let answers = link.fly(&steps, DURING).await?.rows(DURING)?;
    let found: i64 = match answers[0].first() {
        Some(row) => get(row, 0, DURING)?,
        None => 0,
    };
    if found > 0 {
        faults.push(format!("{found} {what}"));
    }
    Ok(())
}

const OF_THE_LOG: [(&str, &str); 6] = [
    (
        "partitions whose log does not end where it should, or has gaps",
        "SELECT count(*) FROM sync_partitions p WHERE p.max_commit_seq > p.horizon_seq \
         AND (SELECT count(*) FROM sync_commits c WHERE c.partition = p.partition \
         AND c.commit_seq > p.horizon_seq AND c.commit_seq <= p.max_commit_seq) \
         <> p.max_commit_seq - p.horizon_seq",
    ),
    (
        "commits beyond the end of their partition's log",
        "SELECT count(*) FROM sync_commits c LEFT JOIN sync_partitions p USING (partition) \
         WHERE c.commit_seq > coalesce(p.max_commit_seq, 0)",
    ),
    (
        "partitions with a log and without an epoch",
        "SELECT count(*) FROM sync_partitions p WHERE p.max_commit_seq > 0 AND NOT EXISTS (\
         SELECT 1 FROM sync_partition_registry r WHERE r.partition = p.partition)",
    ),
    (
        "changes without their commit",
        "SELECT count(*) FROM sync_changes h WHERE NOT EXISTS (SELECT 1 FROM sync_commits c \
         WHERE c.partition = h.partition AND c.commit_seq = h.commit_seq)",
    ),
    (
        "changes that are not in the index by scope",
        "SELECT count(*) FROM sync_changes h WHERE EXISTS (\
         SELECT 1 FROM jsonb_each_text(h.scopes) s WHERE NOT EXISTS (\
         SELECT 1 FROM sync_change_scopes e WHERE e.partition = h.partition AND e.tbl = h.tbl \
         AND e.var = s.key AND e.value = s.value AND e.commit_seq = h.commit_seq))",
    ),
    (
        "clients that are ahead of their partition's log",
        "SELECT count(*) FROM sync_clients k LEFT JOIN sync_partitions p USING (partition) \
         WHERE k.cursor > coalesce(p.max_commit_seq, 0)",
    ),
];

const OF_A_TABLE: [(&str, &str); 4] = [
    (
        "rows that are not in the index by scope",
        "SELECT count(*) FROM {table} t WHERE $1 <> '' AND EXISTS (\
         SELECT 1 FROM jsonb_each_text(t._sync_scopes) s WHERE NOT EXISTS (\
         SELECT 1 FROM sync_row_scopes e WHERE e.partition = t._sync_partition AND e.tbl = $1 \
         AND e.var = s.key AND e.value = s.value AND e.row_id = t._sync_row_id))",
    ),
    (
        "entries in the index by scope without their row",
        "SELECT count(*) FROM sync_row_scopes e WHERE e.tbl = $1 AND NOT EXISTS (\
         SELECT 1 FROM {table} t WHERE t._sync_partition = e.partition \
         AND t._sync_row_id = e.row_id AND t._sync_scopes ->> e.var = e.value)",
    ),
    (
        "references to blobs without their row",
        "SELECT count(*) FROM sync_blob_refs b WHERE b.tbl = $1 AND NOT EXISTS (\
         SELECT 1 FROM {table} t WHERE t._sync_partition = b.partition \
         AND t._sync_row_id = b.row_id)",
    ),
    (
        "rows that their last change in the log does not agree with",
        "SELECT count(*) FROM (SELECT DISTINCT ON (partition, row_id) partition, row_id, \
         row_version, payload FROM sync_changes WHERE tbl = $1 \
         ORDER BY partition, row_id, commit_seq DESC, idx DESC) h \
         LEFT JOIN {table} t ON t._sync_partition = h.partition AND t._sync_row_id = h.row_id \
         WHERE (t._sync_server_version, t._sync_payload) IS DISTINCT FROM \
         (CASE WHEN h.payload IS NULL THEN NULL ELSE h.row_version END, h.payload)",
    ),
];

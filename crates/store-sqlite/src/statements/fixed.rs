//! Statements that no schema changes.
//!
//! Parameters are numbered alike wherever they mean the same: `?1` is the partition, then what
//! follows it in the index that answers the question. Every one of them is answered by an index;
//! a test asks SQLite for its plans.

use rusqlite::Connection;

use super::Query;

macro_rules! queries {
    ($($(#[$doc:meta])* $name:ident $sql:literal;)+) => {
        /// The statements of one connection.
        pub(crate) struct Queries<'c> {
            $($(#[$doc])* pub(crate) $name: Query<'c>,)+
        }

        impl<'c> Queries<'c> {
            pub(crate) fn new(connection: &'c Connection) -> Self {
                Self { $($name: Query::new(connection, $sql),)+ }
            }

            /// Every statement by its name.
            #[cfg(test)]
            pub(crate) const TEXTS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), $sql),)+];
        }
    };
}

queries! {
    begin_snapshot "BEGIN";
    begin_write "BEGIN IMMEDIATE";
    commit "COMMIT";
    rollback "ROLLBACK";
    savepoint "SAVEPOINT one_commit";
    release "RELEASE one_commit";
    rollback_to "ROLLBACK TO one_commit";
    begin_stage "SAVEPOINT staged";
    rollback_stage "ROLLBACK TO staged";
    release_stage "RELEASE staged";

    /// Answers if the database does.
    ping "SELECT 1 FROM sqlite_schema LIMIT 1";

    gate "SELECT \
        (SELECT log_epoch FROM sync_partition_registry WHERE partition = ?1), \
        (SELECT schema_version FROM sync_schema_meta WHERE id = 1), \
        (SELECT max_commit_seq FROM sync_partitions WHERE partition = ?1), \
        (SELECT horizon_seq FROM sync_partitions WHERE partition = ?1), \
        (SELECT required_version FROM sync_writer_fence WHERE partition = ?1), \
        (SELECT group_concat(name, char(0)) FROM sync_backfill_checkpoints \
        WHERE partition = ?1 AND state <> 'activated')";
    /// The head, and the writers that may move it.
    head "SELECT \
        (SELECT max_commit_seq FROM sync_partitions WHERE partition = ?1), \
        (SELECT required_version FROM sync_writer_fence WHERE partition = ?1)";
    set_head "INSERT INTO sync_partitions (partition, max_commit_seq, horizon_seq) \
        VALUES (?1, ?2, 0) \
        ON CONFLICT (partition) DO UPDATE SET max_commit_seq = excluded.max_commit_seq";
    set_horizon "INSERT INTO sync_partitions (partition, max_commit_seq, horizon_seq) \
        VALUES (?1, 0, ?2) \
        ON CONFLICT (partition) DO UPDATE SET horizon_seq = excluded.horizon_seq";

    fence "SELECT required_version FROM sync_writer_fence WHERE partition = ?1";
    raise_fence "INSERT INTO sync_writer_fence (partition, required_version) VALUES (?1, ?2) \
        ON CONFLICT (partition) DO UPDATE SET \
        required_version = max(required_version, excluded.required_version)";
    schema_version "SELECT schema_version FROM sync_schema_meta WHERE id = 1";
    /// Few: a checkpoint is pending while an operator looks on.
    pending "SELECT DISTINCT name FROM sync_backfill_checkpoints \
        INDEXED BY sync_backfill_checkpoints_pending WHERE state <> 'activated' AND name >= '' ORDER BY name";
    checkpoint "SELECT partition, name, schema_version, state, watermark, owner_epoch, \
        observed_rows, lease_expires_at_ms FROM sync_backfill_checkpoints \
        WHERE partition = ?1 AND name = ?2";
    checkpoints "SELECT partition, name, schema_version, state, watermark, owner_epoch, \
        observed_rows, lease_expires_at_ms FROM sync_backfill_checkpoints \
        WHERE (partition, name) >= (?1, ?2) ORDER BY partition, name LIMIT ?3";
    put_checkpoint "INSERT OR REPLACE INTO sync_backfill_checkpoints (partition, name, \
        schema_version, state, watermark, owner_epoch, observed_rows, lease_expires_at_ms) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

    touch_partition "INSERT INTO sync_partition_registry \
        (partition, log_epoch, epoch_required, last_authenticated_at_ms) VALUES (?1, ?2, 0, ?3) \
        ON CONFLICT (partition) DO UPDATE SET last_authenticated_at_ms = \
        max(last_authenticated_at_ms, excluded.last_authenticated_at_ms)";
    rotate_epoch "INSERT INTO sync_partition_registry \
        (partition, log_epoch, epoch_required, last_authenticated_at_ms) VALUES (?1, ?2, 1, ?3) \
        ON CONFLICT (partition) DO UPDATE SET log_epoch = excluded.log_epoch, \
        epoch_required = 1, last_authenticated_at_ms = \
        max(last_authenticated_at_ms, excluded.last_authenticated_at_ms)";
    see_partition "UPDATE sync_partition_registry SET last_authenticated_at_ms = ?2 \
        WHERE partition = ?1 AND last_authenticated_at_ms < ?2";
    partition "SELECT r.partition, r.log_epoch, r.epoch_required, r.last_authenticated_at_ms, \
        p.max_commit_seq, p.horizon_seq FROM sync_partition_registry r \
        LEFT JOIN sync_partitions p ON p.partition = r.partition WHERE r.partition = ?1";
    partitions "SELECT r.partition, r.log_epoch, r.epoch_required, r.last_authenticated_at_ms, \
        p.max_commit_seq, p.horizon_seq FROM sync_partition_registry r \
        LEFT JOIN sync_partitions p ON p.partition = r.partition WHERE r.partition >= ?1 \
        ORDER BY r.partition LIMIT ?2";

    client "SELECT c.client_id, c.actor_id, c.cursor, c.subscriptions, c.wire_version, \
        c.updated_at_ms, f.code, f.at_ms, f.streak FROM sync_clients c \
        LEFT JOIN sync_client_failures f \
        ON f.partition = c.partition AND f.client_id = c.client_id \
        WHERE c.partition = ?1 AND c.client_id = ?2";
    clients "SELECT c.client_id, c.actor_id, c.cursor, c.subscriptions, c.wire_version, \
        c.updated_at_ms, f.code, f.at_ms, f.streak FROM sync_clients c \
        LEFT JOIN sync_client_failures f \
        ON f.partition = c.partition AND f.client_id = c.client_id \
        WHERE c.partition = ?1 AND c.client_id >= ?2 ORDER BY c.client_id LIMIT ?3";
    /// Writes nothing when the epoch is another one or the client is another actor's.
    put_client "INSERT INTO sync_clients (partition, client_id, actor_id, wire_version, cursor, \
        subscriptions, updated_at_ms) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 \
        WHERE EXISTS (SELECT 1 FROM sync_partition_registry \
        WHERE partition = ?1 AND log_epoch = ?8) \
        ON CONFLICT (partition, client_id) DO UPDATE SET wire_version = excluded.wire_version, \
        cursor = excluded.cursor, subscriptions = excluded.subscriptions, \
        updated_at_ms = excluded.updated_at_ms WHERE actor_id = excluded.actor_id";
    bind_client "INSERT OR IGNORE INTO sync_clients (partition, client_id, actor_id, \
        wire_version, cursor, subscriptions, updated_at_ms) VALUES (?1, ?2, ?3, 0, -1, '[]', ?4)";
    put_failure "INSERT OR REPLACE INTO sync_client_failures \
        (partition, client_id, code, at_ms, streak) VALUES (?1, ?2, ?3, ?4, ?5)";
    clear_failure "DELETE FROM sync_client_failures WHERE partition = ?1 AND client_id = ?2";
    clear_clients "DELETE FROM sync_clients WHERE partition = ?1";
    clear_failures "DELETE FROM sync_client_failures WHERE partition = ?1";
    oldest_cursor "SELECT min(cursor) FROM sync_clients \
        WHERE partition = ?1 AND updated_at_ms >= ?2 AND cursor >= 0";

    push_result "SELECT result FROM sync_push_results \
        WHERE partition = ?1 AND client_id = ?2 AND client_commit_id = ?3";
    put_push_result "INSERT OR IGNORE INTO sync_push_results \
        (partition, client_id, client_commit_id, result) VALUES (?1, ?2, ?3, ?4)";

    push_results "SELECT client_id, client_commit_id, result FROM sync_push_results \
        WHERE partition = ?1 AND (client_id, client_commit_id) >= (?2, ?3) \
        ORDER BY client_id, client_commit_id";
    prune_push_result "DELETE FROM sync_push_results \
        WHERE partition = ?1 AND client_id = ?2 AND client_commit_id = ?3";

    reactions "SELECT idempotency_key, type, version, payload, source_client_id, \
        source_client_commit_id, source_commit_seq, created_at_ms, available_at_ms, status, \
        attempts, max_attempts FROM sync_reactions \
        WHERE partition = ?1 AND idempotency_key >= ?2 ORDER BY idempotency_key LIMIT ?3";
    reactions_of_status "SELECT idempotency_key, type, version, payload, source_client_id, \
        source_client_commit_id, source_commit_seq, created_at_ms, available_at_ms, status, \
        attempts, max_attempts FROM sync_reactions INDEXED BY sync_reactions_by_status \
        WHERE partition = ?1 AND status = ?4 AND idempotency_key >= ?2 \
        ORDER BY idempotency_key LIMIT ?3";
    put_reaction "INSERT OR IGNORE INTO sync_reactions (partition, idempotency_key, type, \
        version, payload, source_client_id, source_client_commit_id, source_commit_seq, \
        created_at_ms, available_at_ms, status, attempts, max_attempts) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, 'pending', 0, ?10)";

    append_commit "INSERT INTO sync_commits (partition, commit_seq, client_id, \
        client_commit_id, actor_id, created_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    append_change "INSERT INTO sync_changes (partition, commit_seq, idx, tbl, row_id, op, \
        row_version, scopes, payload) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    /// A database that was pruned halfway may still have the entry.
    append_change_scope "INSERT OR IGNORE INTO sync_change_scopes \
        (partition, tbl, var, value, commit_seq) VALUES (?1, ?2, ?3, ?4, ?5)";
    newest_change "SELECT max(commit_seq) FROM sync_change_scopes \
        WHERE partition = ?1 AND tbl = ?2 AND var = ?3 AND value = ?4";
    /// The commits that are old enough are few: those that pruning has left, and those that it
    /// removes next.
    newest_before "SELECT max(commit_seq) FROM sync_commits INDEXED BY sync_commits_by_time \
        WHERE partition = ?1 AND created_at_ms < ?2 AND commit_seq > ?3";

    window_of_value "SELECT s.commit_seq, c.created_at_ms, c.actor_id, h.row_id, h.row_version, \
        h.scopes, h.payload FROM sync_change_scopes s CROSS JOIN sync_commits c \
        CROSS JOIN sync_changes h INDEXED BY sync_changes_by_table \
        WHERE s.partition = ?1 AND s.tbl = ?2 AND s.var = ?5 AND s.value = ?6 \
        AND s.commit_seq > ?3 AND s.commit_seq <= ?4 \
        AND c.partition = ?1 AND c.commit_seq = s.commit_seq \
        AND h.partition = ?1 AND h.commit_seq = s.commit_seq AND h.tbl = ?2 \
        ORDER BY s.commit_seq, h.idx";
    window_of_span "SELECT c.commit_seq, c.created_at_ms, c.actor_id, h.row_id, h.row_version, \
        h.scopes, h.payload FROM sync_commits c \
        CROSS JOIN sync_changes h INDEXED BY sync_changes_by_table \
        WHERE c.partition = ?1 AND c.commit_seq > ?3 AND c.commit_seq <= ?4 \
        AND h.partition = ?1 AND h.commit_seq = c.commit_seq AND h.tbl = ?2 \
        ORDER BY c.commit_seq, h.idx";
    commits_of_value "SELECT commit_seq FROM sync_change_scopes \
        WHERE partition = ?1 AND tbl = ?2 AND var = ?5 AND value = ?6 \
        AND commit_seq > ?3 AND commit_seq <= ?4 ORDER BY commit_seq LIMIT ?7";
    rows_of_value "SELECT row_id FROM sync_row_scopes \
        WHERE partition = ?1 AND tbl = ?2 AND var = ?5 AND value = ?6 \
        AND row_id >= ?3 AND row_id < ?4 ORDER BY row_id LIMIT ?7";
    count_commits_of_value "SELECT count(*) FROM (SELECT 1 FROM sync_change_scopes \
        WHERE partition = ?1 AND tbl = ?2 AND var = ?5 AND value = ?6 \
        AND commit_seq > ?3 AND commit_seq <= ?4 LIMIT ?7)";
    count_rows_of_value "SELECT count(*) FROM (SELECT 1 FROM sync_row_scopes \
        WHERE partition = ?1 AND tbl = ?2 AND var = ?5 AND value = ?6 \
        AND row_id >= ?3 AND row_id < ?4 LIMIT ?7)";

    put_row_scope "INSERT OR IGNORE INTO sync_row_scopes (partition, tbl, var, value, row_id) \
        VALUES (?1, ?2, ?3, ?4, ?5)";
    clear_row_scopes "DELETE FROM sync_row_scopes INDEXED BY sync_row_scopes_by_row \
        WHERE partition = ?1 AND tbl = ?2 AND row_id = ?3";
    put_blob_ref "INSERT OR IGNORE INTO sync_blob_refs (partition, tbl, row_id, blob_id) \
        VALUES (?1, ?2, ?3, ?4)";
    rows_of_blob "SELECT tbl, row_id FROM sync_blob_refs INDEXED BY sync_blob_refs_by_blob \
        WHERE partition = ?1 AND blob_id = ?2";
    is_blob_referenced "SELECT 1 FROM sync_blob_refs INDEXED BY sync_blob_refs_by_blob \
        WHERE partition = ?1 AND blob_id = ?2 LIMIT 1";
    clear_blob_refs "DELETE FROM sync_blob_refs WHERE partition = ?1 AND tbl = ?2 \
        AND row_id = ?3";
    /// Above the horizon only: below it an unversioned write wins again.
    tombstone "SELECT commit_seq, scopes FROM sync_tombstones \
        WHERE partition = ?1 AND tbl = ?2 AND row_id = ?3 AND commit_seq > \
        coalesce((SELECT horizon_seq FROM sync_partitions WHERE partition = ?1), 0)";
    put_tombstone "INSERT OR REPLACE INTO sync_tombstones \
        (partition, tbl, row_id, commit_seq, scopes) VALUES (?1, ?2, ?3, ?4, ?5)";
    clear_tombstone "DELETE FROM sync_tombstones WHERE partition = ?1 AND tbl = ?2 \
        AND row_id = ?3";

    pruned_changes "SELECT commit_seq, tbl, scopes FROM sync_changes \
        WHERE partition = ?1 AND commit_seq <= ?2 ORDER BY commit_seq, idx";
    prune_change_scope "DELETE FROM sync_change_scopes WHERE partition = ?1 AND tbl = ?2 \
        AND var = ?3 AND value = ?4 AND commit_seq = ?5";
    prune_changes "DELETE FROM sync_changes WHERE partition = ?1 AND commit_seq <= ?2";
    prune_commits "DELETE FROM sync_commits WHERE partition = ?1 AND commit_seq <= ?2";
    prune_tombstones "DELETE FROM sync_tombstones INDEXED BY sync_tombstones_by_seq \
        WHERE partition = ?1 AND commit_seq <= ?2";
}

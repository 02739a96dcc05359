//! The server's own tables: those of existing Syncular databases, and what we add to them.
//!
//! Names, columns, keys and indexes are those of the reference (§2.4), so that either server
//! finds what the other wrote. We add `sync_row_scopes_by_row` where an older one lacks it, the
//! scopes of a tombstone with an index by place, `sync_reactions_by_status`,
//! `sync_client_failures`, `sync_row_rewrites` and `sync_restore_guard`, and the columns of `sync_writer_fence` and
//! `sync_backfill_checkpoints`, which the reference names only (docs/adr/0009).
//!
//! Texts are compared byte by byte. In databases of the reference they are compared as the
//! database says; a migration changes that, which rebuilds the indexes and leaves the rows.

/// A table of the server.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// Creates it as it is now, but for the collation of its texts.
    create: &'static str,
    /// Columns that older databases lack, with the rest of the statement that adds them.
    pub(crate) added: &'static [(&'static str, &'static str)],
    /// Its indexes, with the statements that create them.
    pub(crate) indexes: &'static [(&'static str, &'static str)],
}

impl Table {
    /// The statement that creates it.
    pub(crate) fn create(&self) -> String {
        self.create.replace("TEXT", "TEXT COLLATE \"C\"")
    }
}

/// Says where the database is: see `guard`.
pub(crate) const RESTORE_GUARD: &str = "sync_restore_guard";

/// Every table of the server.
pub(crate) const TABLES: &[Table] = &[
    Table {
        name: "sync_partitions",
        create: "CREATE TABLE sync_partitions (\
            partition TEXT PRIMARY KEY, \
            max_commit_seq BIGINT NOT NULL DEFAULT 0, \
            horizon_seq BIGINT NOT NULL DEFAULT 0)",
        added: &[],
        indexes: &[],
    },
    Table {
        name: "sync_partition_registry",
        create: "CREATE TABLE sync_partition_registry (\
            partition TEXT PRIMARY KEY, \
            log_epoch TEXT NOT NULL, \
            epoch_required BOOLEAN NOT NULL DEFAULT FALSE, \
            last_authenticated_at_ms BIGINT NOT NULL)",
        added: &[],
        indexes: &[],
    },
    Table {
        name: "sync_row_scopes",
        create: "CREATE TABLE sync_row_scopes (\
            partition TEXT NOT NULL, tbl TEXT NOT NULL, \
            var TEXT NOT NULL, value TEXT NOT NULL, row_id TEXT NOT NULL, \
            PRIMARY KEY (partition, tbl, var, value, row_id))",
        added: &[],
        indexes: &[(
            "sync_row_scopes_by_row",
            "CREATE INDEX sync_row_scopes_by_row ON sync_row_scopes (partition, tbl, row_id)",
        )],
    },
    Table {
        name: "sync_commits",
        create: "CREATE TABLE sync_commits (\
            partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, \
            client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL, \
            actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL, \
            PRIMARY KEY (partition, commit_seq))",
        added: &[],
        indexes: &[(
            "sync_commits_by_time",
            "CREATE INDEX sync_commits_by_time ON sync_commits (partition, created_at_ms)",
        )],
    },
    Table {
        name: "sync_changes",
        create: "CREATE TABLE sync_changes (\
            partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL, \
            tbl TEXT NOT NULL, row_id TEXT NOT NULL, op SMALLINT NOT NULL, \
            row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA, \
            PRIMARY KEY (partition, commit_seq, idx))",
        added: &[],
        indexes: &[(
            "sync_changes_by_table",
            "CREATE INDEX sync_changes_by_table ON sync_changes (partition, commit_seq, tbl, idx)",
        )],
    },
    Table {
        name: "sync_change_scopes",
        create: "CREATE TABLE sync_change_scopes (\
            partition TEXT NOT NULL, tbl TEXT NOT NULL, \
            var TEXT NOT NULL, value TEXT NOT NULL, commit_seq BIGINT NOT NULL, \
            PRIMARY KEY (partition, tbl, var, value, commit_seq))",
        added: &[],
        indexes: &[],
    },
    Table {
        name: "sync_push_results",
        create: "CREATE TABLE sync_push_results (\
            partition TEXT NOT NULL, client_id TEXT NOT NULL, \
            client_commit_id TEXT NOT NULL, result JSONB NOT NULL, \
            PRIMARY KEY (partition, client_id, client_commit_id))",
        added: &[],
        indexes: &[],
    },
    Table {
        name: "sync_reactions",
        create: "CREATE TABLE sync_reactions (\
            partition TEXT NOT NULL, idempotency_key TEXT NOT NULL, \
            type TEXT NOT NULL, version INTEGER NOT NULL, payload JSONB NOT NULL, \
            source_client_id TEXT NOT NULL, source_client_commit_id TEXT NOT NULL, \
            source_commit_seq BIGINT NOT NULL, created_at_ms BIGINT NOT NULL, \
            available_at_ms BIGINT NOT NULL, status TEXT NOT NULL, \
            attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, \
            lease_owner TEXT, lease_expires_at_ms BIGINT, completed_at_ms BIGINT, \
            last_failure JSONB, \
            PRIMARY KEY (partition, idempotency_key), \
            CHECK (status IN ('pending', 'leased', 'completed', 'dead-letter')))",
        added: &[],
        indexes: &[
            (
                "sync_reactions_due",
                "CREATE INDEX sync_reactions_due ON sync_reactions \
                 (partition, status, available_at_ms, created_at_ms, idempotency_key)",
            ),
            (
                "sync_reactions_lease",
                "CREATE INDEX sync_reactions_lease ON sync_reactions \
                 (partition, status, lease_expires_at_ms)",
            ),
            (
                "sync_reactions_completed",
                "CREATE INDEX sync_reactions_completed ON sync_reactions \
                 (partition, status, completed_at_ms, idempotency_key)",
            ),
            (
                "sync_reactions_dead_letter",
                "CREATE INDEX sync_reactions_dead_letter ON sync_reactions \
                 (partition, status, available_at_ms, idempotency_key)",
            ),
            (
                "sync_reactions_by_status",
                "CREATE INDEX sync_reactions_by_status ON sync_reactions \
                 (partition, status, idempotency_key)",
            ),
        ],
    },
    Table {
        name: "sync_clients",
        create: "CREATE TABLE sync_clients (\
            partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL, \
            wire_version INTEGER NOT NULL DEFAULT 1, \
            cursor BIGINT NOT NULL, subscriptions JSONB NOT NULL, \
            updated_at_ms BIGINT NOT NULL, \
            PRIMARY KEY (partition, client_id))",
        added: &[("wire_version", "INTEGER NOT NULL DEFAULT 1")],
        indexes: &[],
    },
    Table {
        name: "sync_client_failures",
        create: "CREATE TABLE sync_client_failures (\
            partition TEXT NOT NULL, client_id TEXT NOT NULL, code TEXT NOT NULL, \
            at_ms BIGINT NOT NULL, streak BIGINT NOT NULL, \
            PRIMARY KEY (partition, client_id))",
        added: &[],
        indexes: &[],
    },
    Table {
        name: "sync_blob_refs",
        create: "CREATE TABLE sync_blob_refs (\
            partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, \
            blob_id TEXT NOT NULL, \
            PRIMARY KEY (partition, tbl, row_id, blob_id))",
        added: &[],
        indexes: &[(
            "sync_blob_refs_by_blob",
            "CREATE INDEX sync_blob_refs_by_blob ON sync_blob_refs (partition, blob_id)",
        )],
    },
    Table {
        name: "sync_tombstones",
        create: "CREATE TABLE sync_tombstones (\
            partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, \
            commit_seq BIGINT NOT NULL, scopes JSONB, \
            PRIMARY KEY (partition, tbl, row_id))",
        added: &[("scopes", "JSONB")],
        indexes: &[(
            "sync_tombstones_by_seq",
            "CREATE INDEX sync_tombstones_by_seq ON sync_tombstones (partition, commit_seq)",
        )],
    },
    Table {
        name: "sync_schema_meta",
        create: "CREATE TABLE sync_schema_meta (\
            id INTEGER PRIMARY KEY CHECK (id = 1), \
            schema_version BIGINT NOT NULL, \
            layouts TEXT NOT NULL DEFAULT '{}')",
        added: &[("layouts", "TEXT NOT NULL DEFAULT '{}'")],
        indexes: &[],
    },
    Table {
        name: "sync_writer_fence",
        create: "CREATE TABLE sync_writer_fence (\
            partition TEXT PRIMARY KEY, \
            required_version BIGINT NOT NULL)",
        added: &[],
        indexes: &[],
    },
    Table {
        name: "sync_backfill_checkpoints",
        create: "CREATE TABLE sync_backfill_checkpoints (\
            partition TEXT NOT NULL, name TEXT NOT NULL, \
            schema_version BIGINT NOT NULL, state TEXT NOT NULL, \
            watermark BIGINT NOT NULL, owner_epoch BIGINT NOT NULL, \
            observed_rows BIGINT NOT NULL, lease_expires_at_ms BIGINT, \
            PRIMARY KEY (partition, name), \
            CHECK (state IN ('declared', 'backfilling', 'activated')))",
        added: &[],
        indexes: &[(
            "sync_backfill_checkpoints_pending",
            "CREATE INDEX sync_backfill_checkpoints_pending ON sync_backfill_checkpoints \
             (name) WHERE state <> 'activated'",
        )],
    },
    Table {
        name: "sync_row_rewrites",
        create: "CREATE TABLE sync_row_rewrites (\
            tbl TEXT PRIMARY KEY, \
            stored_columns INTEGER NOT NULL, columns INTEGER NOT NULL, \
            in_log BOOLEAN NOT NULL, \
            partition TEXT NOT NULL, row_id TEXT NOT NULL, \
            commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL, \
            done BIGINT NOT NULL)",
        added: &[],
        indexes: &[],
    },
    Table {
        name: RESTORE_GUARD,
        create: "CREATE TABLE sync_restore_guard (\
            id INTEGER PRIMARY KEY CHECK (id = 1), \
            database_id TEXT NOT NULL, \
            written_by BIGINT NOT NULL, database_oid BIGINT NOT NULL, \
            cluster_id TEXT, timeline TEXT)",
        added: &[],
        indexes: &[],
    },
];

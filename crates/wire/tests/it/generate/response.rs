//! Responses that obey the grammar.

use proptest::{collection::vec, option, prelude::*};
use tidewater_wire::{
    Change, ChangeRow, CommitFrame, ErrorFrame, LeaseFrame, MediaType, OpResult, PushOutcome,
    PushResult, PushResultDetails, RejectionDetail, Response, ResponseFrame, ResponseHeader,
    SegmentRef, SubEnd, SubStart, SubStatus, UnknownFrame, WireVersion,
};

use super::{
    bytes, filled_text, integer, rejection_details, scope_filter, segment, shared_json,
    shared_text, stored_scopes, unknown_type,
};

pub(crate) fn response(version: WireVersion) -> BoxedStrategy<Response> {
    let results = vec(
        prop_oneof![3 => result(version), 1 => unknown(version).prop_map(|frame| vec![frame])],
        0..4,
    );
    let sections = vec(section(version), 0..3);
    let failure = option::of((error(), any::<bool>()));
    (
        header(version),
        option::of(lease()),
        results,
        sections,
        failure,
    )
        .prop_map(move |(header, lease, results, sections, failure)| {
            let mut frames = vec![header];
            frames.extend(lease);
            frames.extend(results.into_iter().flatten());
            frames.extend(sections.into_iter().flatten());
            if let Some((error, inside_section)) = failure {
                if inside_section && matches!(frames.last(), Some(ResponseFrame::SubEnd(_))) {
                    frames.pop();
                }
                frames.push(error);
            }
            Response { version, frames }
        })
        .boxed()
}

fn header(version: WireVersion) -> BoxedStrategy<ResponseFrame> {
    let schema_version = || option::of(any::<i32>());
    (
        schema_version(),
        schema_version(),
        filled_text(),
        any::<bool>(),
    )
        .prop_map(
            move |(required_schema_version, latest_schema_version, log_epoch, reset_required)| {
                let has_epoch = version.has_epoch();
                ResponseFrame::Header(ResponseHeader {
                    required_schema_version,
                    latest_schema_version,
                    log_epoch: if has_epoch { log_epoch } else { "".into() },
                    reset_required: has_epoch && reset_required,
                })
            },
        )
        .boxed()
}

fn lease() -> BoxedStrategy<ResponseFrame> {
    (filled_text(), integer())
        .prop_map(|(lease_id, expires_at_ms)| {
            ResponseFrame::Lease(LeaseFrame {
                lease_id,
                expires_at_ms,
            })
        })
        .boxed()
}

/// A result, and its companion if it is rejected with errors and one is wanted.
fn result(version: WireVersion) -> BoxedStrategy<Vec<ResponseFrame>> {
    let outcome = prop_oneof![
        integer().prop_map(PushOutcome::Applied),
        integer().prop_map(PushOutcome::Cached),
        Just(PushOutcome::Rejected),
        Just(PushOutcome::Rejected),
    ];
    let records = vec(record(version), 0..4);
    let details = vec(rejection_details(), 0..4);
    (filled_text(), outcome, records, details)
        .prop_map(|(id, outcome, results, details)| {
            let mut errors: Vec<i32> = results
                .iter()
                .filter_map(|record| match record {
                    OpResult::Error { op_index, .. } if *op_index >= 0 => Some(*op_index),
                    _ => None,
                })
                .collect();
            errors.sort_unstable();
            errors.dedup();
            let entries: Vec<RejectionDetail> = errors
                .into_iter()
                .zip(details)
                .map(|(op_index, details)| RejectionDetail { op_index, details })
                .collect();
            let companion = PushResultDetails {
                client_commit_id: id.clone(),
                entries,
            };
            let mut frames = vec![ResponseFrame::PushResult(PushResult {
                client_commit_id: id,
                outcome,
                results,
            })];
            if outcome == PushOutcome::Rejected && !companion.entries.is_empty() {
                frames.push(ResponseFrame::PushResultDetails(companion));
            }
            frames
        })
        .boxed()
}

fn record(version: WireVersion) -> BoxedStrategy<OpResult> {
    let op_index = || prop_oneof![4 => 0..5_i32, 1 => any::<i32>()];
    let conflict = (
        op_index(),
        shared_text(),
        shared_text(),
        integer(),
        bytes(),
        bytes(),
    );
    let error = (op_index(), shared_text(), shared_text(), any::<bool>());
    prop_oneof![
        1 => op_index().prop_map(|op_index| OpResult::Applied { op_index }),
        1 => conflict.prop_map(
            move |(op_index, code, message, server_version, server_row, columns)| {
                OpResult::Conflict {
                    op_index,
                    code,
                    message,
                    server_version,
                    server_row,
                    conflict_columns: if version.is_sparse() {
                        columns
                    } else {
                        bytes::Bytes::new()
                    },
                }
            }
        ),
        2 => error.prop_map(|(op_index, code, message, retryable)| OpResult::Error {
            op_index,
            code,
            message,
            retryable,
        }),
    ]
    .boxed()
}

fn section(version: WireVersion) -> BoxedStrategy<Vec<ResponseFrame>> {
    let commit = commit_frame().prop_map(ResponseFrame::Commit);
    let inline =
        segment().prop_map(|segment| ResponseFrame::SegmentInline(segment.encode().into()));
    let commits = vec(prop_oneof![3 => commit, 1 => unknown(version)], 0..3);
    let segments = vec(
        prop_oneof![1 => inline, 2 => segment_ref(), 1 => unknown(version)],
        0..3,
    );
    let content = prop_oneof![commits, segments];
    let after = option::of(unknown(version));
    (sub_start(), content, sub_end(), after)
        .prop_map(|(start, content, end, after)| {
            let mut frames = vec![start];
            frames.extend(content);
            frames.push(end);
            frames.extend(after);
            frames
        })
        .boxed()
}

fn sub_start() -> BoxedStrategy<ResponseFrame> {
    let status = prop::sample::select(vec![
        SubStatus::Active,
        SubStatus::Revoked,
        SubStatus::Reset,
    ]);
    (
        shared_text(),
        status,
        shared_text(),
        scope_filter(),
        any::<bool>(),
    )
        .prop_map(|(id, status, reason_code, effective_scopes, bootstrap)| {
            ResponseFrame::SubStart(SubStart {
                id,
                status,
                reason_code,
                effective_scopes,
                bootstrap,
            })
        })
        .boxed()
}

pub(crate) fn commit_frame() -> BoxedStrategy<CommitFrame> {
    let row = option::of((integer(), bytes()));
    let changes = vec(
        (
            any::<prop::sample::Index>(),
            shared_text(),
            row,
            stored_scopes(),
        ),
        0..4,
    );
    let tables = vec(shared_text(), 0..3);
    (integer(), integer(), shared_text(), tables, changes)
        .prop_map(
            |(commit_seq, created_at_ms, actor_id, tables, changes)| CommitFrame {
                commit_seq,
                created_at_ms,
                actor_id,
                changes: changes
                    .into_iter()
                    .filter(|_| !tables.is_empty())
                    .map(|(index, row_id, row, scopes)| Change {
                        table_index: u16::try_from(index.index(tables.len())).unwrap(),
                        row_id,
                        row: row.map(|(row_version, row)| ChangeRow { row_version, row }),
                        scopes: scopes.iter().map(|(k, v)| (k.into(), v.into())).collect(),
                    })
                    .collect(),
                tables,
            },
        )
        .boxed()
}

fn segment_ref() -> BoxedStrategy<ResponseFrame> {
    let media_type = prop::sample::select(vec![MediaType::Rows, MediaType::Sqlite]);
    let numbers = (integer(), integer(), integer());
    let cursor = || option::of(shared_text());
    let url = option::of((shared_text(), integer()));
    (
        (shared_text(), media_type, shared_text()),
        numbers,
        (shared_text(), cursor(), cursor(), url),
    )
        .prop_map(
            |(names, numbers, (scope_digest, row_cursor, next_row_cursor, url))| {
                let (segment_id, media_type, table) = names;
                let (byte_length, row_count, as_of_commit_seq) = numbers;
                ResponseFrame::SegmentRef(SegmentRef {
                    segment_id,
                    media_type,
                    table,
                    byte_length,
                    row_count,
                    as_of_commit_seq,
                    scope_digest,
                    row_cursor,
                    next_row_cursor,
                    url,
                })
            },
        )
        .boxed()
}

fn sub_end() -> BoxedStrategy<ResponseFrame> {
    (integer(), option::of(shared_json()))
        .prop_map(|(next_cursor, bootstrap_state)| {
            ResponseFrame::SubEnd(SubEnd {
                next_cursor,
                bootstrap_state,
            })
        })
        .boxed()
}

fn error() -> BoxedStrategy<ResponseFrame> {
    let texts = (shared_text(), shared_text(), shared_text(), shared_text());
    (texts, any::<bool>(), option::of(shared_json()))
        .prop_map(|(texts, retryable, details)| {
            let (code, message, category, recommended_action) = texts;
            ResponseFrame::Error(ErrorFrame {
                code,
                message,
                category,
                retryable,
                recommended_action,
                details,
            })
        })
        .boxed()
}

fn unknown(version: WireVersion) -> BoxedStrategy<ResponseFrame> {
    (unknown_type(version), bytes())
        .prop_map(|(frame_type, payload)| {
            ResponseFrame::Unknown(UnknownFrame {
                frame_type,
                payload,
            })
        })
        .boxed()
}

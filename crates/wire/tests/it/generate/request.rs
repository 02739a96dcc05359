//! Requests that obey the grammar.

use proptest::{collection::vec, option, prelude::*};
use tidewater_wire::{
    Accept, Operation, OperationAction, PullHeader, PushCommit, Request, RequestFrame,
    RequestHeader, RoundFailure, Subscription, UnknownFrame, WireVersion,
};

use super::{bytes, filled_text, integer, scope_filter, shared_json, shared_text, unknown_type};

pub(crate) fn request(version: WireVersion) -> BoxedStrategy<Request> {
    let failure = option::of(round_failure());
    let pushes = vec(prop_oneof![3 => commit(), 1 => unknown(version)], 0..4);
    let pulls = vec(
        prop_oneof![3 => subscription(), 1 => unknown(version)],
        0..4,
    );
    let pull = option::of((pull_header(), pulls));
    (header(version), failure, pushes, pull)
        .prop_map(move |(header, failure, pushes, pull)| {
            let mut frames = vec![header];
            if version == WireVersion::V3 {
                frames.extend(failure);
            }
            let has_commits = pushes
                .iter()
                .any(|frame| matches!(frame, RequestFrame::PushCommit(_)));
            frames.extend(pushes);
            if let Some((header, subscriptions)) = pull {
                frames.push(header);
                frames.extend(subscriptions);
            } else if !has_commits {
                frames.push(RequestFrame::PullHeader(PullHeader {
                    limit_commits: 0,
                    limit_snapshot_rows: 0,
                    max_snapshot_pages: 0,
                    accept: Accept::from_bits(7).unwrap(),
                }));
            }
            Request { version, frames }
        })
        .boxed()
}

fn header(version: WireVersion) -> BoxedStrategy<RequestFrame> {
    (filled_text(), 1..=i32::MAX, option::of(filled_text()))
        .prop_map(move |(client_id, schema_version, log_epoch)| {
            RequestFrame::Header(RequestHeader {
                client_id,
                schema_version,
                log_epoch: log_epoch.filter(|_| version.has_epoch()),
            })
        })
        .boxed()
}

fn round_failure() -> BoxedStrategy<RequestFrame> {
    "[a-z][a-z0-9_]{0,4}(\\.[a-z][a-z0-9_]{0,4}){1,3}"
        .prop_map(|code| RequestFrame::RoundFailure(RoundFailure { code: code.into() }))
        .boxed()
}

fn commit() -> BoxedStrategy<RequestFrame> {
    (filled_text(), vec(operation(), 1..4))
        .prop_map(|(client_commit_id, operations)| {
            RequestFrame::PushCommit(PushCommit {
                client_commit_id,
                operations,
            })
        })
        .boxed()
}

fn operation() -> BoxedStrategy<Operation> {
    let action = prop_oneof![
        bytes().prop_map(OperationAction::Upsert),
        Just(OperationAction::Delete),
    ];
    (shared_text(), shared_text(), action, option::of(integer()))
        .prop_map(|(table, row_id, action, base_version)| Operation {
            table,
            row_id,
            action,
            base_version,
        })
        .boxed()
}

fn pull_header() -> BoxedStrategy<RequestFrame> {
    (any::<i32>(), any::<i32>(), any::<i32>(), 0..16_u8)
        .prop_map(
            |(limit_commits, limit_snapshot_rows, max_snapshot_pages, accept)| {
                RequestFrame::PullHeader(PullHeader {
                    limit_commits,
                    limit_snapshot_rows,
                    max_snapshot_pages,
                    accept: Accept::from_bits(accept).unwrap(),
                })
            },
        )
        .boxed()
}

fn subscription() -> BoxedStrategy<RequestFrame> {
    (
        shared_text(),
        shared_text(),
        scope_filter(),
        option::of(shared_json()),
        integer(),
        option::of(shared_json()),
    )
        .prop_map(|(id, table, scopes, params, cursor, bootstrap_state)| {
            RequestFrame::Subscription(Subscription {
                id,
                table,
                scopes,
                params,
                cursor,
                bootstrap_state,
            })
        })
        .boxed()
}

fn unknown(version: WireVersion) -> BoxedStrategy<RequestFrame> {
    (unknown_type(version), bytes())
        .prop_map(|(frame_type, payload)| {
            RequestFrame::Unknown(UnknownFrame {
                frame_type,
                payload,
            })
        })
        .boxed()
}

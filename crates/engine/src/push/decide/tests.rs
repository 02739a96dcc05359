//! The decision tables of §6.2, line by line, for the three wire versions.

use tidewater_model::{CommitSeq, ErrorCode};
use tidewater_schema::Schema;
use tidewater_wire::row::{Value, encode_row, encode_sparse_row};

use self::{
    Cell::{Absent, Doc, Null, Number, Text},
    Rules::{Full, Sparse},
};
use super::*;

/// Columns: 0 id, 1 team (scope), 2 title?, 3 stars, 4 doc? (crdt).
fn schema() -> Schema {
    Schema::from_json(
        r#"{"version": 1, "tables": [{
            "name": "notes", "primaryKey": "id", "scopes": ["team:{team}"],
            "columns": [
                {"name": "id", "type": "string", "nullable": false},
                {"name": "team", "type": "string", "nullable": true},
                {"name": "title", "type": "string", "nullable": true},
                {"name": "stars", "type": "integer", "nullable": true},
                {"name": "doc", "type": "crdt", "nullable": true, "crdtType": "yjs-doc"}
            ]}]}"#,
    )
    .unwrap()
}

/// A column as a test writes it.
#[derive(Clone, Copy)]
enum Cell {
    Absent,
    Null,
    Text(&'static str),
    Number(i64),
    Doc(&'static [u8]),
}

type Cells = [Cell; 5];

fn bytes(cell: Cell) -> Option<Vec<u8>> {
    let value = match cell {
        Absent | Null => return None,
        Text(text) => Value::String(text),
        Number(number) => Value::Integer(number),
        Doc(doc) => Value::Crdt(doc),
    };
    let mut out = Vec::new();
    value.encode(&mut out);
    Some(out)
}

fn full_row(cells: Cells) -> Vec<u8> {
    let values = cells.map(bytes);
    encode_row(&values.each_ref().map(|value| value.as_deref()))
}

fn sparse_row(cells: Cells) -> Vec<u8> {
    let values = cells.map(|cell| match cell {
        Absent => None,
        cell => Some(bytes(cell)),
    });
    encode_sparse_row(
        &values
            .each_ref()
            .map(|value| value.as_ref().map(Option::as_deref)),
    )
}

fn allowed(teams: &[&str]) -> AllowedScopes {
    let teams: Vec<String> = teams.iter().map(|&team| team.to_owned()).collect();
    AllowedScopes::from_lists([("team".to_owned(), teams)])
}

/// A stored row of team t1 at version 7, with the title last written at 5 and the stars at 3.
fn stored() -> StoredRow {
    let pairs = vec![("team".to_owned(), "t1".to_owned())];
    StoredRow {
        row_version: 7,
        scopes: StoredScopes::new(pairs).unwrap(),
        payload: full_row([Text("a"), Text("t1"), Text("old"), Number(1), Null]).into(),
        column_versions: Some(vec![2, 5, 3, 3].into()),
    }
}

fn tombstone(team: Option<&str>) -> Tombstone {
    let scopes =
        team.map(|team| StoredScopes::new(vec![("team".to_owned(), team.to_owned())]).unwrap());
    Tombstone {
        commit_seq: CommitSeq::new(3).unwrap(),
        scopes,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Rules {
    Full,
    Sparse,
}

/// What an operation came to, in words.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// Row version, and the values after in text.
    Applied(i64, Vec<Option<String>>),
    /// The conflicting columns.
    Conflict(Vec<usize>),
    Error(ErrorCode),
}

fn applied(row_version: i64, values: [&str; 5]) -> Verdict {
    let values = values
        .iter()
        .map(|&text| (text != "-").then(|| text.to_owned()))
        .collect();
    Verdict::Applied(row_version, values)
}

struct Case {
    rules: Rules,
    row: Option<StoredRow>,
    tombstone: Option<Tombstone>,
    teams: &'static [&'static str],
    base: Option<i64>,
    cells: Cells,
}

impl Case {
    fn on_row(rules: Rules, base: Option<i64>, cells: Cells) -> Self {
        Self {
            rules,
            row: Some(stored()),
            tombstone: None,
            teams: &["t1"],
            base,
            cells,
        }
    }

    fn on_nothing(rules: Rules, base: Option<i64>, cells: Cells) -> Self {
        Self {
            row: None,
            ..Self::on_row(rules, base, cells)
        }
    }

    fn allowed(self, teams: &'static [&'static str]) -> Self {
        Self { teams, ..self }
    }

    fn after_delete(self, tombstone: Tombstone) -> Self {
        Self {
            tombstone: Some(tombstone),
            ..self
        }
    }

    #[track_caller]
    fn is(self, expected: Verdict) {
        let schema = schema();
        let table = &schema.tables()[0];
        let payload = match self.rules {
            Full => full_row(self.cells),
            Sparse => sparse_row(self.cells),
        };
        let slots = match self.rules {
            Full => decode_row(&table.columns, &payload)
                .unwrap()
                .into_iter()
                .map(|field| field.map_or(Slot::Null, Slot::Present))
                .collect(),
            Sparse => tidewater_wire::row::decode_sparse_row(&table.columns, 0, &payload).unwrap(),
        };
        let incoming = Incoming {
            slots,
            base_version: self.base,
            sparse: self.rules == Sparse,
        };
        let allowed = allowed(self.teams);
        let decided = match &self.row {
            Some(stored) => decide_update(table, incoming, stored, &allowed),
            None => decide_insert(table, incoming, self.tombstone.as_ref(), &allowed),
        };
        let verdict = match decided {
            Ok(upsert) => Verdict::Applied(
                upsert.row_version,
                upsert
                    .values
                    .iter()
                    .map(|value| value.as_ref().map(text))
                    .collect(),
            ),
            Err(Refusal::Conflict { columns }) => Verdict::Conflict(
                (0..8)
                    .filter(|bit| columns.first().is_some_and(|b| b >> bit & 1 == 1))
                    .collect(),
            ),
            Err(Refusal::Error(code, _)) => Verdict::Error(code),
            Err(Refusal::Corrupt) => panic!("the stored row is sound"),
        };
        assert_eq!(verdict, expected);
    }
}

fn text(field: &Field<'_>) -> String {
    match field.value {
        Value::Crdt(doc) => format!("{doc:?}"),
        value => value
            .render()
            .map_or_else(String::new, |text| text.into_owned()),
    }
}

const FULL: Cells = [Text("a"), Text("t1"), Text("new"), Number(9), Null];
const FORBIDDEN: Verdict = Verdict::Error(ErrorCode::Forbidden);
const MISSING: Verdict = Verdict::Error(ErrorCode::RowMissing);
const INVALID: Verdict = Verdict::Error(ErrorCode::InvalidRequest);

mod on_a_stored_row {
    use super::*;

    #[test]
    fn authorization_comes_first_and_looks_at_the_stored_row() {
        for rules in [Full, Sparse] {
            Case::on_row(rules, Some(0), FULL)
                .allowed(&["t2"])
                .is(FORBIDDEN);
            let claims_mine = [Text("a"), Text("t2"), Text("new"), Number(9), Null];
            Case::on_row(rules, None, claims_mine)
                .allowed(&["t2"])
                .is(FORBIDDEN);
        }
    }

    #[test]
    fn without_a_base_the_last_writer_wins() {
        for rules in [Full, Sparse] {
            Case::on_row(rules, None, FULL).is(applied(8, ["a", "t1", "new", "9", "-"]));
        }
    }

    #[test]
    fn a_full_row_conflicts_unless_its_base_is_exactly_the_rows_version() {
        Case::on_row(Full, Some(7), FULL).is(applied(8, ["a", "t1", "new", "9", "-"]));
        for base in [-1, 0, 6, 8] {
            Case::on_row(Full, Some(base), FULL).is(Verdict::Conflict(vec![1, 2, 3]));
        }
    }

    #[test]
    fn a_full_row_never_moves_the_row_to_another_scope() {
        let moving = [Text("a"), Text("t2"), Text("new"), Number(9), Null];
        for base in [None, Some(7)] {
            Case::on_row(Full, base, moving).is(applied(8, ["a", "t1", "new", "9", "-"]));
        }
    }

    #[test]
    fn a_sparse_row_must_repeat_the_stored_scope_or_leave_it_out() {
        let moving = [Text("a"), Text("t2"), Absent, Absent, Absent];
        Case::on_row(Sparse, None, moving).is(INVALID);
        let losing = [Text("a"), Null, Absent, Absent, Absent];
        Case::on_row(Sparse, None, losing).is(INVALID);
        let repeating = [Text("a"), Text("t1"), Absent, Number(4), Absent];
        Case::on_row(Sparse, None, repeating).is(applied(8, ["a", "t1", "old", "4", "-"]));
        // The scope is held against the stored one before the base version is.
        Case::on_row(Sparse, Some(99), moving).is(INVALID);
    }

    #[test]
    fn a_sparse_base_above_the_rows_version_is_invalid() {
        Case::on_row(Sparse, Some(8), FULL).is(INVALID);
    }

    #[test]
    fn base_zero_conflicts_with_whatever_is_there() {
        Case::on_row(Sparse, Some(0), FULL).is(Verdict::Conflict(vec![1, 2, 3]));
        let only_key = [Text("a"), Absent, Absent, Absent, Absent];
        Case::on_row(Sparse, Some(0), only_key).is(Verdict::Conflict(vec![]));
        let only_doc = [Text("a"), Absent, Absent, Absent, Doc(&[1])];
        Case::on_row(Sparse, Some(0), only_doc).is(Verdict::Conflict(vec![]));
    }

    #[test]
    fn a_sparse_row_conflicts_only_in_columns_that_moved_past_its_base() {
        let title = [Text("a"), Absent, Text("new"), Absent, Absent];
        let stars = [Text("a"), Absent, Absent, Number(9), Absent];
        let both = [Text("a"), Absent, Text("new"), Number(9), Absent];
        Case::on_row(Sparse, Some(4), title).is(Verdict::Conflict(vec![2]));
        Case::on_row(Sparse, Some(5), title).is(applied(8, ["a", "t1", "new", "1", "-"]));
        Case::on_row(Sparse, Some(3), stars).is(applied(8, ["a", "t1", "old", "9", "-"]));
        Case::on_row(Sparse, Some(2), both).is(Verdict::Conflict(vec![2, 3]));
        Case::on_row(Sparse, Some(4), both).is(Verdict::Conflict(vec![2]));
    }

    #[test]
    fn a_crdt_column_never_conflicts_in_a_sparse_row() {
        let doc = [Text("a"), Absent, Absent, Absent, Doc(&[1])];
        Case::on_row(Sparse, Some(1), doc).is(applied(8, ["a", "t1", "old", "1", "[1]"]));
    }

    #[test]
    fn presenting_only_the_key_applies_and_counts() {
        let only_key = [Text("a"), Absent, Absent, Absent, Absent];
        Case::on_row(Sparse, None, only_key).is(applied(8, ["a", "t1", "old", "1", "-"]));
    }

    #[test]
    fn null_clears_and_absent_keeps() {
        let clearing = [Text("a"), Absent, Null, Absent, Absent];
        Case::on_row(Sparse, None, clearing).is(applied(8, ["a", "t1", "-", "1", "-"]));
    }

    #[test]
    fn a_delete_is_authorized_by_the_stored_scopes() {
        let schema = schema();
        let table = &schema.tables()[0];
        assert_eq!(decide_delete(table, &stored(), &allowed(&["t1"])), Ok(()));
        assert_eq!(
            decide_delete(table, &stored(), &allowed(&["t2"])),
            Err(Refusal::FORBIDDEN)
        );
    }
}

mod on_no_row {
    use super::*;

    #[test]
    fn an_insert_starts_at_version_1() {
        for rules in [Full, Sparse] {
            for base in [None, Some(0)] {
                Case::on_nothing(rules, base, FULL).is(applied(1, ["a", "t1", "new", "9", "-"]));
            }
        }
    }

    #[test]
    fn a_base_other_than_zero_means_the_row_is_missing() {
        for rules in [Full, Sparse] {
            for base in [-1, 1, 7] {
                Case::on_nothing(rules, Some(base), FULL).is(MISSING);
                Case::on_nothing(rules, Some(base), FULL)
                    .allowed(&["t2"])
                    .is(FORBIDDEN);
            }
        }
    }

    #[test]
    fn a_patch_of_a_missing_row_without_scopes_is_not_told_that_it_is_missing() {
        let patch = [Text("a"), Absent, Text("new"), Absent, Absent];
        Case::on_nothing(Sparse, Some(3), patch).is(FORBIDDEN);
    }

    #[test]
    fn a_partial_row_cannot_be_inserted() {
        let patch = [Text("a"), Text("t1"), Text("new"), Absent, Absent];
        for base in [None, Some(0)] {
            Case::on_nothing(Sparse, base, patch).is(MISSING);
        }
    }

    #[test]
    fn an_insert_needs_a_scope_that_is_allowed() {
        let unscoped = [Text("a"), Null, Text("new"), Number(9), Null];
        let empty = [Text("a"), Text(""), Text("new"), Number(9), Null];
        for rules in [Full, Sparse] {
            Case::on_nothing(rules, None, FULL)
                .allowed(&["t2"])
                .is(FORBIDDEN);
            Case::on_nothing(rules, None, unscoped)
                .allowed(&["*"])
                .is(FORBIDDEN);
            Case::on_nothing(rules, None, empty)
                .allowed(&["*"])
                .is(FORBIDDEN);
        }
    }

    #[test]
    fn a_tombstone_wins_over_an_unversioned_sparse_row_and_over_nothing_else() {
        let deleted = Verdict::Error(ErrorCode::RowDeleted);
        let mine = || tombstone(Some("t1"));
        Case::on_nothing(Sparse, None, FULL)
            .after_delete(mine())
            .is(deleted);
        let back = || applied(1, ["a", "t1", "new", "9", "-"]);
        Case::on_nothing(Sparse, Some(0), FULL)
            .after_delete(mine())
            .is(back());
        Case::on_nothing(Full, None, FULL)
            .after_delete(mine())
            .is(back());
    }

    #[test]
    fn a_tombstone_is_not_disclosed_to_those_who_could_not_see_the_row() {
        Case::on_nothing(Sparse, None, FULL)
            .after_delete(tombstone(Some("t9")))
            .is(FORBIDDEN);
        let deleted = Verdict::Error(ErrorCode::RowDeleted);
        Case::on_nothing(Sparse, None, FULL)
            .after_delete(tombstone(None))
            .is(deleted);
    }
}

mod column_versions {
    use super::*;

    #[track_caller]
    fn check(rules: Rules, cells: Cells, expected: [i64; 5]) {
        let schema = schema();
        let table = &schema.tables()[0];
        let row = stored();
        let allowed = allowed(&["t1"]);
        let payload = if rules == Sparse {
            sparse_row(cells)
        } else {
            full_row(cells)
        };
        let slots = if rules == Sparse {
            tidewater_wire::row::decode_sparse_row(&table.columns, 0, &payload).unwrap()
        } else {
            let fields = decode_row(&table.columns, &payload).unwrap();
            fields
                .into_iter()
                .map(|field| field.map_or(Slot::Null, Slot::Present))
                .collect()
        };
        let incoming = Incoming {
            slots,
            base_version: None,
            sparse: rules == Sparse,
        };
        let upsert = decide_update(table, incoming, &row, &allowed).unwrap();
        let versions = upsert.column_versions.unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|column| versions.of(column)), expected);
    }

    #[test]
    fn a_sparse_row_moves_what_it_presents_even_unchanged() {
        check(
            Sparse,
            [Text("a"), Absent, Text("old"), Absent, Absent],
            [1, 1, 8, 3, 1],
        );
        check(
            Sparse,
            [Text("a"), Text("t1"), Absent, Null, Doc(&[1])],
            [1, 8, 5, 8, 8],
        );
    }

    #[test]
    fn a_full_row_moves_only_what_it_changes() {
        check(
            Full,
            [Text("a"), Text("t1"), Text("old"), Number(2), Null],
            [1, 1, 5, 8, 1],
        );
        check(
            Full,
            [Text("a"), Text("t2"), Text("old"), Number(1), Doc(&[1])],
            // Whether the document changes is known when it is merged.
            [1, 1, 5, 3, 1],
        );
    }

    #[test]
    fn presenting_only_the_key_moves_nothing() {
        check(
            Sparse,
            [Text("a"), Absent, Absent, Absent, Absent],
            [1, 1, 5, 3, 1],
        );
    }
}

#[test]
fn an_insert_merges_its_crdt_columns_with_nothing_and_an_update_with_what_is_stored() {
    let schema = schema();
    let table = &schema.tables()[0];
    let allowed = allowed(&["t1"]);
    let payload = sparse_row([Text("a"), Text("t1"), Null, Null, Doc(&[7])]);
    let slots = || tidewater_wire::row::decode_sparse_row(&table.columns, 0, &payload).unwrap();
    let incoming = || Incoming {
        slots: slots(),
        base_version: None,
        sparse: true,
    };

    let insert = decide_insert(table, incoming(), None, &allowed).unwrap();
    assert_eq!(insert.merges, vec![(4, None)]);

    let row = StoredRow {
        payload: full_row([Text("a"), Text("t1"), Null, Null, Doc(&[5])]).into(),
        ..stored()
    };
    let update = decide_update(table, incoming(), &row, &allowed).unwrap();
    let merged: Vec<_> = update
        .merges
        .iter()
        .map(|(at, was)| (*at, was.map(|f| text(&f))))
        .collect();
    assert_eq!(merged, vec![(4, Some("[5]".to_owned()))]);
}

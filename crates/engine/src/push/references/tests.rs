//! References on whole little databases: what a commit deletes or writes, and what follows.

use super::*;

/// `top` ← cascade, restrict and null from `mid`; `mid` ← cascade from `leaf`, null from `note`;
/// `tree` refers to itself by cascade; `ring_a` and `ring_b` refer to each other.
const SCHEMA: &str = r#"{"version": 1, "tables": [
  {"name": "top", "primaryKey": "id", "scopes": ["s:{s}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "s", "type": "string", "nullable": false}]},
  {"name": "mid", "primaryKey": "id", "scopes": ["s:{s}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "s", "type": "string", "nullable": false},
               {"name": "owner", "type": "string", "nullable": true},
               {"name": "guard", "type": "string", "nullable": true},
               {"name": "hint", "type": "string", "nullable": true},
               {"name": "hint2", "type": "string", "nullable": true}],
   "indexes": [{"name": "i1", "columns": ["owner"]}, {"name": "i2", "columns": ["guard"]},
               {"name": "i3", "columns": ["hint"]}, {"name": "i4", "columns": ["hint2"]}],
   "references": [{"column": "owner", "parentTable": "top", "onDelete": "CASCADE"},
                  {"column": "guard", "parentTable": "top", "onDelete": "RESTRICT"},
                  {"column": "hint", "parentTable": "top", "onDelete": "SET NULL"},
                  {"column": "hint2", "parentTable": "top", "onDelete": "SET NULL"}]},
  {"name": "leaf", "primaryKey": "id", "scopes": ["s:{s}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "s", "type": "string", "nullable": false},
               {"name": "mid", "type": "string", "nullable": true}],
   "indexes": [{"name": "i5", "columns": ["mid"]}],
   "references": [{"column": "mid", "parentTable": "mid", "onDelete": "CASCADE"}]},
  {"name": "tree", "primaryKey": "id", "scopes": ["s:{s}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "s", "type": "string", "nullable": false},
               {"name": "up", "type": "string", "nullable": true}],
   "indexes": [{"name": "i6", "columns": ["up"]}],
   "references": [{"column": "up", "parentTable": "tree", "onDelete": "CASCADE"}]},
  {"name": "ring_a", "primaryKey": "id", "scopes": ["s:{s}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "s", "type": "string", "nullable": false},
               {"name": "b", "type": "string", "nullable": true}],
   "indexes": [{"name": "i7", "columns": ["b"]}],
   "references": [{"column": "b", "parentTable": "ring_b", "onDelete": "CASCADE"}]},
  {"name": "ring_b", "primaryKey": "id", "scopes": ["s:{s}"],
   "columns": [{"name": "id", "type": "string", "nullable": false},
               {"name": "s", "type": "string", "nullable": false},
               {"name": "a", "type": "string", "nullable": true}],
   "indexes": [{"name": "i8", "columns": ["a"]}],
   "references": [{"column": "a", "parentTable": "ring_a", "onDelete": "CASCADE"}]}
]}"#;

/// `mid m1 owner=t1 hint=t2`
type Line = &'static str;

struct World {
    schema: Schema,
    /// Rows after the client's operations, with the values of their reference columns.
    rows: BTreeMap<RowRef, Vec<Option<ByteString>>>,
    touched: Vec<Touched>,
    limit: usize,
    questions_asked: usize,
}

impl World {
    /// A database with these rows.
    fn with(lines: &[Line]) -> Self {
        let mut world = Self {
            schema: Schema::from_json(SCHEMA).unwrap(),
            rows: BTreeMap::new(),
            touched: Vec::new(),
            limit: 1_000,
            questions_asked: 0,
        };
        for line in lines {
            let (row, parents) = world.parse(line);
            world.rows.insert(row, parents);
        }
        world
    }

    fn at_most(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    fn parse(&self, line: &str) -> (RowRef, Vec<Option<ByteString>>) {
        let mut words = line.split(' ');
        let table = self.schema.find(words.next().unwrap()).unwrap();
        let row_id = words.next().unwrap().into();
        let values: BTreeMap<&str, &str> =
            words.map(|word| word.split_once('=').unwrap()).collect();
        let declared = self.schema.table(table);
        let parents = declared
            .references
            .iter()
            .map(|reference| {
                let name = declared.columns[reference.column].name.as_str();
                values.get(name).map(|&value| value.into())
            })
            .collect();
        (RowRef { table, row_id }, parents)
    }

    fn touch(&mut self, row: RowRef, existed: bool, after: Option<Parents>) {
        let op_index = i32::try_from(self.touched.len()).unwrap();
        self.touched.push(Touched {
            row,
            existed,
            op_index,
            after,
        });
    }

    /// The client deletes this row.
    fn delete(mut self, line: Line) -> Self {
        let (row, _) = self.parse(line);
        let existed = self.rows.remove(&row).is_some();
        self.touch(row, existed, None);
        self
    }

    /// The client writes this row.
    fn write(mut self, line: Line) -> Self {
        let (row, parents) = self.parse(line);
        let before = self.rows.insert(row.clone(), parents.clone());
        let after = parents
            .into_iter()
            .enumerate()
            .map(|(index, value)| {
                let was = before.as_ref().and_then(|before| before[index].clone());
                value.map(|row_id| Parent {
                    changed: was.as_ref() != Some(&row_id),
                    row_id,
                })
            })
            .collect();
        self.touch(row, before.is_some(), Some(Parents(after)));
        self
    }

    fn answer(&self, question: &ChildQuestion) -> Vec<Child> {
        let mut children = Vec::new();
        for parent in &question.parents {
            for (row, parents) in &self.rows {
                let names = row.table == question.table
                    && parents[question.reference].as_ref() == Some(parent);
                if names && children.len() < question.limit {
                    children.push((parent.clone(), row.row_id.clone()));
                }
            }
        }
        children
    }

    fn run(&mut self) -> Result<Vec<Appended>, Violation> {
        let schema = Schema::from_json(SCHEMA).unwrap();
        let mut references = References::new(&schema, self.touched.clone(), self.limit);
        let mut step = references.start();
        loop {
            step = match step {
                Step::Parents(rows) => {
                    let existing: Vec<RowRef> = rows
                        .into_iter()
                        .filter(|row| self.rows.contains_key(row))
                        .collect();
                    references.parents_exist(&existing)
                }
                Step::Children(questions) => {
                    self.questions_asked += 1;
                    let answers: Vec<Vec<Child>> = questions
                        .iter()
                        .map(|question| self.answer(question))
                        .collect();
                    references.children(&questions, &answers)
                }
                Step::Reject(violation) => return Err(violation),
                Step::Done(appended) => return Ok(appended),
            };
        }
    }

    /// The operations appended, each as `delete mid m1 by 0` or `null mid m1 hint by 0`.
    #[track_caller]
    fn appends(mut self, expected: &[&str]) {
        let appended = self.run().unwrap();
        let told: Vec<String> = appended
            .iter()
            .map(|op| {
                let table = self.schema.table(op.row.table);
                let (verb, columns) = match &op.kind {
                    AppendedKind::Delete => ("delete", Vec::new()),
                    AppendedKind::SetNull(columns) => {
                        let name = |&column: &usize| table.columns[column].name.as_str();
                        ("null", columns.iter().map(name).collect())
                    }
                };
                let columns: String = columns.iter().map(|column| format!(" {column}")).collect();
                format!(
                    "{verb} {} {}{columns} by {}",
                    table.name, op.row.row_id, op.origin
                )
            })
            .collect();
        assert_eq!(told, expected);
    }

    #[track_caller]
    fn refuses(mut self, op_index: i32, expected: &str) {
        let violation = self.run().unwrap_err();
        let told = match violation.kind {
            ViolationKind::MissingParent {
                column,
                parent,
                row_id,
            } => {
                format!("missing {parent} {row_id} in {column}")
            }
            ViolationKind::RestrictedDelete { child } => format!("restricted by {child}"),
            ViolationKind::CascadeLimit => "limit".to_owned(),
        };
        assert_eq!((violation.op_index, told.as_str()), (op_index, expected));
    }
}

mod parents {
    use super::*;

    #[test]
    fn a_written_reference_must_name_a_row() {
        World::with(&["top t1"])
            .write("mid m1 owner=t1")
            .appends(&[]);
        World::with(&[])
            .write("mid m1 owner=t1")
            .refuses(0, "missing top t1 in owner");
    }

    #[test]
    fn the_order_of_parent_and_child_in_a_commit_does_not_matter() {
        World::with(&[])
            .write("mid m1 owner=t1")
            .write("top t1")
            .appends(&[]);
        World::with(&[])
            .write("top t1")
            .write("mid m1 owner=t1")
            .appends(&[]);
    }

    #[test]
    fn a_reference_that_dangled_before_stays_editable() {
        World::with(&["mid m1 owner=gone"])
            .write("mid m1 owner=gone")
            .appends(&[]);
        World::with(&["mid m1 owner=gone"])
            .write("mid m1 owner=gone hint=gone")
            .refuses(0, "missing top gone in hint");
    }

    #[test]
    fn an_unchanged_reference_to_a_parent_this_commit_deletes_is_missing() {
        World::with(&["top t1", "mid m1 hint=t1"])
            .delete("top t1")
            .write("mid m1 hint=t1")
            .refuses(1, "missing top t1 in hint");
    }

    #[test]
    fn the_first_touched_row_is_blamed() {
        World::with(&[])
            .write("mid m2 hint=x")
            .write("mid m1 owner=y")
            .refuses(0, "missing top x in hint");
    }
}

mod deletes {
    use super::*;

    #[test]
    fn a_cascade_takes_the_whole_tree_level_by_level() {
        World::with(&[
            "top t1",
            "mid m2 owner=t1",
            "mid m1 owner=t1",
            "leaf l1 mid=m2",
        ])
        .delete("top t1")
        .appends(&[
            "delete mid m1 by 0",
            "delete mid m2 by 0",
            "delete leaf l1 by 0",
        ]);
    }

    #[test]
    fn a_restriction_holds_the_parent_back() {
        World::with(&["top t0", "top t1", "mid m1 guard=t1"])
            .delete("top t0")
            .delete("top t1")
            .refuses(1, "restricted by mid");
    }

    #[test]
    fn a_restriction_by_a_row_that_goes_too_does_not_count() {
        let rows = ["top t1", "mid m1 guard=t1"];
        World::with(&rows)
            .delete("top t1")
            .delete("mid m1")
            .appends(&[]);
        World::with(&rows)
            .delete("mid m1")
            .delete("top t1")
            .appends(&[]);
        // OQ-23: the same row is restricted by one reference and cascaded by another.
        World::with(&["top t1", "mid m1 owner=t1 guard=t1"])
            .delete("top t1")
            .appends(&["delete mid m1 by 0"]);
    }

    #[test]
    fn every_column_that_named_the_parent_becomes_null_in_one_write() {
        World::with(&[
            "top t1",
            "top t2",
            "mid m1 hint=t1 hint2=t1",
            "mid m2 hint=t2 hint2=t1",
        ])
        .delete("top t1")
        .appends(&["null mid m1 hint hint2 by 0", "null mid m2 hint2 by 0"]);
    }

    #[test]
    fn a_row_that_only_loses_a_reference_keeps_its_own_children() {
        World::with(&["top t1", "mid m1 hint=t1", "leaf l1 mid=m1"])
            .delete("top t1")
            .appends(&["null mid m1 hint by 0"]);
    }

    #[test]
    fn a_cascade_wins_over_a_lost_reference() {
        World::with(&["top t1", "mid m1 owner=t1 hint=t1"])
            .delete("top t1")
            .appends(&["delete mid m1 by 0"]);
        World::with(&["top t1", "top t2", "mid m1 owner=t2 hint=t1"])
            .delete("top t1")
            .delete("top t2")
            .appends(&["delete mid m1 by 1"]);
    }

    #[test]
    fn cycles_and_self_references_end() {
        World::with(&["tree a up=a", "tree b up=a", "tree c up=b"])
            .delete("tree a")
            .appends(&["delete tree b by 0", "delete tree c by 0"]);
        World::with(&["ring_a a1 b=b1", "ring_b b1 a=a1"])
            .delete("ring_a a1")
            .appends(&["delete ring_b b1 by 0"]);
    }

    #[test]
    fn a_row_written_by_the_commit_can_be_taken_by_a_cascade() {
        World::with(&["top t1", "mid m1 owner=t1"])
            .write("leaf l1 mid=m1")
            .delete("top t1")
            .appends(&["delete mid m1 by 1", "delete leaf l1 by 1"]);
    }

    #[test]
    fn deleting_what_was_not_there_takes_nothing_along() {
        World::with(&["mid m1 guard=t1 owner=t1"])
            .delete("top t1")
            .appends(&[]);
    }

    #[test]
    fn exactly_the_limit_is_appended_and_one_more_is_refused() {
        let rows = [
            "top t1",
            "mid m1 owner=t1",
            "mid m2 owner=t1",
            "mid m3 hint=t1",
        ];
        let expected = [
            "delete mid m1 by 0",
            "delete mid m2 by 0",
            "null mid m3 hint by 0",
        ];
        World::with(&rows)
            .at_most(3)
            .delete("top t1")
            .appends(&expected);
        World::with(&rows)
            .at_most(2)
            .delete("top t1")
            .refuses(0, "limit");
        World::with(&rows)
            .at_most(1)
            .delete("top t1")
            .refuses(0, "limit");
    }

    #[test]
    fn a_tree_costs_a_question_per_level_and_not_per_row() {
        let rows = [
            "top t1",
            "top t2",
            "mid m1 owner=t1",
            "mid m2 owner=t1",
            "mid m3 owner=t2",
        ];
        let mut world = World::with(&rows).delete("top t1").delete("top t2");
        world.run().unwrap();
        // Children of the tops, children of the mids, restrictions, lost references.
        assert_eq!(world.questions_asked, 4);
    }
}

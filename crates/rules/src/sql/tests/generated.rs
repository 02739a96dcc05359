//! Generated queries, nested in every way the generator knows, on a database of two partitions.
//!
//! The oracle is SQLite itself: the text as it was written, on a database that has only the rows
//! of one partition, gives what the confined text gives on a database that has both.

use proptest::prelude::*;
use rusqlite::{Connection, types::Value as Stored};

use super::{NAMES, rows};
use crate::{
    sql::Query,
    testing::{plain, schema, store_shaped},
};

/// Draws choices from a list of bytes, so that fewer and smaller bytes are a simpler query.
struct Dice<'a> {
    bytes: std::slice::Iter<'a, u8>,
    aliases: usize,
    /// Whether a common table has the name of a table: standard SQL and SQLite then differ.
    shadows: bool,
}

impl<'a> Dice<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes: bytes.iter(),
            aliases: 0,
            shadows: false,
        }
    }

    fn roll(&mut self, sides: u8) -> u8 {
        self.bytes.next().map_or(0, |byte| byte % sides)
    }

    fn pick<'b>(&mut self, items: &[&'b str]) -> &'b str {
        items[usize::from(self.roll(u8::try_from(items.len()).unwrap()))]
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("a{}", self.aliases)
    }

    /// A whole query: three columns, `id`, `title` and `points`.
    fn query(&mut self, depth: u8, outer: &[String], common: &[String]) -> String {
        let mut common = common.to_vec();
        let mut text = String::new();
        if depth > 0 && self.roll(4) == 3 {
            text.push_str(if self.roll(2) == 1 {
                "WITH RECURSIVE "
            } else {
                "WITH "
            });
            let count = 1 + self.roll(2);
            for at in 0..count {
                if at > 0 {
                    text.push_str(", ");
                }
                let body = self.query(depth - 1, &[], &common);
                let name = if self.roll(8) == 7 {
                    self.shadows = true;
                    format!("{}{}", self.pick(&["tasks", "projects"]), "")
                } else {
                    format!("c{}", self.alias())
                };
                if common.contains(&name) {
                    text.push_str(&format!(
                        "x{} AS (SELECT 1 AS id, 2 AS title, 3 AS points)",
                        self.alias()
                    ));
                    continue;
                }
                text.push_str(&format!("{name}(id, title, points) AS ({body})"));
                common.push(name);
            }
            text.push(' ');
        }
        text.push_str(&self.select(depth, outer, &common));
        for _ in 0..self.roll(3).saturating_sub(1) {
            let operator = self.pick(&[" UNION ", " UNION ALL ", " EXCEPT ", " INTERSECT "]);
            text.push_str(operator);
            text.push_str(&self.select(depth, outer, &common));
        }
        text
    }

    fn select(&mut self, depth: u8, outer: &[String], common: &[String]) -> String {
        let first = self.alias();
        let mut here = vec![first.clone()];
        let mut from = self.source(depth, common, &first);
        for _ in 0..self.roll(3) {
            let alias = self.alias();
            let source = self.source(depth, common, &alias);
            let join = self.pick(&[", ", " JOIN ", " LEFT JOIN ", " CROSS JOIN "]);
            from.push_str(join);
            from.push_str(&source);
            here.push(alias.clone());
            if join == " JOIN " || join == " LEFT JOIN " {
                from.push_str(&format!(" ON {alias}.id = {first}.id"));
            }
        }
        let seen: Vec<String> = here.iter().chain(outer).cloned().collect();
        let column = |dice: &mut Self| {
            let table = usize::from(dice.roll(u8::try_from(here.len()).unwrap()));
            here[table].clone()
        };
        let (id, title, points) = (column(self), column(self), column(self));
        let distinct = self.pick(&["", "DISTINCT "]);
        let mut text = format!(
            "SELECT {distinct}{id}.id AS id, {title}.title AS title, {points}.points AS points FROM {from}"
        );
        if self.roll(2) == 1 {
            text.push_str(" WHERE ");
            text.push_str(&self.condition(depth, &seen, common));
        }
        text.push_str(self.pick(&["", " ", "/* FROM tasks */", "-- FROM projects\n"]));
        text
    }

    fn source(&mut self, depth: u8, common: &[String], alias: &str) -> String {
        match self.roll(6) {
            5 if depth > 0 => {
                let inner = self.query(depth - 1, &[], common);
                format!("({inner}) {alias}")
            }
            4 if !common.is_empty() => {
                let name = usize::from(self.roll(u8::try_from(common.len()).unwrap()));
                format!("{} AS {alias}", common[name])
            }
            _ => {
                let name = self.pick(&[
                    "tasks",
                    "projects",
                    "\"tasks\"",
                    "[projects]",
                    "`tasks`",
                    "TASKS",
                ]);
                format!("{name}{}{alias}", self.pick(&[" ", " AS ", "/**/AS/**/"]))
            }
        }
    }

    fn condition(&mut self, depth: u8, seen: &[String], common: &[String]) -> String {
        let table = usize::from(self.roll(u8::try_from(seen.len()).unwrap()));
        let table = seen[table].clone();
        let number = self.roll(9);
        match self.roll(if depth > 0 { 10 } else { 5 }) {
            0 => format!("{table}.points > {number}"),
            1 => format!(
                "{table}.title LIKE '%{}%'",
                self.pick(&["o", "x''y", "b-", "_"])
            ),
            2 => format!("{table}.title <> :actor"),
            3 => format!("{table}.points IN ({number}, 1, 5)"),
            4 => format!("{table}.title IS NOT NULL"),
            5 => {
                let (left, right) = (
                    self.condition(depth - 1, seen, common),
                    self.condition(depth - 1, seen, common),
                );
                format!("({left} {} {right})", self.pick(&["AND", "OR"]))
            }
            6 => format!("NOT {}", self.condition(depth - 1, seen, common)),
            7 => {
                let inner = self.query(depth - 1, seen, common);
                format!("EXISTS ({inner})")
            }
            8 => {
                let inner = self.query(depth - 1, seen, common);
                format!("{table}.id IN (SELECT id FROM ({inner}))")
            }
            _ => {
                let inner = self.query(depth - 1, &[], common);
                format!("(SELECT count(*) FROM ({inner})) > {number}")
            }
        }
    }
}

/// The rows of the text as it was written, sorted; an error when SQLite has another opinion.
fn as_written(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(sql)?;
    if let Some(at) = statement.parameter_index(":actor")? {
        statement.raw_bind_parameter(at, "the actor")?;
    }
    let mut found = Vec::new();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let values: Vec<Stored> = (0..3).map(|at| row.get(at)).collect::<Result<_, _>>()?;
        found.push(format!("{values:?}"));
    }
    found.sort();
    Ok(found)
}

/// What breaks a text, or would be a way out of its partition if the two parsers disagreed.
const SHARDS: [&str; 40] = [
    "'",
    "\"",
    "`",
    "[",
    "]",
    "--",
    "/*",
    "*/",
    "\n",
    ";",
    " ",
    ",",
    "(",
    ")",
    ".",
    "\\",
    "#",
    "$",
    "$$",
    "?",
    "@",
    ":actor",
    "\u{a0}",
    "E'",
    "x'",
    "0x",
    "''",
    "\"\"",
    " FROM ",
    " IN ",
    " AS ",
    "main.",
    "tasks",
    " sync_commits ",
    "_sync_payload",
    " JOIN ",
    " UNION SELECT id, body, 1 FROM sync_commits ",
    " IN sync_commits ",
    ",sync_commits",
    " WITH x AS (SELECT * FROM sync_commits) ",
];

/// Writes, cuts or doubles something at a few places.
fn mangled(sql: &str, dice: &mut Dice<'_>) -> String {
    let mut text: Vec<char> = sql.chars().collect();
    for _ in 0..=dice.roll(3) {
        let place = usize::from(dice.roll(251)) * 251 + usize::from(dice.roll(251));
        let at = place % (text.len() + 1);
        let end = (at + usize::from(dice.roll(20))).min(text.len());
        match dice.roll(4) {
            0 => drop(text.drain(at..end)),
            1 => {
                let piece: Vec<char> = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
            _ => {
                let shard = dice.pick(&SHARDS);
                text.splice(at..at, shard.chars());
            }
        }
    }
    text.into_iter().collect()
}

/// The first rows of a query whose text may mean anything, or nothing.
fn first_rows(connection: &Connection, query: &Query) -> Option<Vec<String>> {
    let mut statement = connection.prepare(query.sql()).ok()?;
    let named = query.parameters().iter().map(String::as_str);
    for (at, value) in std::iter::once("a").chain(named).enumerate() {
        if at < statement.parameter_count() {
            statement.raw_bind_parameter(at + 1, value).ok()?;
        }
    }
    let width = statement.column_count();
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = rows.next().ok()? {
        let values: Result<Vec<Stored>, _> = (0..width).map(|at| row.get(at)).collect();
        found.push(format!("{values:?}"));
        if found.len() == 500 {
            break;
        }
    }
    found.sort();
    Some(found)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn a_mangled_query_is_refused_or_sees_one_partition(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        damage in prop::collection::vec(any::<u8>(), 20..40),
    ) {
        let sql = Dice::new(&bytes).query(2, &[], &[]);
        let sql = mangled(&sql, &mut Dice::new(&damage));
        let Ok(query) = Query::compile(&sql, &schema(), NAMES) else {
            return Ok(());
        };
        let full = store_shaped(&["a", "b"]);
        full.execute("INSERT INTO sync_commits VALUES ('secret', 'secret')", []).unwrap();
        let alone = first_rows(&store_shaped(&["a"]), &query);
        let found = first_rows(&full, &query);
        prop_assert_eq!(&found, &alone, "{} became {}", sql, query.sql());
        let text = format!("{found:?}");
        prop_assert!(!text.contains("secret\"") && !text.contains("Text(\"b-"), "{} became {}", sql, query.sql());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_generated_query_sees_one_partition(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
        let mut dice = Dice::new(&bytes);
        let sql = dice.query(3, &[], &[]);
        let query = match Query::compile(&sql, &schema(), NAMES) {
            Ok(query) => query,
            // The generator does not know how long a text may be, nor how deep.
            Err(error) if error.to_string().contains("bytes") => return Ok(()),
            Err(error) if error.to_string().contains("recursion limit") => return Ok(()),
            Err(error) if dice.shadows && error.to_string().contains("needs a LIMIT") => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(format!("{sql}: {error}"))),
        };
        let both = store_shaped(&["a", "b"]);
        if dice.shadows && both.prepare(query.sql()).is_err() {
            return Ok(());
        }
        let found = rows(&both, &query, "a");
        prop_assert!(!found.iter().any(|row| row.contains("b-")), "{} gave {:?}", query.sql(), found);
        let alone = rows(&store_shaped(&["a"]), &query, "a");
        prop_assert_eq!(&found, &alone, "another partition changed {}", query.sql());
        if !dice.shadows {
            let expected = as_written(&plain("a"), &sql);
            prop_assert_eq!(&found, &expected.unwrap(), "{} became {}", &sql, query.sql());
        }
    }
}

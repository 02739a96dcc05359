//! Functions that a text may call: pure ones, and those of the date. All are in every SQLite.
//!
//! Left out are functions that reach beyond their arguments, that are random, and those that
//! make large values out of small arguments, such as `zeroblob`, `printf` and `json_each`.

#[rustfmt::skip] // One line per handful, not per name.
const ALLOWED: &[&str] = &[
    // Aggregates.
    "avg", "count", "group_concat", "json_group_array", "json_group_object", "max", "min",
    "string_agg", "sum", "total",
    // Windows.
    "cume_dist", "dense_rank", "first_value", "lag", "last_value", "lead", "nth_value", "ntile",
    "percent_rank", "rank", "row_number",
    // Values.
    "abs", "coalesce", "ifnull", "iif", "likelihood", "likely", "nullif", "round", "sign",
    "typeof", "unlikely",
    // Text and bytes.
    "char", "concat", "concat_ws", "glob", "hex", "instr", "length", "like", "lower", "ltrim",
    "octet_length", "quote", "replace", "rtrim", "substr", "substring", "trim", "unhex",
    "unicode", "upper",
    // JSON.
    "json", "json_array", "json_array_length", "json_extract", "json_object", "json_patch",
    "json_quote", "json_remove", "json_type", "json_valid",
    // Dates.
    "current_date", "current_time", "current_timestamp", "date", "datetime", "julianday",
    "strftime", "time", "timediff", "unixepoch",
];

/// Whether a text may call this function.
pub(super) fn is_allowed(name: &str) -> bool {
    ALLOWED
        .iter()
        .any(|allowed| allowed.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_function_is_one_of_the_database() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let mut statement = connection
            .prepare("SELECT name FROM pragma_function_list")
            .unwrap();
        let known: BTreeSet<String> = statement
            .query_map([], |row| row.get(0))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        let unknown: Vec<&&str> = ALLOWED
            .iter()
            .filter(|name| !known.contains(**name))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(is_allowed("COUNT") && !is_allowed("load_extension"));
    }
}

//! Functions that a text may call: pure ones, and those of the date.
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
    // Numbers.
    "ceil", "ceiling", "degrees", "exp", "floor", "ln", "log", "log10", "log2", "mod", "pi",
    "pow", "power", "radians", "sqrt", "trunc",
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

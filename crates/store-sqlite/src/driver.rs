//! Which variable of a filter finds what it selects.
//!
//! Any of them would do: the rest of the filter is verified on what was found. The one with the
//! fewest entries leaves the least to verify. Counting stops early, so that it costs little
//! beside the read.

use tidewater_model::ScopeValues;
use tidewater_store::StoreError;

/// Picks the variable with the fewest entries. `count` counts those of a variable's value, up to
/// a limit.
pub(crate) fn pick(
    entries: &[ScopeValues],
    mut count: impl FnMut((&str, &str), i64) -> Result<Option<i64>, StoreError>,
) -> Result<&ScopeValues, StoreError> {
    let [first, rest @ ..] = entries else {
        unreachable!("an empty filter selects nothing and is answered before");
    };
    if rest.is_empty() {
        return Ok(first);
    }
    let mut best = (COUNT_MAX, first);
    for entry in entries {
        let mut entries_of = 0;
        for value in &entry.values {
            if entries_of >= best.0 {
                break;
            }
            let limit = best.0 - entries_of;
            entries_of += count((&entry.variable, value), limit)?.unwrap_or(0);
        }
        if entries_of < best.0 {
            best = (entries_of, entry);
        }
    }
    Ok(best.1)
}

/// Values sorted, each once: those from a client repeat.
pub(crate) fn distinct(values: &[String]) -> Vec<&str> {
    let mut distinct: Vec<&str> = values.iter().map(String::as_str).collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

/// Variables with more entries than this are all alike.
const COUNT_MAX: i64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(variable: &str, values: &[&str]) -> ScopeValues {
        ScopeValues {
            variable: variable.to_owned(),
            values: values.iter().map(|&value| value.to_owned()).collect(),
        }
    }

    #[track_caller]
    fn check(entries: &[ScopeValues], expected: &str) {
        let picked = pick(entries, |(_, value), limit| {
            assert!(limit > 0);
            Ok(Some(value.parse::<i64>().unwrap().min(limit)))
        });
        assert_eq!(picked.unwrap().variable, expected);
    }

    #[test]
    fn the_variable_with_the_fewest_entries_is_picked() {
        check(&[entry("a", &["5"]), entry("b", &["1", "1"])], "b");
        check(&[entry("a", &["2"]), entry("b", &["1", "1"])], "a");
        check(&[entry("a", &["100000"]), entry("b", &["511"])], "b");
    }

    #[test]
    fn among_large_ones_the_first_is_as_good_as_any() {
        check(&[entry("a", &["100000"]), entry("b", &["600"])], "a");
    }

    #[test]
    fn a_single_variable_is_not_counted() {
        let entries = [entry("a", &["not a number"])];
        check(&entries, "a");
    }
}

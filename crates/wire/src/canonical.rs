//! Canonical JSON of scope maps, for digests and headers (§11.2, §3.5).
//!
//! Two maps that select the same rows have the same text: variables and values are in UTF-16
//! order, values without duplicates, strings escaped as JavaScript's `JSON.stringify` does.

use tidewater_model::{ScopeFilter, utf16_cmp};

use crate::{content::sha256_hex, json::put_string};

/// The canonical JSON of a scope map.
pub fn canonical_scopes(scopes: &ScopeFilter) -> String {
    let mut out = String::from("{");
    for (index, entry) in scopes.entries().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        put_string(&mut out, &entry.variable);
        out.push(':');
        let mut values: Vec<&str> = entry.values.iter().map(String::as_str).collect();
        values.sort_unstable_by(|left, right| utf16_cmp(left, right));
        values.dedup();
        put_list(&mut out, &values);
    }
    out.push('}');
    out
}

/// The digest of a scope map: the lowercase hex SHA-256 of its canonical JSON.
pub fn scope_digest(scopes: &ScopeFilter) -> String {
    sha256_hex(canonical_scopes(scopes).as_bytes())
}

fn put_list(out: &mut String, values: &[&str]) {
    out.push('[');
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        put_string(out, value);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use tidewater_model::ScopeValues;

    use super::*;

    fn filter(entries: &[(&str, &[&str])]) -> ScopeFilter {
        let entries = entries
            .iter()
            .map(|&(variable, values)| ScopeValues {
                variable: variable.to_owned(),
                values: values.iter().map(|&value| value.to_owned()).collect(),
            })
            .collect();
        ScopeFilter::new(entries).unwrap()
    }

    #[track_caller]
    fn check(entries: &[(&str, &[&str])], text: &str, digest: &str) {
        let filter = filter(entries);
        assert_eq!(canonical_scopes(&filter), text);
        assert_eq!(scope_digest(&filter), digest);
    }

    #[test]
    fn the_worked_examples_have_their_digests() {
        check(
            &[("team_id", &["t9"])],
            r#"{"team_id":["t9"]}"#,
            "8ab25c166b0837d32054140b12e4108f017060e4831ae09a59c3b78c88ba059a",
        );
        check(
            &[("team_id", &["t9", "t1", "t9"]), ("region", &["é"])],
            r#"{"region":["é"],"team_id":["t1","t9"]}"#,
            "25e494b3effda893d941c74f0282d9da62fae89ed2dfa06990d63c056633cc4f",
        );
    }

    #[test]
    fn values_are_in_utf_16_order() {
        let filter = filter(&[("k", &["\u{E000}", "\u{1F600}"])]);
        assert_eq!(
            canonical_scopes(&filter),
            "{\"k\":[\"\u{1F600}\",\"\u{E000}\"]}"
        );
    }

    #[test]
    fn strings_are_escaped_as_javascript_does() {
        let filter = filter(&[("a\"\\/", &["\u{8}\u{c}\n\r\t\u{1}\u{1f}\u{7f}é\u{2028}"])]);
        assert_eq!(
            canonical_scopes(&filter),
            "{\"a\\\"\\\\/\":[\"\\b\\f\\n\\r\\t\\u0001\\u001f\u{7f}é\u{2028}\"]}"
        );
    }

    #[test]
    fn a_variable_without_values_and_no_variables_at_all_have_a_text() {
        assert_eq!(canonical_scopes(&filter(&[("k", &[])])), r#"{"k":[]}"#);
        assert_eq!(canonical_scopes(&ScopeFilter::default()), "{}");
    }
}

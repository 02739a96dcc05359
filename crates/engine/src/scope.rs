//! What a subscription may see: requested ∩ allowed = effective (§3.2).
//!
//! **Invariant:** losing any requested variable revokes the whole subscription. A narrowed list
//! of values does not: the client keeps what it still may see.

use tidewater_model::{AllowedScopes, ErrorCode, ScopeFilter, ScopeValues};
use tidewater_schema::{Schema, Table};

use crate::RoundError;

/// The effective scopes of a subscription; `None` means revoked.
///
/// Requested values keep their order; only excluded ones are left out.
pub(crate) fn effective(requested: &ScopeFilter, allowed: &AllowedScopes) -> Option<ScopeFilter> {
    if requested.is_empty() {
        return None;
    }
    let mut entries = Vec::with_capacity(requested.entries().len());
    for entry in requested.entries() {
        let grant = allowed.grant(&entry.variable)?;
        let values: Vec<String> = entry
            .values
            .iter()
            .filter(|value| grant.allows(value))
            .cloned()
            .collect();
        if values.is_empty() {
            return None;
        }
        entries.push(ScopeValues {
            variable: entry.variable.clone(),
            values,
        });
    }
    ScopeFilter::new(entries)
}

/// Refuses requested scopes that name an undeclared variable or the wildcard.
pub(crate) fn check_requested(table: &Table, requested: &ScopeFilter) -> Result<(), RoundError> {
    for entry in requested.entries() {
        if table.scope(&entry.variable).is_none() {
            return Err(RoundError::new(
                ErrorCode::InvalidSubscription,
                "the table does not declare a requested scope variable",
            )
            .with_details(serde_json::json!({ "table": table.name, "variable": entry.variable })));
        }
        if entry.values.iter().any(|value| value == "*") {
            return Err(RoundError::new(
                ErrorCode::InvalidSubscription,
                "a requested scope value must not be the wildcard",
            )
            .with_details(serde_json::json!({ "table": table.name, "variable": entry.variable })));
        }
    }
    Ok(())
}

/// Refuses a resolver's answer that names a variable no table declares: a fault of the host that
/// must not pass silently as "nothing allowed".
pub(crate) fn check_allowed(schema: &Schema, allowed: &AllowedScopes) -> Result<(), RoundError> {
    match allowed
        .variables()
        .find(|variable| !schema.declares_variable(variable))
    {
        None => Ok(()),
        Some(variable) => Err(RoundError::new(
            ErrorCode::InvalidSubscription,
            "the scope resolver granted a variable that no table declares",
        )
        .with_details(serde_json::json!({ "variable": variable }))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lists<'a> = &'a [(&'a str, &'a [&'a str])];

    fn filter(lists: Lists<'_>) -> ScopeFilter {
        let entries = lists
            .iter()
            .map(|&(variable, values)| ScopeValues {
                variable: variable.to_owned(),
                values: values.iter().map(|&value| value.to_owned()).collect(),
            })
            .collect();
        ScopeFilter::new(entries).unwrap()
    }

    #[track_caller]
    fn check(requested: Lists<'_>, allowed: Lists<'_>, expected: Option<Lists<'_>>) {
        let allowed = AllowedScopes::from_lists(allowed.iter().map(|&(variable, values)| {
            (
                variable.to_owned(),
                values.iter().map(|&v| v.to_owned()).collect::<Vec<_>>(),
            )
        }));
        assert_eq!(
            effective(&filter(requested), &allowed),
            expected.map(filter)
        );
    }

    #[test]
    fn values_are_intersected_and_keep_the_requested_order() {
        let asked: Lists<'_> = &[("team", &["t3", "t1", "t2"])];
        check(
            asked,
            &[("team", &["t1", "t3"])],
            Some(&[("team", &["t3", "t1"])]),
        );
    }

    #[test]
    fn a_wildcard_passes_what_was_asked_for() {
        check(
            &[("team", &["t1"])],
            &[("team", &["*"])],
            Some(&[("team", &["t1"])]),
        );
    }

    #[test]
    fn an_empty_intersection_revokes() {
        check(&[("team", &["t1"])], &[("team", &["t2"])], None);
        check(&[("team", &[])], &[("team", &["*"])], None);
    }

    #[test]
    fn losing_one_of_two_variables_revokes_the_whole_subscription() {
        let asked: Lists<'_> = &[("region", &["eu"]), ("team", &["t1"])];
        check(asked, &[("team", &["t1"])], None);
        check(
            asked,
            &[("team", &["t1"]), ("region", &["eu"])],
            Some(asked),
        );
    }

    #[test]
    fn asking_for_nothing_is_revoked() {
        check(&[], &[("team", &["*"])], None);
    }
}

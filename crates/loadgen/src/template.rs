//! Texts with places for a client's numbers: tokens and extra headers.
//!
//! `{actor}`, `{partition}` and `{client}` become decimal numbers from 0. A template is checked
//! once at the start, so that a misspelled place is an error and not a thousand answers of 401.

use anyhow::{bail, ensure};

/// Who a client is, as numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Numbers {
    pub(crate) actor: u32,
    pub(crate) partition: u32,
    pub(crate) client: u32,
}

/// A text with places in braces.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Template(Vec<Piece>);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Piece {
    Text(String),
    Actor,
    Partition,
    Client,
}

impl Template {
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        ensure!(
            !text.chars().any(char::is_control),
            "{text:?} has control characters"
        );
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((place, after)) = after.split_once('}') else {
                bail!("{text:?} has an open brace");
            };
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(match place {
                "actor" => Piece::Actor,
                "partition" => Piece::Partition,
                "client" => Piece::Client,
                _ => bail!("{text:?} names {{{place}}}; known are actor, partition, client"),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Self(pieces))
    }

    pub(crate) fn fill(&self, numbers: Numbers) -> String {
        self.0
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.clone(),
                Piece::Actor => numbers.actor.to_string(),
                Piece::Partition => numbers.partition.to_string(),
                Piece::Client => numbers.client.to_string(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: Numbers = Numbers {
        actor: 7,
        partition: 2,
        client: 19,
    };

    #[track_caller]
    fn check(template: &str, expected: &str) {
        assert_eq!(Template::parse(template).unwrap().fill(NUMBERS), expected);
    }

    #[test]
    fn places_become_numbers_and_the_rest_stays() {
        check("fixed", "fixed");
        check("", "");
        check("actor-{actor}", "actor-7");
        check("{partition}/{actor}/{client}", "2/7/19");
        check("{actor}{actor}}", "77}");
    }

    #[test]
    fn a_template_that_cannot_be_filled_is_refused() {
        for text in ["{actr}", "{actor", "{}", "a\r\nhost: b"] {
            assert!(Template::parse(text).is_err(), "{text:?}");
        }
    }
}

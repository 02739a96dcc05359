//! The text as tokens, and the text that is made from it by replacing some.
//!
//! **Invariant:** a token here is a token for the database too. What the parser's tokenizer knows
//! from other databases (prefixed and dollar-quoted strings, `#` comments) is refused, comments
//! become a space, and every other token is copied byte by byte from the source.

use std::collections::BTreeMap;

use sqlparser::{
    ast::{Ident, Statement},
    dialect::SQLiteDialect,
    parser::Parser,
    tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer},
};

use super::SqlError;

static DIALECT: SQLiteDialect = SQLiteDialect {};

/// A tokenized text.
pub(super) struct Text<'a> {
    source: &'a str,
    tokens: Vec<TokenWithSpan>,
    /// Where a token may begin or end, in bytes.
    offsets: BTreeMap<Location, usize>,
}

/// What to write instead of some tokens.
pub(super) struct Edit {
    pub(super) span: Span,
    pub(super) text: String,
}

impl<'a> Text<'a> {
    /// Splits a text into tokens and refuses those that databases might read differently.
    pub(super) fn read(source: &'a str) -> Result<Self, SqlError> {
        // SQLite would stop reading at a NUL.
        let is_odd = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
        if let Some(odd) = source.chars().find(|c| is_odd(*c)) {
            return Err(SqlError::new(format!(
                "the text contains the control character {odd:?}"
            )));
        }
        let tokens = Tokenizer::new(&DIALECT, source)
            .tokenize_with_location()
            .map_err(|error| SqlError::new(error.to_string()))?;
        let text = Self {
            source,
            tokens,
            offsets: offsets(source),
        };
        for token in &text.tokens {
            let slice = text.slice(token.span)?;
            if !is_plain(&token.token, slice) {
                return Err(SqlError::new(format!("`{slice}` is not allowed here")));
            }
        }
        Ok(text)
    }

    pub(super) fn parse(&self) -> Result<Vec<Statement>, SqlError> {
        Parser::new(&DIALECT)
            .with_tokens_with_locations(self.tokens.clone())
            .parse_statements()
            .map_err(|error| {
                let sentence = error.to_string();
                let plain = sentence
                    .strip_prefix("sql parser error: ")
                    .unwrap_or(&sentence);
                SqlError::new(plain)
            })
    }

    /// The text with the edits made and without comments.
    pub(super) fn edited(&self, mut edits: Vec<Edit>) -> Result<String, SqlError> {
        edits.sort_by_key(|edit| edit.span.start);
        let mut edits = edits.into_iter().peekable();
        let mut out = String::with_capacity(self.source.len() * 2);
        let mut replaced_until = None;
        for token in &self.tokens {
            if replaced_until.is_some_and(|end| token.span.start < end) {
                continue;
            }
            if let Some(edit) = edits.next_if(|edit| edit.span.start == token.span.start) {
                out.push_str(&edit.text);
                replaced_until = Some(edit.span.end);
                continue;
            }
            match &token.token {
                Token::Whitespace(_) if out.ends_with(' ') => {}
                Token::Whitespace(_) => out.push(' '),
                // There is one statement, so they only end it.
                Token::SemiColon => {}
                Token::Placeholder(_) | Token::Colon => {
                    return Err(SqlError::new("a value is asked for where none can be"));
                }
                _ => out.push_str(self.slice(token.span)?),
            }
        }
        match edits.next() {
            None => Ok(out.trim().to_owned()),
            Some(_) => Err(SqlError::new(
                "a table is named where it cannot be replaced",
            )),
        }
    }

    /// Refuses a name that is not one token of the source.
    pub(super) fn check_name(&self, ident: &Ident) -> Result<(), SqlError> {
        let slice = self.slice(ident.span)?;
        let tokens = Tokenizer::new(&DIALECT, slice)
            .tokenize()
            .unwrap_or_default();
        let same = match tokens.as_slice() {
            [Token::Word(word)] => word.value == ident.value,
            [Token::SingleQuotedString(text)] => *text == ident.value,
            _ => false,
        };
        if same {
            return Ok(());
        }
        Err(SqlError::new(format!(
            "`{}` is not a plain name",
            ident.value
        )))
    }

    fn slice(&self, span: Span) -> Result<&'a str, SqlError> {
        let at = |location: &Location| self.offsets.get(location).copied();
        at(&span.start)
            .zip(at(&span.end))
            .and_then(|(start, end)| self.source.get(start..end))
            .ok_or_else(|| SqlError::new("a token has no place in the text"))
    }
}

/// The byte at which each character begins, by line and column as the tokenizer counts them.
fn offsets(source: &str) -> BTreeMap<Location, usize> {
    let mut offsets = BTreeMap::new();
    let mut location = Location { line: 1, column: 1 };
    for (offset, c) in source.char_indices() {
        offsets.insert(location, offset);
        location = if c == '\n' {
            Location {
                line: location.line + 1,
                column: 1,
            }
        } else {
            Location {
                line: location.line,
                column: location.column + 1,
            }
        };
    }
    offsets.insert(location, source.len());
    offsets
}

/// Whether SQLite reads the slice as this one token.
fn is_plain(token: &Token, slice: &str) -> bool {
    match token {
        Token::Whitespace(_) => !slice.starts_with('#'),
        Token::Word(word) => match word.quote_style {
            None => is_bare_word(slice),
            Some('[') => enclosed(slice, '[', ']').is_some_and(|inner| !inner.contains(']')),
            Some(quote) => is_quoted(slice, quote),
        },
        Token::SingleQuotedString(_) => is_quoted(slice, '\''),
        Token::HexStringLiteral(_) => is_hexadecimal(slice),
        Token::Number(..) => slice
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-')),
        Token::Placeholder(_) => slice == "?",
        Token::Comma
        | Token::DoubleEq
        | Token::Eq
        | Token::Neq
        | Token::Lt
        | Token::Gt
        | Token::LtEq
        | Token::GtEq
        | Token::Plus
        | Token::Minus
        | Token::Mul
        | Token::Div
        | Token::Mod
        | Token::StringConcat
        | Token::LParen
        | Token::RParen
        | Token::Period
        | Token::Colon
        | Token::SemiColon
        | Token::Ampersand
        | Token::Pipe
        | Token::Tilde
        | Token::ShiftLeft
        | Token::ShiftRight
        | Token::Arrow
        | Token::LongArrow => true,
        _ => false,
    }
}

fn is_bare_word(slice: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
    slice.chars().all(is_part) && !slice.starts_with(|c: char| c.is_ascii_digit() || c == '$')
}

/// A text in quotes with every quote inside it doubled.
fn is_quoted(slice: &str, quote: char) -> bool {
    let doubled: String = [quote, quote].iter().collect();
    matches!(quote, '\'' | '"' | '`')
        && enclosed(slice, quote, quote)
            .is_some_and(|inner| !inner.replace(&doubled, "").contains(quote))
}

fn is_hexadecimal(slice: &str) -> bool {
    let digits = slice
        .strip_prefix("0x")
        .or_else(|| slice.strip_prefix("0X"))
        .or_else(|| enclosed(slice.strip_prefix(['x', 'X'])?, '\'', '\''));
    digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn enclosed(slice: &str, open: char, close: char) -> Option<&str> {
    slice.strip_prefix(open)?.strip_suffix(close)
}

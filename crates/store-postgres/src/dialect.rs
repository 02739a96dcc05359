//! A statement whose tokens are SQLite's, as PostgreSQL reads it.
//!
//! What the two lex differently is translated, so that a text means the same where both take it:
//! parameters, comments (SQLite's do not nest), quotes, blobs. What one of them would read as
//! something else altogether is refused.

/// Translates a statement; a sentence where that cannot be.
pub(crate) fn translate(sql: &str) -> Result<String, String> {
    let mut out = String::with_capacity(sql.len() + 16);
    let mut rest = sql;
    let mut before = ' ';
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '\'' => {
                if before.is_alphanumeric() || matches!(before, '_' | '&') {
                    return Err("a text in quotes directly follows a word".to_owned());
                }
                copy_quoted(rest, '\'', &mut out, ('\'', '\''))?
            }
            '"' => copy_quoted(rest, '"', &mut out, ('"', '"'))?,
            '`' => copy_quoted(rest, '`', &mut out, ('"', '"'))?,
            '[' => copy_quoted(rest, ']', &mut out, ('"', '"'))?,
            '?' => copy_parameter(rest, &mut out)?,
            '-' if rest.starts_with("--") => {
                out.push(' ');
                rest.find('\n').unwrap_or(rest.len())
            }
            '/' if rest.starts_with("/*") => {
                out.push(' ');
                rest[2..].find("*/").map_or(rest.len(), |at| at + 4)
            }
            'x' | 'X' if rest[1..].starts_with('\'') && !is_word(before) => {
                copy_blob(rest, &mut out)?
            }
            '=' if rest.starts_with("==") => {
                out.push('=');
                2
            }
            '$' | ':' | '@' | '#' | '\\' | ';' | '\0' => {
                return Err(format!("`{first}` is not read here"));
            }
            _ => {
                // The text stays within the parentheses that are put around it.
                match first {
                    '(' => depth += 1,
                    ')' => depth = depth.checked_sub(1).ok_or("a `)` without its `(`")?,
                    _ => {}
                }
                out.push(first);
                first.len_utf8()
            }
        };
        before = rest[..taken].chars().next_back().unwrap_or(' ');
        rest = &rest[taken..];
    }
    Ok(out)
}

fn is_word(before: char) -> bool {
    before.is_alphanumeric() || before == '_'
}

/// Copies a token in quotes, with the quotes that PostgreSQL has for it.
fn copy_quoted(
    rest: &str,
    close: char,
    out: &mut String,
    quotes: (char, char),
) -> Result<usize, String> {
    out.push(quotes.0);
    let mut characters = rest.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if character == close {
            // In brackets nothing stands for the bracket itself.
            if close != ']' && characters.next_if(|(_, next)| *next == close).is_some() {
                out.push(close);
                if close == quotes.1 {
                    out.push(close);
                }
                continue;
            }
            out.push(quotes.1);
            return Ok(at + close.len_utf8());
        }
        out.push(character);
        if character == quotes.1 {
            out.push(character);
        }
    }
    Err(format!("`{close}` is missing"))
}

fn copy_parameter(rest: &str, out: &mut String) -> Result<usize, String> {
    let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return Err("a parameter without a number".to_owned());
    }
    out.push('$');
    out.push_str(&rest[1..=digits]);
    Ok(digits + 1)
}

fn copy_blob(rest: &str, out: &mut String) -> Result<usize, String> {
    let digits = &rest[2..];
    let end = digits.find('\'').ok_or("a blob does not end")?;
    let digits = &digits[..end];
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("a blob is not in hexadecimal".to_owned());
    }
    out.push_str("'\\x");
    out.push_str(digits);
    out.push_str("'::bytea");
    Ok(end + 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sql: &str, expected: &str) {
        assert_eq!(translate(sql).as_deref(), Ok(expected), "{sql}");
    }

    #[test]
    fn tokens_of_sqlite_become_those_of_postgres() {
        check(
            "SELECT ?1, ?12 WHERE a == ?2",
            "SELECT $1, $12 WHERE a = $2",
        );
        check(
            "'?1 -- it''s' -- gone\n, \"a\"\"?1\"",
            "'?1 -- it''s'  \n, \"a\"\"?1\"",
        );
        check("a/* /* one */b", "a b");
        check("[a b\"c], `d``e`", "\"a b\"\"c\", \"d`e\"");
        check("x'00fF' || X''", "'\\x00fF'::bytea || '\\x'::bytea");
    }

    #[test]
    fn what_the_two_read_differently_is_refused() {
        for sql in [
            "E'a'",
            "e'a'",
            "U&'a'",
            "$$a$$",
            "a::text",
            "SELECT 1; SELECT 2",
            "?",
            "'",
            "[a",
            "x'0'",
            "x'",
            ":a",
            "@a",
            "max'",
            "1) AS a, (2",
        ] {
            assert!(translate(sql).is_err(), "{sql}");
        }
    }
}

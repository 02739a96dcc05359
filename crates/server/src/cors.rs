//! What pages of other origins may do: the CORS protocol of browsers.
//!
//! A page that a configured origin has served may send requests and read their answers, failures
//! included, since their codes say what to do. Cookies and other credentials that a browser adds
//! by itself are never allowed: a page brings its own token.
//!
//! **Invariant:** the routes of the console are not among those that [`allow`] wraps. They show
//! every row, and the browser of a person at the machine may be let in without a token.

use std::{fmt, str::FromStr, time::Duration};

use axum::Router;
use http::{HeaderName, HeaderValue, Method, header};
use serde::{Deserialize, Serialize};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// An origin whose pages may use the server: `https://app.example.com`, or `*` for every one.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Origin(String);

/// A text that no browser sends as an origin.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OriginError {
    /// It is not a scheme and a host.
    #[error(
        "an origin is a scheme and a host in small letters, like https://app.example.com or \
         http://localhost:5173, without a path; * is every origin"
    )]
    Malformed,
    /// It names the port that its scheme has anyway.
    #[error("browsers leave the usual port of a scheme out of an origin: remove it")]
    UsualPort,
}

impl Origin {
    fn is_any(&self) -> bool {
        self.0 == "*"
    }

    fn to_header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("an origin is made of letters, digits and marks")
    }
}

impl FromStr for Origin {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Self, OriginError> {
        if text == "*" {
            return Ok(Self(text.to_owned()));
        }
        let (scheme, host) = text.split_once("://").ok_or(OriginError::Malformed)?;
        let is_small = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_scheme = scheme
            .bytes()
            .all(|byte| is_small(byte) || b"+-.".contains(&byte));
        let is_host = host
            .bytes()
            .all(|byte| is_small(byte) || b"-._:[]".contains(&byte));
        if scheme.is_empty() || host.is_empty() || !is_scheme || !is_host {
            return Err(OriginError::Malformed);
        }
        let usual = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return Ok(Self(text.to_owned())),
        };
        // The colons of an address are inside brackets.
        if host.ends_with(usual) {
            return Err(OriginError::UsualPort);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Origin {
    type Error = OriginError;

    fn try_from(text: String) -> Result<Self, OriginError> {
        text.parse()
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.0
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Request headers that mean something here. A browser sends those of the simplest kind unasked.
const REQUEST_HEADERS: [HeaderName; 7] = [
    header::AUTHORIZATION,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    header::IF_NONE_MATCH,
    header::IF_RANGE,
    header::RANGE,
    HeaderName::from_static("x-syncular-scopes"),
];

/// Response headers that a page may read. Without credentials `*` is every other one.
const RESPONSE_HEADERS: [HeaderName; 5] = [
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::ETAG,
    header::RETRY_AFTER,
    HeaderName::from_static("*"),
];

/// How long a browser may remember a permission: the most that any of them does.
const MAX_AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// Allows these origins on the routes so far; without origins nothing is added to any request.
pub(crate) fn allow<S>(router: Router<S>, origins: &[Origin]) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    if origins.is_empty() {
        return router;
    }
    let allowed = if origins.iter().any(Origin::is_any) {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().map(Origin::to_header))
    };
    let cors = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT])
        .allow_headers(REQUEST_HEADERS)
        .expose_headers(RESPONSE_HEADERS)
        .max_age(MAX_AGE);
    router.layer(cors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_what_browsers_send_and_nothing_else() {
        for good in [
            "*",
            "https://app.example.com",
            "http://localhost:5173",
            "http://[::1]:8080",
            "https://app.example.com:8443",
            "capacitor://localhost",
            "chrome-extension://abcdefgh",
        ] {
            assert_eq!(good.parse::<Origin>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "null",
            "app.example.com",
            "https://",
            "://app.example.com",
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://App.example.com",
            "https://*.example.com",
            "https://user@app.example.com",
            "https://app.example.com?query",
            "https://app.example.com, https://b.example.com",
            "https://bücher.example",
        ] {
            assert_eq!(
                bad.parse::<Origin>(),
                Err(OriginError::Malformed),
                "{bad:?}"
            );
        }
        for usual in ["https://app.example.com:443", "http://app.example.com:80"] {
            assert_eq!(usual.parse::<Origin>(), Err(OriginError::UsualPort));
        }
    }
}

//! The upgrade request: is it one, who sends it, and from which page (§8.1).
//!
//! A browser sends cookies with an upgrade from any page and lets the server decide, so an
//! `Origin` is believed only if it is the server's own or a configured one. Nothing but a
//! browser sends one.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use tidewater_model::{ClientId, ErrorCode, limits};
use tungstenite::handshake::derive_accept_key;

use crate::{Origin, error::ApiError};

/// What an upgrade request asks for.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// Proves that the server has understood.
    pub(crate) accept: HeaderValue,
    /// Whose channel this is to be.
    pub(crate) client: ClientId,
    /// Stands for an identity.
    pub(crate) ticket: Option<String>,
    /// The subprotocol to agree to, if one was offered.
    pub(crate) subprotocol: Option<HeaderValue>,
}

impl Handshake {
    /// Reads an upgrade request.
    pub(crate) fn read(parts: &Parts) -> Result<Self, ApiError> {
        let accept = accept(parts)?;
        let mut client = None;
        let mut ticket = None;
        let query = parts.uri.query().unwrap_or_default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let slot = match &*name {
                "clientId" => &mut client,
                "ticket" => &mut ticket,
                _ => continue,
            };
            // Two values are an attempt to say two things to two readers.
            if slot.replace(value.into_owned()).is_some() {
                return Err(ApiError::unreadable("a parameter is there twice"));
            }
        }
        let client = client.filter(|client| !client.is_empty() && client.len() <= ID_BYTES_MAX);
        let client = client.ok_or_else(|| {
            ApiError::new(
                ErrorCode::InvalidClientId,
                "the client id is missing or unusable",
            )
        })?;
        if client.starts_with(limits::RESERVED_CLIENT_ID_PREFIX) {
            return Err(ApiError::new(
                ErrorCode::InvalidClientId,
                "the client id is reserved",
            ));
        }
        let mut offered = tokens(&parts.headers, &header::SEC_WEBSOCKET_PROTOCOL);
        let subprotocol = offered
            .any(|name| name == SUBPROTOCOL)
            .then_some(HeaderValue::from_static(SUBPROTOCOL));
        Ok(Self {
            accept,
            client: ClientId::new(client),
            ticket,
            subprotocol,
        })
    }
}

/// The answer to the request's key, if it is an upgrade to a WebSocket at all.
fn accept(parts: &Parts) -> Result<HeaderValue, ApiError> {
    let headers = &parts.headers;
    let is_upgrade = parts.method == Method::GET
        && tokens(headers, &header::CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
        && tokens(headers, &header::UPGRADE).any(|token| token.eq_ignore_ascii_case("websocket"));
    if !is_upgrade {
        return Err(not_an_upgrade("this is a WebSocket: upgrade the request"));
    }
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != WEBSOCKET_VERSION)
    {
        return Err(not_an_upgrade("the WebSocket version is not 13"));
    }
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .filter(|key| key.len() == KEY_LEN)
        .ok_or_else(|| ApiError::unreadable("the WebSocket key is missing or unusable"))?;
    HeaderValue::try_from(derive_accept_key(key.as_bytes())).map_err(|_| ApiError::internal())
}

fn not_an_upgrade(message: &'static str) -> ApiError {
    ApiError::unreadable(message).with_status(StatusCode::UPGRADE_REQUIRED)
}

/// Refuses requests of pages that are neither the server's own nor allowed.
pub(crate) fn check_origin(headers: &HeaderMap, allowed: &[Origin]) -> Result<(), ApiError> {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let is_known = origins.next().is_none()
        && (is_own(origin, headers) || allowed.iter().any(|allowed| allowed.includes(origin)));
    is_known.then_some(()).ok_or_else(|| {
        ApiError::new(
            ErrorCode::Forbidden,
            "pages of this origin may not connect here",
        )
    })
}

/// Whether the page came from the host that is asked now.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let page = origin
        .strip_prefix("https://")
        .or_else(|| origin.strip_prefix("http://"));
    page.is_some() && page == host
}

/// Puts a token that came as a subprotocol or a cookie where authenticators look for it, unless
/// there is one already.
pub(crate) fn carry_token(headers: &mut HeaderMap, cookie: Option<&str>) {
    if headers.contains_key(header::AUTHORIZATION) {
        return;
    }
    let token = tokens(headers, &header::SEC_WEBSOCKET_PROTOCOL)
        .find_map(|name| name.strip_prefix(SUBPROTOCOL_TOKEN))
        .or_else(|| cookie.and_then(|name| cookie_value(headers, name)));
    let value = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
    if let Some(mut value) = value {
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
}

fn cookie_value<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter();
    let pairs = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'));
    let mut values = pairs.filter_map(|pair| {
        let (name, value) = pair.trim().split_once('=')?;
        (name == wanted).then_some(value)
    });
    let value = values.next()?;
    // A second one was put there by somebody else.
    (values.next().is_none() && !value.is_empty()).then_some(value)
}

/// The members of a list header.
fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'a str> + use<'a> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

const WEBSOCKET_VERSION: &str = "13";
/// 16 bytes in base64.
const KEY_LEN: usize = 24;
const ID_BYTES_MAX: usize = 1_024;
/// What the channel is called among subprotocols: a browser that offers a token offers this too,
/// because it hangs up unless one of them is agreed to.
pub(crate) const SUBPROTOCOL: &str = "syncular";
/// A subprotocol with this prefix is a bearer token.
const SUBPROTOCOL_TOKEN: &str = "syncular.bearer.";

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, extra: &[(&'static str, &'static str)]) -> Parts {
        let mut request = http::Request::get(path)
            .header("host", "sync.example:8443")
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "WebSocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        for (name, value) in extra {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn an_upgrade_is_read_with_its_parameters() {
        let parts = request(
            "/realtime?x=1&clientId=a%20b%2Bc+d&ticket=t1",
            &[("sec-websocket-protocol", "syncular, syncular.bearer.abc")],
        );
        let handshake = Handshake::read(&parts).unwrap();
        assert_eq!(handshake.accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(handshake.client.as_str(), "a b+c d");
        assert_eq!(handshake.ticket.as_deref(), Some("t1"));
        assert_eq!(handshake.subprotocol.unwrap(), "syncular");
    }

    #[track_caller]
    fn check_client_id(query: &str, code: Option<ErrorCode>) {
        let read = Handshake::read(&request(&format!("/realtime{query}"), &[]));
        assert_eq!(read.err().map(|error| error.code()), code);
    }

    #[test]
    fn the_client_id_is_needed_once_and_bounded() {
        let wrong = Some(ErrorCode::InvalidClientId);
        check_client_id("?clientId=c", None);
        check_client_id("", wrong);
        check_client_id("?clientId=", wrong);
        check_client_id("?clientId=%5B%22remote-command%22%2Cx", wrong);
        check_client_id(&format!("?clientId={}", "x".repeat(1_024)), None);
        check_client_id(&format!("?clientId={}", "x".repeat(1_025)), wrong);
        check_client_id("?clientId=a&clientId=b", Some(ErrorCode::InvalidRequest));
    }

    #[track_caller]
    fn check_origin_of(origin: &'static str, allowed: &[&str], expected: bool) {
        let allowed: Vec<Origin> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        let parts = request("/realtime", &[("origin", origin)]);
        assert_eq!(check_origin(&parts.headers, &allowed).is_ok(), expected);
    }

    #[test]
    fn pages_of_others_are_refused_unless_they_are_named() {
        check_origin_of("https://sync.example:8443", &[], true);
        check_origin_of("https://sync.example", &[], false);
        check_origin_of("https://evil.example", &[], false);
        check_origin_of("null", &[], false);
        check_origin_of("", &[], false);
        check_origin_of("https://app.example", &["https://app.example"], true);
        check_origin_of("https://app.example.evil", &["https://app.example"], false);
        check_origin_of("https://app.example", &["*"], true);
        assert!(check_origin(&request("/", &[]).headers, &[]).is_ok());
    }

    #[track_caller]
    fn check_token(extra: &[(&'static str, &'static str)], expected: Option<&str>) {
        let mut headers = request("/realtime", extra).headers;
        carry_token(&mut headers, Some("session"));
        let found = headers.get("authorization");
        assert_eq!(found.map(|value| value.to_str().unwrap()), expected);
    }

    #[test]
    fn a_token_is_found_wherever_a_browser_can_put_it() {
        check_token(&[], None);
        check_token(
            &[("sec-websocket-protocol", "syncular,syncular.bearer.a.b-c")],
            Some("Bearer a.b-c"),
        );
        check_token(&[("cookie", "a=1; session=xyz; b=2")], Some("Bearer xyz"));
        check_token(&[("cookie", "session=xyz; session=abc")], None);
        check_token(&[("cookie", "xsession=xyz")], None);
        check_token(
            &[("cookie", "session=xyz"), ("authorization", "Bearer first")],
            Some("Bearer first"),
        );
    }
}

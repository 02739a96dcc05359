//! What pages of other origins may do, as their browsers find out.

use tidewater_server::{ConsoleAccess, Origin, Secret, ServerConfig};

use crate::{
    client::{ALICE, Reply, SYNC, get, post, send},
    host::{Host, Setup},
    messages::{Device, pull, response},
};

const APP: &str = "origin: https://app.example.com";
const OTHER: &str = "origin: https://evil.example.com";

async fn host(origins: &[&str]) -> Host {
    let allowed_origins = origins.iter().map(|text| text.parse().unwrap());
    let allowed_origins: Vec<Origin> = allowed_origins.collect();
    Host::start_with(Setup {
        config: ServerConfig {
            allowed_origins,
            ..ServerConfig::default()
        },
        console: Some(ConsoleAccess::Token(Secret::new("admin"))),
        ..Setup::default()
    })
    .await
}

/// What a browser asks before it sends a request that is not of the simplest kind.
async fn ask_first(host: &Host, origin: &str, method: &str, path: &str, headers: &str) -> Reply {
    let method = format!("access-control-request-method: {method}");
    let headers = format!("access-control-request-headers: {headers}");
    let asked = [origin, &method, &headers];
    send(host.address, "OPTIONS", path, &asked, b"").await
}

fn all<'a>(reply: &'a Reply, name: &str) -> Vec<&'a str> {
    let found = reply.headers.iter().filter(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str()).collect()
}

/// Without this header a browser shows the page nothing and sends nothing it had to ask for.
#[track_caller]
fn check_silent(reply: &Reply) {
    assert_eq!(reply.header("access-control-allow-origin"), None);
}

fn varies_by_origin(reply: &Reply) -> bool {
    let vary = all(reply, "vary").join(",").to_ascii_lowercase();
    vary.split(',').any(|name| name.trim() == "origin")
}

#[tokio::test]
async fn without_origins_no_page_may_do_anything_and_nothing_is_said() {
    let host = host(&[]).await;
    let asked = ask_first(&host, APP, "POST", "/sync", "authorization").await;
    asked.check_failure(405, "sync.invalid_request");
    check_silent(&asked);
    let device = Device::meet(host.address, "d1").await;
    let reply = post(host.address, &[APP], &device.request(pull("t1", -1, 1))).await;
    check_silent(&reply);
    assert_eq!(reply.header("vary"), None);
}

#[tokio::test]
async fn a_browser_that_asks_first_is_told_before_anybody_is_authenticated() {
    let host = host(&["https://app.example.com", "http://localhost:5173"]).await;
    let segment = format!("/segments/sha256:{}", "0".repeat(64));
    let blob = format!("/blobs/sha256%3A{}", "0".repeat(64));
    let grant = format!("{blob}/upload-grant");
    let requests = [
        (
            "POST",
            "/sync",
            "authorization,content-encoding,content-type",
        ),
        (
            "GET",
            &segment,
            "Authorization, X-Syncular-Scopes, If-None-Match, Range",
        ),
        ("PUT", &blob, "authorization,content-type"),
        ("GET", &blob, "authorization,if-range,range"),
        ("POST", &grant, "authorization,content-type"),
    ];
    for (method, path, headers) in requests {
        let reply = ask_first(&host, APP, method, path, headers).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        assert!(reply.body.is_empty());
        assert_eq!(
            reply.header("access-control-allow-origin"),
            Some("https://app.example.com")
        );
        let granted = |name: &str| -> Vec<String> {
            let list = reply.header(name).unwrap().split(',').map(str::trim);
            list.map(str::to_ascii_lowercase).collect()
        };
        let methods = granted("access-control-allow-methods");
        assert!(
            methods.contains(&method.to_ascii_lowercase()),
            "{methods:?}"
        );
        let names = granted("access-control-allow-headers");
        for name in headers.split(',').map(str::trim) {
            assert!(
                names.contains(&name.to_ascii_lowercase()),
                "{name}: {names:?}"
            );
        }
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        assert_eq!(reply.header("access-control-max-age"), Some("7200"));
        assert!(varies_by_origin(&reply));
    }
    let reply = ask_first(&host, APP, "POST", "/sync", "cookie, x-user").await;
    let names = reply.header("access-control-allow-headers").unwrap();
    assert!(
        !names.contains("cookie") && !names.contains("x-user"),
        "{names}"
    );
}

#[tokio::test]
async fn a_page_of_an_allowed_origin_reads_answers_and_failures() {
    let host = host(&["https://app.example.com"]).await;
    let device = Device::meet(host.address, "d1").await;
    let round = post(host.address, &[APP], &device.request(pull("t1", -1, 1))).await;
    response(&round);
    let nobody = send(host.address, "POST", "/sync", &[SYNC, APP], b"").await;
    nobody.check_failure(401, "sync.auth_required");
    let wrong_type = send(host.address, "POST", "/sync", &[ALICE, APP], b"").await;
    wrong_type.check_failure(415, "sync.invalid_request");
    let wrong_method = send(host.address, "DELETE", "/sync", &[ALICE, APP], b"").await;
    wrong_method.check_failure(405, "sync.invalid_request");
    let path = format!("/segments/sha256:{}", "0".repeat(64));
    let missing = get(host.address, &path, &[APP, "x-syncular-scopes: {}"]).await;
    assert_eq!(missing.status / 100, 4);
    let unknown = get(host.address, "/nowhere", &[APP]).await;
    unknown.check_failure(404, "sync.not_found");
    for reply in [round, nobody, wrong_type, wrong_method, missing, unknown] {
        assert_eq!(
            all(&reply, "access-control-allow-origin"),
            ["https://app.example.com"]
        );
        let exposed = reply.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("etag") && exposed.contains("retry-after"));
        assert!(varies_by_origin(&reply));
    }
}

#[tokio::test]
async fn an_origin_that_is_not_allowed_is_told_nothing_and_caches_keep_them_apart() {
    let host = host(&["https://app.example.com"]).await;
    let origins = [
        OTHER,
        "origin: null",
        "origin: http://app.example.com",
        "origin: https://app.example.com:8443",
        "origin: https://app.example.com.evil.example.com",
        "x-no-origin: at all",
    ];
    let device = Device::meet(host.address, "d1").await;
    for origin in origins {
        let asked = ask_first(&host, origin, "POST", "/sync", "authorization").await;
        check_silent(&asked);
        // It is no permission to write either: that needs a token.
        let request = device.request(pull("t1", -1, 1));
        let round = post(host.address, &[origin], &request).await;
        response(&round);
        check_silent(&round);
        assert!(varies_by_origin(&round));
    }
}

#[tokio::test]
async fn a_star_is_every_origin_and_never_with_credentials() {
    let host = host(&["*"]).await;
    for origin in [APP, OTHER, "origin: null"] {
        let asked = ask_first(&host, origin, "POST", "/sync", "authorization").await;
        assert_eq!(asked.status, 200);
        for reply in [asked, get(host.address, "/health", &[origin]).await] {
            assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
            assert_eq!(reply.header("access-control-allow-credentials"), None);
        }
    }
}

#[tokio::test]
async fn the_console_is_for_nobody_elses_pages() {
    let host = host(&["*"]).await;
    for path in ["/console", "/console/", "/console/state", "/console/events"] {
        let asked = ask_first(&host, APP, "GET", path, "authorization").await;
        assert_eq!(asked.status, 405, "{path}");
        check_silent(&asked);
    }
    let admin = "authorization: Bearer admin";
    let reply = send(host.address, "GET", "/console/state", &[admin, APP], b"").await;
    assert_eq!(reply.status, 200);
    check_silent(&reply);
}

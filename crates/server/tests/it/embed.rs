//! The example that shows how to mount the routes in another service.

#[path = "../../examples/embed.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod example;

use tokio::net::TcpListener;

use crate::client::{SYNC, send};

#[tokio::test]
async fn the_embedding_example_answers() {
    let app = example::app().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let hello = send(address, "GET", "/", &[], b"").await;
    assert_eq!(
        (hello.status, &hello.body[..]),
        (200, &b"my own service"[..])
    );
    let nobody = send(address, "POST", "/tidewater/sync", &[SYNC], b"").await;
    nobody.check_failure(401, "sync.auth_required");
    let headers = [SYNC, "x-session: alice"];
    let somebody = send(address, "POST", "/tidewater/sync", &headers, b"").await;
    somebody.check_failure(400, "sync.invalid_request");
    let unknown = send(address, "GET", "/tidewater/nothing", &[], b"").await;
    unknown.check_failure(404, "sync.not_found");
    serving.abort();
}

//! Whole rounds that pull, on the memory store (§4).

use crate::testing::{Ask, TestServer, note, subscription};

#[tokio::test]
async fn a_quiet_subscription_moves_to_the_head_without_reading() {
    let server = TestServer::start().await;
    server.commit(&[note("n1", "t1", "hello")]).await;
    let answer = server
        .round(Ask::pull([subscription(
            "s",
            "notes",
            &[("team_id", &["t1"])],
            1,
        )]))
        .await;
    assert_eq!(answer.section().next_cursor(), 1);
    assert_eq!(server.store.reads(), 0);
}

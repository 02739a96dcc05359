//! Expressions judge writes.

use serde_json::json;
use tidewater_testkit::StoreKind;

use crate::server::Server;

const RULES: &str = r#"
    [[validate]]
    table = "tasks"
    on = "upsert"
    expr = "size(row.title) <= 20 && !row.title.matches(r'^\\s*$')"
    code = "tasks.title"
    message = "A title has 1 to 20 characters."
    fields = ["title"]
    reason = "title.length"

    [[validate]]
    table = "tasks"
    expr = "op != 'delete' || stored.points == null"
    code = "tasks.kept"
    message = "A task with points stays."

    [[validate]]
    table = "tasks"
    expr = "stored == null || op == 'delete' || row.points == null || stored.points == null || row.points >= stored.points"
    code = "tasks.shrunk"
    message = "Points only grow."
    fields = ["points"]

    [[validate]]
    table = "projects"
    expr = "op == 'delete' || row.budget < 1000 || (actor == 'bob' && partition == 'acme')"
    code = "projects.budget"
    message = "Only Bob spends that much."
"#;

#[tokio::test]
async fn a_write_that_breaks_a_rule_is_rejected_with_its_words() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let server = Server::start(kind, RULES).await;
        assert_eq!(
            server.push("k1", vec![server.project("p1", 10)]).await,
            "applied"
        );
        let long = server.task("t1", json!({"title": "a title that is much too long"}));
        let told = server
            .push("k2", vec![server.task("t0", json!({})), long])
            .await;
        let expected = "rejected 1 tasks.title: A title has 1 to 20 characters. \
                        {\"fieldPaths\":[\"title\"],\"reason\":\"title.length\"}";
        assert_eq!(told, expected);
        let blank = server.task("t1", json!({"title": "  "}));
        assert!(
            server
                .push("k3", vec![blank])
                .await
                .starts_with("rejected 0 tasks.title")
        );
        // Told again, word by word, from the stored result.
        let long = server.task("t1", json!({"title": "a title that is much too long"}));
        let again = server
            .push("k2", vec![server.task("t0", json!({})), long])
            .await;
        assert_eq!(again, expected);
    }
}

#[tokio::test]
async fn a_rule_sees_the_row_before_and_after() {
    let server = Server::start(StoreKind::Memory, RULES).await;
    let operations = vec![
        server.project("p1", 10),
        server.task("t1", json!({"points": 3})),
    ];
    assert_eq!(server.push("k1", operations).await, "applied");
    let shrunk = vec![server.task("t1", json!({"points": 2}))];
    let expected = "rejected 0 tasks.shrunk: Points only grow. {\"fieldPaths\":[\"points\"]}";
    assert_eq!(server.push("k2", shrunk).await, expected);
    assert_eq!(
        server
            .push("k3", vec![server.task("t1", json!({"points": 4}))])
            .await,
        "applied"
    );
    let kept = "rejected 0 tasks.kept: A task with points stays.";
    assert_eq!(
        server.push("k4", vec![server.delete("tasks", "t1")]).await,
        kept
    );
    // What references append is judged too, and told of the operation it came from.
    assert_eq!(
        server
            .push("k5", vec![server.delete("projects", "p1")])
            .await,
        kept
    );
    let free = vec![
        server.task("t1", json!({"points": null})),
        server.delete("tasks", "t1"),
    ];
    assert_eq!(server.push("k6", free).await, "applied");
    // A delete of nothing asks nobody.
    assert_eq!(
        server.push("k7", vec![server.delete("tasks", "t1")]).await,
        "applied"
    );
}

#[tokio::test]
async fn a_rule_knows_who_writes_and_where() {
    let server = Server::start(StoreKind::Memory, RULES).await;
    let rich = || vec![server.project("p1", 5_000)];
    let expected = "rejected 0 projects.budget: Only Bob spends that much.";
    assert_eq!(server.push_as("ada", "acme", "k1", rich()).await, expected);
    assert_eq!(server.push_as("bob", "other", "k1", rich()).await, expected);
    assert_eq!(server.push_as("bob", "acme", "k2", rich()).await, "applied");
}

#[tokio::test]
async fn a_rule_without_a_verdict_rejects_and_says_nothing() {
    let rules = r#"
        [[validate]]
        table = "tasks"
        expr = "row.doc.tags.all(t, row.doc.tags.all(u, size(t + u) > 0))"
        code = "tasks.tags"
        message = "Tags are not empty."
    "#;
    let server = Server::start(StoreKind::Memory, rules).await;
    server.push("k1", vec![server.project("p1", 1)]).await;
    let failed = "rejected 0 sync.constraint_violation: write validator failed";
    let tags = |count: usize| {
        let tags: Vec<String> = (0..count).map(|at| format!("\"tag {at}\"")).collect();
        json!({"doc": format!("{{\"tags\":[{}]}}", tags.join(","))})
    };
    assert_eq!(
        server.push("k2", vec![server.task("t1", tags(10))]).await,
        "applied"
    );
    // No document, no such key, and one that would be compared with itself for minutes.
    assert_eq!(
        server.push("k3", vec![server.task("t2", json!({}))]).await,
        failed
    );
    assert_eq!(
        server
            .push("k4", vec![server.task("t2", json!({"doc": "{}"}))])
            .await,
        failed
    );
    assert_eq!(
        server
            .push("k5", vec![server.task("t2", tags(20_000))])
            .await,
        failed
    );
    assert_eq!(
        server.push("k6", vec![server.delete("tasks", "t1")]).await,
        failed
    );
    // The server goes on.
    assert_eq!(
        server.push("k7", vec![server.task("t2", tags(1))]).await,
        "applied"
    );
}

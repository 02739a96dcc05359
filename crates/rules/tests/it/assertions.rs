//! Assertions judge commits, in their partition and nowhere else.

use serde_json::json;
use tidewater_testkit::StoreKind;

use crate::server::Server;

const RULES: &str = r#"
    [[assert]]
    name = "budget"
    sql = """
        SELECT p.id FROM projects p
        WHERE p.budget < (SELECT coalesce(sum(t.points), 0) FROM tasks t WHERE t.project_id = p.id)
    """
    code = "projects.over_budget"
    message = "The tasks of a project cost more than its budget."

    [[assert]]
    name = "titles"
    sql = "SELECT title FROM tasks GROUP BY title HAVING count(*) > 2"
    tables = ["tasks"]
    code = "tasks.title_taken"
    message = "Two tasks may share a title, three may not."

    [[assert]]
    name = "who"
    sql = "SELECT 1 FROM projects WHERE id = :actor || ' ' || :client || ' ' || :commit || ' ' || :partition"
    code = "projects.cursed"
    message = "That is no name for a project."
"#;

#[tokio::test]
async fn a_commit_is_judged_by_what_it_would_leave_behind() {
    let server = Server::start(StoreKind::Sqlite, RULES).await;
    let over = "rejected 1 projects.over_budget: The tasks of a project cost more than its budget.";
    let operations = vec![
        server.project("p1", 5),
        server.task("t1", json!({"points": 6})),
    ];
    // Of two tables that it reads, the first operation that touches one is blamed.
    assert_eq!(
        server.push("k1", operations).await,
        over.replacen('1', "0", 1)
    );
    let operations = vec![
        server.project("p1", 5),
        server.task("t1", json!({"points": 5})),
    ];
    assert_eq!(server.push("k2", operations).await, "applied");
    let one_more = vec![server.task("t2", json!({"points": 1, "title": "b"}))];
    assert_eq!(
        server.push("k3", one_more).await,
        over.replacen('1', "0", 1)
    );
    // Within one commit only the end counts.
    let moved = vec![
        server.task("t2", json!({"points": 1, "title": "b"})),
        server.task("t1", json!({"points": 4})),
    ];
    assert_eq!(server.push("k4", moved).await, "applied");
    let cheaper = vec![server.project("p1", 4)];
    assert_eq!(server.push("k5", cheaper).await, over.replacen('1', "0", 1));
    // What references delete is gone for the assertion, too.
    let fewer = vec![server.delete("projects", "p1"), server.project("p2", 0)];
    assert_eq!(server.push("k6", fewer).await, "applied");
}

#[tokio::test]
async fn the_operation_that_first_touches_a_table_of_the_assertion_is_blamed() {
    let server = Server::start(StoreKind::Sqlite, RULES).await;
    let operations = vec![
        server.project("p1", 5),
        server.task("t1", json!({})),
        server.task("t2", json!({})),
        server.task("t3", json!({})),
    ];
    let expected = "rejected 1 tasks.title_taken: Two tasks may share a title, three may not.";
    assert_eq!(server.push("k1", operations).await, expected);
}

#[tokio::test]
async fn rows_of_other_partitions_do_not_count() {
    let server = Server::start(StoreKind::Sqlite, RULES).await;
    for partition in ["one", "two", "three"] {
        let operations = vec![
            server.project("p1", 5),
            server.task("t1", json!({"points": 5})),
            server.task("t2", json!({"points": 0})),
        ];
        let told = server.push_as("ada", partition, "k1", operations).await;
        assert_eq!(told, "applied", "{partition}");
    }
    let third = vec![server.task("t3", json!({}))];
    let told = server.push_as("ada", "two", "k2", third).await;
    assert!(told.starts_with("rejected 0 tasks.title_taken"), "{told}");
}

#[tokio::test]
async fn an_assertion_may_ask_who_commits_what() {
    let server = Server::start(StoreKind::Sqlite, RULES).await;
    let cursed = || vec![server.project("ada of ada k1 acme", 5)];
    let expected = "rejected 0 projects.cursed: That is no name for a project.";
    assert_eq!(
        server.push_as("ada", "acme", "k1", cursed()).await,
        expected
    );
    assert_eq!(
        server.push_as("bob", "acme", "k2", cursed()).await,
        "applied"
    );
}

#[tokio::test]
async fn an_assertion_that_the_database_refuses_rejects_the_commits_of_its_tables() {
    // Two tables have the column: only the database knows which is meant.
    let rules = r#"
        [[assert]]
        name = "ambiguous"
        sql = "SELECT id FROM projects, tasks"
        tables = ["tasks"]
        code = "tasks.bad"
        message = "Bad."
    "#;
    let server = Server::start(StoreKind::Sqlite, rules).await;
    assert_eq!(
        server.push("k1", vec![server.project("p1", 5)]).await,
        "applied"
    );
    let failed = "rejected 0 sync.constraint_violation: whole-commit validator failed";
    assert_eq!(
        server.push("k2", vec![server.task("t1", json!({}))]).await,
        failed
    );
}

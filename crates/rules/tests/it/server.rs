//! An engine with rules, and clients of two partitions.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde_json::Value as Json;
use tidewater_engine::{Hooks, Identity};
use tidewater_rules::{Rules, RulesConfig};
use tidewater_schema::Schema;
use tidewater_testkit::{
    Instance, InstanceSpec, StoreKind,
    message::{Answer, Author, commit, delete},
    schema::{SchemaDoc, TableDoc},
    scopes,
};
use tidewater_wire::{OpResult, Operation, PushOutcome, WireVersion};

/// An engine with rules.
pub(crate) struct Server {
    instance: Arc<Instance>,
    pub(crate) author: Author,
}

/// Projects with tasks, by team.
fn document() -> SchemaDoc {
    SchemaDoc::new(1)
        .table(
            TableDoc::new("projects")
                .column("id", "string")
                .column("team_id", "string")
                .column("budget", "integer")
                .scope("team", "team_id"),
        )
        .table(
            TableDoc::new("tasks")
                .column("id", "string")
                .column("team_id", "string")
                .column("project_id", "string")
                .column("title", "string")
                .nullable("points", "integer")
                .nullable("doc", "json")
                .scope("team", "team_id")
                .reference("project_id", "projects", "CASCADE"),
        )
}

impl Server {
    /// A server with the rules of a configuration.
    pub(crate) async fn start(kind: StoreKind, rules: &str) -> Self {
        let schema: Arc<Schema> = document().compile().unwrap();
        let config: RulesConfig = toml::from_str(rules).unwrap();
        let rules = Rules::compile(&config, &schema).unwrap();
        let mut hooks = Hooks::default();
        rules.install(&mut hooks);
        let spec = InstanceSpec::new(document().json());
        let instance = Instance::open_with_hooks(&spec, kind, hooks).await.unwrap();
        instance
            .resolver()
            .allow("ada", scopes([("team_id", &["t1"])]));
        instance
            .resolver()
            .allow("bob", scopes([("team_id", &["t1"])]));
        let author = Author::new("c1", WireVersion::V1, &schema);
        Self { instance, author }
    }

    /// A row of `projects`.
    pub(crate) fn project(&self, id: &str, budget: i64) -> Operation {
        let row = serde_json::json!({"id": id, "team_id": "t1", "budget": budget});
        self.author.upsert("projects", &row, None)
    }

    /// A row of `tasks`, with more columns than it must have.
    pub(crate) fn task(&self, id: &str, more: Json) -> Operation {
        let mut row = serde_json::json!(
            {"id": id, "team_id": "t1", "project_id": "p1", "title": "a task"}
        );
        row.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.author.upsert("tasks", &row, None)
    }

    /// A delete of a row of `tasks`.
    pub(crate) fn delete(&self, table: &str, id: &str) -> Operation {
        delete(table, id)
    }

    /// Pushes one commit; the outcome in words.
    pub(crate) async fn push(&self, id: &str, operations: Vec<Operation>) -> String {
        self.push_as("ada", "acme", id, operations).await
    }

    /// Pushes one commit of an actor in a partition.
    pub(crate) async fn push_as(
        &self,
        actor: &str,
        partition: &str,
        id: &str,
        operations: Vec<Operation>,
    ) -> String {
        let client_id = format!("of {actor}");
        let author = Author {
            client_id,
            ..self.author.clone()
        };
        let request = author.request(vec![commit(id, operations)], None);
        let identity = Identity::new(partition, actor);
        let engine = self.instance.engine().await;
        let mut body = engine.round(identity, request).await.unwrap();
        let mut bytes = BytesMut::new();
        while let Some(part) = body.next().await {
            bytes.extend_from_slice(&part);
        }
        told(&Answer::read(&Bytes::from(bytes)).unwrap())
    }
}

/// `applied`, or `rejected <op> <code>: <message>` with the details.
fn told(answer: &Answer) -> String {
    let result = &answer.results[0];
    match result.outcome {
        PushOutcome::Applied(_) => "applied".to_owned(),
        PushOutcome::Cached(_) => "cached".to_owned(),
        PushOutcome::Rejected => match &result.results[0] {
            OpResult::Error {
                op_index,
                code,
                message,
                ..
            } => {
                let details: Vec<String> = answer
                    .details
                    .iter()
                    .flat_map(|details| &details.entries)
                    .map(|entry| format!(" {}", entry.details))
                    .collect();
                format!("rejected {op_index} {code}: {message}{}", details.concat())
            }
            other => format!("rejected {other:?}"),
        },
    }
}

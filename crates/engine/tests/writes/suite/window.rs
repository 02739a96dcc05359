//! Pushes of clients at an older version of the window (§9).

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tidewater_schema::Schema;
use tidewater_wire::{OpResult, WireVersion, row::decode_row};

use super::{
    asking::{Ask, put},
    server::{Server, Setup},
};

/// The first so many columns: eight at version 1, more at version 2.
fn document(version: i32, columns: usize) -> Json {
    let names = ["id", "team", "a", "b", "c", "d", "e", "f", "late", "later"];
    let columns: Vec<Json> = names[..columns]
        .iter()
        .map(|name| json!({"name": name, "type": "string", "nullable": !["id", "team"].contains(name)}))
        .collect();
    json!({"version": version, "tables": [
        {"name": "items", "primaryKey": "id", "scopes": ["team:{team}"], "columns": columns},
    ]})
}

async fn start() -> (Server, Arc<Schema>) {
    let older = document(1, 8).to_string();
    let setup = Setup {
        older: vec![older.clone()],
        ..Setup::of(&document(2, 10).to_string())
    };
    let older = Schema::from_json(&older).expect("a schema");
    (setup.start().await, Arc::new(older))
}

#[tokio::test]
async fn what_an_older_client_does_not_know_is_null_at_first_and_then_left_alone() {
    for version in [WireVersion::V1, WireVersion::V2, WireVersion::V3] {
        let (server, older) = start().await;
        let old = Ask::new().in_version(version).by("olga").knowing(&older);
        let row = |a: &str| {
            let nothing = Json::Null;
            json!({"id": "i", "team": "t1", "a": a, "b": nothing, "c": nothing, "d": nothing,
                   "e": nothing, "f": "f"})
        };
        let insert = old.clone().push("1", vec![put("items", row("one"))]);
        assert_eq!(server.round(insert).await.outcomes(), ["applied 1"]);
        assert_eq!(server.rows("items").await, ["i|t1|one|-|-|-|-|f|-|-@1"]);

        let patch = put("items", json!({"id": "i", "late": "set"}));
        assert_eq!(server.push(vec![patch]).await, "applied 2");
        let update = old.clone().push("2", vec![put("items", row("two"))]);
        assert_eq!(server.round(update).await.outcomes(), ["applied 3"]);
        let stored = server.rows("items").await;
        assert_eq!(stored, ["i|t1|two|-|-|-|-|f|set|-@3"], "{version:?}");
        // The same outcome is told again.
        let again = old.push("2", vec![put("items", row("two"))]);
        assert_eq!(server.round(again).await.outcomes(), ["cached 3"]);
    }
}

#[tokio::test]
async fn a_conflict_shows_the_row_in_the_columns_of_its_author() {
    let (server, older) = start().await;
    let all = |a: &str| {
        let names = ["a", "b", "c", "d", "e", "f", "late", "later"];
        let mut row = json!({"id": "i", "team": "t1"});
        for name in names {
            row[name] = json!(a);
        }
        row
    };
    assert_eq!(server.push(vec![put("items", all("x"))]).await, "applied 1");
    assert_eq!(server.push(vec![put("items", all("y"))]).await, "applied 2");
    for round in ["fresh", "replayed"] {
        let patch = put("items", json!({"id": "i", "a": "z", "f": "z"})).based_on(1);
        let ask = Ask::new()
            .by("olga")
            .knowing(&older)
            .push("stale", vec![patch]);
        let told = server.round(ask).await.told.remove(0);
        let [
            OpResult::Conflict {
                server_row,
                conflict_columns,
                ..
            },
        ] = &told.result.results[..]
        else {
            panic!("{told:?}")
        };
        let table = older.table(older.find("items").expect("a table"));
        let fields = decode_row(&table.columns, server_row).expect("a row of version 1");
        assert_eq!(fields.len(), 8, "{round}");
        // `a` and `f`, third and eighth of eight.
        assert_eq!(conflict_columns[..], [0b1000_0100], "{round}");
    }
    // Told to a client that knows all columns, the same outcome shows them all.
    let patch = put("items", json!({"id": "i", "a": "z", "f": "z"})).based_on(1);
    let ask = Ask::new().by("olga").push("stale", vec![patch]);
    let told = server.round(ask).await.told.remove(0);
    let [
        OpResult::Conflict {
            server_row,
            conflict_columns,
            ..
        },
    ] = &told.result.results[..]
    else {
        panic!("{told:?}")
    };
    let table = server
        .schema
        .table(server.schema.find("items").expect("a table"));
    assert!(decode_row(&table.columns, server_row).is_ok());
    assert_eq!(conflict_columns[..], [0b1000_0100, 0]);
}

#[tokio::test]
async fn an_older_client_does_not_know_a_table_that_came_later() {
    let mut newer = document(2, 8);
    let mut more = newer["tables"][0].clone();
    more["name"] = json!("more");
    let tables = newer["tables"].as_array_mut().expect("tables");
    tables.insert(0, more);
    let older = document(1, 8).to_string();
    let setup = Setup {
        older: vec![older.clone()],
        ..Setup::of(&newer.to_string())
    };
    let server = setup.start().await;
    let older = Arc::new(Schema::from_json(&older).expect("a schema"));
    let old = Ask::new().by("olga").knowing(&older);
    let delete = super::asking::delete("more", "i");
    let answer = server.round(old.clone().push("1", vec![delete])).await;
    assert_eq!(answer.outcomes(), ["rejected 0:sync.unknown_table"]);
    let row = json!({"id": "i", "team": "t1", "a": null, "b": null, "c": null, "d": null,
                     "e": null, "f": null});
    let answer = server.round(old.push("2", vec![put("items", row)])).await;
    assert_eq!(
        answer.outcomes(),
        ["applied 1"],
        "tables keep their names, not their places"
    );
}

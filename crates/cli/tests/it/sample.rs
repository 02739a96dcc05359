//! The quickstart and the configured server, with the sample client: the published one, offline
//! and online.

#[path = "../../examples/todo.rs"]
#[expect(dead_code, reason = "its main is for people")]
mod todo;

use std::path::Path;

use self::todo::{Options, TodoList};
use crate::process::{Running, file};

pub(crate) fn list(name: &str, url: &str, folder: &Path) -> TodoList {
    TodoList::open(&Options {
        name: name.to_owned(),
        server: url.to_owned(),
        list: "home".to_owned(),
        data: Some(folder.to_owned()),
        offline: false,
    })
    .unwrap()
}

pub(crate) fn titles(list: &TodoList) -> Vec<String> {
    list.todos()
        .unwrap()
        .into_iter()
        .map(|todo| todo.title)
        .collect()
}

#[test]
fn what_was_written_offline_arrives_on_the_other_device_and_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Running::start(&["quickstart", "--listen", "127.0.0.1:0"], &[]);
    let url = server.url_from_output();
    let mut alice = list("alice", &url, folder.path());
    let mut bob = list("bob", &url, folder.path());

    alice.obey("add milk").unwrap();
    bob.obey("sync").unwrap();
    assert_eq!(titles(&bob), ["milk"]);

    alice.obey("offline").unwrap();
    alice.obey("add bread").unwrap();
    alice.obey("done 1").unwrap();
    bob.obey("add cheese").unwrap();
    assert_eq!(titles(&alice), ["milk", "bread"]);
    assert_eq!(titles(&bob), ["milk", "cheese"]);

    alice.obey("online").unwrap();
    bob.obey("sync").unwrap();
    assert_eq!(titles(&alice), ["milk", "bread", "cheese"]);
    assert_eq!(titles(&bob), titles(&alice));
    assert!(bob.todos().unwrap()[0].is_done);
    assert!(alice.todos().unwrap().iter().all(|todo| !todo.is_waiting));

    let feed = read_feed(&url, "bread");
    assert!(
        feed.contains(r#""actor":"alice""#) && feed.contains(r#""title":"bread""#),
        "{feed}"
    );
    assert_eq!(server.stop("-INT"), Some(0));
}

/// Reads the feed up to the line with this text.
fn read_feed(url: &str, text: &str) -> String {
    use std::io::{BufRead as _, BufReader};
    let response = ureq::get(format!("{url}/console/events")).call().unwrap();
    let lines = BufReader::new(response.into_body().into_reader()).lines();
    let found = lines.map_while(Result::ok).find(|line| line.contains(text));
    found.expect("the feed ended")
}

#[test]
fn a_configured_server_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    file(
        folder.path(),
        "schema.json",
        include_str!("../../assets/todo.schema.json"),
    );
    let config = file(
        folder.path(),
        "tidewater.toml",
        "[schema]\npath = \"schema.json\"\n\
         [[auth.tokens]]\ntoken = \"demo-alice\"\nactor = \"alice\"\npartition = \"p\"\n\
         [[auth.tokens]]\ntoken = \"demo-bob\"\nactor = \"bob\"\npartition = \"p\"\n\
         [scopes.actors.\"*\"]\nlist_id = [\"*\"]\n",
    );
    let arguments = ["serve", "--config", config.as_str()];
    let port = [("TIDEWATER_SERVER__LISTEN", "127.0.0.1:0")];

    let mut server = Running::start(&arguments, &port);
    let mut alice = list("alice", &server.url_from_log(), folder.path());
    alice.obey("add milk").unwrap();
    assert!(!alice.todos().unwrap()[0].is_waiting);
    assert_eq!(server.stop("-TERM"), Some(0));

    let mut server = Running::start(&arguments, &port);
    let mut bob = list("bob", &server.url_from_log(), folder.path());
    bob.obey("sync").unwrap();
    assert_eq!(titles(&bob), ["milk"]);
    assert_eq!(server.stop("-TERM"), Some(0));
}

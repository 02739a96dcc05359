//! What a configuration file may say, and how a mistake in it is told.

use super::*;

fn load(text: &str, variables: &[(&str, &str)]) -> anyhow::Result<Config> {
    let table = parse(text, Path::new("t.toml"))?;
    let variables = variables
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    overrides::apply(table, variables)
}

#[track_caller]
fn check_refused(text: &str, variables: &[(&str, &str)], expected: &str) {
    let error = format!("{:#}", load(text, variables).unwrap_err());
    assert!(error.contains(expected), "{error}");
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(load("", &[]).unwrap(), Config::default());
}

#[test]
fn sizes_and_times_are_text_with_units() {
    let config = load(
        "[server]\nrequest_bytes_max = \"8MiB\"\nwrite_timeout = \"1m 30s\"\n\
         [retention]\nactive_window = \"7days\"\n",
        &[],
    )
    .unwrap();
    assert_eq!(config.server.request_bytes_max, ByteSize::mib(8));
    assert_eq!(config.server.write_timeout, Duration::from_secs(90));
    assert_eq!(
        config.retention.active_window,
        Duration::from_secs(7 * 24 * 3_600)
    );
}

#[test]
fn an_error_names_its_place() {
    check_refused(
        "[server]\n\nlisten_on = 1\n",
        &[],
        "t.toml:3:1: unknown field `listen_on`",
    );
    check_refused("[store]\nkind = \"oracle\"\n", &[], "t.toml:2:8: ");
    check_refused("[server\n", &[], "t.toml:1:");
    check_refused("[log]\nfilter = 5\n", &[], "t.toml:2:10: ");
    check_refused("[server]\nauth_timeout = \"soon\"\n", &[], "t.toml:2:16: ");
}

#[test]
fn an_error_does_not_quote_the_line_it_is_on() {
    let text = "[[auth.tokens]]\ntoken = \"hunter2\" oops\n";
    let error = format!("{:#}", load(text, &[]).unwrap_err());
    assert!(
        error.starts_with("t.toml:2:") && !error.contains("hunter2"),
        "{error}"
    );
}

#[test]
fn the_environment_overrides_the_file() {
    let config = load(
        "[server]\nlisten = \"127.0.0.1:1\"\nrounds_max = 5\n",
        &[
            ("TIDEWATER_SERVER__LISTEN", "0.0.0.0:2"),
            ("TIDEWATER_SERVER__COMPRESS", "false"),
            ("TIDEWATER_STORE__KIND", "memory"),
            ("TIDEWATER_STORE__PATH", "7"),
            (
                "TIDEWATER_AUTH__TOKENS",
                "[{ token = \"s3\", actor = \"a\", partition = \"p\" }]",
            ),
        ],
    )
    .unwrap();
    assert_eq!(config.server.listen, SocketAddr::from(([0, 0, 0, 0], 2)));
    assert_eq!(config.server.rounds_max, 5);
    assert!(!config.server.compress);
    assert_eq!(config.store.kind, StoreKind::Memory);
    assert_eq!(config.store.path, Path::new("7"));
    assert_eq!(config.auth.tokens[0].actor, "a");
}

#[test]
fn a_variable_that_is_wrong_is_named() {
    check_refused(
        "",
        &[("TIDEWATER_SERVER__PORT", "1")],
        "TIDEWATER_SERVER__PORT: unknown field",
    );
    check_refused("", &[("TIDEWATER_SERVER", "1")], "TIDEWATER_SERVER: ");
    check_refused(
        "",
        &[("TIDEWATER_SERVER__ROUNDS_MAX", "many")],
        "TIDEWATER_SERVER__ROUNDS_MAX",
    );
    check_refused(
        "",
        &[("TIDEWATER_LOG__FILTER__X", "1")],
        "TIDEWATER_LOG__FILTER__X",
    );
}

#[test]
fn a_variable_cannot_set_another_key() {
    let text = "\"a\"\n[server]\nrounds_max = 1";
    let config = load("", &[("TIDEWATER_LOG__FILTER", text)]).unwrap();
    assert_eq!(config.log.filter, text);
    assert_eq!(config.server, ServerSection::default());
}

#[test]
fn what_is_printed_can_be_read_again_and_holds_no_secret() {
    let config = load(
        "[[auth.tokens]]\ntoken = \"hunter2\"\nactor = \"a\"\npartition = \"p\"\n\
         claims = { teams = [\"t1\"] }\n\
         [auth.trusted_header]\nactor_header = \"x-user\"\npartition = \"p\"\n\
         proxies = [\"10.0.0.0/8\"]\n\
         [scopes.actors.\"*\"]\nteam_id = [\"t1\"]\n[scopes.claims]\nteams = \"team_id\"\n\
         [console]\nenabled = true\nadmin_token = \"hunter3\"\n",
        &[],
    )
    .unwrap();
    let printed = config.to_toml().unwrap();
    assert!(!printed.contains("hunter"), "{printed}");
    assert!(!config.to_json().unwrap().contains("hunter"));
    assert!(!format!("{config:?}").contains("hunter"));
    let again = load(&printed, &[]).unwrap();
    assert_eq!(again.server, config.server);
    assert_eq!(again.scopes, config.scopes);
    assert_eq!(again.auth.trusted_header, config.auth.trusted_header);
}

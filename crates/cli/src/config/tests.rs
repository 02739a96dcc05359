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
    assert_eq!(config.store.kind(), store::StoreKind::Memory);
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

#[test]
fn nats_needs_an_address_a_subject_and_other_nodes() {
    let check = |text: &str| {
        let mut config = load(text, &[("TIDEWATER_STORE__URL", "postgresql://h/db")]).unwrap();
        config.resolve(Path::new("/srv"));
        let nats = config.nats.clone().unwrap();
        assert!(!config.to_toml().unwrap().contains("hunter2"));
        nats.check(&config.store)
            .map_err(|error| format!("{error:#}"))
    };
    let url = "[nats]\nurl = \"nats://user:hunter2@a, nats://b:4223\"\n";
    assert_eq!(check(url), Ok(()));
    for (text, expected) in [
        ("[nats]\n".to_owned(), "nats.url is not set"),
        (
            format!("{url}subject = \"a.*\"\n"),
            "nats: \"a.*\" is no subject",
        ),
        (
            format!("{url}[store.postgres]\nsingle_node = true\n"),
            "nats carries signals between nodes",
        ),
    ] {
        let error = check(&text).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    check_refused("[nats]\nurls = 1\n", &[], "t.toml:2:1: unknown field");
}

#[test]
fn the_places_of_segments_and_blobs_follow_from_the_database() {
    let resolved = |text: &str| {
        let mut config = load(text, &[]).unwrap();
        config.resolve(Path::new("/srv"));
        config
    };
    let beside = |name: &str| Some(Path::new("/srv").join(name));
    let config = resolved("");
    assert_eq!(config.segments.path, beside("tidewater.segments"));
    assert_eq!(config.blobs.path, beside("tidewater.blobs"));
    let config = resolved(
        "[store]\npath = \"data/app.db\"\n[segments]\nkind = \"sqlite\"\n\
         [blobs]\npath = \"/mnt/blobs\"\n",
    );
    assert_eq!(config.segments.path, beside("data/app.segments.db"));
    assert_eq!(config.segments.bytes_max, Some(ByteSize::gib(8)));
    assert_eq!(config.blobs.path, beside("/mnt/blobs"));
    let config = resolved("[store]\nkind = \"memory\"\n");
    assert_eq!((config.segments.path, config.blobs.path), (None, None));
    assert_eq!(config.segments.bytes_max, Some(ByteSize::mib(256)));
}

#[test]
fn unknown_keys_of_segments_blobs_and_urls_are_refused() {
    check_refused("[segments]\nkinds = 1\n", &[], "t.toml:2:1: unknown field");
    check_refused("[blobs]\nkind = \"gcs\"\n", &[], "t.toml:2:8: ");
    check_refused(
        "[blobs.s3]\nbucket = \"b\"\nbuckets = 1\n",
        &[],
        "t.toml:3:1: unknown field",
    );
    check_refused(
        "[blobs.s3]\nregion = \"r\"\n",
        &[],
        "missing field `bucket`",
    );
    check_refused("[signed_urls]\nttls = \"1m\"\n", &[], "t.toml:2:1: unknown");
}

#[test]
fn the_keys_of_a_bucket_may_come_from_the_environment_and_are_not_printed() {
    let variables = [
        (
            "TIDEWATER_SEGMENTS__S3__ACCESS_KEY_ID",
            "id-from-environment",
        ),
        ("TIDEWATER_SEGMENTS__S3__SECRET_ACCESS_KEY", "hunter2"),
    ];
    let text = "[segments]\nkind = \"s3\"\n[segments.s3]\nbucket = \"b\"\n\
                call_timeout = \"7s\"\n";
    let config = load(text, &variables).unwrap();
    let bucket = config.segments.s3.as_ref().unwrap();
    let s3 = bucket.to_s3().unwrap();
    assert_eq!(s3.access_key_id.as_deref(), Some("id-from-environment"));
    assert_eq!(s3.secret_access_key.as_deref(), Some("hunter2"));
    assert_eq!(bucket.limits().call_timeout, Duration::from_secs(7));
    let printed = config.to_toml().unwrap();
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn origins_are_checked_where_they_are_written() {
    let config = load(
        "[server.cors]\nallowed_origins = [\"https://app.example.com\"]\n",
        &[],
    )
    .unwrap();
    let allowed = config.server.to_server(&config.realtime).allowed_origins;
    assert_eq!(allowed, ["https://app.example.com".parse().unwrap()]);
    let name = "TIDEWATER_SERVER__CORS__ALLOWED_ORIGINS";
    let config = load("", &[(name, "[\"*\"]")]).unwrap();
    assert_eq!(config.server.cors.allowed_origins, ["*".parse().unwrap()]);
    let text = "[server.cors]\nallowed_origins = [\"https://app.example.com/\"]\n";
    check_refused(text, &[], "t.toml:2:");
    check_refused(text, &[], "without a path");
    check_refused("", &[(name, "[\"https://a.example:443\"]")], "usual port");
}

/// Reads a file as if it were in `/f`, and checks its `[store]` and what depends on it.
fn checked(text: &str) -> anyhow::Result<Config> {
    let mut config = load(text, &[])?;
    config.resolve(Path::new("/f"));
    config.store.check()?;
    config.segments.check(&config.store)?;
    config.blobs.check(&config.store)?;
    Ok(config)
}

#[track_caller]
fn check_unfit(text: &str, expected: &str) {
    let error = format!("{:#}", checked(text).unwrap_err());
    assert!(error.contains(expected), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_url_is_a_postgresql_database_and_is_not_printed() {
    let one_node = "[store]\nurl = \"postgresql://u:hunter2@h/d\"\npostgres.single_node = true\n";
    let config = checked(one_node).unwrap();
    assert_eq!(config.store.kind(), store::StoreKind::Postgres);
    assert!(!config.to_toml().unwrap().contains("hunter2"));
    assert!(!config.to_json().unwrap().contains("hunter2"));
    let postgres = config.store.to_postgres(2).unwrap();
    assert_eq!((postgres.connections_max, postgres.streams_max), (10, 2));
    assert!(!postgres.announces, "there is nobody to hear it");
    let nodes = "[store]\nurl = \"postgresql://h/d\"\npostgres.connections_max = 3\n\
         [segments.s3]\nbucket = \"b\"\n[blobs.s3]\nbucket = \"b\"\n";
    let config = checked(nodes).unwrap();
    assert_eq!(config.segments.kind, Some(objects::ObjectsKind::S3));
    let postgres = config.store.to_postgres(0).unwrap();
    assert_eq!((postgres.connections_max, postgres.streams_max), (3, 1));
    assert!(postgres.announces);
}

#[test]
fn a_database_that_cannot_be_meant_is_refused_with_a_sentence() {
    let url = "[store]\nurl = \"postgresql://u:hunter2@h/d\"\n";
    check_unfit(url, "set segments.kind to s3");
    check_unfit(
        &format!("{url}[segments.s3]\nbucket = \"b\"\n"),
        "set blobs.kind to s3",
    );
    check_unfit(
        &format!("{url}[segments]\nkind = \"sqlite\"\n"),
        "only this one sees them",
    );
    check_unfit("[store]\nkind = \"postgres\"\n", "TIDEWATER_STORE__URL");
    check_unfit(
        &format!("{url}kind = \"sqlite\"\n"),
        "store.url is a PostgreSQL database",
    );
    check_unfit(
        "[store.postgres]\nsingle_node = true\n",
        "store.kind is not postgres",
    );
    check_unfit(&format!("{url}size_limit = \"1GiB\"\n"), "size_limit");
    check_unfit(&format!("{url}url_file = \"url\"\n"), "both set");
    check_unfit(
        &format!("{url}postgres.lock_timeout = \"0s\"\n"),
        "lock_timeout is 0",
    );
    check_unfit(
        "[store]\nurl = \"postgresql://u:hunter2@h/d?sslmode=maybe\"\n",
        "sslmode",
    );
}

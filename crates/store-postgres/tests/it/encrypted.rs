//! TLS with a real server: who is believed to be the database, by `sslmode`.

use std::path::Path;

use tidewater_pgtest::Server;
use tidewater_store::{Store, StoreErrorKind, conformance::fixtures::schema};
use tidewater_store_postgres::{PostgresConfig, PostgresStore};

fn certificate(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/certificates");
    folder.join(name).to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_is_believed_as_far_as_its_certificate_goes() {
    let server = Server::start().unwrap_or_else(|why| panic!("{why}"));
    let address = server.encrypt(&certificate("server.pem"), &certificate("server.key"));
    let database = server.database();
    let (name, authority, stranger) = (
        database.name(),
        certificate("authority.pem"),
        certificate("stranger.pem"),
    );
    for (host, options, expected) in [
        ("localhost", "sslmode=require".to_owned(), Some(true)),
        ("localhost", "sslmode=prefer".to_owned(), Some(true)),
        ("localhost", "sslmode=disable".to_owned(), None),
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={authority}"),
            Some(true),
        ),
        // The certificate is for another name.
        (
            "other.example",
            format!("sslmode=verify-full&sslrootcert={authority}"),
            None,
        ),
        (
            "other.example",
            format!("sslmode=verify-ca&sslrootcert={authority}"),
            Some(true),
        ),
        (
            "localhost",
            format!("sslmode=verify-full&sslrootcert={stranger}"),
            None,
        ),
        (
            "localhost",
            format!("sslmode=verify-ca&sslrootcert={stranger}"),
            None,
        ),
        // The system's authorities do not know it either.
        ("localhost", "sslmode=verify-full".to_owned(), None),
    ] {
        let url = format!("postgresql://postgres@{host}/{name}?hostaddr={address}&{options}");
        let case = format!("{host} {options}");
        let store = PostgresStore::new(PostgresConfig::from_url(&url).unwrap()).unwrap();
        match (store.check().await, expected) {
            (Ok(()), Some(is_encrypted)) => {
                let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a \
                                 USING (pid) WHERE s.ssl AND a.application_name = 'tidewater'";
                assert_eq!(database.number(encrypted) > 0, is_encrypted, "{case}");
                store.prepare(&schema()).await.unwrap();
            }
            (Err(error), None) => {
                assert_eq!(error.kind, StoreErrorKind::Unavailable, "{case}: {error}");
            }
            (Ok(()), None) => panic!("{case}: it is believed"),
            (Err(error), Some(_)) => panic!("{case}: {error}"),
        }
        store.close();
    }
}

//! What an operator can choose about the database, and where it is.
//!
//! Durability is not among it: where the server would acknowledge a commit before it is on the
//! disk, its transactions ask it not to.

use std::{path::PathBuf, str::FromStr, time::Duration};

use tokio_postgres::config::SslMode;

use crate::{side::KEEPALIVE_DEFAULT, tls::Trust};

/// Where the database is and how much of it may be used.
#[derive(Clone, Debug)]
pub struct PostgresConfig {
    pub(crate) address: tokio_postgres::Config,
    pub(crate) trust: Trust,
    /// Where the database is without a pooler in between.
    pub(crate) direct: Option<(tokio_postgres::Config, Trust)>,
    /// The most connections of this store, whatever happens, but for those of streams.
    pub connections_max: usize,
    /// The most connections of streams, and so the most streams at a time. They are opened when
    /// a stream is first asked for.
    pub streams_max: usize,
    /// How long to wait for one of them.
    pub checkout_timeout: Duration,
    /// How long one statement may take.
    pub statement_timeout: Duration,
    /// How long to wait for a lock, and so for another node's write to the same partition.
    pub lock_timeout: Duration,
    /// How long a transaction may wait for its server before the database ends it.
    pub idle_in_transaction_timeout: Duration,
    /// How long a query of a rule may take.
    pub query_timeout: Duration,
    /// Whether statements are prepared once for each connection. A pooler that hands connections
    /// out per transaction loses them: turn it off for PgBouncer in transaction mode, unless that
    /// is 1.21 or later and has `max_prepared_statements`. Nothing else is left on a connection.
    pub prepared_statements: bool,
    /// Whether commits are announced to the other nodes by the database itself. Turn it off where
    /// signals between nodes go another way.
    pub announces: bool,
    /// How often to find out whether the one connection for signals and locks is there. It is
    /// beside `connections_max`, and opened when it is first needed.
    pub keepalive: Duration,
    /// Whether a database is served that shows signs of having been restored.
    pub accept_restored: bool,
    /// Whether a new timeline of the cluster, or another cluster, is no sign of a restore: where
    /// every standby that may take over is synchronous, nothing is lost with it.
    pub accept_new_timelines: bool,
}

/// A text that names no database.
#[derive(Clone, Debug, thiserror::Error, Eq, PartialEq)]
#[error("{0}")]
pub struct ConfigError(String);

impl PostgresConfig {
    /// A database by its URL (`postgresql://user@host/name?sslmode=verify-full`) or by `key=value`
    /// pairs, as `psql` takes both.
    ///
    /// `sslmode` is `disable`, `prefer`, `require`, `verify-ca` or `verify-full`; `sslrootcert` is
    /// a file of certificates to trust instead of the system's. As everywhere, the first three do
    /// not verify who answers, and `prefer` is the default.
    ///
    /// # Errors
    ///
    /// When the text says something else. The error does not repeat it: it may hold a password.
    pub fn from_url(url: &str) -> Result<Self, ConfigError> {
        let (url, options) = take_ssl_options(url)?;
        let mut address = tokio_postgres::Config::from_str(&url).map_err(|error| {
            ConfigError(format!("the address of the database is not read: {error}"))
        })?;
        let mode = options.mode.as_deref().unwrap_or("prefer");
        let root = options.root;
        let (ssl, trust) = match mode {
            "disable" => (SslMode::Disable, Trust::Anybody),
            "prefer" => (SslMode::Prefer, Trust::Anybody),
            "require" if root.is_none() => (SslMode::Require, Trust::Anybody),
            // As libpq does: who names a certificate wants it looked at.
            "require" | "verify-ca" => (SslMode::Require, Trust::Authority(root)),
            "verify-full" => (SslMode::Require, Trust::Host(root)),
            _ => {
                return Err(ConfigError(
                    "sslmode is none of disable, prefer, require, verify-ca, verify-full"
                        .to_owned(),
                ));
            }
        };
        address
            .ssl_mode(ssl)
            .connect_timeout(CONNECT_TIMEOUT)
            .keepalives(true)
            .keepalives_idle(KEEPALIVE)
            .keepalives_interval(KEEPALIVE)
            .keepalives_retries(3)
            .tcp_user_timeout(KEEPALIVE * 3);
        if address.get_application_name().is_none() {
            address.application_name("tidewater");
        }
        Ok(Self {
            address,
            trust,
            direct: None,
            connections_max: 10,
            streams_max: 2,
            checkout_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(60),
            query_timeout: Duration::from_secs(3),
            prepared_statements: true,
            announces: true,
            keepalive: KEEPALIVE_DEFAULT,
            accept_restored: false,
            accept_new_timelines: false,
        })
    }

    /// Sets another address of the same database for signals and locks: one without PgBouncer in
    /// between, which hands connections out per transaction.
    ///
    /// # Errors
    ///
    /// As [`Self::from_url`].
    pub fn listen_at(&mut self, url: &str) -> Result<&mut Self, ConfigError> {
        let direct = Self::from_url(url)?;
        self.direct = Some((direct.address, direct.trust));
        Ok(self)
    }

    /// Sets how long to wait until a connection is there.
    pub fn connect_timeout(&mut self, timeout: Duration) -> &mut Self {
        self.address.connect_timeout(timeout);
        self
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct SslOptions {
    mode: Option<String>,
    root: Option<PathBuf>,
}

/// Takes out of an address what the driver does not know.
fn take_ssl_options(url: &str) -> Result<(String, SslOptions), ConfigError> {
    let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
    let (before, pairs, separator) = if is_url {
        match url.split_once('?') {
            Some((before, pairs)) => (format!("{before}?"), pairs, '&'),
            None => return Ok((url.to_owned(), SslOptions::default())),
        }
    } else {
        (String::new(), url, ' ')
    };
    let mut options = SslOptions::default();
    let mut left = Vec::new();
    for pair in pairs.split(separator) {
        let unquoted = |value: &str| value.trim_matches('\'').to_owned();
        match pair.split_once('=') {
            Some(("sslmode", value)) => options.mode = Some(unquoted(value)),
            Some(("sslrootcert", value)) => {
                let path = if is_url {
                    percent_decoded(value)?
                } else {
                    unquoted(value)
                };
                options.root = Some(path.into());
            }
            _ => left.push(pair),
        }
    }
    let rest = left.join(&separator.to_string());
    Ok((format!("{before}{rest}"), options))
}

fn percent_decoded(text: &str) -> Result<String, ConfigError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = match after {
            [high, low, ..] if *first == b'%' => {
                let digits = [*high, *low];
                let digits = str::from_utf8(&digits).ok();
                digits.and_then(|digits| u8::from_str_radix(digits, 16).ok())
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).map_err(|_| ConfigError("sslrootcert is no text".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, ssl: SslMode, trust: &Trust) {
        let config = PostgresConfig::from_url(url).unwrap();
        assert_eq!(config.address.get_ssl_mode(), ssl, "{url}");
        assert_eq!(config.trust, *trust, "{url}");
    }

    #[test]
    fn ssl_modes_mean_what_psql_means_by_them() {
        let root = || Some(PathBuf::from("/etc/my ca.pem"));
        check("postgresql://h/db", SslMode::Prefer, &Trust::Anybody);
        check("host=h sslmode=disable", SslMode::Disable, &Trust::Anybody);
        check(
            "postgres://h/db?sslmode=require",
            SslMode::Require,
            &Trust::Anybody,
        );
        check(
            "postgres://h/db?sslmode=require&sslrootcert=/etc/my%20ca.pem",
            SslMode::Require,
            &Trust::Authority(root()),
        );
        check(
            "postgres://h/db?application_name=x&sslmode=verify-full",
            SslMode::Require,
            &Trust::Host(None),
        );
        check(
            "host=h sslmode=verify-ca",
            SslMode::Require,
            &Trust::Authority(None),
        );
    }

    #[test]
    fn what_is_no_address_is_refused_without_repeating_it() {
        for url in [
            "postgresql://user:secret@h/db?sslmode=maybe",
            "postgresql://user:secret@h/db?sslcert=x",
            "password=secret nonsense",
        ] {
            let error = PostgresConfig::from_url(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}

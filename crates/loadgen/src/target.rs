//! Where the load goes: a base URL, and the guard in front of it.
//!
//! **Invariant:** a connection is only opened to an address that was checked here. Load on a
//! machine of somebody else is an attack, so anything but loopback needs to be asked for.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::{Context, bail, ensure};

/// A server by address, and the path its routes are mounted under.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// For the `Host` header.
    pub(crate) authority: String,
    pub(crate) address: SocketAddr,
    /// Without a slash at its end.
    pub(crate) prefix: String,
}

impl Target {
    /// Reads a base URL and resolves its host.
    pub(crate) fn resolve(url: &str, allow_remote: bool) -> anyhow::Result<Self> {
        let uri: http::Uri = url.parse().with_context(|| format!("read URL {url:?}"))?;
        ensure!(
            uri.scheme_str() == Some("http"),
            "URL {url:?} does not begin with http://"
        );
        ensure!(uri.query().is_none(), "URL {url:?} has a query");
        let host = uri
            .host()
            .with_context(|| format!("URL {url:?} names no host"))?;
        let port = uri.port_u16().unwrap_or(80);
        let authority = format!("{host}:{port}");
        let addresses: Vec<SocketAddr> = authority
            .to_socket_addrs()
            .with_context(|| format!("resolve {authority}"))?
            .collect();
        check_loopback(&addresses, allow_remote)?;
        let Some(&address) = addresses.first() else {
            bail!("{authority} has no address");
        };
        Ok(Self {
            authority,
            address,
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// Refuses unless every address is this machine: which one is taken would be chance.
fn check_loopback(addresses: &[SocketAddr], allow_remote: bool) -> anyhow::Result<()> {
    let remote = addresses
        .iter()
        .find(|address| !address.ip().to_canonical().is_loopback());
    match remote {
        Some(address) if !allow_remote => bail!(
            "{} is not a loopback address; pass --allow-remote to load a server that is yours",
            address.ip()
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Result<(&str, &str), &str>) {
        match (Target::resolve(url, false), expected) {
            (Ok(target), Ok((authority, prefix))) => {
                assert_eq!(target.authority, authority);
                assert_eq!(target.prefix, prefix);
                assert!(target.address.ip().is_loopback());
            }
            (Err(error), Err(text)) => {
                let error = format!("{error:#}");
                assert!(error.contains(text), "{error}");
            }
            (actual, _) => panic!("{url}: {actual:?}"),
        }
    }

    #[test]
    fn loopback_addresses_pass() {
        check("http://127.0.0.1:8080", Ok(("127.0.0.1:8080", "")));
        check("http://127.8.8.8:1/a/b/", Ok(("127.8.8.8:1", "/a/b")));
        check("http://[::1]:8080/sync", Ok(("[::1]:8080", "/sync")));
        check("http://localhost:9", Ok(("localhost:9", "")));
        check("http://127.0.0.1", Ok(("127.0.0.1:80", "")));
    }

    #[test]
    fn everything_else_is_refused() {
        check("http://192.0.2.1:80", Err("--allow-remote"));
        check("http://0.0.0.0:80", Err("--allow-remote"));
        check("http://[2001:db8::1]:80", Err("--allow-remote"));
        check("https://127.0.0.1", Err("does not begin with http://"));
        check("127.0.0.1:80", Err("does not begin with http://"));
        check("http://127.0.0.1/?a=b", Err("has a query"));
        check("http://", Err("read URL"));
    }

    #[test]
    fn one_remote_address_among_several_is_enough_to_refuse() {
        let here: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let there: SocketAddr = "192.0.2.1:1".parse().unwrap();
        assert!(check_loopback(&[here, there], false).is_err());
        assert!(check_loopback(&[here], false).is_ok());
    }

    #[test]
    fn a_remote_server_is_loaded_when_it_was_asked_for() {
        let target = Target::resolve("http://192.0.2.1:80", true).unwrap();
        assert_eq!(target.address, "192.0.2.1:80".parse().unwrap());
    }
}

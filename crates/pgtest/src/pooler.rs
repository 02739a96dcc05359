//! PgBouncer in front of a server, as the same user and gone with it.

use std::sync::atomic::{AtomicU16, Ordering};

use crate::{Server, programs};

/// A running PgBouncer that hands connections out per transaction.
#[derive(Debug)]
pub struct Pooler<'s> {
    server: &'s Server,
    port: u16,
}

impl<'s> Pooler<'s> {
    /// Starts one that has so many connections to each database of the server, and does not keep
    /// track of prepared statements.
    ///
    /// # Errors
    ///
    /// A sentence for people.
    pub fn start(server: &'s Server, connections: usize) -> Result<Self, String> {
        // Names a socket in the server's folder, and nothing outside of it.
        static PORT: AtomicU16 = AtomicU16::new(6_432);
        let program = programs::find_pooler()?;
        let port = PORT.fetch_add(1, Ordering::Relaxed);
        server.order(&format!(
            "pooler {port} {connections} {}",
            program.display()
        ));
        Ok(Self { server, port })
    }

    /// Where a database is through it, as a URL.
    pub fn url(&self, database: &str) -> String {
        format!("{}&port={}", self.server.url(database), self.port)
    }
}

//! A cable between devices and the server that can be cut: a TCP proxy on threads.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

/// A proxy in front of a server. Its threads end with its connections.
pub(crate) struct Cable {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    /// Lays a cable to the server behind `url`.
    pub(crate) fn lay(url: &str) -> Self {
        let server = url.strip_prefix("http://").unwrap();
        let server: SocketAddr = server.split('/').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let accepted = Arc::clone(&open);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else {
                    return;
                };
                let mut open = accepted.lock().unwrap();
                open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                carry(client.try_clone().unwrap(), server.try_clone().unwrap());
                carry(server, client);
            }
        });
        Self { address, open }
    }

    /// The same mount through the cable.
    pub(crate) fn url(&self, url: &str) -> String {
        let path = url.strip_prefix("http://").unwrap();
        let path = &path[path.find('/').unwrap()..];
        format!("http://{}{path}", self.address)
    }

    /// Cuts every connection there is now.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Carries bytes one way until one of the ends is gone.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

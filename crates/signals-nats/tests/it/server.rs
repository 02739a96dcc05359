//! A NATS server that ends with the process of the tests, however that ends: a shell keeps it and
//! reads from a pipe whose other end is here.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Mutex,
};

const KEEPER: &str = r#"
server=
stop() { [ -n "$server" ] && kill -KILL "$server" && wait "$server"; server=; }
start() { nats-server -a 127.0.0.1 -p "$1" >/dev/null 2>&1 & server=$!; }
command -v nats-server >/dev/null || { echo missing; exit 1; }
start "$1"
echo ok
while read -r order; do
    case $order in
    stop) stop 2>/dev/null ;;
    start) start "$1" ;;
    pause) kill -STOP "$server" ;;
    go_on) kill -CONT "$server" ;;
    esac
    echo ok
done
kill -KILL "$server"
"#;

pub(crate) struct Server {
    port: u16,
    keeper: Mutex<Keeper>,
}

struct Keeper {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    /// # Panics
    ///
    /// When there is no NATS. It does not skip: a skip would hide that nothing was tested.
    pub(crate) fn start() -> Self {
        let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut shell = Command::new("/bin/sh")
            .args(["-c", KEEPER, "keeper", &port.to_string()])
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().unwrap());
        let mut keeper = Keeper {
            shell,
            orders,
            answers,
        };
        assert_eq!(
            keeper.answer(),
            "ok",
            "these tests need NATS: install the package `nats-server` (apt-get install nats-server)"
        );
        Self {
            port,
            keeper: Mutex::new(keeper),
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn stop(&self) {
        self.order("stop");
    }

    pub(crate) fn run(&self) {
        self.order("start");
    }

    pub(crate) fn pause(&self) {
        self.order("pause");
    }

    pub(crate) fn go_on(&self) {
        self.order("go_on");
    }

    fn order(&self, order: &str) {
        let mut keeper = self.keeper.lock().unwrap();
        writeln!(keeper.orders.as_mut().unwrap(), "{order}").unwrap();
        assert_eq!(keeper.answer(), "ok");
    }
}

impl Keeper {
    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap();
        keeper.orders = None;
        drop(keeper.shell.wait());
    }
}

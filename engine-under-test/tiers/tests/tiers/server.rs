//! A Redis server of the test's own.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use pb_tiers::RedisOptions;

/// A server on a free port with its files in a temporary directory; killed when dropped.
pub(crate) struct Server {
    child: Child,
    port: u16,
    arguments: Vec<String>,
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts one with extra arguments; `None`, with a message, when `redis-server` is absent.
    pub(crate) fn start(arguments: &[&str]) -> Option<Server> {
        let installed = Command::new("redis-server").arg("--version").output();
        if installed.is_err() {
            eprintln!("skipped: redis-server is absent; Debian's package has that name");
            return None;
        }
        let port = free_port();
        let dir = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        let child = spawn(port, &dir, &arguments);
        let server = Server {
            child,
            port,
            arguments,
            dir,
        };
        server.wait();
        Some(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Patient options: a slow machine is not what these tests are about.
    pub(crate) fn options(&self) -> RedisOptions {
        let mut options = RedisOptions::parse(&self.url()).unwrap();
        options.timeout = Duration::from_secs(10);
        options
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, empty, on the same port.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.dir, &self.arguments);
        self.wait();
    }

    /// One command over a connection of its own.
    pub(crate) fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.query(&mut connection).unwrap()
    }

    fn wait(&self) {
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not listen on port {}", self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, dir: &tempfile::TempDir, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ])
        .arg("--dir")
        .arg(dir.path())
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

//! A server of the test's own, and a client that says exactly what the test wants it to say.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use uncopy_tests::running::Running;
use uncopy_tests::{Program, Scratch};

/// Every way of sending, by its name on the command line.
pub const WAYS: [&str; 4] = ["copy", "auto", "splice", "zerocopy"];
/// How long anything may take.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A running server.
pub struct Cached {
    running: Running,
    pub tcp: SocketAddr,
    pub udp: SocketAddr,
    pub scratch: Scratch,
}

impl Cached {
    pub fn start(name: &str, words: &[&str]) -> Self {
        let scratch = Scratch::new(&format!("cached-{name}"));
        let socket = scratch.join("socket");
        let running = Program::new(env!("CARGO_BIN_EXE_uncopy-cached"))
            .args(["-p", "-1", "-U", "-1", "-t", "2", "-s", socket.to_str().expect("UTF-8")])
            .args(words)
            .start(&scratch, "server");
        let line = running.wait_for_line("uncopy-cached: listening on ");
        let address = |kind: &str| {
            let mut words = line.split([' ', ';']).skip_while(|word| *word != kind);
            words.nth(1).and_then(|word| word.parse().ok()).expect("an address")
        };
        Self { tcp: address("tcp"), udp: address("udp"), running, scratch }
    }

    pub fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.tcp).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Client::of(stream)
    }

    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Resident memory, bytes.
    pub fn resident_bytes(&self) -> usize {
        let path = format!("/proc/{}/status", self.running.pid());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    }

    /// What `stats` says of `name`, asked on a connection of its own.
    pub fn statistic(&self, name: &str) -> u64 {
        self.connect().statistic(name)
    }

    /// Ends it; it must do so by itself, with status 0, and take its socket with it.
    pub fn stop(self) {
        let socket = self.scratch.join("socket");
        let done = self.running.stop(libc::SIGTERM).expect_success();
        assert!(!socket.exists(), "the socket is left");
        assert!(!done.errors.contains("panicked"), "{}", done.errors);
    }
}

/// One connection.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        stream.set_write_timeout(Some(TIMEOUT)).expect("a socket");
        Self { reader: BufReader::new(stream) }
    }

    pub fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_ref().write_all(bytes).expect("it reads");
    }

    /// A line with its end; nothing at the end of what the server sends.
    pub fn raw_line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).expect("an answer");
        line
    }

    /// A line without its end; empty at the end of what the server sends.
    pub fn line(&mut self) -> String {
        String::from_utf8_lossy(&self.raw_line()).trim_end().to_owned()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n").as_bytes());
        self.line()
    }

    /// What `stats` says of `name`.
    pub fn statistic(&mut self, name: &str) -> u64 {
        self.send(b"stats\r\n");
        let mut found = None;
        loop {
            let line = self.line();
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = value.parse().ok();
            } else if line == "END" {
                return found.expect("a number");
            }
            assert!(line.starts_with("STAT "), "{line}");
        }
    }

    pub fn set(&mut self, key: &str, value: &[u8]) -> String {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.send(b"\r\n");
        self.line()
    }

    pub fn exactly(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).expect("all of it");
        bytes
    }

    /// The value of `key`, asked for before if `was_asked`.
    pub fn get(&mut self, key: &str, was_asked: bool) -> Option<Vec<u8>> {
        if !was_asked {
            self.send(format!("get {key}\r\n").as_bytes());
        }
        let line = self.line();
        if line == "END" {
            return None;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let ["VALUE", got, "0", len] = words[..] else { panic!("{line:?}") };
        assert_eq!(got, key);
        let value = self.exactly(len.parse().expect("a length"));
        assert_eq!(self.exactly(7), b"\r\nEND\r\n");
        Some(value)
    }

    /// All that comes until the server closes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let _ = self.reader.read_to_end(&mut bytes);
        bytes
    }
}

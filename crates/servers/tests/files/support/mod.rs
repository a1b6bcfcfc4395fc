//! A server of the test's own, and a client that says exactly what the test wants it to say.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use uncopy_tests::running::{Finished, Running};
use uncopy_tests::{Mode, Program, Scratch, random};

/// Every way, by its name on the command line, and twin memory by reference whatever the size.
pub const WAYS: [&str; 9] = [
    "read-send",
    "mmap-send",
    "mmap-sendfile",
    "read-sendfile",
    "sendfile",
    "splice",
    "zerocopy",
    "twin",
    LENT,
];
const LENT: &str = "twin --reference-from=1";

/// Whether files are kept in memory by this way.
pub fn keeps(way: &str) -> bool {
    way.starts_with("twin")
}

/// Waits until files count as settled, so that `twin` keeps them. Not a synchronisation: a file that is younger is
/// sent all the same, in another way.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(80));
}

/// Does the same for every way, all at once.
pub fn for_each_way(test: impl Fn(&'static str) + Sync) {
    std::thread::scope(|scope| {
        for way in WAYS {
            let test = &test;
            scope.spawn(move || test(way));
        }
    });
}
/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A running server and the directory that it serves.
pub struct Files {
    running: Running,
    pub address: SocketAddr,
    pub scratch: Scratch,
}

impl Files {
    /// Starts one whose directory is `root` below a new one. `fill` gets the path of `root`.
    pub fn start(name: &str, words: &[&str], fill: impl FnOnce(&Scratch)) -> Self {
        Self::start_under(Mode::Plain, name, words, fill)
    }

    pub fn start_under(mode: Mode, name: &str, words: &[&str], fill: impl FnOnce(&Scratch)) -> Self {
        let scratch = Scratch::new(&format!("files-{}", name.replace(" ", "")));
        let root = scratch.directory("root");
        fill(&scratch);
        let running = Program::new(env!("CARGO_BIN_EXE_uncopy-files"))
            .args(["--listen", "0", "--stats"])
            .args(words.iter().flat_map(|word| word.split(' ')))
            .arg_path(&root)
            .mode(mode)
            .start(&scratch, "server");
        let line = running.wait_for_line("uncopy-files: listening on http://");
        let address = line.trim_end_matches('/').parse().expect("an address");
        Self { running, address, scratch }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join("root").join(name)
    }

    pub fn running(&self) -> &Running {
        &self.running
    }

    pub fn connect(&self) -> Client {
        Client::of(TcpStream::connect(self.address).expect("it listens"))
    }

    /// One request on a connection of its own, `Connection: close` added; the whole answer.
    pub fn get(&self, path: &str, fields: &str) -> Answer {
        let mut client = self.connect();
        client.say(&format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n"));
        client.answer(true)
    }

    /// What comes back for these very bytes until the server closes.
    pub fn exchange(&self, bytes: &[u8]) -> String {
        let mut client = self.connect();
        client.send(bytes);
        client.rest()
    }

    /// Ends it; it must do so by itself, with status 0.
    pub fn stop(self) -> Stats {
        let done: Finished = self.running.stop(libc::SIGTERM).expect_success();
        Stats(done.errors)
    }
}

/// Paths as arguments.
trait ArgPath {
    fn arg_path(self, path: &std::path::Path) -> Self;
}

impl ArgPath for Program {
    fn arg_path(self, path: &std::path::Path) -> Self {
        self.args([path])
    }
}

/// The line that the server wrote at its end.
pub struct Stats(String);

impl Stats {
    pub fn get(&self, key: &str) -> u64 {
        let at = self.0.find(&format!("\"{key}\": ")).unwrap_or_else(|| panic!("no {key} in {}", self.0));
        let digits: String = self.0[at + key.len() + 4..].chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    }
}

/// One connection.
pub struct Client {
    reader: BufReader<TcpStream>,
}

/// What the server said.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }
}

impl Client {
    pub fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).expect("timeout");
        stream.set_write_timeout(Some(TIMEOUT)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { reader: BufReader::new(stream) }
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        self.reader.get_mut()
    }

    pub fn say(&mut self, text: &str) {
        self.send(text.as_bytes());
    }

    /// Sends; that the server has closed already is for the reader to see.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    /// The next answer; `body`: it has one.
    pub fn answer(&mut self, body: bool) -> Answer {
        let answer = self.head();
        let len = answer.field("Content-Length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut bytes = vec![0; if body { len } else { 0 }];
        self.reader.read_exact(&mut bytes).expect("the whole body");
        Answer { body: bytes, ..answer }
    }

    /// The head of the next answer.
    pub fn head(&mut self) -> Answer {
        let mut line = || {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("a line");
            line.strip_suffix("\r\n").unwrap_or_else(|| panic!("a line that ends, not {line:?}")).to_owned()
        };
        let first = line();
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {first:?}"));
        let mut fields = Vec::new();
        loop {
            let line = line();
            if line.is_empty() {
                return Answer { status, fields, body: Vec::new() };
            }
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("no field: {line:?}"));
            fields.push((name.to_owned(), value.to_owned()));
        }
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.reader.read_exact(&mut bytes).expect("bytes");
        bytes
    }

    /// Everything until the server closes, however it does that.
    pub fn rest_bytes(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut some = vec![0; 1 << 16];
        loop {
            match self.reader.read(&mut some) {
                Ok(0) => return all,
                Ok(got) => all.extend_from_slice(&some[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return all,
                Err(error) => panic!("the server neither answers nor closes: {error}"),
            }
        }
    }

    /// Everything until the server closes, or so many bytes.
    pub fn rest_until(&mut self, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut some = vec![0; 1 << 16];
        while all.len() < len {
            let wanted = some.len().min(len - all.len());
            match self.reader.read(&mut some[..wanted]) {
                Ok(0) => break,
                Ok(got) => all.extend_from_slice(&some[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("the server neither answers nor closes: {error}"),
            }
        }
        all
    }

    pub fn rest(&mut self) -> String {
        String::from_utf8_lossy(&self.rest_bytes()).into_owned()
    }
}

/// Reproducible bytes.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    random::bytes(random::seed(0xf11e5) + seed, len)
}

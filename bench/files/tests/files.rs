//! Every way sends the right bytes, also of files that change meanwhile; hostile clients get only files below the root.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use uncopy_tests::http::{expect_same, wrk};
use uncopy_tests::running::Running;
use uncopy_tests::{Mode, Program, Scratch, random};

/// Every way, and twin memory by reference whatever the size.
const WAYS: &str =
    "read-send,mmap-send,mmap-sendfile,read-sendfile,sendfile,splice,zerocopy,twin,twin --reference-from=1";
const SIZES: [usize; 8] = [0, 1, 4095, 4096, 65_537, 350_000, (1 << 20) + 1, (5 << 20) + 3];
const LARGE_BYTES: usize = 8 << 20;

/// Runs `test` for every way, all in parallel.
fn for_each_way(test: impl Fn(&'static str) + Sync) {
    let test = &test;
    std::thread::scope(|scope| WAYS.split(',').for_each(|way| drop(scope.spawn(move || test(way)))));
}

/// Waits until files are old enough to be kept in twin memory. A younger file is sent in another way.
fn settle() {
    std::thread::sleep(Duration::from_millis(80));
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    random::bytes(random::seed(0xf11e5) + seed as u64, len)
}

fn large() -> Vec<u8> {
    bytes(1, LARGE_BYTES)
}

/// A running server and its directory, `root`, next to which lies a secret.
struct Files {
    running: Running,
    address: SocketAddr,
    scratch: Scratch,
}

impl Files {
    fn start(options: &str) -> Self {
        Self::start_as(Mode::Plain, "", options)
    }

    /// Starts a server by `before`, a command and its options.
    fn start_as(mode: Mode, before: &str, options: &str) -> Self {
        let scratch = Scratch::new(&format!("files-{}", options.replace([' ', '='], "")));
        let root = scratch.directory("root");
        scratch.write("secret", b"secret");
        scratch.write("root/small", b"small");
        scratch.write("root/large", large());
        let _ = SIZES.map(|size| scratch.write(&format!("root/{size}"), bytes(size, size)));
        let words = format!("{before} {} --listen 127.0.0.1:0 {options}", env!("CARGO_BIN_EXE_uncopy-files"));
        let mut words = words.split_whitespace();
        let program = Program::new(words.next().expect("a program")).args(words).args([&root]);
        let running = program.mode(mode).start(&scratch, "server");
        let line = running.wait_for_line("uncopy-files: listening on http://");
        let address = line.trim_end_matches('/').parse().expect("an address");
        Self { running, address, scratch }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.join("root").join(name)
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        Client(BufReader::new(stream))
    }

    /// Asks for the large file and reads nothing but the head, so that most of it waits to be sent.
    fn begin(&self) -> Client {
        let mut client = self.connect();
        client.ask("large");
        assert_eq!(client.head(), (200, LARGE_BYTES));
        client
    }

    /// Sends exactly `sent`, and returns the answer up to the end of the connection.
    fn exchange(&self, sent: &[u8]) -> String {
        let mut client = self.connect();
        client.send(sent);
        String::from_utf8_lossy(&client.rest()).into()
    }

    fn stop(self) {
        drop(self.running.stop(libc::SIGTERM).expect_success());
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    /// Sends `bytes`. A closed connection is detected by the reader.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.get_mut().write_all(bytes);
    }

    fn ask(&mut self, path: &str) {
        self.send(format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
    }

    /// Reads the next answer's head: its status and the length of its body.
    fn head(&mut self) -> (u16, usize) {
        let (mut status, mut len) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).expect("a line");
            match line.trim_end().split_once(' ') {
                Some(("HTTP/1.1", rest)) => status = rest[..3].parse().expect("a status"),
                Some(("Content-Length:", rest)) => len = rest.parse().expect("a length"),
                Some(_) => {}
                None => return (status, len),
            }
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("all of it");
        bytes
    }

    /// Reads the next answer, which must contain a file.
    fn body(&mut self) -> Vec<u8> {
        let (status, len) = self.head();
        assert_eq!(status, 200);
        self.bytes(len)
    }

    fn get(&mut self, path: &str) -> Vec<u8> {
        self.ask(path);
        self.body()
    }

    /// Reads everything until the server closes or resets the connection.
    fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let outcome = self.0.read_to_end(&mut all);
        assert!(
            !outcome.is_err_and(|error| error.kind() != ErrorKind::ConnectionReset),
            "it neither answers nor closes"
        );
        all
    }
}

#[test]
fn every_way_sends_every_file_also_in_pipelines_that_are_read_late() {
    for_each_way(|way| {
        let files = Files::start(&format!("--way {way} --threads 1"));
        settle();
        let sizes = || SIZES.into_iter().chain(SIZES);
        let mut clients: Vec<Client> = (0..3).map(|_| files.connect()).collect();
        let pair = |size| {
            format!("HEAD /{size} HTTP/1.1\r\n\r\nGET /none HTTP/1.1\r\n\r\nGET /{size} HTTP/1.1\r\n\r\n")
        };
        let text: String = sizes().map(pair).collect();
        clients.iter_mut().for_each(|client| client.send(text.as_bytes()));
        for client in &mut clients {
            for size in sizes() {
                assert_eq!((client.head(), client.head()), ((200, size), (404, 0)), "{way} {size}");
                expect_same(&client.body(), &bytes(size, size), &format!("{way} {size}"));
            }
        }
        files.stop();
    });
}

#[test]
fn many_clients_at_once_get_the_right_bytes() {
    for_each_way(|way| {
        let files = Files::start(&format!("--way {way} --threads 2"));
        let paths = ["4095", "65537", "1048577"].map(|name| (format!("/{name}"), files.path(name)));
        let paths: Vec<_> = paths.iter().map(|(path, file)| (path.as_str(), file.as_path())).collect();
        wrk(Mode::Plain, &files.scratch, &format!("http://{}", files.address), &paths, 1);
        // Clients that disconnect early leave nothing for the next one.
        for round in 0..20 {
            drop(files.begin().bytes(1000 * (round + 1)));
        }
        expect_same(&files.connect().get("350000"), &bytes(350_000, 350_000), way);
        files.stop();
    });
}

#[test]
fn read_and_send_under_uncopy_sends_the_same_bytes() {
    for mode in [Mode::Always, Mode::Auto] {
        let files = Files::start_as(mode, "", "--way read-send --threads 2");
        for size in SIZES.into_iter().chain(SIZES) {
            expect_same(
                &files.connect().get(&size.to_string()),
                &bytes(size, size),
                &format!("{mode:?} {size}"),
            );
        }
        files.stop();
    }
}

#[test]
fn a_file_cut_short_while_it_is_sent_ends_the_answer_and_not_the_server() {
    for_each_way(|way| {
        for len in [0, 5000, LARGE_BYTES as u64 - 10] {
            let files = Files::start(&format!("--way {way} --threads 1"));
            let mut client = files.begin();
            let file = OpenOptions::new().write(true).open(files.path("large"));
            file.and_then(|file| file.set_len(len)).expect("cut");
            let mut body = Vec::new();
            // If all of the file was sent, the connection stays open.
            let _ = (&mut client.0).take(LARGE_BYTES as u64).read_to_end(&mut body);
            assert!(way.starts_with("twin") || len > 5000 || body.len() < LARGE_BYTES, "{way} {len}");
            // The kernel clears the rest of the page at the cut, also in parts that were sent already.
            let wrong = body.iter().zip(&large()).position(|(found, sent)| found != sent && *found != 0);
            assert_eq!(wrong, None, "{way} {len}: a byte of another file");
            assert_eq!(files.connect().get("small"), b"small", "{way} {len}");
            files.stop();
        }
    });
}

#[test]
fn a_file_replaced_while_it_is_sent_is_sent_as_it_was() {
    for_each_way(|way| {
        let files = Files::start(&format!("--way {way} --threads 1"));
        let mut client = files.begin();
        for round in 0..40 {
            let content = bytes(round, 20_000 + round % 3);
            std::fs::rename(files.scratch.write("root/next", &content), files.path("large"))
                .expect("renamed");
            let mut other = files.connect();
            for _ in 0..2 {
                expect_same(&other.get("large"), &content, &format!("{way} {round}"));
            }
        }
        expect_same(&client.bytes(LARGE_BYTES), &large(), &format!("{way}: as it was"));
        files.stop();
    });
}

#[test]
fn twin_memory_keeps_the_old_contents_until_the_file_is_read_again() {
    for way in ["twin", "twin --reference-from=1"] {
        let files = Files::start(&format!("--way {way} --threads 1"));
        settle();
        let (mut early, mut client) = (files.begin(), files.connect());
        for name in ["large", "4096"] {
            let file = OpenOptions::new().write(true).open(files.path(name)).expect("the file");
            for round in 0..100 {
                // The length is the same each time: only the times differ.
                let content = bytes(round, 4096);
                file.write_all_at(&content, 0).expect("written");
                if round % 10 == 0 {
                    settle();
                }
                for _ in 0..2 {
                    expect_same(&client.get(name)[..4096], &content, &format!("{way} {name} {round}"));
                }
            }
        }
        expect_same(&early.bytes(LARGE_BYTES), &large(), "what it was");
        // An unchanged file is read only once.
        settle();
        let read_bytes = || {
            let text = std::fs::read_to_string(format!("/proc/{}/io", files.running.pid())).expect("it runs");
            let line = text.lines().next().and_then(|line| line.strip_prefix("rchar: "));
            line.and_then(|bytes| bytes.parse::<u64>().ok()).expect("a number")
        };
        let (first, before) = (client.get("350000"), read_bytes());
        assert!(first == client.get("350000") && read_bytes() - before < 300_000, "{way}: it is kept");
        files.stop();
    }
}

#[test]
fn bad_requests_get_their_status_and_nothing_outside_the_root() {
    let files = Files::start("--threads 2");
    for link in "../secret>out /etc>etc /proc/self/root>magic circle>circle small>in".split(' ') {
        let (target, name) = link.split_once('>').expect("two names");
        symlink(target, files.path(name)).expect("a link");
    }
    drop(files.scratch.write("root/.hidden", b"secret"));
    let with = |fields: &str| format!("GET /small HTTP/1.1\r\nConnection: close\r\n{fields}\r\n");
    let path = |path: &str| format!("GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n");
    let outside =
        "/../secret /%2e%2e/secret /..%2fsecret //../secret /out /etc/passwd //etc/passwd /magic/etc/passwd";
    let absent = "/ /none /small/ /small/b /circle /.hidden /..\\secret";
    let not_found = outside.split(' ').chain(absent.split(' ')).map(|text| (path(text), 404));
    let malformed = "* /%zz /a%00 http://h/small ../secret".split(' ').map(|text| (path(text), 400));
    let others = [
        (path("/in?a=../b"), 200),
        (path(&format!("/{}", "n".repeat(100_000))), 431),
        (with(&format!("A: {}\r\n", "n".repeat(2_000_000))), 431),
        (with(&"A: b\r\n".repeat(200)), 431),
        (with("Content-Length: 0\r\n"), 200),
        (with("Content-Length: 5\r\n\r\nGET /"), 400),
        (with("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), 400),
        ("GET /small HTTP/1.0\r\n\r\n".to_owned(), 200),
        ("GET /small HTTP/2.0\r\n\r\n".to_owned(), 400),
        ("\0\0\0\0\r\n\r\n".to_owned(), 400),
        (path("/small").replace("GET", "POST"), 405),
    ];
    for (text, status) in not_found.chain(malformed).chain(others) {
        let answer = files.exchange(text.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{text:.80}: {answer:.200}");
        assert!(!answer.contains("secret") && !answer.contains("root:"), "{text:.80}: {answer}");
    }
    // One byte at a time, and after the last request of a connection nothing is answered.
    let mut client = files.connect();
    let text = "\r\nGET /small HTTP/1.1\r\n\r\nGET /small HTTP/1.1\r\nConnection: close\r\n\r\nGET /";
    text.bytes().for_each(|byte| client.send(&[byte]));
    assert_eq!(([client.body(), client.body()].concat(), client.rest().len()), (b"smallsmall".to_vec(), 0));
    for _ in 0..20 {
        let text = format!("POST / HTTP/1.1\r\nContent-Length: 900000\r\n\r\n{}", "x".repeat(900_000));
        assert!(files.exchange(text.as_bytes()).starts_with("HTTP/1.1 405 "));
    }
    drop(files.running.stop(libc::SIGINT).expect_success());
}

#[test]
fn no_client_holds_a_connection_for_ever() {
    for_each_way(|way| {
        let files = Files::start(&format!("--way {way} --threads 1 --idle-limit 1"));
        let (mut silent, mut dripping, mut unread) = (files.connect(), files.connect(), files.connect());
        unread.ask("large");
        while dripping.0.get_mut().write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!((silent.rest().len(), dripping.rest().len()), (0, 0), "{way}");
        // The time limit of the client that reads nothing is over by then.
        assert_eq!(files.connect().rest().len(), 0, "{way}");
        assert!(unread.rest().len() < LARGE_BYTES, "{way}: it was left");
        files.stop();
    });
}

#[test]
fn a_server_out_of_descriptors_recovers() {
    let files = Files::start_as(Mode::Plain, "/usr/bin/prlimit --nofile=40", "--threads 1");
    drop((0..60).map(|_| files.connect()).collect::<Vec<Client>>());
    assert_eq!(files.connect().get("small"), b"small");
    files.stop();
}

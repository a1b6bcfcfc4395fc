//! The protocol: next to Debian's memcached, byte for byte, and by client libraries and tools that others wrote.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Cached, Client, TIMEOUT};
use uncopy_tests::artifacts::packaged;
use uncopy_tests::scratch::{free_port, wait_until};
use uncopy_tests::{Program, Scratch, random};

/// memcached itself.
struct Original {
    running: uncopy_tests::running::Running,
    address: SocketAddr,
    _scratch: Scratch,
}

impl Original {
    fn start(name: &str) -> Self {
        let scratch = Scratch::new(&format!("cached-original-{name}"));
        let port = free_port();
        let words = ["-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "64", "-u", "root", "-p"];
        let running = Program::new(packaged("/usr/bin/memcached", "memcached"))
            .args(words)
            .args([port.to_string()])
            .start(&scratch, "memcached");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        wait_until("memcached", || TcpStream::connect(address).ok());
        Self { running, address, _scratch: scratch }
    }

    fn stop(self) {
        self.running.stop(libc::SIGTERM);
    }
}

/// What comes back for `requests` on a connection of its own: until an answer to `mn`, which does nothing, or the end.
fn exchange(address: SocketAddr, requests: &[u8]) -> Vec<u8> {
    const END: &[u8] = b"\r\nMN\r\n";
    let mut client = Client::of(TcpStream::connect(address).expect("it listens"));
    let stream = client.stream().try_clone().expect("a descriptor");
    let requests = [requests, b"mn\r\n"].concat();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(std::io::Write::write_all(&mut &stream, &requests)));
        let mut answer = b"\r\n".to_vec();
        while !answer.ends_with(END) {
            let line = client.raw_line();
            if line.is_empty() {
                break;
            }
            answer.extend_from_slice(&line);
        }
        answer
    })
}

/// `answer` with the versions left out: both servers number all changes, but memcached's numbers begin elsewhere.
fn without_versions(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    let lines = text.split("\r\n").map(|line| {
        let mut words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["VALUE", _, _, _, _] => words[4] = "#",
            ["HD" | "VA" | "EX" | "NS" | "NF", ..] => {
                let is_version = |word: &str| {
                    word.strip_prefix('c')
                        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
                };
                words.iter_mut().filter(|word| is_version(word)).for_each(|word| *word = "c#");
            }
            _ => {}
        }
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn compare(server: &Cached, original: &Original, requests: &[u8]) {
    for address in [server.tcp, original.address] {
        exchange(address, b"flush_all\r\n");
    }
    let [ours, theirs] = [server.tcp, original.address].map(|address| exchange(address, requests));
    assert_same(&without_versions(&ours), &without_versions(&theirs), requests);
}

/// Fails at the first line that differs, and tells no more than a reader needs.
fn assert_same(ours: &str, theirs: &str, requests: &[u8]) {
    if ours == theirs {
        return;
    }
    let at = ours.lines().zip(theirs.lines()).take_while(|(ours, theirs)| ours == theirs).count();
    let short = |line: &str| line.chars().take(80).collect::<String>();
    let shown = |text: &str| {
        text.lines().skip(at.saturating_sub(8)).take(11).map(short).collect::<Vec<_>>().join("\n")
    };
    let requests: Vec<String> = String::from_utf8_lossy(requests).lines().map(short).collect();
    panic!(
        "line {at} differs; ours:\n{}\n\ntheirs:\n{}\n\nrequests:\n{}",
        shown(ours),
        shown(theirs),
        requests.join("\n")
    );
}

#[test]
fn it_answers_what_memcached_answers() {
    let server = Cached::start("conformance", &[]);
    let original = Original::start("conformance");
    let script = include_str!("scripts/requests.txt");
    let long = |text: &str| {
        text.replace("K250", &"k".repeat(250))
            .replace("K251", &"k".repeat(251))
            .replace("O31", &format!("O{}", "o".repeat(31)))
            .replace("O32", &format!("O{}", "o".repeat(32)))
            .replace("MANY", &" a".repeat(3000))
            .replace("X2097152", &"x".repeat(2_097_152))
    };
    let mut compared = 0;
    for group in script.split("\n\n") {
        let lines = group.lines().filter(|line| !line.starts_with('#'));
        let requests: String = lines.map(|line| long(line) + "\r\n").collect();
        if !requests.is_empty() {
            compare(&server, &original, requests.as_bytes());
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared} groups");
    // Lines that end otherwise, or do not end.
    for requests in [
        "set a 0 0 1\nx\r\nget a\n",
        "\r\n\n get a\r\n",
        "get  a   b \r\n",
        "set a 0 0 1\r\nxyz\r\nget a\r\n",
    ] {
        compare(&server, &original, requests.as_bytes());
    }
    original.stop();
    server.stop();
}

/// One random request on few keys, most of them sensible.
fn random_request(random: &mut random::Random) -> Vec<u8> {
    let key = random.pick(&["a", "b", "c", "a", "b", "ZZZ", "Zm9v"]);
    let len = random.pick(&[0, 1, 2, 5, 30, 1000, 5000, 40_000]);
    let body = match random.below(3) {
        0 => random.below(100_000).to_string(),
        1 => "9".repeat(len.min(18)),
        _ => "v".repeat(len),
    };
    let time = random.pick(&["0", "0", "0", "100", "-1"]);
    let mut flags = String::new();
    for _ in 0..random.below(5) {
        let flag = random.pick(&[
            "v", "q", "k", "c", "f", "s", "t", "h", "u", "T100", "T0", "N50", "R30", "R200", "I", "C1", "F7",
            "O1a", "MA", "MS", "MR", "MI", "MD", "ME", "MP", "D3", "J9", "b", "x!",
        ]);
        flags += " ";
        flags += flag;
    }
    let quiet = random.pick(&["", "", "", " noreply"]);
    let line = match random.below(16) {
        0..3 => format!("get {key} b{}", random.pick(&["", " c", " a a"])),
        3 => format!("gets {key}"),
        4 => format!("gat {time} {key}"),
        5..8 => {
            let command = random.pick(&["set", "set", "set", "add", "replace", "append", "prepend"]);
            format!("{command} {key} {} {time} {}{quiet}\r\n{body}", random.below(100), body.len())
        }
        8 => format!("cas {key} 1 {time} {} {}{quiet}\r\n{body}", body.len(), u32::MAX),
        9 => format!("delete {key}{quiet}"),
        10 => format!("{} {key} {}{quiet}", random.pick(&["incr", "decr"]), random.below(1000)),
        11 => format!("touch {key} {time}{quiet}"),
        12 => format!("mg {key}{flags}"),
        // Where these two differ is told in requests.txt.
        13 if !(flags.contains(" N50") && (flags.contains(" MA") || flags.contains(" MP"))) => {
            format!("ms {key} {}{flags}\r\n{body}", body.len())
        }
        14 => format!("md {key}{flags}"),
        _ => {
            // A key of its own, and no new expiry: when a number gets longer, memcached's `ma` sets that of the old item
            // and keeps a reference to the new one, which later numbers show.
            let flags: Vec<&str> =
                flags.split(' ').filter(|flag| !flag.starts_with('T') && *flag != "MD").collect();
            format!("ma n{}", flags.join(" "))
        }
    };
    format!("{line}\r\n").into_bytes()
}

#[test]
fn random_requests_are_answered_as_memcached_does() {
    let seed = random::seed(0x00ca_c4ed);
    println!("seed {seed}");
    let server = Cached::start("random", &["--transmit", "splice"]);
    let original = Original::start("random");
    let mut random = random::Random::new(seed);
    // No version of an item is 1 then, in neither.
    for address in [server.tcp, original.address] {
        exchange(address, b"set a 0 0 1\r\nx\r\n");
    }
    for _ in 0..random::rounds(60) {
        let requests: Vec<u8> = (0..60).flat_map(|_| random_request(&mut random)).collect();
        compare(&server, &original, &requests);
    }
    original.stop();
    server.stop();
}

#[test]
fn requests_may_come_in_any_pieces() {
    let server = Cached::start("pieces", &[]);
    let mut random = random::Random::new(11);
    for _ in 0..20 {
        let requests: Vec<u8> = (0..40).flat_map(|_| random_request(&mut random)).collect();
        exchange(server.tcp, b"flush_all\r\n");
        let whole = exchange(server.tcp, &requests);
        exchange(server.tcp, b"flush_all\r\n");
        let mut client = server.connect();
        let stream = client.stream().try_clone().expect("a descriptor");
        let requests = [&requests[..], b"quit\r\n"].concat();
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rest = &requests[..];
                while !rest.is_empty() {
                    let piece = rest.len().min(random.between(1, 3000));
                    std::io::Write::write_all(&mut &stream, &rest[..piece]).expect("it reads");
                    rest = &rest[piece..];
                }
            });
            client.rest()
        });
        let whole = String::from_utf8_lossy(&whole).replace("\r\nMN\r\n", "\r\n");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let answer = without_versions(format!("\r\n{answer}").as_bytes());
        assert_same(&answer, &without_versions(whole.as_bytes()), &requests);
    }
    server.stop();
}

/// Runs a Python script with the server's addresses; it must end with `passed`.
fn python(name: &str, script: &str, module: (&str, &str)) {
    let _ = packaged(module.0, module.1);
    let server = Cached::start(name, &["-m", "256", "-I", "8m"]);
    let file = server.scratch.write("client.py", script);
    let socket = server.scratch.join("socket");
    let done = Program::new(packaged("/usr/bin/python3", "python3"))
        .args([file.as_os_str()])
        .args([server.tcp.port().to_string().as_ref(), socket.as_os_str()])
        .start(&server.scratch, "python")
        .finish(Duration::from_secs(60))
        .expect_success();
    assert!(done.output.ends_with(b"passed\n"), "{}", done.text());
    server.stop();
}

#[test]
fn pymemcache_is_satisfied() {
    let module = ("/usr/lib/python3/dist-packages/pymemcache/__init__.py", "python3-pymemcache");
    python("pymemcache", include_str!("scripts/with_pymemcache.py"), module);
}

#[test]
fn libmemcached_is_satisfied() {
    let module = ("/usr/lib/python3/dist-packages/pylibmc/__init__.py", "python3-pylibmc");
    python("pylibmc", include_str!("scripts/with_pylibmc.py"), module);
}

#[test]
fn libmemcached_tools_are_satisfied() {
    let server = Cached::start("tools", &["-m", "256"]);
    let port = server.tcp.port().to_string();
    let address = server.tcp.to_string();
    let run = |name: &str, words: &[&str]| {
        let program = packaged(&format!("/usr/bin/{name}"), "libmemcached-tools");
        let running = Program::new(program).args(words).start(&server.scratch, name);
        running.finish(Duration::from_secs(60)).expect_success()
    };
    let done = run("memccapable", &["-h", "127.0.0.1", "-p", &port, "-a"]);
    assert!(done.text().contains("All tests passed") && !done.text().contains("[FAIL]"), "{}", done.text());
    let servers = format!("--servers={address}");
    for test in ["set", "get", "mget"] {
        let test = format!("--test={test}");
        run("memcslap", &[&servers, &test, "--concurrency=4", "--execute-number=500"]);
    }
    let file = server.scratch.write("file", random::bytes(1, 300_000));
    run("memccp", &[&servers, file.to_str().expect("UTF-8")]);
    let copy = server.scratch.join("copy");
    run("memccat", &[&servers, &format!("--file={}", copy.display()), "file"]);
    assert!(std::fs::read(&copy).expect("written") == random::bytes(1, 300_000));
    run("memcstat", &[&servers]);
    run("memcping", &[&servers]);
    run("memcrm", &[&servers, "file"]);
    assert_eq!(server.connect().get("file", false), None);
    // A load of GETs and SETs whose values it verifies.
    let load = ["-t", "2s", "-T", "2", "-c", "8", "-X", "60000", "-v", "0.5"];
    let load = [&["-s", &address], &load[..]].concat();
    let done = run("memcaslap", &load);
    let verified = done
        .text()
        .lines()
        .any(|line| line.trim() == "verify_misses: 0" || line.trim() == "verify_failed: 0");
    assert!(verified, "{}", done.text());
    server.stop();
}

#[test]
fn it_ends_by_itself_and_answers_what_is_under_way() {
    let server = Cached::start("end", &[]);
    let value = random::bytes(4, 900_000);
    let mut client = server.connect();
    assert_eq!(client.set("a", &value), "STORED");
    let mut reader = server.connect();
    reader.send(b"get a\r\n");
    reader.stream().peek(&mut [0]).expect("an answer begins");
    server.running().signal(libc::SIGTERM);
    assert_eq!(reader.get("a", true), Some(value));
    assert_eq!((reader.rest(), client.rest()), (vec![], vec![]));
    server.stop();
}

#[test]
fn a_wrong_command_line_is_told_with_what_is_right() {
    let scratch = Scratch::new("cached-line");
    let run = |words: &[&str]| {
        let running = Program::new(env!("CARGO_BIN_EXE_uncopy-cached"))
            .args(words)
            .start(&scratch, words[0].trim_matches('-'));
        running.finish(TIMEOUT)
    };
    for (words, told) in [
        (&["-p", "99999"][..], "65535"),
        (&["-t", "0"], "1..=128"),
        (&["-I", "5g"], "1K to 1G"),
        (&["--transmit", "fast"], "zerocopy"),
        (&["--bogus"], "--bogus"),
    ] {
        let done = run(words);
        assert_eq!(done.status.code(), Some(2), "{words:?}");
        assert!(done.errors.starts_with("uncopy-cached: ") && done.errors.contains(told), "{}", done.errors);
    }
    for (words, told) in [
        (&["-p", "0"][..], "nothing to listen on"),
        (&["-l", "203.0.113.7"], "203.0.113.7"),
        (&["-s", "/nonexistent/socket", "-p", "0"], "/nonexistent/socket"),
    ] {
        let done = run(words);
        assert_eq!(done.status.code(), Some(1), "{words:?}");
        assert!(done.errors.contains(told), "{}", done.errors);
    }
    let page = run(&["--man"]).text();
    assert!(page.contains("\n.TH uncopy-cached 1"), "{page}");
}

//! What HTTP/1.1 asks of a server of files, by curl and by bytes that no client would send.

use std::os::unix::fs::symlink;

use crate::support::{Files, bytes};
use uncopy_tests::http::{curl, expect_same};
use uncopy_tests::{Mode, Scratch};

fn fill(scratch: &Scratch) {
    scratch.write("secret", b"secret");
    scratch.write("root/a.bin", bytes(1, 100_000));
    scratch.write("root/page.html", b"<p>page</p>");
    scratch.write("root/a b%.txt", b"blank");
    scratch.write("root/empty.txt", b"");
    let _ = scratch.directory("root/with");
    scratch.write("root/with/index.html", b"index");
    let _ = scratch.directory("root/without");
    symlink("../secret", scratch.join("root/out")).expect("a link");
    symlink("/etc", scratch.join("root/etc")).expect("a link");
    symlink("page.html", scratch.join("root/in")).expect("a link");
    let _ = std::fs::hard_link(scratch.join("root/page.html"), scratch.join("root/hard.html"));
}

fn server(name: &str) -> Files {
    Files::start(name, &["--threads", "2"], fill)
}

fn code(text: &str) -> u16 {
    text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0)
}

#[test]
fn curl_gets_files_heads_ranges_and_redirections() {
    let files = server("curl");
    let whole = bytes(1, 100_000);
    let get = |words: &[&str]| curl(Mode::Plain, &files.scratch, words);
    let url = files.url("/a.bin");
    expect_same(&get(&[&url]), &whole, "all of it");
    expect_same(&get(&["-r", "0-0", &url]), &whole[..1], "the first byte");
    expect_same(&get(&["-r", "99999-", &url]), &whole[99_999..], "the last byte");
    expect_same(&get(&["-r", "-500", &url]), &whole[99_500..], "the last 500");
    expect_same(&get(&["-C", "70000", &url]), &whole[70_000..], "continued");
    expect_same(&get(&["--http1.0", &url]), &whole, "HTTP/1.0");
    expect_same(&get(&["-L", &files.url("/with")]), b"index", "a directory without its slash");
    expect_same(&get(&[&files.url("/a%20b%25.txt?x=y")]), b"blank", "an encoded name");
    expect_same(&get(&[&files.url("/in")]), b"<p>page</p>", "a link that stays inside");
    expect_same(&get(&[&files.url("/empty.txt")]), b"", "an empty file");
    let head = String::from_utf8(get(&["-I", &url])).expect("ASCII");
    for part in
        ["HTTP/1.1 200 OK", "Content-Length: 100000", "Accept-Ranges: bytes", "application/octet-stream"]
    {
        assert!(head.contains(part), "{part}: {head}");
    }
    // Two requests on one connection.
    let both = get(&[&url, &url, "-o", "/dev/null"]);
    expect_same(&both, &whole, "the first of two");
    assert_eq!(files.get("/page.html", "").field("Content-Type"), Some("text/html; charset=utf-8"));
    drop(files.stop());
}

#[test]
fn several_ranges_come_in_parts_in_the_order_asked_for() {
    let files = server("several");
    let whole = bytes(1, 100_000);
    let answer = files.get("/a.bin", "Range: bytes=50000-50099, 0-9,-5\r\n");
    assert_eq!(answer.status, 206);
    let kind = answer.field("Content-Type").expect("a type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("parts");
    let mut expected = Vec::new();
    for (range, text) in [(50_000..50_100, "50000-50099"), (0..10, "0-9"), (99_995..100_000, "99995-99999")] {
        let head = format!(
            "\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\nContent-Range: bytes {text}/100000\r\n\r\n"
        );
        expected.extend_from_slice(head.as_bytes());
        expected.extend_from_slice(&whole[range]);
    }
    expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    expect_same(&answer.body, &expected, "the parts");
    let one = files.get("/a.bin", "Range: bytes=200000-,5-6\r\n");
    assert_eq!((one.status, one.field("Content-Range")), (206, Some("bytes 5-6/100000")));
    let many = format!("Range: bytes={}\r\n", vec!["0-0"; 17].join(","));
    assert_eq!(files.get("/a.bin", &many).status, 200);
    assert_eq!(files.get("/a.bin", "Range: bytes=0-,0-,0-\r\n").status, 200);
    assert_eq!(files.get("/a.bin", "Range: bytes=0-1\r\nRange: bytes=2-3\r\n").status, 200);
    let none = files.get("/a.bin", "Range: bytes=100000-\r\n");
    assert_eq!((none.status, none.field("Content-Range")), (416, Some("bytes */100000")));
    drop(files.stop());
}

#[test]
fn conditions_are_weighed() {
    let files = server("conditions");
    let first = files.get("/a.bin", "");
    let tag = first.field("ETag").expect("a tag").to_owned();
    let modified = first.field("Last-Modified").expect("a date").to_owned();
    let old = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (fields, status, len) in [
        (format!("If-None-Match: {tag}\r\n"), 304, 0),
        (format!("If-None-Match: \"x\", W/{tag}\r\n"), 304, 0),
        ("If-None-Match: \"x\"\r\n".to_owned(), 200, 100_000),
        (format!("If-Modified-Since: {modified}\r\n"), 304, 0),
        (format!("If-Modified-Since: {old}\r\n"), 200, 100_000),
        (format!("If-Unmodified-Since: {old}\r\n"), 412, 24),
        ("If-Match: \"x\"\r\n".to_owned(), 412, 24),
        (format!("If-Match: {tag}\r\n"), 200, 100_000),
        (format!("Range: bytes=0-4\r\nIf-Range: {tag}\r\n"), 206, 5),
        ("Range: bytes=0-4\r\nIf-Range: \"x\"\r\n".to_owned(), 200, 100_000),
        (format!("Range: bytes=0-4\r\nIf-Range: {old}\r\n"), 200, 100_000),
        (format!("Range: bytes=0-4\r\nIf-None-Match: {tag}\r\n"), 304, 0),
    ] {
        let answer = files.get("/a.bin", &fields);
        assert_eq!((answer.status, answer.body.len()), (status, len), "{fields}");
        if status == 304 {
            assert_eq!(answer.field("ETag"), Some(tag.as_str()));
            assert_eq!(answer.field("Content-Length"), None);
        }
    }
    std::fs::write(files.path("a.bin"), bytes(2, 100_000)).expect("written");
    let changed = files.get("/a.bin", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(changed.status, 200);
    expect_same(&changed.body, &bytes(2, 100_000), "the new contents");
    drop(files.stop());
}

#[test]
fn heads_have_no_body_and_say_what_get_would() {
    let files = server("heads");
    let mut client = files.connect();
    client.say(
        "HEAD /a.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1\r\n\r\nHEAD /none HTTP/1.1\r\nHost: h\r\n\r\n\
         HEAD /with?x=1&y HTTP/1.1\r\nHost: h\r\n\r\nGET /page.html HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    let head = client.answer(false);
    assert_eq!((head.status, head.field("Content-Length")), (200, Some("100000")));
    assert_eq!(client.answer(false).status, 404);
    assert_eq!(client.answer(false).field("Location"), Some("/with/?x=1&y"));
    assert_eq!(client.answer(true).body, b"<p>page</p>");
    drop(files.stop());
}

#[test]
fn requests_in_a_pipeline_are_answered_in_order() {
    let files = server("pipeline");
    let whole = bytes(1, 100_000);
    let mut text = String::new();
    for at in 0..300 {
        let (from, to) = (at * 300, at * 300 + 299);
        text += &format!("GET /a.bin HTTP/1.1\r\nHost: h\r\nRange: bytes={from}-{to}\r\n\r\n");
        text += "GET /none HTTP/1.1\r\nHost: h\r\n\r\n";
    }
    text +=
        "GET /a.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut client = files.connect();
    let mut writer = client.stream().try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || std::io::Write::write_all(&mut writer, text.as_bytes()));
    for at in 0..300 {
        expect_same(&client.answer(true).body, &whole[at * 300..at * 300 + 300], &format!("range {at}"));
        assert_eq!(client.answer(true).status, 404);
    }
    let last = client.answer(true);
    assert_eq!(last.field("Connection"), Some("close"));
    expect_same(&last.body, &whole, "the last");
    assert_eq!(client.rest(), "", "nothing is answered after that");
    sender.join().expect("no panic").expect("all was taken");
    drop(files.stop());
}

#[test]
fn a_request_in_single_bytes_is_a_request() {
    let files = server("bytes");
    let mut client = files.connect();
    for byte in "\r\nGET /page.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".bytes() {
        client.send(&[byte]);
    }
    assert_eq!(client.answer(true).body, b"<p>page</p>");
    drop(files.stop());
}

#[test]
fn old_clients_are_served() {
    let files = server("old");
    let answer = files.exchange(b"GET /page.html HTTP/1.0\r\n\r\n");
    assert!(answer.contains("Connection: close\r\n") && answer.ends_with("\r\n\r\n<p>page</p>"), "{answer}");
    let mut client = files.connect();
    for _ in 0..2 {
        client.say("GET /page.html HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(client.answer(true).field("Connection"), Some("keep-alive"));
    }
    // A client that has said all it wants to say.
    let mut client = files.connect();
    client.say("GET /page.html HTTP/1.1\r\nHost: h\r\n\r\n");
    client.stream().shutdown(std::net::Shutdown::Write).expect("a socket");
    assert!(client.rest().ends_with("<p>page</p>"));
    drop(files.stop());
}

#[test]
fn each_wrong_request_gets_the_status_that_says_what_is_wrong() {
    let files = server("wrong");
    let with = |fields: &str| format!("GET /a.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
    let path = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    for (text, status) in [
        (path("/none"), 404),
        (path("/a.bin/"), 404),
        (path("/a.bin/b"), 404),
        (path("/with"), 301),
        (path("/without/"), 403),
        (path("/without"), 301),
        (path("http://h/page.html"), 200),
        (path("*"), 400),
        (path("/%zz"), 400),
        (path("/a%00"), 400),
        (path(&format!("/{}", "n".repeat(300))), 414),
        (path(&format!("/{}", "n".repeat(9_000))), 414),
        (path(&format!("/{}", "n".repeat(100_000))), 414),
        (with(&format!("A: {}\r\n", "n".repeat(20_000))), 431),
        (with(&format!("A: {}\r\n", "n".repeat(2_000_000))), 431),
        (with(&"A: b\r\n".repeat(200)), 431),
        (with("Content-Length: 99999999999999999999999999\r\n"), 413),
        (with("Content-Length: 70000\r\n"), 413),
        (with("Content-Length: x\r\n"), 400),
        (with("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400),
        (with("Transfer-Encoding: chunked\r\n"), 411),
        (with("Transfer-Encoding: zip\r\n"), 501),
        (with("Expect: nothing\r\n"), 417),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
        ("\0\0\0\0\r\n\r\n".to_owned(), 400),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505),
        ("GET / HTTP/2.0\r\nHost: h\r\n\r\n".to_owned(), 505),
        (path("/a.bin").replace("GET", "POST"), 405),
        (path("/a.bin").replace("GET", "DELETE"), 405),
        (path("/a.bin").replace("GET", "MKCOL"), 501),
    ] {
        let answer = files.exchange(text.as_bytes());
        assert_eq!(code(&answer), status, "{:.80}: {answer:.200}", text.escape_debug().to_string());
        assert!(status != 405 || answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
    }
    drop(files.stop());
}

#[test]
fn nothing_outside_the_root_is_ever_served() {
    let files = server("outside");
    for path in [
        "/../secret",
        "/with/../../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/.%2e/secret",
        "//../secret",
        "/out",
        "/etc/passwd",
        "/etc/",
        "/with/../out",
        "/./etc/./passwd",
        "/..\\secret",
        "/%5c..%5csecret",
        "http://h/../secret",
        "/with/%2e%2e/%2e%2e/secret",
        "/....//secret",
        "/..;/secret",
    ] {
        let answer =
            files.exchange(format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes());
        assert!(matches!(code(&answer), 400 | 403 | 404), "{path}: {answer}");
        assert!(
            !answer.contains("secret\n") && !answer.ends_with("secret") && !answer.contains("root:"),
            "{path}: {answer}"
        );
    }
    // The file is there, and curl can ask so too.
    let words = ["-sS", "--path-as-is", "-o", "/dev/null", "-w", "%{http_code}"];
    let url = files.url("/../secret");
    let done = uncopy_tests::Program::new("/usr/bin/curl")
        .args(words.into_iter().chain([url.as_str()]))
        .mode(Mode::Plain)
        .run(&files.scratch, "curl-outside")
        .expect_success();
    assert_eq!(done.output, b"400");
    drop(files.stop());
}

#[test]
fn a_redirection_stays_on_this_server() {
    let files = Files::start("redirection", &[], |scratch| {
        let _ = scratch.directory("root/evil.example");
        let _ = scratch.directory("root/a\r\nSet-Cookie: b");
    });
    assert_eq!(files.get("//evil.example", "").field("Location"), Some("/evil.example/"));
    let answer = files.get("/a%0d%0aSet-Cookie:%20b", "");
    assert_eq!(answer.field("Location"), Some("/a%0D%0ASet-Cookie%3A%20b/"));
    assert_eq!(answer.field("Set-Cookie"), None);
    drop(files.stop());
}

#[test]
fn a_body_is_thrown_away_and_the_next_request_is_found_behind_it() {
    let files = server("body");
    let mut client = files.connect();
    let body = "GET /none HTTP/1.1\r\nHost: h\r\n\r\n".repeat(1000);
    client
        .say(&format!("GET /page.html HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    client.say("POST /page.html HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabcGET /page.html HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.answer(true).status, 200);
    assert_eq!(client.answer(true).status, 405);
    assert_eq!(client.answer(true).status, 200);
    // What a client sends only after "100 Continue" never comes: the answer is final.
    let mut client = files.connect();
    client.say("GET /page.html HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    let answer = client.answer(true);
    assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
    drop(files.stop());
}

#[test]
fn the_ways_that_look_at_a_file_tell_what_it_is() {
    for way in ["mmap-sendfile", "read-sendfile", "sendfile"] {
        let files = Files::start("look", &["--way", way], |scratch| {
            scratch.write("root/text", b"words\n");
            scratch.write("root/picture", b"\x89PNG\r\n\x1a\n....");
            scratch.write("root/nothing", b"");
        });
        let looks = way != "sendfile";
        let kind = |path: &str| files.get(path, "").field("Content-Type").expect("a type").to_owned();
        let unknown = "application/octet-stream";
        assert_eq!(kind("/text"), if looks { "text/plain; charset=utf-8" } else { unknown }, "{way}");
        assert_eq!(kind("/picture"), if looks { "image/png" } else { unknown }, "{way}");
        assert_eq!(kind("/nothing"), unknown, "{way}");
        drop(files.stop());
    }
}

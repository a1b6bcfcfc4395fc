//! Builds and uses the example server like a reader of the documentation would.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Builds the example in this test's target directory.
fn build() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    let target = program.ancestors().nth(3).expect("target/PROFILE/deps/PROGRAM");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--example", "serve", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo");
    assert!(built.success());
    target.join("debug/examples/serve")
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server, and returns its first line of output.
fn start(program: &Path, file: &Path, address: &str) -> (Server, String) {
    let mut child =
        Command::new(program).arg(file).arg(address).stdout(Stdio::piped()).spawn().expect("the example");
    let output = child.stdout.take().expect("a pipe");
    let server = Server(child);
    let mut said = String::new();
    BufReader::new(output).read_line(&mut said).expect("a line");
    (server, said)
}

fn request(client: &mut (impl Read + Write), method: &str, len: usize) -> (String, Vec<u8>) {
    client.write_all(format!("{method} / HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes()).expect("asked");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let mut body = vec![0; len];
    client.read_exact(&mut body).expect("a body");
    (String::from_utf8(head).expect("text"), body)
}

#[test]
fn the_example_serves_a_file_over_tcp_and_unix_sockets() {
    let program = build();
    let directory = std::env::temp_dir().join(format!("uncopy-example-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory");
    let file = directory.join("file");
    let bytes: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &bytes).expect("a file");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
    // The server's status must equal that of this process.
    uncopy_twin::probe();
    let status = format!("by reference: {}\n", uncopy_twin::status());

    let (_tcp, said) = start(&program, &file, "127.0.0.1:0");
    assert!(said.starts_with("serving 4000000 bytes at 127.0.0.1:") && said.ends_with(&status), "{said}");
    let address = said.split([' ', ';']).nth(4).expect("an address");
    let mut client = std::net::TcpStream::connect(address).expect("connected");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    for _ in 0..3 {
        assert!(request(&mut client, "GET", bytes.len()) == (head.clone(), bytes.clone()));
    }
    let refused = "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(request(&mut client, "PUT", 0).0, refused);

    let path = directory.join("socket");
    let (_unix, said) = start(&program, &file, path.to_str().expect("text"));
    assert!(said.contains(" bytes at /") && said.ends_with(&status), "{said}");
    let mut client = UnixStream::connect(&path).expect("connected");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    assert!(request(&mut client, "GET", bytes.len()) == (head, bytes));

    let wrong = Command::new(&program).arg(&directory).arg("127.0.0.1:0").output().expect("the example");
    assert_eq!(wrong.status.code(), Some(1));
    std::fs::remove_dir_all(&directory).expect("removed");
}

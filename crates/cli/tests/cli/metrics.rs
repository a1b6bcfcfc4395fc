//! `uncopy metrics` as collectors and people use it.

use crate::stage::{Background, Stage, finish};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Running server, killed when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(stage: &Stage) -> Self {
        Self::start_by(&mut stage.uncopy(&["metrics", "--listen", "0"]))
    }

    fn start_by(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line
            .strip_prefix("uncopy: metrics at http://")
            .and_then(|rest| rest.strip_suffix("/metrics\n"))
            .unwrap_or_else(|| panic!("{line}"));
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        Self { address: address.to_owned(), child }
    }

    fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(&self.address).expect("it listens");
        connection.set_read_timeout(Some(LIMIT)).expect("set");
        connection
    }

    fn ask(&self, request: &str) -> String {
        let mut connection = self.connect();
        connection.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("answered");
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_answers_in_the_format_that_is_asked_for() {
    let Some(stage) = Stage::with_library("metrics-listen") else { return };
    let mut command = stage.uncopy(&["run", "--off", "--", "sh", "-c", "echo ready; read line"]);
    command.stderr(Stdio::null());
    let program = Background::start(command);
    let server = Server::start(&stage);
    // Silent clients must not delay others.
    let silent: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
    let label = format!("{{pid=\"{}\",command=\"sh\"}}", program.pid());
    let answer = server.ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(body.contains(&format!("uncopy_elided_bytes_total{label} 0\n")), "{body}");
    let request =
        "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
    let answer = server.ask(request);
    assert!(answer.contains("application/openmetrics-text") && answer.ends_with("# EOF\n"), "{answer}");
    for (request, status) in [
        ("GET / HTTP/1.0\r\n\r\n", "404"),
        ("nonsense\r\n\r\n", "400"),
        ("PUT /metrics HTTP/1.1\r\n\r\n", "405"),
    ] {
        assert!(server.ask(request).starts_with(&format!("HTTP/1.1 {status} ")), "{request}");
    }
    let head = server.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    drop(silent);
}

#[test]
fn a_file_is_replaced_in_one_step_and_others_can_read_it() {
    let stage = Stage::new("metrics-file");
    let file = stage.file("uncopy.prom", b"before", 0o600);
    let directory = file.parent().expect("a directory");
    let before = fs::read_dir(directory).expect("readable").count();
    let finished = finish(&mut stage.uncopy(&["metrics", "--textfile", file.to_str().expect("text")]));
    assert_eq!((finished.code, finished.errors.as_str()), (Some(0), ""));
    let text = fs::read_to_string(&file).expect("written");
    assert!(text.starts_with("# TYPE uncopy_elided_bytes_total counter\n"), "{text}");
    assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(directory).expect("readable").count(), before, "nothing else is left");
    let finished = finish(&mut stage.uncopy(&["metrics", "--textfile", "/proc/uncopy.prom"]));
    assert_eq!(finished.code, Some(1));
    assert!(
        finished.errors.starts_with("uncopy: cannot write \"/proc/uncopy.prom\": "),
        "{}",
        finished.errors
    );
}

#[test]
fn what_cannot_be_listened_at_is_told() {
    let stage = Stage::new("metrics-errors");
    let finished = finish(&mut stage.uncopy(&["metrics", "--listen", "localhost:1"]));
    assert_eq!(finished.code, Some(2));
    assert!(
        finished.errors.starts_with("uncopy: --listen is \"localhost:1\"; it must be PORT"),
        "{}",
        finished.errors
    );
    let finished = finish(&mut stage.uncopy(&["metrics"]));
    assert_eq!(finished.code, Some(2), "{}", finished.errors);
    let server = Server::start(&stage);
    let finished = finish(&mut stage.uncopy(&["metrics", "--listen", &server.address]));
    assert_eq!(finished.code, Some(1));
    assert!(finished.errors.ends_with("address already in use\n"), "{}", finished.errors);
}

const ASK: &str = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";

/// Connects a client that sends only the first byte of a request.
fn slow(server: &Server) -> TcpStream {
    let mut client = server.connect();
    client.write_all(b"G").expect("sent");
    client
}

#[test]
fn nobody_waits_for_slow_clients_and_the_oldest_give_way() {
    let stage = Stage::new("metrics-slow");
    let server = Server::start(&stage);
    let mut slow: Vec<TcpStream> = (0..80).map(|_| slow(&server)).collect();
    let answer = server.ask(ASK);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    // The oldest was dropped before its deadline, and was sent nothing.
    let mut oldest = Vec::new();
    match slow[0].read_to_end(&mut oldest) {
        Ok(_) => assert_eq!(String::from_utf8_lossy(&oldest), ""),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    // The newest can still complete its request.
    let newest = slow.last_mut().expect("80 of them");
    newest.write_all(&ASK.as_bytes()[1..]).expect("sent");
    let mut answer = String::new();
    newest.read_to_string(&mut answer).expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn a_server_without_descriptors_goes_on() {
    let stage = Stage::new("metrics-descriptors");
    let mut command = Command::new("sh");
    let script = "ulimit -n 12; exec \"$0\" metrics --listen 0";
    command.args(["-c", script]).arg(stage.command()).stdin(Stdio::null());
    let server = Server::start_by(&mut command);
    let clients: Vec<TcpStream> = (0..40).map(|_| slow(&server)).collect();
    for _ in 0..3 {
        let answer = server.ask(ASK);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    drop(clients);
    assert!(server.ask(ASK).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn an_answer_arrives_whole_in_front_of_what_nobody_read() {
    let stage = Stage::new("metrics-long");
    let server = Server::start(&stage);
    let answer = server.ask(&format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(60_000)));
    assert!(answer.starts_with("HTTP/1.1 431 ") && answer.ends_with("see /metrics\n"), "{answer}");
}

//! The packaged icecast2: curl as the source of a stream, several as listeners. Every byte is compared.
//!
//! icecast passes a stream on in blocks of 1,400 bytes: there is nothing to elide in the server, and
//! the test claims nothing of the kind.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uncopy_tests::artifacts::packaged;
use uncopy_tests::http::expect_same;
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::{free_port, wait_for_listener, wait_until};
use uncopy_tests::{Mode, Program, Scratch};

const LISTENERS: usize = 4;
/// Bytes up to which every listener must get all.
const STREAM_BYTES: usize = 12 << 20;
/// Bytes in front of which a listener must have joined.
const LEAD_BYTES: usize = 1 << 20;
/// Bytes behind them: icecast may keep its last blocks to itself.
const MORE_BYTES: usize = 4 * 1400;
/// For how long nobody talks to a server that has begun to listen: its other threads begin after that, and one that is
/// asked for its statistics before they have dies of it, with uncopy or without (of 600 starts beside eleven others on
/// two processors, six without).
const ALONE: Duration = Duration::from_secs(1);

/// A server whose log is in `home`.
fn start(mode: Mode, scratch: &Scratch, home: &Path, port: u16) -> Running {
    let configuration = scratch.write(
        "icecast.xml",
        format!(
            "<icecast><limits><clients>20</clients><sources>2</sources><queue-size>67108864</queue-size>\
             <client-timeout>30</client-timeout><header-timeout>15</header-timeout>\
             <source-timeout>30</source-timeout><burst-size>0</burst-size></limits>\
             <authentication><source-password>loud</source-password><admin-user>admin</admin-user>\
             <admin-password>quiet</admin-password></authentication><hostname>localhost</hostname>\
             <listen-socket><port>{port}</port><bind-address>127.0.0.1</bind-address></listen-socket>\
             <paths><basedir>{home}</basedir><logdir>{home}</logdir>\
             <webroot>/usr/share/icecast2/web</webroot><adminroot>/usr/share/icecast2/admin</adminroot></paths>\
             <logging><accesslog>access.log</accesslog><errorlog>error.log</errorlog><loglevel>3</loglevel>\
             </logging><security><chroot>0</chroot><changeowner><user>nobody</user><group>nogroup</group>\
             </changeowner></security></icecast>",
            home = home.display()
        ),
    );
    // It does not stay root, and writes a log and its counters.
    for directory in [home, scratch.path()] {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).expect("permissions");
    }
    let server = Program::new(packaged("/usr/bin/icecast2", "icecast2"))
        .args(["-c".as_ref(), configuration.as_path()])
        .mode(mode)
        .start(scratch, "icecast2");
    wait_for_listener(port);
    std::thread::sleep(ALONE);
    wait_for_status(port, "<server_id>");
    server
}

/// A server's log, printed when the test fails.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.0).unwrap_or_else(|error| error.to_string()));
        }
    }
}

/// Waits until the server's statistics hold `words`. Not all that it does comes to be in its log.
fn wait_for_status(port: u16, words: &str) {
    wait_until(&format!("icecast to have {words:?} in its statistics"), || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("timeout");
        // admin:quiet
        let request = "GET /admin/stats HTTP/1.0\r\nAuthorization: Basic YWRtaW46cXVpZXQ=\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.contains(words).then_some(())
    });
}

/// A named pipe, opened for writing as soon as somebody reads it.
fn open_pipe(path: &Path) -> File {
    let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok();
    let first = wait_until("a reader of the pipe", open);
    // One that waits for room, and the pipe stays open in between.
    let feed = OpenOptions::new().write(true).open(path).expect("pipe");
    drop(first);
    feed
}

fn stream(mode: Mode) {
    let scratch = Scratch::new("icecast");
    let port = free_port();
    let home = scratch.directory("icecast");
    let _log = Log(home.join("error.log"));
    let server = start(mode, &scratch, &home, port);
    let content = bytes(seed(89), STREAM_BYTES + MORE_BYTES);
    let pipe = scratch.join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().expect("UTF-8")).expect("no null");
    // SAFETY: a terminated path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "mkfifo");
    let url = format!("http://127.0.0.1:{port}/stream");
    let curl = |name: &str, arguments: &[&str]| {
        Program::new(packaged("/usr/bin/curl", "curl"))
            .args(["-sS", "--fail", "--no-buffer", "--max-time", "60"])
            .args(arguments)
            .args([&url])
            .mode(mode)
            .start(&scratch, name)
    };
    // Neither a length nor chunks, which icecast does not know: the stream ends with the connection.
    let headers = ["-H", "Transfer-Encoding:", "-H", "Expect:", "-H", "Content-Type: audio/mpeg"];
    let upload = [&["-u", "source:loud", "-T", pipe.to_str().expect("UTF-8")], headers.as_slice()].concat();
    let source = curl("source", &upload);
    let mut feed = open_pipe(&pipe);
    wait_for_status(port, "<source mount=\"/stream\">");
    let listeners: Vec<(Running, PathBuf)> = (0..LISTENERS)
        .map(|number| {
            let body = scratch.join(&format!("body{number}"));
            (curl(&format!("listener{number}"), &["-o", body.to_str().expect("UTF-8")]), body)
        })
        .collect();
    wait_for_status(port, &format!("<listeners>{LISTENERS}</listeners>"));
    // icecast puts a listener behind what it has read when the listener's turn comes.
    let (lead, rest) = content.split_at(LEAD_BYTES);
    feed.write_all(lead).expect("stream");
    let listeners: Vec<(Running, PathBuf, usize)> = listeners
        .into_iter()
        .enumerate()
        .map(|(number, (listener, body))| {
            let start = wait_until(&format!("the first bytes at listener {number}"), || {
                let got = std::fs::read(&body).ok().filter(|got| got.len() >= 64)?;
                Some(
                    content.windows(64).position(|window| window == &got[..64]).expect("bytes of the stream"),
                )
            });
            (listener, body, start)
        })
        .collect();
    feed.write_all(rest).expect("stream");
    for (number, (_, body, start)) in listeners.iter().enumerate() {
        wait_until(&format!("all of the stream at listener {number}"), || {
            std::fs::metadata(body)
                .is_ok_and(|found| found.len() >= (STREAM_BYTES - start) as u64)
                .then_some(())
        });
    }
    drop(feed);
    // curl would wait for an answer, and icecast for more.
    let _ = source.stop(libc::SIGTERM).expect_signal(libc::SIGTERM);
    for (number, (listener, body, start)) in listeners.into_iter().enumerate() {
        let _ = listener.finish(Duration::from_secs(20)).expect_success();
        let got = std::fs::read(body).expect("what it got");
        let end = (start + got.len()).clamp(STREAM_BYTES, content.len());
        expect_same(&got, &content[start..end], &format!("listener {number}, from byte {start}"));
    }
    let _ = server.stop(libc::SIGTERM).expect_success();
}

#[test]
fn stream_with_everything_elided() {
    stream(Mode::Always);
}

#[test]
fn stream_with_the_default_policy() {
    stream(Mode::Auto);
}

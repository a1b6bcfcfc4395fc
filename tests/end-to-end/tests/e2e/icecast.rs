//! The packaged icecast2: curl as the source of a stream, and several listeners. Every byte is compared.
//!
//! icecast forwards a stream in blocks of 1,400 bytes, so nothing is elided in the server, and the
//! test does not expect it.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use uncopy_testbed::servers::{Icecast, Service as _};
use uncopy_tests::artifacts::packaged;
use uncopy_tests::http::expect_same;
use uncopy_tests::packaged_server::{PackagedServer, program};
use uncopy_tests::random::{bytes, seed};
use uncopy_tests::running::Running;
use uncopy_tests::scratch::wait_until;
use uncopy_tests::{Mode, Program, Scratch};

const LISTENERS: usize = 4;
/// Number of bytes that every listener must get.
const STREAM_BYTES: usize = 12 << 20;
/// Number of bytes sent before the listeners join.
const LEAD_BYTES: usize = 1 << 20;
/// Bytes sent after those compared, since icecast may hold back its last blocks.
const TRAILING_BYTES: usize = 4 * 1400;
/// Waits until the server's statistics contain `words`: its log does not have every event.
fn wait_for_status(address: SocketAddr, words: &str) {
    wait_until(&format!("icecast to have {words:?} in its statistics"), || {
        Icecast::statistics(address).is_ok_and(|statistics| statistics.contains(words)).then_some(())
    });
}

/// Opens a named pipe for writing, once it has a reader.
fn open_pipe(path: &Path) -> File {
    let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).ok();
    let first = wait_until("a reader of the pipe", open);
    // Open a blocking descriptor before the first one is closed, so that the pipe never lacks a writer.
    let feed = OpenOptions::new().write(true).open(path).expect("pipe");
    drop(first);
    feed
}

fn stream(mode: Mode) {
    let scratch = Scratch::new("icecast");
    let home = scratch.directory("icecast");
    // icecast gives up root, and then writes a log and its counters.
    for directory in [&home, scratch.path()] {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).expect("permissions");
    }
    let icecast = Icecast {
        clients: 20,
        queue_bytes: 64 << 20,
        admin_root: "/usr/share/icecast2/admin",
        log_level: 3,
        changes_owner: true,
    };
    let server =
        PackagedServer::start_by(program(Icecast::PROGRAM, mode), &icecast, &scratch, "icecast2", &home);
    let address = server.address();
    wait_for_status(address, "<server_id>");
    let content = bytes(seed(89), STREAM_BYTES + TRAILING_BYTES);
    let pipe = scratch.join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().expect("UTF-8")).expect("no null");
    // SAFETY: `name` is a NUL-terminated `CString` that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "mkfifo");
    let url = server.url("/stream");
    let curl = |name: &str, arguments: &[&str]| {
        Program::new(packaged("/usr/bin/curl", "curl"))
            .args(["-sS", "--fail", "--no-buffer", "--max-time", "60"])
            .args(arguments)
            .args([&url])
            .mode(mode)
            .start(&scratch, name)
    };
    // Neither a length nor chunks, which icecast does not support: the stream ends with the connection.
    let headers = ["-H", "Transfer-Encoding:", "-H", "Expect:", "-H", "Content-Type: audio/mpeg"];
    let source = format!("source:{}", Icecast::SOURCE_PASSWORD);
    let upload = [&["-u", &source, "-T", pipe.to_str().expect("UTF-8")], headers.as_slice()].concat();
    let source = curl("source", &upload);
    let mut feed = open_pipe(&pipe);
    wait_for_status(address, "<source mount=\"/stream\">");
    let listeners: Vec<(Running, PathBuf)> = (0..LISTENERS)
        .map(|number| {
            let body = scratch.join(&format!("body{number}"));
            (curl(&format!("listener{number}"), &["-o", body.to_str().expect("UTF-8")]), body)
        })
        .collect();
    wait_for_status(address, &format!("<listeners>{LISTENERS}</listeners>"));
    // A listener starts at what icecast has read when the listener is served first.
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
    // curl would wait for an answer, and icecast for more data.
    let _ = source.stop(libc::SIGTERM).expect_signal(libc::SIGTERM);
    for (number, (listener, body, start)) in listeners.into_iter().enumerate() {
        let _ = listener.finish().expect_success();
        let got = std::fs::read(body).expect("what it got");
        let end = (start + got.len()).clamp(STREAM_BYTES, content.len());
        expect_same(&got, &content[start..end], &format!("listener {number}, from byte {start}"));
    }
    let _ = server.stop(&[]);
}

#[test]
fn stream_with_everything_elided() {
    stream(Mode::Always);
}

#[test]
fn stream_with_the_default_policy() {
    stream(Mode::Auto);
}

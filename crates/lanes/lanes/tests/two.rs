//! Two processes whose TCP connection becomes a lane; every echoed byte is compared.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use uncopy_core::scope::Scope;
use uncopy_lanes::begin::begin;
use uncopy_lanes::message::SendPart;
use uncopy_lanes::message::SharedBuf;
use uncopy_lanes::process::{Destination, Process, Received, closed, process};
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};
use uncopy_sys::iovec::Part;
use uncopy_sys::socket;

/// Environment variable of the second process: the directory, and the port to connect to.
const ROLE: &str = "UNCOPY_TEST_LANE";
const LIMIT: Duration = Duration::from_secs(60);

/// Receives as the hook of `recv` does.
fn receive(lanes: &'static Process, fd: ProgramFd, into: &mut [u8]) -> usize {
    let room = (into.as_mut_ptr().cast(), into.len());
    loop {
        if let Some(plain) = lanes.begin_plain_receive(fd) {
            // SAFETY: `room` is the address and length of `into`, which is borrowed exclusively for this call.
            let got = unsafe { libc::recv(fd.number(), room.0, room.1, 0) };
            drop(plain);
            let got = usize::try_from(got).unwrap_or_else(|_| panic!("{}", io::Error::last_os_error()));
            lanes.received(fd, got);
            return got;
        }
        let part = Part { address: room.0 as usize, len_bytes: room.1 };
        // SAFETY: the lane passes parts of `into`, which is borrowed exclusively for this call.
        let read_literal = |parts: &[Part], flags| unsafe { socket::receive(fd, parts, flags) };
        let writable_bytes = |parts: &[Part]| parts.iter().map(|part| part.len_bytes).sum();
        let place = |_: Part, _: usize, _: &dyn Fn() -> SharedBuf| false;
        let to = Destination { parts: &[part], place, read_literal, writable_bytes };
        // SAFETY: the parts are `into`, borrowed exclusively for this call and writable for its length.
        match unsafe { lanes.receive(fd, 0, false, to) } {
            Received::Done(Ok(got)) | Received::Part(got) => return got,
            Received::Done(Err(errno)) if errno.0 == libc::EAGAIN => {}
            Received::Done(Err(errno)) => panic!("{errno:?}"),
            Received::Passthrough => panic!("an attended lane"),
            Received::Nothing => {
                let mut byte = 0u8;
                // SAFETY: the pointer and the length describe `byte`, a local that nothing else refers to.
                let got = unsafe { libc::recv(fd.number(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
                if got != 1 {
                    return usize::try_from(got).expect("an end");
                }
            }
        }
    }
}

fn receive_all(lanes: &'static Process, fd: ProgramFd, into: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < into.len() {
        match receive(lanes, fd, &mut into[filled..]) {
            0 => return false,
            got => filled += got,
        }
    }
    true
}

/// Sends as the hook of `send` does; returns true if anything went by reference.
fn send_all(lanes: &Process, fd: ProgramFd, bytes: &[u8]) -> bool {
    let (mut sent, mut is_referred) = (0, false);
    while sent < bytes.len() {
        let rest = &bytes[sent..];
        let part = Part { address: rest.as_ptr() as usize, len_bytes: rest.len() };
        let end = lanes.find_end(fd);
        let send_target = end.as_ref().and_then(|end| lanes.send_target(fd, end, rest.len()));
        let by_reference = send_target.and_then(|send_target| {
            lanes.send(fd, &send_target, &[SendPart::Plain(part)], libc::MSG_NOSIGNAL)
        });
        if let Some(by_reference) = by_reference {
            sent += by_reference.unwrap_or_else(|errno| panic!("{errno:?}"));
            is_referred = true;
            continue;
        }
        let is_unknown = end.is_none();
        let literal = lanes.begin_literal(fd, end);
        // SAFETY: the pointer and the length are those of `rest`, which is borrowed for this call.
        let went = unsafe { libc::send(fd.number(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
        let went = usize::try_from(went).unwrap_or_else(|_| panic!("{}", io::Error::last_os_error()));
        if let Some(literal) = literal {
            literal.finish(went);
        }
        if is_unknown {
            lanes.note_large_send(fd);
        }
        sent += went;
    }
    is_referred
}

/// Role of the second process: echoes messages, each preceded by its length.
#[test]
fn echo() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (directory, port) = role.split_once(' ').expect("a directory and a port");
    begin(directory, Scope::ALL, 64 << 20).expect("lanes");
    let lanes = process().expect("begun");
    let stream = TcpStream::connect(("127.0.0.1", port.parse::<u16>().expect("a port"))).expect("connected");
    let (fd, mut head) = (ProgramFd::of(&stream), [0; 8]);
    while receive_all(lanes, fd, &mut head) {
        let mut message = vec![0; usize::try_from(u64::from_ne_bytes(head)).expect("a length")];
        assert!(receive_all(lanes, fd, &mut message));
        send_all(lanes, fd, &message);
    }
}

struct Room(PathBuf, Option<Child>);

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(child) = &mut self.1 {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_connection_between_two_processes_becomes_a_lane_and_every_byte_is_right() {
    let directory = std::env::temp_dir().join(format!("uncopy-lanes-{}", std::process::id()));
    let mut room = Room(directory, None);
    begin(room.0.to_str().expect("UTF-8"), Scope::ALL, 64 << 20).expect("lanes");
    let lanes = process().expect("begun");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", "echo", "--nocapture"]).env(ROLE, format!("{} {port}", room.0.display()));
    room.1 = Some(command.spawn().expect("started"));
    let stream = listener.accept().expect("accepted").0;
    stream.set_nodelay(true).expect("set");
    let fd = ProgramFd::of(&stream);
    let (begun, mut referred, mut number) = (Instant::now(), 0, 0usize);
    while referred < 500 {
        assert!(begun.elapsed() < LIMIT, "{referred} of {number} messages went by reference");
        let len = [1, 300, 40_000, 65_536, 300_000, 1_500_000][number % 6] + number % 7;
        let message: Vec<u8> =
            (0..len).map(|at| u8::try_from((at * 7 + number) % 251).unwrap_or(0)).collect();
        let head = u64::try_from(len).expect("a length").to_ne_bytes();
        send_all(lanes, fd, &head);
        referred += usize::from(send_all(lanes, fd, &message));
        let mut back = vec![0; len];
        assert!(receive_all(lanes, fd, &mut back));
        assert!(back == message, "message {number} of {len} bytes");
        number += 1;
    }
    closed(fd);
    drop(stream);
    let child = room.1.as_mut().expect("started");
    while child.try_wait().expect("known").is_none() {
        assert!(begun.elapsed() < LIMIT, "the other process does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(child.wait().expect("ended").success());
}

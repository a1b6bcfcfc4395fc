//! MSG_ZEROCOPY without copies in the kernel: in a network namespace of its own, an `ifb` device accepts
//! packets for a nonexistent neighbour and drops them.
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, reason = "bytes of patterns")]

mod common;

use common::*;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use uncopy_transmit::{
    Envelope, Hold, ProgramFd, SocketOwner, Token, Way, completions, declare_owner, plan, set_break_even,
};

/// Reports a skipped test on the real stderr, because the harness captures what tests print.
fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

fn ip(arguments: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    let output = command
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Moves the calling thread to a new network namespace.
fn enter_namespace() -> Result<(), String> {
    // SAFETY: unshare(2) with CLONE_NEWNET accesses no memory and affects only the calling thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no network namespace: {}", std::io::Error::last_os_error()));
    }
    ip("link set lo up")?;
    ip("link add far0 type ifb")?;
    ip("link set far0 mtu 9000 up")?;
    ip("addr add 10.99.0.1/24 dev far0")?;
    ip("neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev far0")?;
    // By its address a neighbour on the loopback device is on another host, yet the kernel copies.
    ip("route add 10.98.0.2/32 dev lo src 10.99.0.1")
}

/// Runs a test in a network namespace, on a thread of its own.
fn in_namespace(test: &str, section: impl FnOnce() + Send + 'static) {
    let result = std::thread::spawn(move || {
        enter_namespace()?;
        section();
        Ok::<(), String>(())
    });
    match result.join() {
        Ok(Ok(())) => {}
        Ok(Err(why)) => skip(test, &why),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn far_socket(peer: &str) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(peer).expect("connected");
    declare_owner(
        ProgramFd::of(&socket),
        SocketOwner { sends_alone: true, reads_errors: true, ..SocketOwner::default() },
    );
    socket
}

/// Reads completions until `wanted` have arrived, for at most ten seconds.
fn wait_for(fd: i32, wanted: usize) -> Vec<Token> {
    let mut done = Vec::new();
    for _ in 0..1000 {
        completions(ProgramFd::new(fd), &mut |token| done.push(token));
        if done.len() >= wanted {
            break;
        }
        let mut poll_fd = libc::pollfd { fd, events: 0, revents: 0 };
        // SAFETY: poll(2) accesses one entry, `poll_fd`, which outlives the call.
        unsafe { libc::poll(&raw mut poll_fd, 1, 10) };
    }
    done
}

#[test]
fn every_message_to_a_far_peer_is_completed_and_none_was_copied() {
    in_namespace("every_message_to_a_far_peer_is_completed_and_none_was_copied", || {
        set_break_even(Some(1));
        let socket = far_socket("10.99.0.2:9");
        let fd = socket.as_raw_fd();
        let memory = Lendable::new(2);
        let mut sent = Vec::new();
        for round in 0..50usize {
            let header = round.to_le_bytes();
            let parts = [copied(&header), memory.part(round, 8000)];
            let planned = plan(ProgramFd::new(fd), 8008, 8000, 0, &Envelope::default());
            assert_eq!(planned.way, Way::Completion, "the kernel does not copy for this device");
            let result = uncopy_transmit::send(ProgramFd::new(fd), &parts, 0, &Envelope::default(), planned)
                .expect("sent");
            let Hold::Until(token) = result.hold else { panic!("{:?} instead of a token", result.hold) };
            assert_eq!(result.len_bytes, 8008);
            sent.push(token);
        }
        let mut done = wait_for(fd, sent.len());
        done.sort_unstable();
        assert_eq!(done, sent);
    });
}

/// On the loopback device notifications report copies, and the socket is then sent to in another way.
#[test]
fn a_socket_whose_notices_say_copied_goes_another_way() {
    in_namespace("a_socket_whose_notices_say_copied_goes_another_way", || {
        set_break_even(Some(1));
        let socket = far_socket("10.98.0.2:9");
        let fd = socket.as_raw_fd();
        let memory = Lendable::new(2);
        let envelope = Envelope::default();
        let planned = plan(ProgramFd::new(fd), 8000, 8000, 0, &envelope);
        assert_eq!(planned.way, Way::Completion, "by its address the peer is on another machine");
        let result =
            uncopy_transmit::send(ProgramFd::new(fd), &[memory.part(0, 8000)], 0, &envelope, planned)
                .expect("sent");
        let Hold::Until(token) = result.hold else { panic!("{:?} instead of a token", result.hold) };
        assert_eq!(wait_for(fd, 1), [token]);
        assert_eq!(plan(ProgramFd::new(fd), 8000, 8000, 0, &envelope).way, Way::Splice);
        // A new socket with the same descriptor starts afresh.
        declare_owner(
            ProgramFd::new(fd),
            SocketOwner { sends_alone: true, reads_errors: true, ..SocketOwner::default() },
        );
        assert_eq!(plan(ProgramFd::new(fd), 8000, 8000, 0, &envelope).way, Way::Completion);
    });
}

/// Only owners that read the error queue get completions: others would find unexpected notifications there.
#[test]
fn nobody_gets_completions_who_did_not_ask() {
    in_namespace("nobody_gets_completions_who_did_not_ask", || {
        set_break_even(Some(1));
        for owner in [SocketOwner::default(), SocketOwner { reads_errors: true, ..SocketOwner::default() }] {
            let socket = far_socket("10.99.0.2:9");
            let fd = socket.as_raw_fd();
            declare_owner(ProgramFd::new(fd), owner);
            let memory = Lendable::new(2);
            let sent = send(fd, &[memory.part(0, 8000)], 0).expect("sent");
            assert_eq!((sent.len_bytes, sent.hold), (8000, Hold::Spliced));
            assert_eq!(wait_for_nothing(fd), 0);
        }
    });
}

fn wait_for_nothing(fd: i32) -> i16 {
    let mut poll_fd = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: poll(2) accesses one entry, `poll_fd`, which outlives the call.
    unsafe { libc::poll(&raw mut poll_fd, 1, 20) };
    poll_fd.revents
}

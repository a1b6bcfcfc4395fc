//! MSG_ZEROCOPY where the kernel really does not copy: a network namespace of our own, in which an `ifb` device takes
//! what is sent to a neighbour that does not exist, and drops it.
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, reason = "bytes of patterns")]

mod common;

use common::*;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use uncopy_transmit::{Envelope, Hold, Owner, Token, Way, completions, own, plan, set_break_even};

/// Tells the test runner, past the harness, which keeps what tests print to itself.
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

/// Goes to a network namespace of its own, with the calling thread.
fn enter_namespace() -> Result<(), String> {
    // SAFETY: concerns the calling thread only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no network namespace: {}", std::io::Error::last_os_error()));
    }
    ip("link set lo up")?;
    ip("link add far0 type ifb")?;
    ip("link set far0 mtu 9000 up")?;
    ip("addr add 10.99.0.1/24 dev far0")?;
    ip("neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev far0")?;
    // A neighbour on the loopback device is far by its address, and yet copied to.
    ip("route add 10.98.0.2/32 dev lo src 10.99.0.1")
}

/// Runs a test in a namespace, in a thread of its own.
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
    own(socket.as_raw_fd(), Owner { sends_alone: true, reads_errors: true, ..Owner::default() });
    socket
}

/// Reads completions until `wanted` of them came, for ten seconds at most.
fn wait_for(fd: i32, wanted: usize) -> Vec<Token> {
    let mut done = Vec::new();
    for _ in 0..1000 {
        completions(fd, &mut |token| done.push(token));
        if done.len() >= wanted {
            break;
        }
        let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
        // SAFETY: one valid structure.
        unsafe { libc::poll(&raw mut asked, 1, 10) };
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
            let planned = plan(fd, 8008, 8000, 0, &Envelope::default());
            assert_eq!(planned.way, Way::Completion, "the kernel does not copy for this device");
            let result = uncopy_transmit::send(fd, &parts, 0, &Envelope::default(), planned).expect("sent");
            let Hold::Until(token) = result.hold else { panic!("{:?} instead of a token", result.hold) };
            assert_eq!(result.len_bytes, 8008);
            sent.push(token);
        }
        let mut done = wait_for(fd, sent.len());
        done.sort_unstable();
        assert_eq!(done, sent);
    });
}

/// The notices say "copied" on the loopback device, and the way is not taken again on that socket.
#[test]
fn a_socket_whose_notices_say_copied_goes_another_way() {
    in_namespace("a_socket_whose_notices_say_copied_goes_another_way", || {
        set_break_even(Some(1));
        let socket = far_socket("10.98.0.2:9");
        let fd = socket.as_raw_fd();
        let memory = Lendable::new(2);
        let envelope = Envelope::default();
        let planned = plan(fd, 8000, 8000, 0, &envelope);
        assert_eq!(planned.way, Way::Completion, "by its address the peer is on another machine");
        let result = uncopy_transmit::send(fd, &[memory.part(0, 8000)], 0, &envelope, planned).expect("sent");
        let Hold::Until(token) = result.hold else { panic!("{:?} instead of a token", result.hold) };
        assert_eq!(wait_for(fd, 1), [token]);
        assert_eq!(plan(fd, 8000, 8000, 0, &envelope).way, Way::Splice);
        // Another socket of the same number has a chance of its own.
        own(fd, Owner { sends_alone: true, reads_errors: true, ..Owner::default() });
        assert_eq!(plan(fd, 8000, 8000, 0, &envelope).way, Way::Completion);
    });
}

/// Only who reads the error queue gets this way: others would find notices there that they did not ask for.
#[test]
fn nobody_gets_completions_who_did_not_ask() {
    in_namespace("nobody_gets_completions_who_did_not_ask", || {
        set_break_even(Some(1));
        for owner in [Owner::default(), Owner { reads_errors: true, ..Owner::default() }] {
            let socket = far_socket("10.99.0.2:9");
            let fd = socket.as_raw_fd();
            own(fd, owner);
            let memory = Lendable::new(2);
            let sent = send(fd, &[memory.part(0, 8000)], 0).expect("sent");
            assert_eq!((sent.len_bytes, sent.hold), (8000, Hold::Spliced));
            assert_eq!(wait_for_nothing(fd), 0);
        }
    });
}

fn wait_for_nothing(fd: i32) -> i16 {
    let mut asked = libc::pollfd { fd, events: 0, revents: 0 };
    // SAFETY: one valid structure.
    unsafe { libc::poll(&raw mut asked, 1, 20) };
    asked.revents
}

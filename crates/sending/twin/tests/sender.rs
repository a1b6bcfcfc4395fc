//! `Sender`: safe code's messages arrive unchanged over every kind of socket, and errors are the socket's.
#![cfg(target_os = "linux")]

#[path = "../../transmit/tests/common/mod.rs"]
mod common;
#[path = "common/mod.rs"]
mod lending;

use common::{DATAGRAMS, Family, STREAMS, connect};
use lending::{can_lend, in_child, pattern};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;
use uncopy_transmit::set_break_even;
use uncopy_twin::{Buffer, Sender, statistics};

const LEN: usize = 60_000;

#[test]
fn what_is_overwritten_after_it_was_sent_arrives_as_it_was() {
    let Some(_guard) = can_lend("what_is_overwritten_after_it_was_sent_arrives_as_it_was") else { return };
    set_break_even(Some(1));
    let before = statistics();
    for family in STREAMS.into_iter().chain(DATAGRAMS) {
        let connection = connect(family);
        let mut object = Buffer::copy_of(&pattern(1, LEN)).expect("memory");
        let mut head = *b"60000\n";
        let sender = Sender::new(&connection.here);
        let sent = sender.send_vectored(&[IoSlice::new(&head), IoSlice::new(&object)]).expect("sent");
        object.fill(2);
        head.fill(2);
        let expected = [b"60000\n", &pattern(1, LEN)[..]].concat();
        assert_eq!(sent, expected.len(), "{family:?}");
        let arrived = if family.is_stream() { connection.read(sent) } else { connection.receive() };
        assert!(arrived == expected, "{family:?}");
        assert!(object.iter().all(|byte| *byte == 2));
    }
    let replaced_pages = statistics().replaced_pages - before.replaced_pages;
    assert!(replaced_pages > 10, "{replaced_pages} pages were in flight when they were written to");
}

#[test]
fn a_writer_writes_all_however_slowly_it_is_read() {
    set_break_even(Some(1));
    for family in STREAMS {
        let connection = connect(family);
        let object = Buffer::copy_of(&pattern(3, 5 << 20)).expect("memory");
        std::thread::scope(|scope| {
            let arrived = scope.spawn(|| connection.read(object.len() + 4));
            let mut sender = Sender::new(&connection.here);
            sender.write_all(b"head").expect("sent");
            (&sender).write_all(&object).expect("sent");
            sender.flush().expect("nothing to do");
            let arrived = arrived.join().expect("read");
            assert!(arrived[..4] == *b"head" && arrived[4..] == *object, "{family:?}");
        });
    }
}

#[test]
fn a_datagram_goes_to_an_address() {
    let body = Buffer::copy_of(&pattern(4, LEN)).expect("memory");
    let parts = [IoSlice::new(b"head"), IoSlice::new(&body)];
    let expected = [b"head", &body[..]].concat();
    let mut buffer = vec![0; 2 * LEN];
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let [here, there] = [(); 2].map(|()| UdpSocket::bind(host).expect("a socket"));
        there.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let to = there.local_addr().expect("an address");
        assert_eq!(Sender::new(&here).send_to(&parts, to).expect("sent"), expected.len());
        let (len, from) = there.recv_from(&mut buffer).expect("a datagram");
        assert!(buffer[..len] == expected && from == here.local_addr().expect("an address"), "{host}");
    }
    let directory = std::env::temp_dir().join(format!("uncopy-sender-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory");
    let path = directory.join("socket");
    let there = UnixDatagram::bind(&path).expect("a socket");
    there.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let sender = Sender::new(UnixDatagram::unbound().expect("a socket"));
    assert_eq!(sender.send_to_path(&parts, &path).expect("sent"), expected.len());
    let len = there.recv(&mut buffer).expect("a datagram");
    assert!(buffer[..len] == expected);
    std::fs::remove_dir_all(&directory).expect("removed");
    let gone = sender.send_to_path(&parts, &path).expect_err("nobody is there");
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let long = sender.send_to_path(&parts, "x".repeat(200)).expect_err("too long");
    assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn errors_are_the_sockets() {
    let body = Buffer::zeroed(LEN).expect("memory");
    let many = [IoSlice::new(b"x"); 1025];
    let connection = connect(Family::Unix);
    let mut sender = Sender::new(&connection.here);
    assert_eq!(sender.send_vectored(&many).expect_err("too many").raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(sender.write_vectored(&many).expect("as many as there may be"), 1024);
    assert_eq!(connection.read(1024), [b'x'; 1024]);

    let full = UnixStream::pair().expect("sockets");
    full.0.set_nonblocking(true).expect("not blocking");
    let mut sender = Sender::new(&full.0);
    let refused = (0..1000).find_map(|_| sender.write(&body).err()).expect("full some time");
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);

    let file = std::fs::File::open("/dev/null").expect("a file");
    let no_socket = Sender::new(file).write(&body).expect_err("no socket");
    assert_eq!(no_socket.raw_os_error(), Some(libc::ENOTSOCK));
}

#[test]
fn a_broken_pipe_is_an_error_and_no_signal() {
    set_break_even(Some(1));
    let status = in_child(|| {
        // SAFETY: signal(2) with SIG_DFL installs no handler, and the child has one thread.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let body = Buffer::zeroed(LEN).expect("memory");
        let is_broken = |socket: UnixStream| {
            Sender::new(socket).write(&body).is_err_and(|error| error.kind() == ErrorKind::BrokenPipe)
        };
        let (fresh, there) = UnixStream::pair().expect("sockets");
        drop(there);
        // A descriptor that was another kind of socket a moment ago.
        let connection = connect(Family::Udp4);
        let _ = Sender::new(&connection.here).send(&body).expect("sent");
        // SAFETY: dup2(2) accesses no memory; the descriptor belongs to this child.
        assert!(unsafe { libc::dup2(fresh.as_raw_fd(), connection.fd()) } >= 0);
        is_broken(UnixStream::from(connection.here)) && is_broken(fresh)
    });
    assert_eq!(status, 0);
}

#[test]
fn reads_go_to_the_socket() -> io::Result<()> {
    let (here, mut there) = UnixStream::pair()?;
    let mut both = Sender::new(here);
    there.write_all(b"question")?;
    let mut question = [0; 8];
    both.read_exact(&mut question)?;
    both.write_all(b"answer")?;
    drop(both.into_inner());
    let mut answer = String::new();
    there.read_to_string(&mut answer)?;
    assert_eq!((&question, &answer[..]), (b"question", "answer"));
    Ok(())
}

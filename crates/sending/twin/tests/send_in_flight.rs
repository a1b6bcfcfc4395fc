//! The send family with values in twin memory that are sent, then overwritten, freed or reused before anyone
//! reads. The old bytes must arrive, and results must be libc's.
#![cfg(target_os = "linux")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of patterns, counts")]

#[path = "../../transmit/tests/common/mod.rs"]
mod common;
#[path = "common/mod.rs"]
mod lending;

use common::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use uncopy_sys::descriptor::{Descriptor as _, ProgramFd};
use uncopy_transmit::{Errno, Hold, Plan, Sent, Token, Way, set_break_even};
use uncopy_twin::send::Loans;

/// Returns whether twin memory is protected in this process; if not, reports the test as skipped.
fn can_lend(test: &str) -> bool {
    set_break_even(Some(1));
    let object = Object::new(64 << 10, 1);
    let connection = connect(Family::Unix);
    assert_eq!(object.write_to(connection.fd()), Ok(64 << 10));
    assert_eq!(connection.read(64 << 10), object.expected());
    let status = uncopy_twin::status();
    if status != uncopy_twin::Status::Active {
        let _ = writeln!(std::io::stderr(), "skipped: {test}: {status:?}");
    }
    status == uncopy_twin::Status::Active
}

fn pattern(seed: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 12) ^ seed.wrapping_mul(97)) as u8
}

struct Object {
    start: *mut u8,
    len: usize,
    seed: usize,
}

// SAFETY: the value owns its object, and objects may be used and freed by any thread.
unsafe impl Send for Object {}

impl Object {
    fn new(len: usize, seed: usize) -> Self {
        let start = uncopy_twin::allocate(len);
        assert!(!start.is_null());
        let mut object = Self { start, len, seed };
        object.overwrite(seed);
        object
    }

    /// Writes other bytes to the same addresses.
    fn overwrite(&mut self, seed: usize) {
        self.seed = seed;
        for at in 0..self.len {
            // SAFETY: `at` is below `len`, so the byte is within the object that `self` owns.
            unsafe { self.start.add(at).write(pattern(seed, at)) };
        }
    }

    fn expected(&self) -> Vec<u8> {
        (0..self.len).map(|at| pattern(self.seed, at)).collect()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `new` has initialised all `len` bytes of the object, which lives as long as `self`.
        unsafe { core::slice::from_raw_parts(self.start, self.len) }
    }

    fn vector(&self) -> libc::iovec {
        libc::iovec { iov_base: self.start.cast(), iov_len: self.len }
    }

    fn write_to(&self, fd: i32) -> Result<usize, i32> {
        // SAFETY: write(2) only reads the object, which has `len` bytes.
        result(unsafe { uncopy_twin::send::write(ProgramFd::new(fd), self.start.cast(), self.len) })
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the object, and nothing uses it any more.
        unsafe { uncopy_twin::deallocate(self.start) };
    }
}

fn result(count: isize) -> Result<usize, i32> {
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn of_bytes(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Sends one message by one of the functions that can send it.
fn send_by(function: usize, fd: i32, header: &[u8], object: &Object, trailer: &[u8]) -> Result<usize, i32> {
    let mut vectors = [of_bytes(header), object.vector(), of_bytes(trailer)];
    // SAFETY: all-zero bytes are a valid `msghdr`; the vectors and the parts they refer to outlive the calls.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len() as _;
        match function % 3 {
            0 => result(uncopy_twin::send::writev(ProgramFd::new(fd), vectors.as_ptr(), 3)),
            1 => {
                result(uncopy_twin::send::sendmsg(ProgramFd::new(fd), &raw const message, libc::MSG_NOSIGNAL))
            }
            _ => {
                let mut messages = [libc::mmsghdr { msg_hdr: message, msg_len: 0 }];
                let count = uncopy_twin::send::sendmmsg(ProgramFd::new(fd), messages.as_mut_ptr(), 1, 0);
                result(count as isize).map(|_| messages[0].msg_len as usize)
            }
        }
    }
}

#[test]
fn values_that_are_overwritten_arrive_as_they_were_sent() {
    if !can_lend("values_that_are_overwritten_arrive_as_they_were_sent") {
        return;
    }
    let before = uncopy_twin::statistics();
    for family in STREAMS.into_iter().chain(DATAGRAMS) {
        for len in [5000, 16 << 10, 60_000] {
            for function in 0..3 {
                let connection = connect(family);
                let mut object = Object::new(len, 3);
                let mut header = *b"VALUE key 0 60000\r\n";
                let mut trailer = *b"\r\nEND\r\n";
                let expected = [&header[..], &object.expected(), &trailer].concat();
                let sent = send_by(function, connection.fd(), &header, &object, &trailer);
                assert_eq!(sent, Ok(expected.len()), "{family:?}, {len} bytes, function {function}");
                object.overwrite(4);
                header.fill(b'X');
                trailer.fill(b'Y');
                let arrived =
                    if family.is_stream() { connection.read(expected.len()) } else { connection.receive() };
                assert!(arrived == expected, "{family:?}, {len} bytes, function {function}");
                let now: Vec<u8> = (0..len).map(|at| pattern(4, at)).collect();
                assert_eq!(object.expected(), now);
            }
        }
    }
    let replaced_pages = uncopy_twin::statistics().replaced_pages - before.replaced_pages;
    assert!(replaced_pages > 100, "{replaced_pages} pages were in flight when they were written to");
}

/// Values are freed while in flight, and their memory is reused and written to.
#[test]
fn values_that_are_freed_and_reused_arrive_as_they_were_sent() {
    if !can_lend("values_that_are_freed_and_reused_arrive_as_they_were_sent") {
        return;
    }
    let before = uncopy_twin::statistics();
    for family in STREAMS {
        let connection = connect(family);
        let mut expected = Vec::new();
        for round in 0..300 {
            let len = [5000, 24 << 10, 700, 40 << 10][round % 4];
            let object = Object::new(len, round);
            expected.extend(object.expected());
            assert_eq!(object.write_to(connection.fd()), Ok(len));
            drop(object);
            // The next owner of the pages writes to them at once.
            let mut next = Object::new(len, round + 1);
            next.overwrite(round + 2);
            if expected.len() > 100_000 {
                assert!(connection.read(expected.len()) == expected, "{family:?}, round {round}");
                expected.clear();
            }
        }
    }
    let dropped_pages = uncopy_twin::statistics().dropped_pages - before.dropped_pages;
    assert!(dropped_pages > 100, "{dropped_pages} pages were in flight when their object was freed");
}

/// Threads overwrite values while others send: each message is one of the versions, page by page, and does
/// not change after the call.
#[test]
fn writers_and_senders_at_once() {
    if !can_lend("writers_and_senders_at_once") {
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let connection = connect(STREAMS[thread % 3]);
                let mut object = Object::new(48 << 10, thread);
                for round in 0..60 {
                    let expected = object.expected();
                    assert_eq!(object.write_to(connection.fd()), Ok(expected.len()));
                    object.overwrite(thread * 100 + round);
                    assert!(connection.read(expected.len()) == expected, "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
fn a_fork_with_values_in_flight_changes_nothing() {
    let _guard = lending::exclusive();
    if !can_lend("a_fork_with_values_in_flight_changes_nothing") {
        return;
    }
    let (parents, childs) = (connect(Family::Tcp4), connect(Family::Tcp4));
    let mut object = Object::new(40 << 10, 1);
    let first = object.expected();
    assert_eq!(object.write_to(parents.fd()), Ok(first.len()));
    in_child(|| {
        // The child's first send, with writes before and after.
        object.overwrite(2);
        let mine = object.expected();
        let sent = object.write_to(childs.fd());
        object.overwrite(3);
        let again = object.expected();
        let sent_again = object.write_to(childs.fd());
        object.overwrite(4);
        sent == Ok(mine.len())
            && sent_again == Ok(again.len())
            && childs.read(mine.len()) == mine
            && childs.read(again.len()) == again
    });
    object.overwrite(5);
    let second = object.expected();
    assert_eq!(object.write_to(parents.fd()), Ok(second.len()));
    object.overwrite(6);
    assert_eq!(parents.read(first.len()), first);
    assert_eq!(parents.read(second.len()), second);
}

const LEN: usize = 64 << 10;

/// Sends three objects of `LEN` bytes by reference, pretends that the call returned `result`, and overwrites
/// the objects. Returns the number of loans kept, and for each object whether it arrived unchanged.
fn lend_and_overwrite(way: Way, result: Result<Sent, Errno>) -> (usize, [bool; 3]) {
    let mut plan = Plan::copy();
    plan.way = way;
    let (socket, mut receiver) = lending::connection();
    let pipe = lending::Pipe::new();
    let mut objects = [1, 2, 3].map(|seed| Object::new(LEN, seed));
    let expected = objects.each_ref().map(Object::expected);
    let mut loans = Loans::<3>::new(plan);
    for (index, object) in objects.iter().enumerate() {
        assert!(loans.lend(index * LEN, object.start, LEN).is_lent());
    }
    let mut kept = Vec::new();
    let send = || {
        objects.iter().for_each(|object| pipe.vmsplice(object.bytes()));
        pipe.splice_to(socket.as_raw_fd(), 3 * LEN);
        result
    };
    assert_eq!(loans.send(send, |_, loan| kept.push(loan)), result.map(|sent| sent.len_bytes));
    objects.iter_mut().for_each(|object| object.overwrite(9));
    let stays = expected.map(|expected| lending::receive(&mut receiver, LEN) == expected);
    let count = kept.len();
    kept.into_iter().for_each(uncopy_twin::settle);
    (count, stays)
}

#[test]
fn a_short_send_settles_the_loans_of_what_was_not_taken_and_no_others() {
    // Excludes forks, after which the kernel's own copy-on-write would replace any page.
    let _guard = lending::exclusive();
    if !can_lend("a_short_send_settles_the_loans_of_what_was_not_taken_and_no_others") {
        return;
    }
    for (len_bytes, taken) in
        [(0, 0), (1, 1), (LEN - 1, 1), (LEN, 1), (LEN + 1, 2), (2 * LEN, 2), (2 * LEN + 1, 3), (3 * LEN, 3)]
    {
        let stays = [taken > 0, taken > 1, taken > 2];
        let sent = |hold| Ok(Sent { len_bytes, hold });
        let kept = lend_and_overwrite(Way::Completion, sent(Hold::Until(Token(1))));
        assert_eq!(kept, (taken, stays), "{len_bytes} bytes until a completion");
        // A spliced message has no completion.
        let dropped = lend_and_overwrite(Way::Completion, sent(Hold::Spliced));
        assert_eq!(dropped, (0, stays), "{len_bytes} bytes for good");
        let (count, spliced) = lend_and_overwrite(Way::Splice, sent(Hold::Spliced));
        assert_eq!((count, &spliced[..taken]), (0, &stays[..taken]), "{len_bytes} bytes spliced");
        let copied = lend_and_overwrite(Way::Completion, sent(Hold::Nothing));
        assert_eq!(copied, (0, [false; 3]), "{len_bytes} bytes copied");
    }
    assert_eq!(lend_and_overwrite(Way::Completion, Err(Errno::EINTR)), (0, [false; 3]));
}

#[test]
fn parts_for_which_there_is_no_loan_are_copied_and_loans_that_were_not_sent_end_with_the_message() {
    let test =
        "parts_for_which_there_is_no_loan_are_copied_and_loans_that_were_not_sent_end_with_the_message";
    if !can_lend(test) {
        return;
    }
    let objects = [1, 2].map(|seed| Object::new(LEN, seed));
    let mut loans = Loans::<1>::new(Plan::copy());
    assert!(loans.is_empty() && loans.lend(0, objects[0].start, LEN).is_lent());
    assert!(!loans.lend(LEN, objects[1].start, LEN).is_lent() && !loans.is_empty());
}

/// Calls without twin memory to lend are left to libc.
#[test]
fn nothing_is_done_where_nothing_is_to_be_gained() {
    set_break_even(Some(4096));
    let connection = connect(Family::Unix);
    let fd = ProgramFd::new(connection.fd());
    let ordinary = vec![1u8; 100_000];
    let small = Object::new(64, 1);
    // SAFETY: the closure has sendmsg's contract, and passes its arguments on unchanged.
    let plain: uncopy_twin::send::SendMessage =
        |fd, message, flags| unsafe { libc::sendmsg(fd.number(), message, flags) };
    // SAFETY: the buffers are readable for the given lengths; invalid addresses are only checked by this
    // crate or the kernel, and yield `None` or EFAULT.
    unsafe {
        assert_eq!(uncopy_twin::send::try_write(fd, ordinary.as_ptr().cast(), ordinary.len()), None);
        assert_eq!(uncopy_twin::send::try_write(fd, small.start.cast(), small.len), None);
        assert_eq!(uncopy_twin::send::try_writev(fd, core::ptr::null(), 3), None);
        assert_eq!(uncopy_twin::send::try_writev(fd, core::ptr::dangling::<libc::iovec>(), 3), None);
        assert_eq!(uncopy_twin::send::try_sendmsg(fd, core::ptr::null(), 0), None);
        assert_eq!(uncopy_twin::send::try_sendmmsg(fd, core::ptr::null_mut(), 1, 0, plain), None);
        assert_eq!(
            result(uncopy_twin::send::writev(fd, core::ptr::dangling::<libc::iovec>(), 3)),
            Err(libc::EFAULT)
        );
        assert_eq!(
            result(uncopy_twin::send::sendmsg(fd, core::ptr::dangling::<libc::msghdr>(), 0)),
            Err(libc::EFAULT)
        );
        assert_eq!(
            result(uncopy_twin::send::write(ProgramFd::NONE, small.start.cast(), small.len)),
            Err(libc::EBADF)
        );
    }
    set_break_even(Some(1));
}

//! A fixed, small workload whose every byte is checked, with an action of the program in between.
//!
//! ```text
//! faults workload            the workload once
//! faults alone               without threads and processes
//! faults hoard               keeps a page of each of many received buffers
//! faults under FILTER CMD    runs a command under a seccomp filter
//! faults between ACTION      half of it, the action, the whole of it
//! ```
//!
//! Prints a digest of the buffers' content: the same with and without uncopy, whatever fails inside.

use std::ffi::CString;

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::calls::{CopyCall, FileInput, FileOutput, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::in_child;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::restrictions;

/// Length of a buffer received by [`hoard`], and their number.
const HOARD_LEN: usize = 1 << 20;
const HOARD_COUNT: usize = 400;
/// Length of most buffers: a few whole pages more than one size class, and fringes.
const LEN: usize = 40 * PAGE + 77;

/// Checks a buffer and prints a digest of what it holds.
fn check_and_print(what: &str, buffer: &Buffer) {
    buffer.check_all(what);
    let digest = buffer.mirror(0, buffer.len()).iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    println!("{what}: {} bytes, {digest:016x}", buffer.len());
}

/// A received buffer and copies of it: views of one segment, at several offsets.
fn buffer_and_copies(feeder: &mut Feeder) -> Vec<Buffer> {
    let received = feeder.received_buffer(LEN);
    let aligned = Buffer::copy_of(CopyCall::Memcpy, &received, 0, LEN);
    let shifted = Buffer::copy_of(CopyCall::Memmove, &received, 45, LEN - 45);
    vec![received, aligned, shifted]
}

fn copies_and_moves(feeder: &mut Feeder, buffers: &mut [Buffer]) {
    // The buffer is reused; its copies stay unchanged.
    feeder.receive(InputCall::Read, &mut buffers[0], 0, LEN);
    let [received, aligned, shifted] = buffers else { panic!("three buffers") };
    let len = shifted.len();
    shifted.copy_within(CopyCall::Memmove, 0, 45, len - 45);
    shifted.copy_within(CopyCall::Memmove, PAGE + 13, 0, len - 2 * PAGE);
    aligned.copy_from(CopyCall::Memcpy, 3 * PAGE + 5, received, 5, 20 * PAGE);
    aligned.store(10_000, 300, 7);
    shifted.store(30 * PAGE - 2, 4, 8);
    for buffer in buffers.iter() {
        feeder.send(OutputCall::Send, buffer, 0, buffer.len());
    }
    for (index, buffer) in buffers.iter().enumerate() {
        check_and_print(&format!("copies and moves {index}"), buffer);
    }
}

fn block_lifetimes(feeder: &mut Feeder) {
    let mut buffers = buffer_and_copies(feeder);
    buffers[1].resize(2 * LEN);
    feeder.receive(InputCall::Readv, &mut buffers[1], LEN - 100, LEN);
    buffers[1].resize(LEN / 3);
    buffers[2].resize(8 * LEN);
    let mut zeroed = Buffer::new(Origin::Calloc, LEN);
    zeroed.copy_from(CopyCall::Mempcpy, 100, &buffers[0], 77, LEN - 200);
    for (index, buffer) in buffers.iter().chain([&zeroed]).enumerate() {
        check_and_print(&format!("lives of blocks {index}"), buffer);
    }
    drop(buffers);
    // New blocks from the same call sites.
    let again = buffer_and_copies(feeder);
    feeder.send(OutputCall::Writev, &again[2], 0, again[2].len());
    zeroed.copy_from(CopyCall::Memcpy, 0, &again[0], 0, LEN);
    check_and_print("lives of blocks, again", &zeroed);
}

fn files(feeder: &mut Feeder) {
    let buffers = buffer_and_copies(feeder);
    // SAFETY: memfd_create(2) reads the name, a NUL-terminated literal.
    let file = unsafe { libc::memfd_create(c"faults".as_ptr(), 0) };
    assert!(file >= 0, "memory file");
    let mut back = Buffer::new(Origin::Malloc, LEN);
    // SAFETY: the parts are inside the buffers; the descriptor is ours to close.
    unsafe {
        let part = [buffers[1].part(0, LEN)];
        assert_eq!(FileOutput::Pwrite.output(file, &part, 10), Ok(LEN));
        let part = [back.part(0, LEN)];
        assert_eq!(FileInput::Pread.input(file, &part, 10), Ok(LEN));
        libc::close(file);
    }
    back.note_received(0, buffers[1].mirror(0, LEN));
    let copy = Buffer::copy_of(CopyCall::Memcpy, &back, 1, LEN - 1);
    check_and_print("files", &back);
    check_and_print("files, copied", &copy);
}

fn mappings(feeder: &mut Feeder) {
    let mut buffers = buffer_and_copies(feeder);
    let page = buffers[1].at(0).map_addr(|address| address.next_multiple_of(PAGE));
    // SAFETY: whole pages inside the buffer, which nobody writes to while they are read-only.
    unsafe {
        assert_eq!(libc::mprotect(page.cast(), 8 * PAGE, libc::PROT_READ), 0, "mprotect");
        buffers[1].check_all("a read-only range");
        let both = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(libc::mprotect(page.cast(), 8 * PAGE, both), 0, "mprotect");
    }
    feeder.receive(InputCall::Recvmsg, &mut buffers[1], 0, LEN);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &buffers[1], 0, LEN);
    check_and_print("mappings", &copy);
}

fn threads(feeder: &mut Feeder) {
    let mut buffers = buffer_and_copies(feeder);
    let last = buffers.pop().expect("three buffers");
    let handed = std::thread::spawn(move || {
        let mut copy = Buffer::copy_of(CopyCall::Memcpy, &last, 0, last.len());
        copy.store(5 * PAGE, 9, 11);
        check_and_print("threads, there", &copy);
        copy
    });
    let copy = handed.join().expect("the thread ends well");
    drop(buffers);
    check_and_print("threads, here", &copy);
}

fn forks(feeder: &mut Feeder) {
    let mut buffers = buffer_and_copies(feeder);
    in_child(|| {
        let mut feeder = Feeder::new(99);
        buffers[1].store(PAGE, 2 * PAGE, 12);
        feeder.receive(InputCall::Recv, &mut buffers[2], 0, LEN - PAGE);
        for (index, buffer) in buffers.iter().enumerate() {
            buffer.check_all(&format!("in a child, buffer {index}"));
        }
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffers[2], 0, LEN - PAGE);
        copy.check_all("in a child, copied");
    });
    for (index, buffer) in buffers.iter().enumerate() {
        check_and_print(&format!("forks {index}"), buffer);
    }
}

/// Repeatedly sends the same bytes, and frees their memory while they are in flight.
fn in_flight(feeder: &mut Feeder) {
    const SENT: usize = 25 * PAGE;
    let received = feeder.received_buffer(LEN);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &received, 0, LEN);
    feeder.send(OutputCall::Send, &received, 0, SENT);
    for _ in 0..2 {
        let mut done = 0;
        while done < SENT {
            let mut part = [received.part(done, SENT - done)];
            // SAFETY: the part is inside the buffer.
            let sent = unsafe { OutputCall::Send.output(feeder.near(), &mut part, libc::MSG_NOSIGNAL) };
            done += sent.expect("there is room");
        }
    }
    drop(received);
    let mut others: Vec<Buffer> = (0..3).map(|_| feeder.received_buffer(LEN)).collect();
    others[0].store(0, SENT, 13);
    for _ in 0..2 {
        feeder.check_arrived(&copy, 0, SENT);
    }
    check_and_print("in flight", &copy);
    for (index, buffer) in others.iter().enumerate() {
        check_and_print(&format!("in flight, others {index}"), buffer);
    }
}

/// Copies two pages of each received buffer, which keeps the received segment in memory.
fn hoard(feeder: &mut Feeder) {
    let mut kept = Vec::new();
    let mut received = Buffer::new(Origin::Malloc, HOARD_LEN);
    for number in 0..HOARD_COUNT {
        feeder.receive(InputCall::Recv, &mut received, 0, HOARD_LEN);
        // The blocks of one size are not enough.
        let pages = 8 + 2 * (number % 5);
        kept.push(Buffer::copy_of(CopyCall::Memcpy, &received, 0, pages * PAGE));
    }
    for (index, buffer) in kept.iter().enumerate() {
        check_and_print(&format!("kept {index}"), buffer);
    }
    check_and_print("received last", &received);
}

/// Runs the whole workload, on existing buffers.
fn workload(feeder: &mut Feeder, buffers: &mut [Buffer], may_fork: bool) {
    copies_and_moves(feeder, buffers);
    block_lifetimes(feeder);
    in_flight(feeder);
    files(feeder);
    mappings(feeder);
    if may_fork {
        threads(feeder);
        forks(feeder);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut feeder = Feeder::new(1);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["workload"] => {
            let mut buffers = buffer_and_copies(&mut feeder);
            workload(&mut feeder, &mut buffers, true);
        }
        ["alone"] => {
            let mut buffers = buffer_and_copies(&mut feeder);
            workload(&mut feeder, &mut buffers, false);
        }
        ["hoard"] => hoard(&mut feeder),
        ["under", filter, ref command @ ..] => {
            let command: Vec<_> = command.iter().map(|word| CString::new(*word).expect("no NUL")).collect();
            restrictions::exec_under_filter(filter, &command);
        }
        ["between", action] => {
            let mut buffers = buffer_and_copies(&mut feeder);
            block_lifetimes(&mut feeder);
            println!("{action}: {}", restrictions::apply(action));
            for (index, buffer) in buffers.iter().enumerate() {
                check_and_print(&format!("after {action} {index}"), buffer);
            }
            workload(&mut feeder, &mut buffers, restrictions::may_fork(action));
        }
        _ => panic!("usage: faults workload | alone | hoard | under FILTER COMMAND | between ACTION"),
    }
}

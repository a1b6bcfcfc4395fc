//! Bad pointers in calls that take vectors and headers, and buffers that may not be read or
//! written: the program gets the kernel's result. Each scenario prints what it saw; the test
//! compares that with the output without uncopy.
//!
//! ```text
//! pointers SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::{null_mut, without_provenance_mut};

use libc::{iovec, mmsghdr, msghdr};
use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::calls::{InputCall, OutputCall, message};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{call_result, errno};

const MIB: usize = 1 << 20;

unsafe extern "C" {
    fn preadv2(fd: c_int, parts: *const iovec, count: c_int, at: i64, flags: c_int) -> isize;
    fn pwritev2(fd: c_int, parts: *const iovec, count: c_int, at: i64, flags: c_int) -> isize;
}

/// Two pages, of which the second is inaccessible.
fn page_before_hole() -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping at an address of the kernel's choice; nothing refers to its second page.
    unsafe {
        let start = libc::mmap(null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let hole = start.cast::<u8>().add(PAGE);
        assert_eq!(libc::mprotect(hole.cast(), PAGE, libc::PROT_NONE), 0);
        hole
    }
}

/// Addresses at which a program cannot have an array.
fn bad_addresses() -> Vec<(&'static str, *mut u8)> {
    let hole = page_before_hole();
    vec![
        ("null", null_mut()),
        ("low", without_provenance_mut(PAGE)),
        ("last", without_provenance_mut(usize::MAX - 15)),
        ("kernel", without_provenance_mut(0xffff_8000_0000_0000)),
        ("no access", hole),
        // The first part is mapped, the second is not.
        ("cut", hole.wrapping_sub(size_of::<iovec>())),
        ("cut in a part", hole.wrapping_sub(size_of::<iovec>() + 8)),
    ]
}

/// Makes every call with a vector of two parts at `vector`.
fn every_vector_call(what: &str, feeder: &mut Feeder, file: c_int, vector: *mut iovec) {
    let _ = feeder.offer(200_000);
    let (near, one) = (feeder.near(), 1);
    let mut header = message(&mut []);
    header.msg_iov = vector;
    header.msg_iovlen = 2;
    let mut headers = [mmsghdr { msg_hdr: header, msg_len: 0 }; 1];
    let (header, headers) = (&raw mut header, headers.as_mut_ptr());
    // SAFETY: the kernel refuses the vector, or takes parts of live buffers.
    let outcomes = unsafe {
        [
            ("readv", call_result(libc::readv(near, vector, 2))),
            ("preadv", call_result(libc::preadv(file, vector, 2, 0))),
            ("preadv2", call_result(preadv2(file, vector, 2, 0, 0))),
            ("recvmsg", call_result(libc::recvmsg(near, header, libc::MSG_DONTWAIT))),
            (
                "recvmmsg",
                call_result(libc::recvmmsg(near, headers, one, libc::MSG_DONTWAIT, null_mut()) as isize),
            ),
            ("writev", call_result(libc::writev(near, vector, 2))),
            ("pwritev", call_result(libc::pwritev(file, vector, 2, 0))),
            ("pwritev2", call_result(pwritev2(file, vector, 2, 0, 0))),
            ("sendmsg", call_result(libc::sendmsg(near, header, libc::MSG_DONTWAIT))),
            ("sendmmsg", call_result(libc::sendmmsg(near, headers, one, libc::MSG_DONTWAIT) as isize)),
        ]
    };
    for (call, call_result) in outcomes {
        println!("vector, {what}: {call} {call_result:?}");
    }
}

/// Discards bytes that a failed call left in the socket.
fn drain(feeder: &Feeder, scratch: &Buffer) {
    let mut part = [scratch.part(0, MIB)];
    for fd in [feeder.near(), feeder.far()] {
        // SAFETY: the part is inside the buffer.
        while unsafe { InputCall::Raw.input(fd, &mut part, 0) }.is_ok_and(|got| got > 0) {}
    }
}

fn scratch_file() -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open("scratch").expect("file");
    file.set_len(1 << 20).expect("room");
    file
}

/// Vectors that are unmapped or partially mapped.
fn bad_vectors(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let file = scratch_file();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let good = feeder.copied_buffer(MIB);
    let scratch = Buffer::new(Origin::Mapped, MIB);
    for (what, address) in bad_addresses() {
        if what == "cut" {
            // SAFETY: the part before the hole is inside the mapping.
            unsafe { address.cast::<iovec>().write_unaligned(good.part(0, 300_000)) };
        }
        every_vector_call(what, &mut feeder, fd, address.cast());
        drain(&feeder, &scratch);
    }
    good.check_all("a buffer that only bad vectors named");
}

/// Headers that are unmapped or partially mapped, and headers with bad vectors among good ones.
fn bad_headers(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut good = feeder.copied_buffer(MIB);
    let scratch = Buffer::new(Origin::Mapped, MIB);
    let near = feeder.near();
    for (what, address) in bad_addresses() {
        let (stream, offered) = feeder.offer(200_000);
        let (one, many) = (address.cast::<msghdr>(), address.cast::<mmsghdr>());
        // SAFETY: the address of the header is not mapped; the kernel refuses it with EFAULT.
        unsafe {
            println!("header, {what}: recvmsg {:?}", call_result(libc::recvmsg(near, one, 0)));
            println!("header, {what}: sendmsg {:?}", call_result(libc::sendmsg(near, one, 0)));
            let got = libc::recvmmsg(near, many, 2, libc::MSG_DONTWAIT, null_mut());
            println!("header, {what}: recvmmsg {:?}", call_result(got as isize));
            let sent = libc::sendmmsg(near, many, 2, libc::MSG_DONTWAIT);
            println!("header, {what}: sendmmsg {:?}", call_result(sent as isize));
        }
        receive_leftover(&feeder, &mut good, stream, offered);
    }
    // A good message, then one whose vector is unmapped: the first is sent, and received.
    for (what, address) in bad_addresses() {
        let mut parts = [good.part(0, 100_000)];
        let mut bad = message(&mut []);
        bad.msg_iov = address.cast();
        bad.msg_iovlen = 2;
        let first = mmsghdr { msg_hdr: message(&mut parts), msg_len: 0 };
        let mut headers = [first, mmsghdr { msg_hdr: bad, msg_len: 0 }];
        // SAFETY: the kernel refuses the second message.
        let sent = unsafe { libc::sendmmsg(near, headers.as_mut_ptr(), 2, libc::MSG_DONTWAIT) };
        println!("second message, {what}: sendmmsg {sent} of {} bytes", headers[0].msg_len);
        let (stream, offered) = feeder.offer(100_000);
        // SAFETY: the kernel refuses the second message; the parts of the first are inside `good`.
        let got = unsafe { libc::recvmmsg(near, headers.as_mut_ptr(), 2, libc::MSG_DONTWAIT, null_mut()) };
        println!("second message, {what}: recvmmsg {got} of {} bytes", headers[0].msg_len);
        good.note_received_stream(0, offered, stream, 0);
        good.check_all("received before a bad message");
        drain(&feeder, &scratch);
    }
    good.check_all("a buffer that bad headers named");
}

/// Receives bytes that a failed call left in the socket.
fn receive_leftover(feeder: &Feeder, buffer: &mut Buffer, stream: u64, offered: usize) {
    let mut part = [buffer.part(0, MIB)];
    // SAFETY: the part is inside the buffer.
    let got = unsafe { InputCall::Recv.input(feeder.near(), &mut part, 0) };
    assert_eq!(got, Ok(offered), "what a refused call left in the socket");
    buffer.note_received_stream(0, offered, stream, 0);
    buffer.check_all("received after a refused call");
}

/// Buffers of the allocator that are read-only or inaccessible: the kernel refuses them, or moves
/// the bytes in front of them.
fn protected_buffers(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let scratch = Buffer::new(Origin::Mapped, MIB);
    for protection in [libc::PROT_READ, libc::PROT_NONE] {
        for call in InputCall::SOCKET {
            let mut target = feeder.copied_buffer(MIB);
            let page = target.at(PAGE).map_addr(|address| address & !(PAGE - 1));
            let protect = |protection| {
                // SAFETY: the pages are inside the buffer; nothing reads them while they are closed.
                let changed = unsafe { libc::mprotect(page.cast(), 64 * PAGE, protection) };
                assert_eq!(changed, 0, "mprotect: {}", errno());
            };
            protect(protection);
            let _ = feeder.offer(200_000);
            let mut part = [libc::iovec { iov_base: page.cast::<c_void>(), iov_len: 60 * PAGE }];
            // SAFETY: the kernel refuses to store there.
            let got = unsafe { black_box(*call).input(feeder.near(), &mut part, 0) };
            println!("input to {protection}: {call:?} {got:?}");
            drain(&feeder, &scratch);
            if protection == libc::PROT_NONE {
                for call in OutputCall::SOCKET {
                    // SAFETY: the kernel refuses to read there.
                    let sent = unsafe { call.output(feeder.near(), &mut part, libc::MSG_NOSIGNAL) };
                    println!("output from {protection}: {call:?} {sent:?}");
                }
            }
            protect(libc::PROT_READ | libc::PROT_WRITE);
            target.check_all("a buffer that could not be written");
            feeder.receive(*call, &mut target, 0, MIB);
            target.check_all("received when it could be written again");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "bad_vectors" => bad_vectors(seed),
        "bad_headers" => bad_headers(seed),
        "protected_buffers" => protected_buffers(seed),
        other => panic!("unknown scenario {other}"),
    }
}

//! Results of the calls other than the bytes they move: return values, errno, flags, messages. Each
//! scenario prints what it saw; the test compares that with the output without uncopy.
//!
//! ```text
//! semantics SCENARIO
//! ```

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{null_mut, without_provenance_mut};

use libc::iovec;
use uncopy_tests::calls::{
    CopyCall, FileInput, FileOutput, InputCall, OutputCall, message, set_buffer_size, set_nonblocking,
};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, CallResult, errno, set_errno};

const MIB: usize = 1 << 20;

fn part(address: *mut u8, len: usize) -> iovec {
    iovec { iov_base: address.cast(), iov_len: len }
}

fn input(call: InputCall, fd: i32, parts: &mut [iovec], flags: i32) -> CallResult {
    // SAFETY: the scenarios pass parts of live buffers, or bad ones on purpose.
    unsafe { call.input(fd, parts, flags) }
}

fn output(call: OutputCall, fd: i32, parts: &mut [iovec], flags: i32) -> CallResult {
    // SAFETY: the scenarios pass parts of live buffers, or bad ones on purpose.
    unsafe { call.output(fd, parts, flags) }
}

/// Prints the outcome of every call on `fd` with `parts`.
fn every_call(what: &str, fd: i32, parts: &[iovec], inputs: bool, outputs: bool) {
    let offset = 0;
    if inputs {
        for call in InputCall::SOCKET {
            println!("{what}: {call:?} {:?}", input(*call, fd, &mut parts.to_vec(), 0));
        }
        for call in FileInput::ALL {
            // SAFETY: the scenarios pass parts of live buffers, or bad ones that the kernel refuses.
            println!("{what}: {call:?} {:?}", unsafe { call.input(fd, parts, offset) });
        }
    }
    if outputs {
        for call in OutputCall::SOCKET {
            println!("{what}: {call:?} {:?}", output(*call, fd, &mut parts.to_vec(), libc::MSG_NOSIGNAL));
        }
        for call in FileOutput::ALL {
            // SAFETY: the scenarios pass parts of live buffers, or bad ones that the kernel refuses.
            println!("{what}: {call:?} {:?}", unsafe { call.output(fd, parts, offset) });
        }
    }
}

/// Descriptors that cannot do what is asked.
fn bad_descriptors() {
    let mut feeder = Feeder::new(1);
    let buffer = feeder.copied_buffer(MIB);
    let parts = [buffer.part(0, MIB / 2), buffer.part(MIB / 2, MIB / 2)];
    every_call("closed", -1, &parts, true, true);
    every_call("never opened", 9999, &parts, true, true);
    let directory = std::fs::File::open("/").expect("/");
    every_call("directory", directory.as_raw_fd(), &parts, true, true);
    let (reader, writer) = std::io::pipe().expect("pipe");
    every_call("read end", reader.as_raw_fd(), &parts, false, true);
    every_call("write end", writer.as_raw_fd(), &parts, true, false);
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    every_call("null device", null.as_raw_fd(), &parts, true, true);
    buffer.check_all("a buffer that no call could change");
}

/// Sockets without data, with a closed other end, and a broken pipe.
fn ends_of_streams() {
    let mut feeder = Feeder::new(2);
    let mut buffer = feeder.copied_buffer(MIB);
    let parts = [buffer.part(0, MIB / 2), buffer.part(MIB / 2, MIB / 2)];
    every_call("empty socket", feeder.near(), &parts, true, false);
    let (reader, writer) = std::io::pipe().expect("pipe");
    set_nonblocking(reader.as_raw_fd(), true);
    every_call("empty pipe", reader.as_raw_fd(), &parts, true, false);
    drop(writer);
    every_call("pipe without a writer", reader.as_raw_fd(), &parts, true, false);
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    every_call("pipe without a reader", writer.as_raw_fd(), &parts, false, true);
    let (seed, offered) = feeder.offer(300_000);
    // SAFETY: shutdown(2) takes integers and accesses no memory.
    unsafe { libc::shutdown(feeder.far(), libc::SHUT_WR) };
    println!("before the end: {:?}", input(InputCall::Read, feeder.near(), &mut [buffer.part(0, MIB)], 0));
    buffer.note_received_stream(0, offered, seed, 0);
    every_call("after the end", feeder.near(), &parts, true, false);
    // SAFETY: shutdown(2) takes integers and accesses no memory.
    unsafe { libc::shutdown(feeder.near(), libc::SHUT_WR) };
    every_call("after own end", feeder.near(), &parts, false, true);
    buffer.check_all("after the end");
}

/// Maps a megabyte with a protection.
fn map_megabyte(protection: i32) -> *mut u8 {
    // SAFETY: a fresh private mapping disturbs nothing.
    let start =
        unsafe { libc::mmap(null_mut(), MIB, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    start.cast()
}

/// Addresses that are not mapped in the program.
fn bad_addresses() {
    let mut feeder = Feeder::new(3);
    let mut good = feeder.copied_buffer(MIB);
    let nowhere = [null_mut(), without_provenance_mut(4096), without_provenance_mut(usize::MAX - 9000)];
    for address in nowhere.into_iter().chain([map_megabyte(libc::PROT_NONE), map_megabyte(libc::PROT_READ)]) {
        let readable = address.addr() > 1 << 32 && address.addr() < 1 << 48;
        for call in InputCall::SOCKET {
            let (_, offered) = feeder.offer(200_000);
            let call_result = input(*call, feeder.near(), &mut [part(address, MIB)], 0);
            println!("input to a bad address: {call:?} {call_result:?}");
            let mut left = [good.part(0, offered)];
            // Bytes that the failed call left are removed.
            while input(InputCall::Raw, feeder.near(), &mut left, 0).is_ok() {}
        }
        for call in OutputCall::SOCKET {
            if readable {
                continue;
            }
            let call_result = output(*call, feeder.near(), &mut [part(address, MIB)], libc::MSG_NOSIGNAL);
            println!("output from a bad address: {call:?} {call_result:?}");
        }
    }
    // Removing the bytes used the start of the buffer.
    good.set(0, MIB / 2, 1);
    // A good part and a bad one: the kernel decides how much is moved, but not beyond the good part.
    for call in [InputCall::Readv, InputCall::Recvmsg, InputCall::Preadv2] {
        let (seed, offered) = feeder.offer(200_000);
        let mut parts = [good.part(0, 65536), part(null_mut(), MIB)];
        let done = input(call, feeder.near(), &mut parts, 0);
        assert!(matches!(done, Ok(0..=65536) | Err(libc::EFAULT)), "{call:?}: {done:?}");
        good.note_received_stream(0, done.unwrap_or(0), seed, 0);
        good.check(0, done.unwrap_or(0), "the good part");
        let mut rest = Buffer::new(Origin::Mapped, offered);
        let mut left = [rest.part(0, offered)];
        while input(InputCall::Raw, feeder.near(), &mut left, 0).is_ok() {}
        rest.set(0, offered, 0);
        good.set(0, 65536, 2);
    }
    good.check_all("the good buffer");
    // A length beyond the buffer's end is no error while the data is short.
    let mut short = Buffer::new(Origin::Malloc, 200_000);
    for call in InputCall::SOCKET {
        let (seed, offered) = feeder.offer(150_000);
        let call_result = input(*call, feeder.near(), &mut [part(short.at(0), 1 << 30)], 0);
        println!("a gibibyte into a small buffer: {call:?} {call_result:?}");
        short.note_received_stream(0, offered, seed, 0);
        short.check_all("a small buffer with a long length");
    }
    let (_, _) = feeder.offer(150_000);
    println!(
        "all memory: {:?}",
        input(InputCall::Recv, feeder.near(), &mut [part(short.at(0), usize::MAX)], 0)
    );
}

/// `errno` is unchanged by calls that succeed.
fn errno_is_kept() {
    let mut feeder = Feeder::new(4);
    let mut received = feeder.received_buffer(300_000);
    for call in CopyCall::ALL {
        let mut other = Buffer::new(Origin::Malloc, 300_000);
        set_errno(1234);
        other.copy_from(*call, 0, &received, 0, 300_000);
        assert_eq!(errno(), 1234, "{call:?} changed errno");
        set_errno(1234);
        other.check_all("a copy");
        assert_eq!(errno(), 1234, "a fault changed errno");
    }
    for call in InputCall::SOCKET {
        let (seed, offered) = feeder.offer(300_000);
        set_errno(1234);
        let got = input(*call, feeder.near(), &mut [received.part(0, offered)], 0);
        assert_eq!((got, errno()), (Ok(offered), 1234), "{call:?} changed errno");
        received.note_received_stream(0, offered, seed, 0);
    }
    for call in OutputCall::SOCKET {
        set_errno(1234);
        let sent = output(*call, feeder.near(), &mut [received.part(0, 300_000)], 0);
        assert_eq!((sent, errno()), (Ok(300_000), 1234), "{call:?} changed errno");
        feeder.check_arrived(&received, 0, 300_000);
    }
    // SAFETY: allocation and release of fresh memory.
    unsafe {
        for len in [100, 50_000, MIB, 40 * MIB] {
            set_errno(1234);
            let first = libc::malloc(len);
            let second = libc::realloc(first, len * 2);
            libc::free(second);
            assert_eq!(errno(), 1234, "the allocator changed errno at {len} bytes");
        }
    }
}

fn datagram_pair() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: the array takes two descriptors, which nothing else owns.
    unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, ends.as_mut_ptr()), 0);
        for end in ends {
            set_buffer_size(end, libc::SO_SNDBUF, 2 << 20);
        }
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

/// Datagrams longer than the buffer, with and without `MSG_TRUNC`, and the flags of `recvmsg`.
fn cut_datagrams() {
    let (near, far) = datagram_pair();
    let mut feeder = Feeder::new(5);
    let source = feeder.copied_buffer(150_000);
    let mut target = feeder.copied_buffer(MIB);
    for flags in [0, libc::MSG_TRUNC, libc::MSG_PEEK | libc::MSG_TRUNC] {
        for call in InputCall::WITH_FLAGS {
            output(OutputCall::Send, far.as_raw_fd(), &mut [source.part(0, 150_000)], 0).expect("sent");
            let got = input(*call, near.as_raw_fd(), &mut [target.part(7, 70_000)], flags);
            println!("{call:?} {flags:#x}: {got:?}");
            target.note_received(7, source.mirror(0, 70_000));
            target.check_all("a cut datagram and what is around it");
            if flags & libc::MSG_PEEK != 0 {
                input(InputCall::Raw, near.as_raw_fd(), &mut [target.part(0, 1)], 0).expect("the datagram");
                target.note_received(0, source.mirror(0, 1));
            }
        }
    }
    output(OutputCall::Sendmsg, far.as_raw_fd(), &mut [source.part(0, 90_000), source.part(0, 60_000)], 0)
        .expect("sent");
    let mut parts = [target.part(0, 50_000), target.part(60_000, 50_000)];
    let mut header = message(&mut parts);
    // SAFETY: the header describes parts of a live buffer.
    let got = unsafe { libc::recvmsg(near.as_raw_fd(), &raw mut header, 0) };
    println!("recvmsg of a long datagram: {got}, flags {:#x}", header.msg_flags);
    target.note_received(0, source.mirror(0, 50_000));
    target.note_received(60_000, source.mirror(50_000, 40_000));
    target.note_received(100_000, source.mirror(0, 10_000));
    target.check_all("a scattered datagram");
}

fn many_messages() {
    let (near, far) = datagram_pair();
    let mut feeder = Feeder::new(6);
    let source = feeder.copied_buffer(600_000);
    let mut targets: Vec<Buffer> = (0..10).map(|_| feeder.copied_buffer(120_000)).collect();
    for round in 0..3 {
        let lengths = [60_000, 1, 16_384, 50_000, 4096 + round];
        let mut at = 0;
        let mut parts: Vec<[iovec; 2]> = Vec::new();
        for len in lengths {
            parts.push([source.part(at, len / 2), source.part(at + len / 2, len - len / 2)]);
            at += len;
        }
        let mut headers: Vec<libc::mmsghdr> =
            parts.iter_mut().map(|parts| libc::mmsghdr { msg_hdr: message(parts), msg_len: 0 }).collect();
        // SAFETY: the headers describe parts of live buffers.
        let sent = unsafe { libc::sendmmsg(far.as_raw_fd(), headers.as_mut_ptr(), 5, 0) };
        let lens: Vec<u32> = headers.iter().map(|header| header.msg_len).collect();
        println!("sendmmsg: {sent} {lens:?}");
        let mut parts: Vec<[iovec; 1]> =
            targets.iter().map(|target| [target.part(100 * round, 110_000)]).collect();
        let mut headers: Vec<libc::mmsghdr> =
            parts.iter_mut().map(|parts| libc::mmsghdr { msg_hdr: message(parts), msg_len: 0 }).collect();
        let mut limit = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        // SAFETY: the headers describe parts of live buffers.
        let got = unsafe {
            libc::recvmmsg(near.as_raw_fd(), headers.as_mut_ptr(), 10, libc::MSG_DONTWAIT, &raw mut limit)
        };
        let lens: Vec<u32> = headers.iter().map(|header| header.msg_len).collect();
        println!("recvmmsg: {got} {lens:?}");
        let mut from = 0;
        for (target, len) in targets.iter_mut().zip(lengths) {
            target.note_received(100 * round, source.mirror(from, len));
            from += len;
        }
        for target in &targets {
            target.check_all("one of many messages");
        }
    }
}

/// Descriptors and credentials that travel with a large message.
fn control_messages() {
    let mut feeder = Feeder::new(7);
    let source = feeder.copied_buffer(MIB / 2);
    let mut target = feeder.copied_buffer(MIB);
    let (reader, _writer) = std::io::pipe().expect("pipe");
    let on = 1;
    // SAFETY: the option's value is one int.
    unsafe { libc::setsockopt(feeder.far(), libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const on).cast(), 4) };
    let mut control = [0u64; 32];
    let mut parts = [source.part(0, 200_000), source.part(200_000, MIB / 2 - 200_000)];
    let mut header = message(&mut parts);
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the control buffer has room for one descriptor; headers describe live buffers.
    unsafe {
        header.msg_controllen = usize::try_from(libc::CMSG_SPACE(4)).expect("small");
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = usize::try_from(libc::CMSG_LEN(4)).expect("small");
        libc::CMSG_DATA(first).cast::<i32>().write_unaligned(reader.as_raw_fd());
        println!("sendmsg: {}", libc::sendmsg(feeder.near(), &raw const header, 0));
    }
    let mut at = 0;
    while at < MIB / 2 {
        let mut control = [0u64; 32];
        let mut parts = [target.part(at, 100_000), target.part(at + 100_000, MIB / 2 - 100_000)];
        let mut header = message(&mut parts);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = 256;
        // SAFETY: the header describes `parts` and the 256 bytes of `control`, which outlive the call.
        let got = unsafe { libc::recvmsg(feeder.far(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        println!("recvmsg: {got}, control {}, flags {:#x}", header.msg_controllen, header.msg_flags);
        let got = usize::try_from(got).expect("received");
        target.note_received(at, source.mirror(at, got));
        at += got;
        // SAFETY: the kernel filled the control buffer up to msg_controllen.
        unsafe {
            let mut one = libc::CMSG_FIRSTHDR(&raw const header);
            while !one.is_null() {
                println!(
                    "  level {} type {} length {}",
                    (*one).cmsg_level,
                    (*one).cmsg_type,
                    (*one).cmsg_len
                );
                one = libc::CMSG_NXTHDR(&raw const header, one);
            }
        }
    }
    target.check_all("a message with a descriptor");
}

/// Numbers of parts and lengths at and beyond the limits.
fn vector_limits() {
    let mut feeder = Feeder::new(8);
    let mut buffer = feeder.copied_buffer(MIB);
    let many = |count: usize, len: usize| -> Vec<iovec> {
        (0..count).map(|index| buffer.part(index * len, len)).collect()
    };
    let (seed, offered) = feeder.offer(700_000);
    println!("1024 parts: {:?}", input(InputCall::Readv, feeder.near(), &mut many(1024, 1000), 0));
    buffer.note_received_stream(0, offered, seed, 0);
    buffer.check_all("a thousand parts");
    for call in OutputCall::SOCKET.iter().filter(|call| call.is_vector()) {
        let mut parts: Vec<iovec> = (0..1024).map(|index| buffer.part(index * 1000, 700)).collect();
        println!("{call:?} of 1024 parts: {:?}", output(*call, feeder.near(), &mut parts, 0));
        for index in 0..1024 {
            feeder.check_arrived(&buffer, index * 1000, 700);
        }
        let mut parts: Vec<iovec> = (0..1025).map(|index| buffer.part(index * 1000, 700)).collect();
        println!("{call:?} of 1025 parts: {:?}", output(*call, feeder.near(), &mut parts, 0));
    }
    for call in InputCall::SOCKET.iter().filter(|call| call.is_vector()) {
        let mut parts: Vec<iovec> = (0..1025).map(|index| buffer.part(index * 1000, 700)).collect();
        println!("{call:?} into 1025 parts: {:?}", input(*call, feeder.near(), &mut parts, 0));
        let mut parts = [part(buffer.at(0), usize::MAX / 2), part(buffer.at(0), usize::MAX / 2)];
        println!("{call:?} into too much: {:?}", input(*call, feeder.near(), &mut parts, 0));
    }
    // One of three parts is too long, or passes the end of the address space: nothing is moved.
    for (odd, len) in (0..3).flat_map(|odd| [usize::MAX, usize::MAX - MIB / 2 + 1].map(|len| (odd, len))) {
        let mut parts = [buffer.part(0, MIB / 2), buffer.part(MIB / 2, MIB / 2), buffer.part(0, MIB)];
        parts[odd].iov_len = len;
        for call in OutputCall::SOCKET.iter().filter(|call| call.is_vector()) {
            println!("{call:?} of part {odd} of {len:#x}: {:?}", output(*call, feeder.near(), &mut parts, 0));
        }
        for call in InputCall::SOCKET.iter().filter(|call| call.is_vector()) {
            println!(
                "{call:?} into part {odd} of {len:#x}: {:?}",
                input(*call, feeder.near(), &mut parts, 0)
            );
        }
    }
    // SAFETY: a negative count is refused before any part is looked at.
    let negative = unsafe { libc::readv(feeder.near(), null_mut(), -1) };
    println!("negative count: {negative} errno {}", errno());
    // SAFETY: a count of 0 makes the kernel look at no part.
    let none = unsafe { libc::writev(feeder.near(), null_mut(), 0) };
    println!("no part: {none}");
    let mut zeroes = [part(null_mut(), 0), buffer.part(5, 0), buffer.part(0, 100_000), part(null_mut(), 0)];
    println!("empty parts: {:?}", output(OutputCall::Writev, feeder.near(), &mut zeroes, 0));
    feeder.check_arrived(&buffer, 0, 100_000);
}

fn files_and_devices() {
    let mut feeder = Feeder::new(9);
    let mut buffer = feeder.copied_buffer(MIB);
    let parts = [buffer.part(0, MIB)];
    let (reader, _writer) = std::io::pipe().expect("pipe");
    for call in FileInput::ALL {
        // SAFETY: the part is inside the buffer.
        let negative = unsafe { call.input(reader.as_raw_fd(), &parts, -2) };
        println!("{call:?} of a pipe at -2: {negative:?}");
    }
    let zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
    println!("zeroes: {:?}", input(InputCall::Read, zero.as_raw_fd(), &mut [buffer.part(100, 500_000)], 0));
    buffer.set(100, 500_000, 0);
    buffer.check_all("zeroes that were read");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    println!("full device: {:?}", output(OutputCall::Write, full.as_raw_fd(), &mut parts.clone(), 0));
    let maps = std::fs::read("/proc/self/maps").expect("maps");
    assert!(maps.starts_with(b"5") || maps.starts_with(b"7"), "maps");
    let random = std::fs::File::open("/dev/urandom").expect("/dev/urandom");
    println!("random: {:?}", input(InputCall::Read, random.as_raw_fd(), &mut [buffer.part(0, MIB)], 0));
    let snapshot = oracle::OracleBytes::new(MIB);
    // SAFETY: both `snapshot` and `buffer` have `MIB` bytes.
    unsafe { oracle::copy(snapshot.pointer(), buffer.at(0), MIB) };
    buffer.note_received(0, snapshot.slice(0, MIB));
    let mut copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
    copy.store(70_000, 1, 3);
    copy.check_all("a copy of random bytes");
    buffer.check_all("random bytes");
    // SAFETY: timeouts are set on a socket of this program.
    unsafe {
        let limit = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
        let size = u32::try_from(size_of_val(&limit)).expect("small");
        set_nonblocking(feeder.near(), false);
        libc::setsockopt(feeder.near(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
    }
    println!("timeout: {:?}", input(InputCall::Recv, feeder.near(), &mut [copy.part(0, MIB)], 0));
    let (seed, offered) = feeder.offer(100_000);
    let flags = libc::MSG_WAITALL;
    println!(
        "timeout with data: {:?}",
        input(InputCall::Recv, feeder.near(), &mut [copy.part(0, MIB)], flags)
    );
    copy.note_received_stream(0, offered, seed, 0);
    copy.check_all("after a timeout");
}

/// A copy to an unmapped address ends the program as without uncopy.
fn copy_to_nowhere() {
    let mut feeder = Feeder::new(10);
    let buffer = feeder.copied_buffer(MIB);
    println!("before");
    // SAFETY: the address is never mapped: the copy ends the program by SIGSEGV, as the test expects.
    unsafe { CopyCall::Memcpy.copy(without_provenance_mut(8192), buffer.at(0), MIB) };
    println!("after");
}

extern "C" fn on_segv(_signal: i32, information: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; write and _exit are async-signal-safe.
    unsafe {
        let right = (*information).si_addr().addr() < 8192 + MIB;
        let text: &[u8] = if right { b"handler saw the address\n" } else { b"handler saw another address\n" };
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(0);
    }
}

/// The program's own SIGSEGV handler gets its faults.
fn own_fault_handler() {
    // SAFETY: zeroes are a valid sigaction; the handler makes async-signal-safe calls only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_segv as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const action, null_mut()), 0);
    }
    copy_to_nowhere();
}

/// A write to a broken pipe raises SIGPIPE unless the program ignores it.
fn broken_pipe_signal() {
    let mut feeder = Feeder::new(11);
    let buffer = feeder.copied_buffer(MIB);
    let (reader, writer) = std::io::pipe().expect("pipe");
    drop(reader);
    // SAFETY: the default action is what a C program starts with.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    println!("before");
    let _ = output(OutputCall::Write, writer.as_raw_fd(), &mut [buffer.part(0, MIB)], 0);
    println!("after");
}

fn main() {
    let scenario = std::env::args().nth(1).expect("a scenario");
    match scenario.as_str() {
        "bad_descriptors" => bad_descriptors(),
        "ends_of_streams" => ends_of_streams(),
        "bad_addresses" => bad_addresses(),
        "errno_is_kept" => errno_is_kept(),
        "cut_datagrams" => cut_datagrams(),
        "many_messages" => many_messages(),
        "control_messages" => control_messages(),
        "vector_limits" => vector_limits(),
        "files_and_devices" => files_and_devices(),
        "copy_to_nowhere" => copy_to_nowhere(),
        "own_fault_handler" => own_fault_handler(),
        "broken_pipe_signal" => broken_pipe_signal(),
        other => panic!("unknown scenario {other}"),
    }
}

//! Access of the kernel to viewed buffers by calls that nothing interposes on, or after the call
//! that asked for it.
//!
//! ```text
//! kernel SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use uncopy_tests::calls::{CopyCall, InputCall, OutputCall, message, set_buffer_size, wait_ready};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, OracleBytes, errno};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Opens a scratch file in the working directory.
fn scratch_file(name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).open(name).expect("scratch file")
}

/// Fails unless the file holds the buffer's bytes at `at`.
fn expect_file(file: &File, at: u64, buffer: &Buffer, from: usize, len: usize) {
    let found = OracleBytes::new(len);
    let offset = i64::try_from(at).expect("small");
    // SAFETY: `found` has room for the `len` bytes that pread(2) writes.
    let got = unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), found.pointer(), len, offset) };
    assert_eq!(usize::try_from(got), Ok(len), "length of the file");
    assert!(found.slice(0, len) == buffer.mirror(from, len), "the file holds other bytes at {at}");
}

/// `aio_write` and `aio_read`, which glibc serves in threads of its own.
fn posix_aio(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let file = scratch_file("aio");
    for round in 0..10 {
        let source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        for write in [true, false] {
            let buffer = if write { source.at(0) } else { target.at(0) };
            // SAFETY: the control block lives until the request is done, as does the buffer.
            unsafe {
                let mut request: libc::aiocb = std::mem::zeroed();
                request.aio_fildes = file.as_raw_fd();
                request.aio_buf = buffer.cast();
                request.aio_nbytes = MIB;
                request.aio_offset = round * 5000;
                let request = &raw mut request;
                assert_eq!(if write { libc::aio_write(request) } else { libc::aio_read(request) }, 0);
                let start = Instant::now();
                while libc::aio_error(request) == libc::EINPROGRESS {
                    assert!(start.elapsed() < Duration::from_secs(10), "aio hangs");
                    libc::sched_yield();
                }
                assert_eq!((libc::aio_error(request), libc::aio_return(request)), (0, 1 << 20));
            }
        }
        target.note_received(0, source.mirror(0, MIB));
        source.check_all("written by aio");
        target.check_all("read by aio");
    }
}

/// The parts of io_uring's rings that one request at a time needs.
struct Ring {
    fd: OwnedFd,
    submissions: *mut u8,
    completions: *mut u8,
    entries: *mut u8,
    offsets: [u32; 20],
}

/// `struct io_uring_params` is thirty words; offsets of the submission ring begin at word 10, those
/// of the completion ring at word 20.
const PARAMETER_WORDS: usize = 30;
const OP_READ: u8 = 22;
const OP_WRITE: u8 = 23;
const FORCE_ASYNC: u8 = 1 << 4;

impl Ring {
    /// Sets up a ring; `None` where the machine does not allow io_uring.
    fn new() -> Option<Self> {
        let mut parameters = [0u32; PARAMETER_WORDS];
        // SAFETY: the array has the size of io_uring_params; mappings are of the ring's own size.
        unsafe {
            let fd = libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr());
            if fd < 0 {
                return None;
            }
            let fd = OwnedFd::from_raw_fd(c_int::try_from(fd).expect("descriptor"));
            let map = |offset: i64| {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let start =
                    libc::mmap(null_mut(), 4096, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset);
                assert_ne!(start, libc::MAP_FAILED, "ring: errno {}", errno());
                start.cast::<u8>()
            };
            let (submissions, completions, entries) = (map(0), map(0x800_0000), map(0x1000_0000));
            let mut offsets = [0; 20];
            offsets.copy_from_slice(&parameters[10..]);
            Some(Self { fd, submissions, completions, entries, offsets })
        }
    }

    fn word(ring: *mut u8, offset: u32) -> &'static AtomicU32 {
        // SAFETY: the kernel gave the offset of an aligned word of a mapping that is never unmapped.
        unsafe { AtomicU32::from_ptr(ring.add(offset as usize).cast()) }
    }

    /// Makes one request and waits for it; returns the result.
    fn run(&self, operation: u8, flags: u8, file: &File, at: u64, buffer: *mut u8, len: usize) -> i32 {
        let tail = Self::word(self.submissions, self.offsets[1]);
        let mask = Self::word(self.submissions, self.offsets[2]).load(Ordering::Relaxed);
        let index = tail.load(Ordering::Relaxed) & mask;
        let mut entry = [0u8; 64];
        entry[0] = operation;
        entry[1] = flags;
        entry[4..8].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
        entry[8..16].copy_from_slice(&at.to_ne_bytes());
        entry[16..24].copy_from_slice(&buffer.expose_provenance().to_ne_bytes());
        entry[24..28].copy_from_slice(&u32::try_from(len).expect("small").to_ne_bytes());
        // SAFETY: `index` is one of the four entries of 64 bytes.
        unsafe { oracle::copy(self.entries.add(64 * index as usize), entry.as_ptr(), 64) };
        // The array of indices begins at the seventh offset.
        Self::word(self.submissions, self.offsets[6] + 4 * index).store(index, Ordering::Relaxed);
        tail.fetch_add(1, Ordering::Release);
        // SAFETY: io_uring_enter takes integers here; 1 asks to wait for completions.
        let entered = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.fd.as_raw_fd(), 1, 1, 1, null_mut::<c_void>(), 0)
        };
        assert_eq!(entered, 1, "io_uring_enter: errno {}", errno());
        let head = Self::word(self.completions, self.offsets[10]);
        let ready = Self::word(self.completions, self.offsets[11]).load(Ordering::Acquire);
        let head_index = head.load(Ordering::Relaxed);
        assert_ne!(head_index, ready, "no completion");
        let mask = Self::word(self.completions, self.offsets[12]).load(Ordering::Relaxed);
        // A completion is 16 bytes; the result is its third word.
        let result = Self::word(self.completions, self.offsets[15] + 16 * (head_index & mask) + 8);
        let result = result.load(Ordering::Acquire).cast_signed();
        head.store(head_index.wrapping_add(1), Ordering::Release);
        result
    }
}

/// Reads and writes by io_uring, in the calling thread and in the kernel's workers.
fn io_uring(seed: u64) {
    let Some(ring) = Ring::new() else {
        println!("io_uring is not allowed here");
        return;
    };
    let mut feeder = Feeder::new(seed);
    let file = scratch_file("ring");
    for round in 0..20 {
        let flags = if round % 2 == 0 { 0 } else { FORCE_ASYNC };
        let source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        let at = round * 4999;
        let len = MIB - 100;
        assert_eq!(ring.run(OP_WRITE, flags, &file, at, source.at(77), len), 1_048_476, "write");
        expect_file(&file, at, &source, 77, len);
        assert_eq!(ring.run(OP_READ, flags, &file, at, target.at(5), len), 1_048_476, "read");
        target.note_received(5, source.mirror(77, len));
        source.check_all("written by io_uring");
        target.check_all("read by io_uring");
    }
}

/// `vmsplice` puts references to a buffer's pages into a pipe; the buffer is reused only after the
/// pipe was read.
fn vmsplice(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let (reader, writer) = std::io::pipe().expect("pipe");
    let wire = OracleBytes::new(65_536);
    for round in 0..10 {
        let mut buffer = feeder.copied_buffer(400_000);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, 400_000);
        let mut done = 0;
        while done < 400_000 {
            let part = buffer.part(done, (400_000 - done).min(60_000));
            // SAFETY: the part is inside the buffer.
            let sent = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const part, 1, 0) };
            let sent = usize::try_from(sent).expect("vmsplice");
            // Other buffers with the same bytes are made and freed while the pipe refers to the pages.
            drop(Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, 400_000));
            let mut got = 0;
            while got < sent {
                // SAFETY: the wire has room for `sent` bytes, and `got` is below `sent`.
                got +=
                    unsafe { oracle::raw_read(reader.as_raw_fd(), wire.at(got), sent - got) }.expect("read");
            }
            assert!(wire.slice(0, sent) == buffer.mirror(done, sent), "vmsplice of {done}+{sent}");
            done += sent;
        }
        feeder.receive(InputCall::Recv, &mut buffer, round * 100, 300_000);
        buffer.check_all("received after vmsplice");
        copy.check_all("copied before vmsplice");
    }
}

/// Waits for the kernel's notification that `sends` sends are complete.
fn wait_for_notifications(fd: c_int, sends: u32) {
    let mut seen = 0;
    while seen < sends {
        wait_ready(fd, 0);
        let mut control = [0u64; 64];
        let mut header = message(&mut []);
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = 512;
        // SAFETY: the header describes live buffers; the kernel fills the control buffer with
        // well-formed messages, whose data is a sock_extended_err.
        unsafe {
            if libc::recvmsg(fd, &raw mut header, libc::MSG_ERRQUEUE) < 0 {
                assert_eq!(errno(), libc::EAGAIN, "error queue");
                continue;
            }
            let mut one = libc::CMSG_FIRSTHDR(&raw const header);
            while !one.is_null() {
                let words = libc::CMSG_DATA(one).cast::<u32>();
                // ee_info and ee_data: the first and the last send of this notification.
                let (first, last) = (words.add(2).read_unaligned(), words.add(3).read_unaligned());
                seen += last - first + 1;
                one = libc::CMSG_NXTHDR(&raw const header, one);
            }
        }
    }
}

/// `MSG_ZEROCOPY`: the kernel may read the buffer until its notification arrives.
fn zero_copy_sends(seed: u64) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let far = std::net::TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    let (near, _) = listener.accept().expect("accept");
    let on: c_int = 1;
    // SAFETY: the option's value is one int.
    let set = unsafe {
        libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ZEROCOPY, (&raw const on).cast(), 4)
    };
    assert_eq!(set, 0, "SO_ZEROCOPY");
    set_buffer_size(near.as_raw_fd(), libc::SO_SNDBUF, 4 << 20);
    let mut feeder = Feeder::new(seed);
    let wire = OracleBytes::new(MIB);
    for call in OutputCall::WITH_FLAGS.iter().cycle().take(12) {
        let mut buffer = feeder.copied_buffer(300_000);
        let mut part = [buffer.part(11, 280_000)];
        // SAFETY: the part is inside the buffer, which stays until the notification.
        let sent = unsafe { call.output(near.as_raw_fd(), &mut part, libc::MSG_ZEROCOPY) }.expect("sent");
        let sent_bytes = OracleBytes::new(sent);
        // SAFETY: the mapping has room; the mirror has the range.
        unsafe { oracle::copy(sent_bytes.pointer(), buffer.mirror_at(11), sent) };
        let mut got = 0;
        while got < sent {
            // SAFETY: the wire has room for `sent` bytes, and `got` is below `sent`.
            got += unsafe { oracle::raw_read(far.as_raw_fd(), wire.at(got), sent - got) }.expect("read");
        }
        wait_for_notifications(near.as_raw_fd(), 1);
        feeder.receive(InputCall::Recv, &mut buffer, 0, 300_000);
        assert!(
            wire.slice(0, sent) == sent_bytes.slice(0, sent),
            "{call:?} with MSG_ZEROCOPY sent other bytes"
        );
        buffer.check_all("reused after the notification");
    }
}

/// Two threads append records to one file: each record stays intact.
fn appending_threads(seed: u64) {
    const RECORD: usize = 250_000;
    const RECORDS: u64 = 20;
    drop(scratch_file("appended"));
    std::thread::scope(|scope| {
        for number in 0..2 {
            scope.spawn(move || {
                let file = OpenOptions::new().append(true).open("appended").expect("file");
                let mut feeder = Feeder::new(seed + number);
                for record in 0..RECORDS {
                    let mut parts = [feeder.copied_buffer(RECORD), Buffer::new(Origin::Malloc, RECORD)];
                    // A record starts with its thread and number, from which all bytes follow.
                    parts[1].store(0, RECORD, number << 32 | record);
                    parts[1].store_bytes(0, &(number << 32 | record).to_le_bytes());
                    let [scratch, stored] = &mut parts;
                    scratch.copy_from(CopyCall::Memcpy, 0, stored, 0, RECORD);
                    let call = if record % 2 == 0 { OutputCall::Write } else { OutputCall::Writev };
                    let mut vector = [scratch.part(0, 70_001), scratch.part(70_001, RECORD - 70_001)];
                    if !call.is_vector() {
                        vector[0].iov_len = RECORD;
                    }
                    // SAFETY: the parts are inside the buffer.
                    let written = unsafe { call.output(file.as_raw_fd(), &mut vector, 0) };
                    assert_eq!(written, Ok(RECORD), "one write of one record");
                }
            });
        }
    });
    let file = File::open("appended").expect("file");
    let mut record = vec![0; RECORD];
    let mut next = [0, 0];
    for number in 0..2 * RECORDS {
        file.read_exact_at(&mut record, number * RECORD as u64).expect("a whole record");
        let name = u64::from_le_bytes(record[..8].try_into().expect("eight bytes"));
        let writer = usize::from(name >> 32 != 0);
        assert_eq!(name & 0xffff_ffff, next[writer], "order of records");
        next[writer] += 1;
        for (index, byte) in record.iter().enumerate().skip(8) {
            assert_eq!(*byte, oracle::stream_byte(name, index), "byte {index} of record {name:#x}");
        }
    }
    assert_eq!(next, [RECORDS, RECORDS]);
}

/// A terminal transfers the same bytes as without uncopy.
fn terminal(seed: u64) {
    let mut ends = [0; 2];
    // SAFETY: both integers are written; the rest may be null.
    unsafe {
        assert_eq!(
            libc::openpty(&raw mut ends[0], &raw mut ends[1], null_mut(), null_mut(), null_mut()),
            0,
            "openpty"
        );
        let mut settings: libc::termios = std::mem::zeroed();
        libc::tcgetattr(ends[1], &raw mut settings);
        libc::cfmakeraw(&raw mut settings);
        libc::tcsetattr(ends[1], libc::TCSANOW, &raw const settings);
    }
    let mut feeder = Feeder::new(seed);
    let source = feeder.copied_buffer(100_000);
    let mut target = feeder.copied_buffer(100_000);
    let mut done = 0;
    while done < 40_000 {
        let mut part = [source.part(done, 2000)];
        // SAFETY: the parts are inside the buffers.
        let sent = unsafe { OutputCall::Write.output(ends[0], &mut part, 0) }.expect("written");
        let mut got = 0;
        while got < sent {
            let mut part = [target.part(done + got, 60_000)];
            // SAFETY: the parts are inside the buffers.
            let now = unsafe { InputCall::Read.input(ends[1], &mut part, 0) }.expect("read");
            target.note_received(done + got, source.mirror(done + got, now));
            got += now;
        }
        done += sent;
    }
    target.check_all("read from a terminal");
    println!("{done} bytes");
}

/// `struct uffdio_api`, `struct uffdio_register` and `struct uffdio_copy` (linux/userfaultfd.h) as
/// words, and their request numbers.
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFDIO_REGISTER: u64 = 0xC020_AA00;
const UFFDIO_COPY: u64 = 0xC028_AA03;
const UFFD_API: u64 = 0xAA;
const MISSING: u64 = 1;

fn request<const WORDS: usize>(fd: c_int, number: u64, mut words: [u64; WORDS]) -> c_int {
    // SAFETY: the words are the structure that the request takes.
    unsafe { libc::ioctl(fd, number, words.as_mut_ptr()) }
}

/// Serves `faults` page faults with pages full of `value`.
fn serve_faults(fd: c_int, value: u8, faults: usize) {
    let page = vec![value; 2 * PAGE];
    let source = page.as_ptr().addr().next_multiple_of(PAGE);
    for _ in 0..faults {
        let mut message = [0u64; 4];
        // SAFETY: `message` has 32 bytes, the size of one uffd_msg.
        let got = unsafe { libc::read(fd, message.as_mut_ptr().cast(), 32) };
        assert_eq!(got, 32, "a message");
        // uffd_msg: the event, flags, the address.
        let address = message[2] / PAGE as u64 * PAGE as u64;
        assert_eq!(request(fd, UFFDIO_COPY, [address, source as u64, PAGE as u64, 0, 0]), 0, "UFFDIO_COPY");
    }
}

/// Memory with received data is registered with a userfaultfd of the program's own, which then
/// supplies other bytes (QEMU's postcopy, CRIU's lazy pages).
fn own_userfaultfd(seed: u64) {
    // SAFETY: callers pass the structure that the request takes.
    own_userfaultfd_by(seed, |fd, number, words| i64::from(unsafe { libc::ioctl(fd, number, words) }));
    // SAFETY: callers pass the structure that the request takes.
    own_userfaultfd_by(seed, |fd, number, words| unsafe {
        libc::syscall(libc::SYS_ioctl, fd, number, words)
    });
}

fn own_userfaultfd_by(seed: u64, ioctl: fn(c_int, u64, *mut u64) -> i64) {
    const USER_MODE_ONLY: c_int = 1;
    const VALUE: u8 = 0x5A;
    let mut feeder = Feeder::new(seed);
    for origin in [Origin::Mapped, Origin::Aligned] {
        let mut buffer = Buffer::new(origin, MIB);
        for _ in 0..8 {
            feeder.receive(InputCall::Read, &mut buffer, 0, MIB);
        }
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        // SAFETY: makes a descriptor, which is this function's.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        let fd = c_int::try_from(fd).expect("a descriptor");
        assert_eq!(request(fd, UFFDIO_API, [UFFD_API, 0, 0]), 0, "UFFDIO_API");
        let start = buffer.at(0).addr() as u64;
        let registered = ioctl(fd, UFFDIO_REGISTER, [start, MIB as u64, MISSING, 0].as_mut_ptr());
        assert_eq!(registered, 0, "UFFDIO_REGISTER: errno {}", errno());
        buffer.check_all("registered by the program");
        // Input received into registered memory must be visible unelided, too.
        feeder.receive(InputCall::Read, &mut buffer, 0, MIB);
        buffer.check_all("received where the program has registered");
        let kept = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        let pages = MIB / PAGE;
        let handler = std::thread::spawn(move || serve_faults(fd, VALUE, pages));
        // SAFETY: the buffer's own pages, which are whole.
        assert_eq!(unsafe { libc::madvise(buffer.at(0).cast(), MIB, libc::MADV_DONTNEED) }, 0, "madvise");
        for page in 0..pages {
            // SAFETY: `page` is below the buffer's number of pages.
            assert_eq!(unsafe { buffer.at(page * PAGE).read_volatile() }, VALUE, "page {page}");
        }
        handler.join().expect("every page was asked for once");
        copy.check_all("copied before the program registered");
        kept.check_all("copied where the program has registered");
        // SAFETY: `fd` was opened by this function, and nothing uses the descriptor afterwards.
        unsafe { libc::close(fd) };
        buffer.set(0, MIB, VALUE);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "posix_aio" => posix_aio(seed),
        "io_uring" => io_uring(seed),
        "vmsplice" => vmsplice(seed),
        "zero_copy_sends" => zero_copy_sends(seed),
        "appending_threads" => appending_threads(seed),
        "terminal" => terminal(seed),
        "own_userfaultfd" => own_userfaultfd(seed),
        other => panic!("unknown scenario {other}"),
    }
}

//! A program whose copies, inputs and outputs are all known: the expected content of its recording,
//! and which bytes reach which output.
//!
//! ```text
//! chains FILE        runs every chain, once in this process, once in a child, once in a program that it executes;
//!                    writes what a recording must hold to FILE, FILE.child and FILE.again
//! chains FILE only   runs them in this process
//! chains FILE daemon forks; the child closes every descriptor, becomes another user, and runs them
//! ```
//!
//! Each line of these files is an event: call, function, object, descriptor, thread, to, from, bytes, flags, and the
//! address of the function that made the call (0: any), separated by blanks; before them, one line with the pid. Lines
//! that begin with `#` name the chain that follows.
//!
//! | chain | what happens |
//! |---|---|
//! | straight | input, copy, move within the copy, output |
//! | fan_out | one input, two copies of it, two outputs |
//! | fan_in | two inputs, copied behind each other, one output |
//! | overlap | parts of an input at odd offsets, shifted by less than their length |
//! | reuse | the input's buffer is filled again before the first copy is sent |
//! | freed | an input into memory that is given up and allocated again |
//! | grown | realloc, of libc's small blocks and of large ones |
//! | mapped | mremap, madvise and munmap of what was received |
//! | scattered | readv and writev, one part of them small |
//! | messages | sendmmsg and recvmmsg |
//! | threads | one thread receives, another copies, a third sends |
//! | passed | sendfile |
//! | small | calls of less than the least size: nothing |

use std::ffi::c_void;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Mutex;

const LEN: usize = 65536;
/// Default smallest size of `uncopy run`.
const MIN: usize = 16384;

/// Expected recording so far. Capacity is reserved first, because growth would move it and be recorded.
static EXPECTED: Mutex<String> = Mutex::new(String::new());

fn thread() -> i64 {
    // SAFETY: gettid(2) takes no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) }
}

struct ExpectedEvent {
    call: &'static str,
    function: &'static str,
    object: &'static str,
    fd: i32,
    to: usize,
    from: usize,
    len: usize,
    flags: u8,
    caller: usize,
}

impl ExpectedEvent {
    fn append(&self) {
        let Self { call, function, object, fd, to, from, len, flags, caller } = self;
        let mut all = EXPECTED.lock().expect("not poisoned");
        writeln!(
            all,
            "{call} {function} {object} {fd} {} {to:#x} {from:#x} {len} {flags} {caller:#x}",
            thread()
        )
        .expect("room");
    }
}

fn begin_chain(name: &str) {
    writeln!(EXPECTED.lock().expect("not poisoned"), "# {name}").expect("room");
}

/// A buffer that is never freed and that only the calls below fill: anonymous memory.
fn buffer(len: usize) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address.cast()
}

// Each of these functions makes the call of its name and notes it. None is inlined: the innermost
// return address of the event's stack must lie behind the function's address.

macro_rules! copying {
    ($($name:ident $text:literal;)*) => { $(
        #[inline(never)]
        fn $name(to: *mut u8, from: *const u8, len: usize) {
            // SAFETY: callers pass buffers that are long enough, and that do not overlap where they must not.
            unsafe { libc::$name(to.cast(), from.cast(), len) };
            let caller = $name as *const () as usize;
            let (to, from) = (to as usize, from as usize);
            ExpectedEvent { call: "copy", function: $text, object: "memory", fd: -1, to, from, len, flags: 0, caller }.append();
        }
    )* };
}

copying! {
    memcpy "memcpy";
    memmove "memmove";
}

macro_rules! transferring {
    ($($name:ident $call:literal ($($extra:expr),*);)*) => { $(
        #[inline(never)]
        fn $name(fd: i32, object: &'static str, buffer: *mut u8, len: usize) {
            // SAFETY: callers pass buffers that are long enough.
            let done = unsafe { libc::$name(fd, buffer.cast(), len $(, $extra)*) };
            assert_eq!(usize::try_from(done), Ok(len), "{}", std::io::Error::last_os_error());
            let caller = $name as *const () as usize;
            let address = buffer as usize;
            let (to, from) = if $call == "input" { (address, 0) } else { (0, address) };
            ExpectedEvent { call: $call, function: stringify!($name), object, fd, to, from, len, flags: 0, caller }.append();
        }
    )* };
}

transferring! {
    read "input" ();
    recv "input" (libc::MSG_WAITALL);
    write "output" ();
    send "output" (0);
}

/// Two connected sockets: what is written to one is read from the other.
struct SocketPair {
    near: UnixStream,
    far: UnixStream,
}

impl SocketPair {
    fn new() -> Self {
        let (near, far) = UnixStream::pair().expect("sockets");
        Self { near, far }
    }

    /// Sends bytes of the source, so that they can be received from [`SocketPair::fd`].
    fn feed(&self, len: usize) {
        write(self.far.as_raw_fd(), "near-socket", source(), len);
    }

    fn fd(&self) -> i32 {
        self.near.as_raw_fd()
    }

    /// Drains the bytes sent to [`SocketPair::fd`], without a large call.
    fn drain(&self, len: usize) {
        let mut left = len;
        let mut bytes = [0u8; 4096];
        while left > 0 {
            // SAFETY: the buffer is as long as that.
            let got =
                unsafe { libc::read(self.far.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len().min(left)) };
            left -= usize::try_from(got).ok().filter(|got| *got > 0).expect("what was sent");
        }
    }
}

/// Source of all bytes that are fed.
fn source() -> *mut u8 {
    static SOURCE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SOURCE.get_or_init(|| buffer(4 * LEN) as usize) as *mut u8
}

fn at(buffer: *mut u8, offset: usize) -> *mut u8 {
    buffer.wrapping_add(offset)
}

fn straight() {
    begin_chain("straight");
    let (pair, a, b) = (SocketPair::new(), buffer(2 * LEN), buffer(2 * LEN));
    pair.feed(LEN);
    read(pair.fd(), "near-socket", a, LEN);
    memcpy(b, a, LEN);
    memmove(at(b, 45), b, LEN);
    write(pair.fd(), "near-socket", at(b, 45), LEN);
    pair.drain(LEN);
}

fn fan_out() {
    begin_chain("fan_out");
    let (pair, a, b, c) = (SocketPair::new(), buffer(LEN), buffer(LEN), buffer(LEN));
    pair.feed(LEN);
    recv(pair.fd(), "near-socket", a, LEN);
    memcpy(b, a, LEN);
    memcpy(c, a, LEN);
    send(pair.fd(), "near-socket", b, LEN);
    pair.drain(LEN);
    send(pair.fd(), "near-socket", c, LEN);
    pair.drain(LEN);
}

fn fan_in() {
    begin_chain("fan_in");
    let (pair, a, b, c) = (SocketPair::new(), buffer(LEN), buffer(LEN), buffer(2 * LEN));
    pair.feed(LEN);
    read(pair.fd(), "near-socket", a, LEN);
    pair.feed(LEN);
    read(pair.fd(), "near-socket", b, LEN);
    memcpy(c, a, LEN);
    memcpy(at(c, LEN), b, LEN);
    send(pair.fd(), "near-socket", c, 2 * LEN);
    pair.drain(2 * LEN);
}

fn overlap() {
    begin_chain("overlap");
    let (pair, a, b) = (SocketPair::new(), buffer(2 * LEN), buffer(2 * LEN));
    pair.feed(100_000);
    read(pair.fd(), "near-socket", a, 100_000);
    memcpy(at(b, 24), at(a, 1_000), 50_000);
    memcpy(at(b, 30_000), at(a, 60_000), 40_000);
    memmove(at(b, 100), at(b, 145), 69_000);
    write(pair.fd(), "near-socket", at(b, 7), 70_000);
    pair.drain(70_000);
}

fn reuse() {
    begin_chain("reuse");
    let (pair, a, b, c) = (SocketPair::new(), buffer(LEN), buffer(LEN), buffer(LEN));
    pair.feed(LEN);
    read(pair.fd(), "near-socket", a, LEN);
    memcpy(b, a, LEN);
    pair.feed(LEN);
    read(pair.fd(), "near-socket", a, LEN);
    memcpy(c, a, LEN);
    write(pair.fd(), "near-socket", b, LEN);
    pair.drain(LEN);
    write(pair.fd(), "near-socket", c, LEN);
    pair.drain(LEN);
}

/// Allocates without a note, because an allocation moves nothing.
fn allocate(len: usize) -> *mut u8 {
    // SAFETY: malloc(3) takes any length; a null pointer is refused below.
    let address = unsafe { libc::malloc(len) };
    assert!(!address.is_null());
    address.cast()
}

fn usable_size(address: *mut u8) -> usize {
    // SAFETY: callers pass a live block that `allocate` returned.
    unsafe { libc::malloc_usable_size(address.cast()) }
}

fn forget(function: &'static str, address: usize, len: usize) {
    let (call, object) = ("forget", "memory");
    ExpectedEvent { call, function, object, fd: -1, to: 0, from: address, len, flags: 0, caller: 0 }.append();
}

fn free(address: *mut u8) {
    let len = usable_size(address);
    if len >= MIN {
        forget("free", address as usize, len);
    }
    // SAFETY: callers pass what `allocate` gave, and use it no more.
    unsafe { libc::free(address.cast()) };
}

fn freed() {
    begin_chain("freed");
    let pair = SocketPair::new();
    for len in [LEN, 20_000] {
        let first = allocate(len);
        pair.feed(len);
        read(pair.fd(), "near-socket", first, len);
        free(first);
        let second = allocate(len);
        write(pair.fd(), "near-socket", second, len);
        pair.drain(len);
        free(second);
    }
}

#[inline(never)]
fn realloc(address: *mut u8, len: usize, is_large: bool) -> *mut u8 {
    let (from, old) = (address as usize, usable_size(address));
    // SAFETY: callers pass a live block that `allocate` returned, and use the new address only.
    let new = unsafe { libc::realloc(address.cast(), len) }.cast::<u8>();
    let caller = realloc as *const () as usize;
    if new != address {
        let call = if is_large { "relocate" } else { "copy" };
        let (to, len) = (new as usize, old.min(len));
        ExpectedEvent {
            call,
            function: "realloc",
            object: "memory",
            fd: -1,
            to,
            from,
            len,
            flags: 0,
            caller,
        }
        .append();
        forget("realloc", from, old);
    }
    new
}

fn grown() {
    begin_chain("grown");
    let pair = SocketPair::new();
    let small = allocate(20_000);
    // The block behind keeps it from growing in place.
    let behind = allocate(20_000);
    pair.feed(20_000);
    read(pair.fd(), "near-socket", small, 20_000);
    let small = realloc(small, 30_000, false);
    write(pair.fd(), "near-socket", small, 20_000);
    pair.drain(20_000);
    let large = allocate(LEN);
    pair.feed(LEN);
    read(pair.fd(), "near-socket", large, LEN);
    let large = realloc(large, 3 * LEN, true);
    write(pair.fd(), "near-socket", large, LEN);
    pair.drain(LEN);
    free(small);
    free(behind);
    free(large);
}

#[inline(never)]
fn mremap(address: *mut u8, old: usize, new_address: *mut u8) -> *mut u8 {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: callers pass two mappings that `buffer` made, each of `old` bytes.
    let new =
        unsafe { libc::mremap(address.cast(), old, old, flags, new_address.cast::<c_void>()) }.cast::<u8>();
    assert_eq!(new, new_address);
    let (call, function, caller) = ("relocate", "mremap", mremap as *const () as usize);
    let (to, from) = (new as usize, address as usize);
    ExpectedEvent { call, function, object: "memory", fd: -1, to, from, len: old, flags: 0, caller }.append();
    forget("mremap", from, old);
    new
}

fn mapped() {
    begin_chain("mapped");
    let (pair, a, b) = (SocketPair::new(), buffer(LEN), buffer(LEN));
    pair.feed(LEN);
    read(pair.fd(), "near-socket", a, LEN);
    let a = mremap(a, LEN, b);
    write(pair.fd(), "near-socket", a, LEN);
    pair.drain(LEN);
    forget("madvise", a as usize, LEN);
    // SAFETY: `a` is a mapping of `LEN` bytes, whose content nobody needs any more.
    assert_eq!(unsafe { libc::madvise(a.cast(), LEN, libc::MADV_DONTNEED) }, 0);
    write(pair.fd(), "near-socket", a, LEN);
    pair.drain(LEN);
    forget("munmap", a as usize, LEN);
    // SAFETY: `a` is a mapping of `LEN` bytes, which nobody uses after this call.
    assert_eq!(unsafe { libc::munmap(a.cast(), LEN) }, 0);
}

/// Notes the parts of one call; the last part may be filled partially.
fn note_parts(base: &ExpectedEvent, parts: &[libc::iovec], mut len: usize, mut flags: u8) {
    for part in parts {
        let address = part.iov_base as usize;
        let (to, from) = if base.call == "input" { (address, 0) } else { (0, address) };
        let part_len = part.iov_len.min(len);
        len -= part_len;
        ExpectedEvent { to, from, len: part_len, flags, ..*base }.append();
        // A further part of the same call.
        flags = 2;
    }
}

fn part(buffer: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: buffer.cast(), iov_len: len }
}

macro_rules! scattering {
    ($($name:ident $call:literal;)*) => { $(
        #[inline(never)]
        fn $name(fd: i32, parts: &[libc::iovec], len: usize) {
            // SAFETY: callers pass parts that are there.
            let done = unsafe { libc::$name(fd, parts.as_ptr(), i32::try_from(parts.len()).expect("few")) };
            assert_eq!(usize::try_from(done), Ok(len));
            let (function, caller) = (stringify!($name), $name as *const () as usize);
            let object = "near-socket";
            let base = ExpectedEvent { call: $call, function, object, fd, to: 0, from: 0, len: 0, flags: 0, caller };
            note_parts(&base, parts, len, 0);
        }
    )* };
}

scattering! {
    readv "input";
    writev "output";
}

fn scattered() {
    begin_chain("scattered");
    let (pair, a, b, c) = (SocketPair::new(), buffer(LEN), buffer(LEN), buffer(LEN));
    pair.feed(40_100);
    // The last part is filled up to 20,000 bytes.
    readv(pair.fd(), &[part(a, 100), part(b, 20_000), part(c, LEN)], 40_100);
    memcpy(at(a, 100), b, 20_000);
    writev(pair.fd(), &[part(a, 20_100), part(c, 20_000)], 40_100);
    pair.drain(40_100);
}

#[inline(never)]
fn sendmmsg(fd: i32, messages: &mut [libc::mmsghdr]) {
    let count = u32::try_from(messages.len()).expect("few");
    // SAFETY: the headers and their parts are there.
    let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, 0) };
    assert_eq!(u32::try_from(sent), Ok(count));
    note_messages("output", "sendmmsg", fd, messages, sendmmsg as *const () as usize);
}

#[inline(never)]
fn recvmmsg(fd: i32, messages: &mut [libc::mmsghdr]) {
    let count = u32::try_from(messages.len()).expect("few");
    // SAFETY: `messages` has `count` headers, whose parts are writable buffers that outlive the call.
    let got = unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), count, 0, std::ptr::null_mut()) };
    assert_eq!(u32::try_from(got), Ok(count));
    note_messages("input", "recvmmsg", fd, messages, recvmmsg as *const () as usize);
}

fn note_messages(
    call: &'static str,
    function: &'static str,
    fd: i32,
    messages: &[libc::mmsghdr],
    caller: usize,
) {
    for (index, message) in messages.iter().enumerate() {
        let header = &message.msg_hdr;
        // SAFETY: each header's `msg_iov` points to `msg_iovlen` parts that outlive the call.
        let parts = unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) };
        let base = ExpectedEvent {
            call,
            function,
            object: "datagram",
            fd,
            to: 0,
            from: 0,
            len: 0,
            flags: 0,
            caller,
        };
        note_parts(&base, parts, message.msg_len as usize, if index == 0 { 0 } else { 2 });
    }
}

fn messages() {
    begin_chain("messages");
    let (near, far) = UnixDatagram::pair().expect("sockets");
    let (a, b) = (buffer(LEN), buffer(LEN));
    let headers = |parts: &mut [libc::iovec]| {
        parts
            .iter_mut()
            .map(|part| {
                // SAFETY: mmsghdr is plain data; zeroes are null pointers and lengths of 0.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = part;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect::<Vec<_>>()
    };
    let mut parts = [part(source(), 20_000), part(at(source(), 20_000), 18_000)];
    sendmmsg(far.as_raw_fd(), &mut headers(&mut parts));
    let mut parts = [part(a, 20_000), part(b, 20_000)];
    recvmmsg(near.as_raw_fd(), &mut headers(&mut parts));
    memcpy(at(a, 20_000), b, 18_000);
    send(near.as_raw_fd(), "datagram", a, 38_000);
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer is as long as that; the rest of the datagram is dropped.
    assert_eq!(unsafe { libc::recv(far.as_raw_fd(), bytes.as_mut_ptr().cast(), 16, 0) }, 16);
}

fn threads() {
    begin_chain("threads");
    let (pair, a, b) = (SocketPair::new(), buffer(LEN) as usize, buffer(LEN) as usize);
    pair.feed(LEN);
    let fd = pair.fd();
    std::thread::spawn(move || read(fd, "near-socket", a as *mut u8, LEN)).join().expect("the first");
    std::thread::spawn(move || memcpy(b as *mut u8, a as *const u8, LEN)).join().expect("the second");
    std::thread::spawn(move || send(fd, "near-socket", b as *mut u8, LEN)).join().expect("the third");
    pair.drain(LEN);
}

#[inline(never)]
fn sendfile(to: i32, from: i32, len: usize) {
    let mut offset = 0;
    // SAFETY: `offset` is a variable on this stack that sendfile(2) may write.
    let done = unsafe { libc::sendfile(to, from, &raw mut offset, len) };
    assert_eq!(usize::try_from(done), Ok(len));
    let (function, caller) = ("sendfile", sendfile as *const () as usize);
    for (call, object, fd, flags) in [("input", "file", from, 1), ("output", "near-socket", to, 3)] {
        ExpectedEvent { call, function, object, fd, to: 0, from: 0, len, flags, caller }.append();
    }
}

fn passed() {
    begin_chain("passed");
    let pair = SocketPair::new();
    // SAFETY: memfd_create(2) reads the name, a NUL-terminated literal.
    let file = unsafe { libc::memfd_create(c"chains".as_ptr(), 0) };
    write(file, "file", source(), LEN);
    sendfile(pair.fd(), file, LEN);
    pair.drain(LEN);
    // SAFETY: `file` was opened by this function, and nothing uses the descriptor afterwards.
    unsafe { libc::close(file) };
}

fn small() {
    begin_chain("small");
    let (pair, a, b) = (SocketPair::new(), buffer(LEN), buffer(LEN));
    // SAFETY: buffers that are long enough, and what a call returns is looked at.
    unsafe {
        libc::memcpy(b.cast(), a.cast(), MIN - 1);
        libc::memmove(b.cast(), a.cast(), 0);
        assert_eq!(libc::write(pair.far.as_raw_fd(), a.cast(), 100), 100);
        // Room for more than arrives.
        assert_eq!(libc::read(pair.fd(), a.cast(), LEN), 100);
        // Calls that the kernel refuses are not recorded.
        assert_eq!(libc::read(-1, a.cast(), LEN), -1);
        assert_eq!(libc::write(-1, a.cast(), LEN), -1);
    }
    memcpy(b, a, MIN);
}

fn run_all() {
    for chain in [
        straight, fan_out, fan_in, overlap, reuse, freed, grown, mapped, scattered, messages, threads,
        passed, small,
    ] {
        chain();
    }
}

/// Writes the expected events, in small pieces, and expects nothing from then on.
fn finish(path: &str) {
    let all = EXPECTED.lock().expect("not poisoned");
    let mut file = std::fs::File::create(path).expect("created");
    writeln!(file, "{}", std::process::id()).expect("written");
    for piece in all.as_bytes().chunks(4096) {
        file.write_all(piece).expect("written");
    }
}

/// Runs the scenarios after the steps by which a daemon detaches itself.
fn run_as_daemon(path: &str) {
    const NOBODY: u32 = 65534;
    EXPECTED.lock().expect("not poisoned").reserve(64 << 10);
    let file = std::fs::File::create(path).expect("created");
    // SAFETY: this process has one thread; what the calls return is looked at.
    unsafe {
        let child = libc::fork();
        if child != 0 {
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0, "the child");
            return;
        }
        assert!(libc::setsid() > 0);
        let kept = libc::dup2(file.as_raw_fd(), 100);
        assert_eq!(kept, 100);
        assert_eq!((libc::close_range(0, 99, 0), libc::close_range(101, u32::MAX, 0)), (0, 0));
        assert_eq!(libc::chdir(c"/".as_ptr()), 0);
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
        straight();
        fan_out();
        let text = format!("{}\n{}", std::process::id(), EXPECTED.lock().expect("not poisoned"));
        assert!(text.len() < MIN);
        assert_eq!(libc::write(kept, text.as_ptr().cast(), text.len()), text.len().cast_signed());
        libc::_exit(0);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (path, is_only) = match arguments.as_slice() {
        [_, path] => (path, false),
        [_, path, only] if only == "only" => (path, true),
        [_, path, daemon] if daemon == "daemon" => return run_as_daemon(path),
        _ => panic!("usage: chains FILE [only|daemon]"),
    };
    EXPECTED.lock().expect("not poisoned").reserve(64 << 10);
    run_all();
    finish(path);
    if !is_only {
        // SAFETY: this process has one thread, so no lock is held in the child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            EXPECTED.lock().expect("not poisoned").clear();
            run_all();
            finish(&format!("{path}.child"));
            // SAFETY: _exit(2) ends the child without running destructors, of which none is needed.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: `status` is an int on this stack that waitpid(2) may write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child");
        let own = std::env::current_exe().expect("a path");
        let again = std::process::Command::new(own).args([&format!("{path}.again"), "only"]).status();
        assert!(again.expect("executed").success());
    }
    // The text itself is never freed, because it is in a static.
}

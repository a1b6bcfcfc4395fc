//! Programs whose received data lie outside malloc's memory, in static buffers, mappings and
//! stacks, and that change those mappings by all available calls.
//!
//! ```text
//! foreign SCENARIO SEED
//! ```

#![allow(
    clippy::cast_possible_truncation,
    reason = "arguments and results of system calls have 64 bits here"
)]

use std::arch::asm;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_long};
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle;
use uncopy_tests::random::Random;

const MIB: usize = 1 << 20;
const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// A system call made by an instruction in this program, which nothing can interpose on. Returns
/// the kernel's result; a negative number is an error.
///
/// # Safety
/// The call's requirements apply.
unsafe fn inline_syscall(number: c_long, arguments: [usize; 6]) -> isize {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the caller promises what the call requires; the kernel changes the named registers only.
    unsafe {
        asm!("syscall", inout("rax") number as isize => result, in("rdi") first, in("rsi") second,
            in("rdx") third, in("r10") fourth, in("r8") fifth, in("r9") sixth, out("rcx") _, out("r11") _,
            options(nostack));
    }
    result
}

/// How a call that changes a mapping is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SyscallPath {
    Libc,
    SyscallFunction,
    InlineSyscall,
}

impl SyscallPath {
    const ALL: [Self; 3] = [Self::Libc, Self::SyscallFunction, Self::InlineSyscall];

    /// Makes the call, which must succeed; returns the result.
    ///
    /// # Safety
    /// The call's requirements apply.
    unsafe fn call(self, number: c_long, arguments: [usize; 6]) -> usize {
        let [first, second, third, fourth, fifth, sixth] = arguments;
        let at = std::ptr::with_exposed_provenance_mut(first);
        let int = |argument: usize| argument as c_int;
        // SAFETY: the caller promises what the call requires of its arguments, whichever way the call is made.
        let result = unsafe {
            match (self, number) {
                (Self::InlineSyscall, _) => inline_syscall(number, arguments),
                (Self::SyscallFunction, _) => {
                    libc::syscall(number, first, second, third, fourth, fifth, sixth) as isize
                }
                (Self::Libc, libc::SYS_munmap) => libc::munmap(at, second) as isize,
                (Self::Libc, libc::SYS_madvise) => libc::madvise(at, second, int(third)) as isize,
                (Self::Libc, libc::SYS_mprotect) => libc::mprotect(at, second, int(third)) as isize,
                (Self::Libc, libc::SYS_mremap) => {
                    let to = std::ptr::with_exposed_provenance_mut::<libc::c_void>(fifth);
                    libc::mremap(at, second, third, int(fourth), to).addr() as isize
                }
                (Self::Libc, libc::SYS_mmap) => {
                    libc::mmap(at, second, int(third), int(fourth), int(fifth), sixth as i64).addr() as isize
                }
                (Self::Libc, _) => panic!("call {number}"),
            }
        };
        usize::try_from(result).unwrap_or_else(|_| {
            panic!("call {number} by {self:?}: {result} errno {}", oracle::errno());
        })
    }

    fn discard(self, buffer: &mut Buffer, at: usize, len: usize) {
        let start = buffer.at(at).expose_provenance();
        // SAFETY: whole pages of the buffer, whose bytes are to be zeroes.
        unsafe { self.call(libc::SYS_madvise, [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) };
        buffer.note_received(at, &vec![0; len]);
    }

    fn unmap(self, start: *mut u8, len: usize) {
        // SAFETY: callers pass a mapping that is not used afterwards.
        unsafe { self.call(libc::SYS_munmap, [start.expose_provenance(), len, 0, 0, 0, 0]) };
    }

    /// Maps memory over an existing mapping.
    fn map_over(self, start: *mut u8, len: usize, flags: c_int, fd: c_int) {
        let flags = (flags | libc::MAP_FIXED) as usize;
        let at = start.expose_provenance();
        // SAFETY: the range is the caller's, who wants what is there to go.
        let mapped =
            unsafe { self.call(libc::SYS_mmap, [at, len, READ_WRITE as usize, flags, fd as usize, 0]) };
        assert_eq!(mapped, at, "mmap with MAP_FIXED");
    }

    fn protect(self, start: *mut u8, len: usize, protection: c_int) {
        // SAFETY: whole pages of a mapping that is written again only once that is allowed.
        unsafe {
            self.call(libc::SYS_mprotect, [start.expose_provenance(), len, protection as usize, 0, 0, 0])
        };
    }
}

fn mapping(len: usize) -> *mut u8 {
    // SAFETY: at an address of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, READ_WRITE, PRIVATE, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "mmap of {len} bytes");
    start.cast()
}

const STATIC_BYTES: usize = 2 * MIB;

/// Not aligned: other static data share the first and last page.
struct StaticArea(UnsafeCell<[u8; STATIC_BYTES]>);
// SAFETY: reached only through the one buffer that a scenario makes of each.
unsafe impl Sync for StaticArea {}
static FIRST: StaticArea = StaticArea(UnsafeCell::new([0; STATIC_BYTES]));
static SECOND: StaticArea = StaticArea(UnsafeCell::new([0; STATIC_BYTES]));

fn static_area(area: &'static StaticArea) -> Buffer {
    // SAFETY: one buffer for each area in a process.
    unsafe { Buffer::over(area.0.get().cast(), STATIC_BYTES) }
}

fn check(buffers: &[&Buffer], what: &str) {
    for (index, buffer) in buffers.iter().enumerate() {
        buffer.check_all(&format!("{what}, buffer {index}"));
    }
}

/// Receives, copies back and forth, moves and sends: `first` and `second` are at least 2 MiB.
fn work(feeder: &mut Feeder, first: &mut Buffer, second: &mut Buffer, round: usize) {
    let input = [InputCall::Recv, InputCall::Read, InputCall::Recvmsg, InputCall::Readv][round % 4];
    let copy = CopyCall::ALL[round % CopyCall::ALL.len()];
    let within = CopyCall::OVERLAPPING[round % CopyCall::OVERLAPPING.len()];
    feeder.receive(input, first, 100 + round * 777, 600_000);
    second.copy_from(copy, 7, first, 100 + round * 777, 600_000);
    check(&[second], "copied between ranges");
    feeder.receive(input, first, 700_000, 500_000);
    let heap = Buffer::copy_of(copy, first, 650_000, 550_000);
    second.copy_from(copy, MIB + round, &heap, 1000, 500_000);
    // Extends the claimed range on both sides, by less and by more than a page.
    first.copy_within(within, 700_000 + 45, 700_000, 500_000);
    first.copy_within(within, 600_000, 700_000 + 9000, 500_000);
    second.copy_within(within, 0, 300_000, 400_000);
    second.copy_within(within, MIB + 400_000, MIB, 600_000);
    first.store(20_000 + round, 60_000, round as u64);
    first.set(900_000, 33_000, 7);
    feeder.send(OutputCall::Send, first, 0, 800_000);
    feeder.send(OutputCall::Writev, second, 500_000, 700_000);
    feeder.send(OutputCall::Send, &heap, 0, 500_000);
    check(&[first, second, &heap], "after all kinds of work");
}

fn static_buffers(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let (mut first, mut second) = (static_area(&FIRST), static_area(&SECOND));
    for round in 0..12 {
        work(&mut feeder, &mut first, &mut second, round);
        if round % 2 == 0 {
            second.copy_from(CopyCall::Memcpy, 0, &first, 5, MIB);
        } else {
            first.copy_from(CopyCall::Memcpy, 0, &second, 5, MIB);
        }
        check(&[&first, &second], "static buffers");
    }
}

/// Mappings made by the program: buffers at any offset, and buffers that share a page.
fn mapped_buffers(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let (mut first, mut second) =
        (Buffer::new(Origin::Mapped, 2 * MIB), Buffer::new(Origin::Mapped, 2 * MIB));
    for round in 0..8 {
        work(&mut feeder, &mut first, &mut second, round);
        // Adjacent buffers, so that each pair has a page in common; then the gaps between others.
        let mut at = round * 1111;
        while at < MIB {
            let len = random.between(20_000, 150_000).min(MIB - at);
            feeder.receive(InputCall::Recv, &mut second, at, len);
            at += len;
        }
        for start in [2, 0, 3, 1] {
            let at = MIB + start * 100_000;
            first.copy_from(CopyCall::Memcpy, at, &second, start * 100_000 + 3, 100_000);
        }
        first.copy_from(CopyCall::Mempcpy, 10, &second, 0, MIB + 500_000);
        feeder.send(OutputCall::Send, &first, MIB - 1000, 450_000);
        check(&[&first, &second], "mapped buffers");
    }
    // A new mapping replaces one that was unmapped.
    for _ in 0..20 {
        let len = random.between(100_000, MIB);
        let mut short_lived = Buffer::new(Origin::Mapped, len);
        feeder.receive(InputCall::Read, &mut short_lived, 0, len);
        first.copy_from(CopyCall::Memcpy, 9, &short_lived, 0, len);
        check(&[&short_lived], "a mapping that does not live long");
    }
    check(&[&first, &second], "in the end");
    // The ranges must live until the end.
    std::mem::forget((first, second));
}

/// Pages returned to the kernel.
fn given_back_by_instruction(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let (mut first, mut second) =
        (Buffer::new(Origin::Mapped, 2 * MIB), Buffer::new(Origin::Mapped, 2 * MIB));
    for round in 0..6 {
        for path in SyscallPath::ALL {
            feeder.receive(InputCall::Recv, &mut first, 5000, MIB);
            second.copy_from(CopyCall::Memcpy, 17, &first, 5000, MIB);
            // A part of the range, a superset of it, its first page.
            let (at, pages) = [(8, 100), (0, 400), (1, 1)][round % 3];
            path.discard(&mut first, at * PAGE, pages * PAGE);
            // The copy reads pages that nothing has touched yet.
            let copy = Buffer::copy_of(CopyCall::Memcpy, &first, 3, MIB);
            check(&[&copy, &first, &second], "with pages given back");
            feeder.receive(InputCall::Recv, &mut first, 300_000, 300_000);
            first.copy_within(CopyCall::Memmove, 310_000, 300_000, 300_000);
            feeder.send(OutputCall::Send, &first, 0, 700_000);
            check(&[&first, &second], "received where pages were given back");
            // MADV_FREE: each page keeps its content or reads as zeroes, until it is written to.
            feeder.receive(InputCall::Recv, &mut second, 40_000, 400_000);
            let start = second.at(16 * PAGE).expose_provenance();
            // SAFETY: whole pages of the buffer, whose bytes are not used afterwards.
            unsafe {
                path.call(libc::SYS_madvise, [start, 40 * PAGE, libc::MADV_FREE as usize, 0, 0, 0]);
                for page in 16..56 {
                    let (found, kept) = (second.at(page * PAGE), second.mirror_at(page * PAGE));
                    if oracle::first_difference(found, kept, PAGE).is_some() {
                        second.note_received(page * PAGE, &[0; PAGE]);
                    }
                }
            }
            second.store(16 * PAGE, 40 * PAGE, seed + round as u64);
            check(&[&first, &second], "written after MADV_FREE");
        }
    }
}

/// Mappings moved exactly along a range with received data, and along a part of it, to a reserved address.
fn moved_by_instruction(seed: u64) {
    const LEN: usize = 640 * 1024;
    let mut feeder = Feeder::new(seed);
    let source = feeder.copied_buffer(LEN);
    for round in 0..6 {
        for path in SyscallPath::ALL {
            let (here, there) = (mapping(MIB), mapping(MIB));
            // SAFETY: the mapping is this buffer's alone.
            let mut buffer = unsafe { Buffer::over(here, MIB) };
            let lead = [0, 100, PAGE - 1][round % 3];
            buffer.copy_from(CopyCall::Memcpy, 16 * PAGE + lead, &source, 0, LEN);
            feeder.receive(InputCall::Recv, &mut buffer, 16 * PAGE + lead, 60_000);
            let pages = (LEN + lead).div_ceil(PAGE);
            let (first, pages) = if round < 3 { (16, pages) } else { (30, pages - 50) };
            // SAFETY: whole pages of one mapping to a place in the other that nothing else uses.
            unsafe {
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
                let (from, to) = (buffer.at(first * PAGE).expose_provenance(), there.add(5 * PAGE));
                let len = pages * PAGE;
                let moved = path.call(libc::SYS_mremap, [from, len, len, flags, to.expose_provenance(), 0]);
                assert_eq!(moved, to.addr(), "mremap");
                let wrong = oracle::first_difference(to, buffer.mirror_at(first * PAGE), len);
                assert_eq!(wrong, None, "what was moved, by {path:?}");
                path.map_over(buffer.at(first * PAGE), len, PRIVATE, -1);
                buffer.note_received(first * PAGE, &vec![0; len]);
                buffer.check_all("with a part moved away and mapped anew");
                let mut moved = Buffer::over(to, len);
                feeder.receive(InputCall::Recv, &mut moved, 1000, 300_000);
                buffer.copy_from(CopyCall::Memcpy, 50_000, &moved, 1000, 300_000);
                feeder.receive(InputCall::Recv, &mut buffer, 40_000, 300_000);
                moved.copy_from(CopyCall::Memcpy, 77, &buffer, 40_000, 300_000);
                feeder.send(OutputCall::Send, &moved, 0, 300_000);
                check(&[&buffer, &moved], "received and copied in both places");
            }
            path.unmap(here, MIB);
            path.unmap(there, MIB);
        }
    }
    source.check_all("what all were copies of");
}

/// A memory file with known bytes.
fn memory_file(bytes: &[u8]) -> c_int {
    // SAFETY: memfd_create(2) reads the name, a NUL-terminated literal; the written bytes are live.
    unsafe {
        let file = libc::memfd_create(c"uncopy-test".as_ptr(), 0);
        assert!(file >= 0, "memory file");
        assert_eq!(oracle::raw_write(file, bytes.as_ptr(), bytes.len()), Ok(bytes.len()));
        file
    }
}

/// Mappings that are replaced by other kinds at the same address.
fn unmapped_and_mapped_again(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let file_bytes: Vec<u8> = (0..MIB).map(|at| oracle::stream_byte(seed, at)).collect();
    let file = memory_file(&file_bytes);
    let mut other = Buffer::new(Origin::Mapped, 2 * MIB);
    for path in SyscallPath::ALL {
        for kind in 0..5 {
            let start = mapping(2 * MIB);
            // SAFETY: the mapping is this buffer's alone.
            let mut buffer = unsafe { Buffer::over(start, 2 * MIB) };
            feeder.receive(InputCall::Recv, &mut buffer, 300, MIB);
            other.copy_from(CopyCall::Memcpy, 4096 + kind, &buffer, 300, MIB);
            buffer.copy_from(CopyCall::Memcpy, MIB + 500, &other, 0, 900_000);
            // From page 64 on: pages of both ranges and of none.
            let (at, len) = (64 * PAGE, if kind % 2 == 0 { 100 * PAGE } else { MIB });
            let (flags, fd) = match kind {
                0..=2 => (PRIVATE, -1),
                3 => (libc::MAP_PRIVATE, file),
                _ => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
            };
            if kind == 0 {
                path.unmap(buffer.at(at), len);
                check(&[&other], "copied from what is unmapped");
            }
            path.map_over(buffer.at(at), len, flags, fd);
            buffer.note_received(at, &vec![0; len]);
            if kind == 3 {
                buffer.note_received(at, &file_bytes[..len]);
            }
            if kind == 1 {
                check(&[&buffer], "mapped over");
            }
            let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 1000, MIB);
            feeder.receive(InputCall::Recv, &mut buffer, at + 100, 50 * PAGE);
            other.copy_from(CopyCall::Memmove, 0, &buffer, at - 5000, 300_000);
            buffer.copy_from(CopyCall::Memcpy, at - 9999, &other, 100_000, MIB);
            feeder.receive(InputCall::Read, &mut buffer, 0, 400_000);
            buffer.copy_within(CopyCall::Memmove, at + 45, at, 90 * PAGE);
            feeder.send(OutputCall::Send, &buffer, 200_000, 500_000);
            check(&[&buffer, &other, &copy], "received and copied where another mapping was");
            path.unmap(start, 2 * MIB);
        }
    }
    // SAFETY: `file` was opened by this function, and nothing uses the descriptor afterwards.
    unsafe { libc::close(file) };
}

/// Pages that are read-only for a while, and the result of a receive into them.
fn protected(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let (mut first, mut second) = (Buffer::new(Origin::Mapped, 2 * MIB), static_area(&FIRST));
    for round in 0..4 {
        for path in SyscallPath::ALL {
            work(&mut feeder, &mut first, &mut second, round);
            feeder.receive(InputCall::Recv, &mut first, 10_000, MIB);
            second.copy_from(CopyCall::Memcpy, 20_000, &first, 10_000, MIB);
            let (at, len) = [(0, 2 * MIB), (10 * PAGE, 50 * PAGE)][round % 2];
            path.protect(first.at(at), len, libc::PROT_READ);
            let copy = Buffer::copy_of(CopyCall::Memcpy, &first, 0, MIB);
            second.copy_from(CopyCall::Memcpy, 0, &first, 77, MIB);
            feeder.send(OutputCall::Send, &first, 0, 500_000);
            check(&[&first, &second, &copy], "while read-only");
            if path != SyscallPath::InlineSyscall {
                // The engine does not learn of pages that an instruction has protected.
                let (_, offered) = feeder.offer(30 * PAGE);
                let mut part = [first.part(12 * PAGE, offered)];
                // SAFETY: the part is inside the buffer.
                let refused = unsafe { InputCall::Recv.input(feeder.near(), &mut part, 0) };
                println!("{path:?} {round}: receiving into read-only pages: {refused:?}");
            }
            path.protect(first.at(at), len, READ_WRITE);
            check(&[&first, &second], "what was refused");
            feeder = Feeder::new(seed + round as u64);
            feeder.receive(InputCall::Recv, &mut first, 9000, 400_000);
            first.store(11 * PAGE, 100_000, 5);
            check(&[&first], "writable again");
        }
    }
}

/// Waits for a child, which must succeed; a child that hangs ends by its own alarm.
fn join(pid: libc::pid_t) {
    let status = wait(pid);
    assert_eq!(status, 0, "child {pid} ended with wait status {status:#x}");
}

fn generation(first: &mut Buffer, second: &mut Buffer, seed: u64, left: usize) {
    let mut feeder = Feeder::new(seed);
    check(&[first, second], "as they came from the parent");
    for round in 0..2 {
        feeder.receive(InputCall::Recv, first, 4000, MIB);
        second.copy_from(CopyCall::Memcpy, 123, first, 4000, MIB);
        if left > 0 {
            // SAFETY: the child runs what follows and ends by _exit.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork: errno {}", oracle::errno());
            if pid == 0 {
                // SAFETY: alarm(2) takes an integer; the default action ends a child that hangs.
                unsafe { libc::alarm(40) };
                let next = seed * 10 + round;
                let done = catch_unwind(AssertUnwindSafe(|| generation(first, second, next, left - 1)));
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(c_int::from(done.is_err())) };
            }
            // Parent and child work at the same time.
            feeder.receive(InputCall::Recv, second, 200_000, 700_000);
            first.store(50_000, 300_000, seed);
            first.copy_within(CopyCall::Memmove, 0, 45, MIB);
            SyscallPath::ALL[round as usize % 3].discard(first, 128 * PAGE, 16 * PAGE);
            check(&[first, second], "while a child lives");
            join(pid);
        }
        work(&mut feeder, first, second, round as usize);
        SyscallPath::InlineSyscall.discard(first, 8 * PAGE, 80 * PAGE);
        check(&[first, second], "at the end of a generation");
    }
}

/// Children that fork children of their own.
fn forked(seed: u64) {
    let (mut first, mut second) = (Buffer::new(Origin::Mapped, 2 * MIB), static_area(&SECOND));
    generation(&mut first, &mut second, seed, 3);
}

/// More foreign ranges than uncopy can track.
fn many_ranges(seed: u64) {
    const RANGES: usize = 400;
    const STRIDE: usize = 17 * PAGE;
    let mut feeder = Feeder::new(seed);
    let mut random = Random::new(seed);
    let (mut first, mut second) =
        (Buffer::new(Origin::Mapped, RANGES * STRIDE), Buffer::new(Origin::Mapped, RANGES * STRIDE));
    for round in 0..2 {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for range in 0..RANGES {
            let at = range * STRIDE + random.below(PAGE);
            let len = random.between(11 * PAGE, 15 * PAGE);
            feeder.receive(InputCall::Recv, &mut first, at, len);
            ranges.push((at, len));
            // The source was just received, or is any buffer.
            let (from, len) = if range % 3 == 0 { ranges[random.below(ranges.len())] } else { (at, len) };
            second.copy_from(CopyCall::Memcpy, at + random.below(PAGE), &first, from, len);
            if range % 50 == 49 {
                let (at, len) = (random.below(range * STRIDE), STRIDE);
                first.check(at, len, "among many");
                feeder.send(OutputCall::Send, &second, at, len);
            }
        }
        if round == 0 {
            // A mapping that covers a hundred others.
            first.copy_from(CopyCall::Memcpy, 100 * STRIDE + 5, &second, 77, 100 * STRIDE);
            SyscallPath::InlineSyscall.discard(&mut first, 300 * STRIDE, 100 * STRIDE);
        }
        check(&[&first, &second], "many ranges");
    }
    // The ranges must live until the end.
    std::mem::forget((first, second));
}

/// Threads that receive, copy and check in their own mappings, while others map, fill, discard and unmap.
fn changed_while_others_copy(seed: u64) {
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || {
                let mut feeder = Feeder::new(seed + number);
                let (mut first, mut second) =
                    (Buffer::new(Origin::Mapped, 2 * MIB), Buffer::new(Origin::Mapped, 2 * MIB));
                for round in 0..12 {
                    work(&mut feeder, &mut first, &mut second, round);
                }
            });
        }
        for number in 0..2 {
            scope.spawn(move || {
                let mut feeder = Feeder::new(seed + 100 + number);
                let mut kept = Buffer::new(Origin::Mapped, MIB);
                for round in 0..120 {
                    let start = mapping(MIB);
                    // SAFETY: the mapping is this buffer's alone.
                    let mut buffer = unsafe { Buffer::over(start, MIB) };
                    check(&[&buffer], "a new mapping");
                    feeder.receive(InputCall::Recv, &mut buffer, 3000 + round, 500_000);
                    kept.copy_from(CopyCall::Memcpy, 50, &buffer, 2000, 400_000);
                    if round % 3 != 0 {
                        SyscallPath::InlineSyscall.discard(&mut buffer, 30 * PAGE, (round % 60 + 1) * PAGE);
                        check(&[&buffer], "given back");
                    }
                    if round % 4 == 0 {
                        SyscallPath::InlineSyscall.map_over(buffer.at(10 * PAGE), 40 * PAGE, PRIVATE, -1);
                        buffer.note_received(10 * PAGE, &vec![0; 40 * PAGE]);
                    }
                    feeder.receive(InputCall::Recv, &mut buffer, 100_000, 300_000);
                    buffer.copy_within(CopyCall::Memmove, 90_000, 100_000, 300_000);
                    check(&[&buffer, &kept], "before it is unmapped");
                    SyscallPath::InlineSyscall.unmap(start, MIB);
                    check(&[&kept], "after it was unmapped");
                }
            });
        }
    });
}

/// Threads receive into adjacent slices of one fresh mapping, not page-aligned, and copy from them.
fn side_by_side(seed: u64) {
    const SLICE: usize = 500_100;
    const SLICES: usize = 24;
    const THREADS: usize = 3;
    for round in 0..6 {
        let start = mapping(SLICE * SLICES + PAGE).expose_provenance();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut feeder = Feeder::new(seed + (round * THREADS + thread) as u64);
                    for slice in (thread..SLICES).step_by(THREADS) {
                        let at = std::ptr::with_exposed_provenance_mut(start + 77 + slice * SLICE);
                        // SAFETY: the slice is this thread's alone.
                        let mut buffer = unsafe { Buffer::over(at, SLICE) };
                        feeder.receive(InputCall::Recv, &mut buffer, 0, SLICE);
                        let mut copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, SLICE);
                        for _ in 0..6 {
                            copy = Buffer::copy_of(CopyCall::Memcpy, &copy, 0, SLICE);
                        }
                        check(&[&buffer, &copy], "side by side");
                    }
                });
            }
        });
        SyscallPath::Libc.unmap(std::ptr::with_exposed_provenance_mut(start), SLICE * SLICES + PAGE);
    }
}

const STACK_BUFFER: usize = 128 * 1024;

/// Uses `depth` times 16 KiB of stack, with copies and inputs on the way; returns the sum of the bytes written.
fn use_deep_stack(feeder: &mut Feeder, depth: usize) -> usize {
    let mut array = [0u8; 16 * 1024];
    // SAFETY: the array is this buffer's alone while it lives.
    let mut buffer = unsafe { Buffer::over(black_box(&mut array).as_mut_ptr(), 16 * 1024) };
    buffer.store(0, 16 * 1024, depth as u64);
    let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, 16 * 1024);
    if depth.is_multiple_of(4) {
        feeder.receive(InputCall::Recv, &mut buffer, 10, 16_000);
    }
    let below = if depth > 0 { use_deep_stack(feeder, depth - 1) } else { 0 };
    buffer.copy_within(CopyCall::Memmove, 5, 0, 16_000);
    check(&[&buffer, &copy], "deep in the stack");
    below + usize::from(black_box(&array)[depth % 100])
}

/// Another thread receives into a buffer on this stack, then this thread, with deep frames in between.
fn use_stack_buffers(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for round in 0..4 {
        let lent = |feeder: &mut Feeder, by_another: bool| {
            let mut array = [0u8; STACK_BUFFER];
            // SAFETY: the array is this buffer's alone while it lives.
            let mut buffer = unsafe { Buffer::over(black_box(&mut array).as_mut_ptr(), STACK_BUFFER) };
            let mut fill = |buffer: &mut Buffer| {
                feeder.receive(InputCall::Recv, buffer, 50, STACK_BUFFER - 100);
                let copy = Buffer::copy_of(CopyCall::Memcpy, buffer, 0, STACK_BUFFER);
                buffer.copy_from(CopyCall::Memcpy, 300, &copy, 0, 100_000);
            };
            if by_another {
                std::thread::scope(|scope| scope.spawn(|| fill(&mut buffer)).join().expect("a thread"));
            } else {
                fill(&mut buffer);
            }
            if round % 2 == 0 {
                check(&[&buffer], "on a stack");
            }
            let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, STACK_BUFFER);
            black_box(use_deep_stack(feeder, 4));
            check(&[&copy, &buffer], "on a stack, later");
            feeder.receive(InputCall::Read, &mut buffer, 0, STACK_BUFFER);
            check(&[&buffer], "on a stack, once more");
        };
        black_box(&lent)(&mut feeder, true);
        black_box(use_deep_stack(&mut feeder, 20));
        black_box(&lent)(&mut feeder, false);
        black_box(use_deep_stack(&mut feeder, 30));
    }
}

/// Buffers on the stacks of the first thread and of others.
fn stack_buffers(seed: u64) {
    use_stack_buffers(seed);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let thread = std::thread::Builder::new().stack_size(4 * MIB);
            thread.spawn_scoped(scope, move || use_stack_buffers(seed + 10 * number)).expect("a thread");
        }
    });
}

/// Reads the next line of standard input.
fn read_line() -> String {
    std::io::stdout().flush().expect("output");
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("input");
    line.trim().to_owned()
}

/// Holds views in the heap and in its own mappings until a line arrives; then checks all and works on.
fn step_on_input(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let (mut mapped, mut fixed) = (Buffer::new(Origin::Mapped, 2 * MIB), static_area(&FIRST));
    let mut received = feeder.received_buffer(MIB);
    let mut heap = Buffer::copy_of(CopyCall::Memcpy, &received, 0, MIB);
    feeder.receive(InputCall::Recv, &mut mapped, 5000, MIB);
    fixed.copy_from(CopyCall::Memcpy, 100, &mapped, 5000, MIB);
    println!("ready");
    for round in 0.. {
        if read_line() != "go on" {
            break;
        }
        check(&[&mapped, &fixed, &received, &heap], "when told");
        feeder.receive(InputCall::Recv, &mut received, 0, MIB);
        heap.copy_from(CopyCall::Memcpy, 45, &received, 0, MIB - 45);
        mapped.copy_from(CopyCall::Memcpy, 0, &heap, 0, MIB);
        work(&mut feeder, &mut mapped, &mut fixed, round);
        feeder.copied_buffer(3 * MIB).check_all("afterwards");
        check(&[&mapped, &fixed, &received, &heap], "afterwards");
        println!("fine {round}");
    }
}

/// Works as `step_on_input` does while threads receive and copy without a pause.
fn busy_step_on_input(seed: u64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let mut feeder = Feeder::new(seed + 50 + number);
                let (mut first, mut second) =
                    (Buffer::new(Origin::Mapped, 2 * MIB), Buffer::new(Origin::Malloc, 2 * MIB));
                for round in 0.. {
                    work(&mut feeder, &mut first, &mut second, round % 100);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let done = catch_unwind(AssertUnwindSafe(|| step_on_input(seed)));
        stop.store(true, Ordering::Relaxed);
        done.expect("checked");
    });
}

/// Waits without having received anything.
fn idle_until_input() {
    println!("ready");
    read_line();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "static_buffers" => static_buffers(seed),
        "mapped_buffers" => mapped_buffers(seed),
        "given_back_by_instruction" => given_back_by_instruction(seed),
        "moved_by_instruction" => moved_by_instruction(seed),
        "unmapped_and_mapped_again" => unmapped_and_mapped_again(seed),
        "protected" => protected(seed),
        "forked" => forked(seed),
        "side_by_side" => side_by_side(seed),
        "many_ranges" => many_ranges(seed),
        "changed_while_others_copy" => changed_while_others_copy(seed),
        "stack_buffers" => stack_buffers(seed),
        "step_on_input" => step_on_input(seed),
        "busy_step_on_input" => busy_step_on_input(seed),
        "idle_until_input" => idle_until_input(),
        other => panic!("unknown scenario {other}"),
    }
}

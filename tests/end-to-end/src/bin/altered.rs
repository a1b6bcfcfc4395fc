//! Programs that alter the mappings of malloc's memory: advice holds until the memory is freed,
//! other mappings there stay untouched, and neither memory nor mappings accumulate.
//!
//! ```text
//! altered SCENARIO SEED
//! ```

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "arguments of system calls have 64 bits here"
)]

use std::ffi::{c_int, c_void};
use std::fs;
use std::ptr::null_mut;

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::forked::wait;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::errno;

const MIB: usize = 1 << 20;
const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// MADV_GUARD_INSTALL and MADV_GUARD_REMOVE, Linux 6.13.
const GUARD_INSTALL: c_int = 102;
const GUARD_REMOVE: c_int = 103;
/// Number of mseal(2), Linux 6.10.
const SYS_MSEAL: libc::c_long = 462;

fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").expect("statm");
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number") * PAGE
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").expect("maps").lines().count()
}

/// Whether the mapping that holds `address` has a flag, by its two letters in `smaps`.
fn has_flag(address: usize, flag: &str) -> bool {
    let text = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut is_in_mapping = false;
    for line in text.lines() {
        let word = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = word.split_once('-')
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            is_in_mapping = start <= address && address < end;
        } else if is_in_mapping && word == "VmFlags:" {
            return line.split(' ').any(|word| word == flag);
        }
    }
    panic!("no mapping at {address:#x}");
}

fn first_page_offset(buffer: &Buffer) -> usize {
    buffer.at(0).addr().next_multiple_of(PAGE) - buffer.at(0).addr()
}

/// Whole pages in the middle of a buffer: address and length.
fn middle(buffer: &Buffer) -> (*mut c_void, usize) {
    (buffer.at(first_page_offset(buffer) + 16 * PAGE).cast(), 64 * PAGE)
}

/// Ways to alter a range of memory that stays in use.
const ALTERATIONS: [fn(*mut c_void, usize) -> c_int; 17] = [
    |_, _| 0,
    |at, len| advise(at, len, libc::MADV_HUGEPAGE),
    |at, len| advise(at, len, libc::MADV_NOHUGEPAGE),
    |at, len| advise(at, len, libc::MADV_SEQUENTIAL),
    |at, len| advise(at, len, libc::MADV_DONTDUMP),
    |at, len| advise(at, len, libc::MADV_DONTNEED),
    |at, len| advise(at, len, libc::MADV_FREE),
    |at, len| advise(at, len, libc::MADV_COLD),
    |at, len| advise(at, len, libc::MADV_POPULATE_WRITE),
    |at, len| advise(at, len, libc::MADV_DONTFORK),
    |at, len| advise(at, len, libc::MADV_WIPEONFORK),
    |at, len| advise(at, len, libc::MADV_MERGEABLE),
    |at, len| advise(at, len, GUARD_INSTALL) + advise(at, len, GUARD_REMOVE),
    // SAFETY: callers pass memory of their own.
    |at, len| unsafe { libc::mprotect(at, len, libc::PROT_READ) + libc::mprotect(at, len, READ_WRITE) },
    // SAFETY: mlock(2) changes no byte; callers pass pages of their own.
    |at, len| unsafe { libc::mlock(at, len) },
    // SAFETY: mlock2(2) changes no byte; callers pass pages of their own.
    |at, len| unsafe { libc::syscall(libc::SYS_mlock2, at, len, libc::MLOCK_ONFAULT) as c_int },
    // SAFETY: changes no byte; the policy is the default one of a task, given to a range.
    |at, len| unsafe {
        libc::syscall(libc::SYS_mbind, at, len, 1usize, null_mut::<u64>(), 0usize, 0usize) as c_int
    },
];

fn advise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: callers pass memory of their own, whose bytes they do not read again where advice drops them.
    unsafe { libc::madvise(at, len, advice) }
}

/// Blocks that are repeatedly altered and freed, whole or in part: neither memory nor mappings accumulate.
fn freed_after_every_alteration(seed: u64) {
    const BLOCKS_BYTES: usize = 120 * MIB;
    const BOUND_BYTES: usize = 40 * MIB;
    let mut feeder = Feeder::new(seed);
    feeder.copied_buffer(3 * MIB).check_all("before");
    for (number, alter) in ALTERATIONS.iter().enumerate() {
        for (len, is_part) in [(MIB, false), (MIB, true), (5 * MIB, false)] {
            let (resident, mapped) = (resident_bytes(), mappings());
            for _ in 0..BLOCKS_BYTES / len {
                // SAFETY: the memory is this loop's alone; its pages are written to before they are altered.
                unsafe {
                    let start = libc::malloc(len).cast::<u8>();
                    for at in (0..len).step_by(PAGE) {
                        start.add(at).write_volatile(3);
                    }
                    let first_page = start.addr().next_multiple_of(PAGE) - start.addr();
                    let (at, part) =
                        if is_part { (16 * PAGE, 64 * PAGE) } else { (0, (len - first_page) / PAGE * PAGE) };
                    alter(start.add(first_page + at).cast(), part);
                    libc::free(start.cast());
                }
            }
            feeder.copied_buffer(len).check_all("where an altered block was");
            let grown = resident_bytes().saturating_sub(resident);
            assert!(grown < BOUND_BYTES, "way {number}, {len} bytes: {grown} bytes more are resident");
            let more = mappings().saturating_sub(mapped);
            assert!(more < 40, "way {number}, {len} bytes: {more} more mappings");
        }
    }
    let mut last: Vec<Buffer> = (0..20).map(|_| feeder.copied_buffer(MIB + 5000)).collect();
    for buffer in &mut last {
        buffer.check_all("in blocks that were altered");
        buffer.store(0, MIB, 7);
        feeder.receive(InputCall::Recv, buffer, 100, MIB);
        feeder.send(OutputCall::Send, buffer, 0, MIB);
        buffer.check_all("received in blocks that were altered");
    }
}

/// Huge pages requested by the program stay until the memory is freed, and later allocations do not have them.
fn huge_pages_are_whose_who_asked(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let buffer = feeder.copied_buffer(8 * MIB);
    let has_huge_page_flag = |buffer: &Buffer| has_flag(buffer.at(4 * MIB).addr(), "hg");
    println!("before {}", has_huge_page_flag(&buffer));
    let first_page = first_page_offset(&buffer);
    println!("{}", advise(buffer.at(first_page).cast(), 7 * MIB, libc::MADV_HUGEPAGE));
    let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, 8 * MIB);
    println!("asked for {}, a copy {}", has_huge_page_flag(&buffer), has_huge_page_flag(&copy));
    let mut buffer = buffer;
    feeder.receive(InputCall::Recv, &mut buffer, 0, 2 * MIB);
    copy.check_all("a copy of what has huge pages now");
    buffer.check_all("received into huge pages");
    drop((buffer, copy));
    let others: Vec<Buffer> = (0..4).map(|_| Buffer::new(Origin::Aligned, 8 * MIB)).collect();
    assert!(!others.iter().any(has_huge_page_flag), "huge pages that nobody asked for");
}

/// Ways to put another mapping over a part of malloc's memory.
const MAP_OVERS: [fn(*mut c_void, usize, c_int) -> *mut c_void; 4] = [
    // SAFETY: callers pass pages of their own, whose bytes are not used afterwards.
    |at, len, fd| unsafe { libc::mmap(at, len, READ_WRITE, libc::MAP_SHARED | libc::MAP_FIXED, fd, 0) },
    |at, len, fd| {
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
        // SAFETY: callers pass pages of their own, whose bytes are not used afterwards.
        let result = unsafe {
            libc::syscall(libc::SYS_mmap, at, len, READ_WRITE as usize, flags, fd as usize, 0usize)
        };
        std::ptr::with_exposed_provenance_mut(result as usize)
    },
    |at, len, fd| {
        // SAFETY: the kernel chooses the address of the mapping, which then moves over pages of the caller's own.
        unsafe {
            let made = libc::mmap(null_mut(), len, READ_WRITE, libc::MAP_SHARED, fd, 0);
            libc::mremap(made, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at)
        }
    },
    |at, len, fd| {
        let _ = fd;
        // SAFETY: a new segment takes the place of memory of the caller's; it goes when it is detached.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, len, 0o600 | libc::IPC_CREAT);
            let attached = libc::shmat(id, at, libc::SHM_REMAP);
            libc::shmctl(id, libc::IPC_RMID, null_mut());
            attached
        }
    },
];

/// Mappings of the program over parts of malloc's memory: no later allocation writes there.
fn mapped_over(seed: u64) {
    const LEN: usize = 64 * PAGE;
    let mut feeder = Feeder::new(seed);
    for (number, map_over) in MAP_OVERS.iter().enumerate() {
        for _ in 0..20 {
            // SAFETY: memfd_create(2) reads the name, a NUL-terminated literal.
            let fd = unsafe { libc::memfd_create(c"altered".as_ptr(), 0) };
            // SAFETY: ftruncate(2) takes integers, and `fd` is a file of this function's.
            assert_eq!(unsafe { libc::ftruncate(fd, LEN as i64) }, 0);
            let mut buffer = feeder.copied_buffer(MIB);
            let before = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
            let (at, _) = middle(&buffer);
            let offset = at.addr() - buffer.at(0).addr();
            assert_eq!(map_over(at, LEN, fd), at, "cover {number}: errno {}", errno());
            buffer.note_received(offset, &vec![0; LEN]);
            let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
            feeder.send(OutputCall::Send, &buffer, 0, MIB);
            feeder.receive(InputCall::Recv, &mut buffer, offset + PAGE, 30 * PAGE);
            for buffer in [&before, &buffer, &copy] {
                buffer.check_all("with another mapping over it");
            }
            let mut file_bytes = vec![0u8; LEN];
            let read = |file_bytes: &mut [u8]| {
                // SAFETY: `file_bytes` has room for the `LEN` bytes that pread(2) writes.
                assert_eq!(unsafe { libc::pread(fd, file_bytes.as_mut_ptr().cast(), LEN, 0) }, LEN as isize);
            };
            read(&mut file_bytes);
            if number < 3 {
                assert!(file_bytes == buffer.mirror(offset, LEN), "what the file has");
            }
            drop(buffer);
            let mut others: Vec<Buffer> = (0..8).map(|_| Buffer::new(Origin::Malloc, MIB)).collect();
            others.iter_mut().for_each(|other| other.set(0, MIB, 0x5a));
            let mut later = vec![0u8; LEN];
            read(&mut later);
            assert!(file_bytes == later, "another allocation wrote to the file");
            // SAFETY: `fd` was opened by this function, and nothing uses the descriptor afterwards.
            unsafe { libc::close(fd) };
        }
    }
}

/// Other mappings in parts of malloc's memory that the program has unmapped outlive the allocation.
fn unmapped_and_used_by_others(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    for round in 0..20 {
        let buffer = feeder.copied_buffer(MIB);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        let (at, len) = middle(&buffer);
        // SAFETY: whole pages of the buffer, which are not touched until the new mapping is there.
        let other = unsafe {
            match round % 3 {
                0 => assert_eq!(libc::munmap(at, len), 0),
                1 => assert_eq!(libc::syscall(libc::SYS_munmap, at, len), 0),
                _ => {
                    let moved = libc::mremap(at, len, 2 * len, libc::MREMAP_MAYMOVE);
                    assert_ne!(moved, libc::MAP_FAILED);
                    assert_eq!(libc::munmap(moved, 2 * len), 0);
                }
            }
            let mapped = libc::mmap(at, len, READ_WRITE, flags, -1, 0);
            assert_eq!(mapped, at, "mmap: errno {}", errno());
            mapped.cast::<u8>()
        };
        // SAFETY: the new mapping is this function's.
        let mut other_buffer = unsafe { Buffer::over(other, len) };
        feeder.receive(InputCall::Recv, &mut other_buffer, 100, 200_000);
        other_buffer.set(0, 100, 9);
        drop(buffer);
        let others: Vec<Buffer> = (0..6).map(|_| feeder.copied_buffer(MIB)).collect();
        for buffer in others.iter().chain([&other_buffer, &copy]) {
            buffer.check_all("where a freed block was in part unmapped");
        }
        println!("mapped still: {}", advise(other.cast(), len, libc::MADV_NORMAL));
        // SAFETY: this function made the mapping of `len` bytes, which nothing uses afterwards.
        unsafe { libc::munmap(other.cast(), len) };
    }
}

/// Advice by `process_madvise` to the program itself, and sealed memory.
fn advised_from_outside_and_sealed(seed: u64) {
    let mut feeder = Feeder::new(seed);
    // SAFETY: pidfd_open(2) takes integers and accesses no memory.
    let own = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as c_int;
    for round in 0..6 {
        let mut buffer = feeder.copied_buffer(MIB);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        let (at, len) = middle(&buffer);
        let range = libc::iovec { iov_base: at, iov_len: len };
        let advice = [libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_DONTNEED][round % 3];
        // SAFETY: `range` lives through the call and names whole pages of `buffer`; `own` is this process.
        let done = unsafe {
            if round < 3 {
                libc::syscall(libc::SYS_process_madvise, own, &raw const range, 1, advice, 0)
            } else {
                process_madvise(own, &raw const range, 1, advice, 0) as libc::c_long
            }
        };
        println!("process_madvise {advice}: {done}");
        if advice == libc::MADV_DONTNEED && done >= 0 {
            buffer.note_received(at.addr() - buffer.at(0).addr(), &vec![0; len]);
        }
        buffer.check_all("after process_madvise");
        copy.check_all("a copy");
        feeder.receive(InputCall::Recv, &mut buffer, 0, MIB);
        buffer.check_all("received after process_madvise");
    }
    for _ in 0..3 {
        let mut buffer = feeder.copied_buffer(MIB);
        let (at, len) = middle(&buffer);
        // SAFETY: mseal(2) changes no byte of the buffer's pages.
        println!("mseal {}", unsafe { libc::syscall(SYS_MSEAL, at, len, 0) });
        feeder.receive(InputCall::Recv, &mut buffer, 0, MIB);
        buffer.check_all("sealed");
        drop(buffer);
        feeder.copied_buffer(MIB).check_all("after sealed memory was freed");
    }
}

unsafe extern "C" {
    fn process_madvise(
        process: c_int,
        ranges: *const libc::iovec,
        count: usize,
        advice: c_int,
        flags: u32,
    ) -> isize;
}

/// Memory that children do not inherit is freed there, and other mappings use the addresses.
fn not_inherited(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let buffer = feeder.copied_buffer(MIB);
    let first_page = first_page_offset(&buffer);
    let (at, len) = (buffer.at(first_page), (MIB - first_page) / PAGE * PAGE);
    assert_eq!(advise(at.cast(), len, libc::MADV_DONTFORK), 0);
    // SAFETY: the child runs what follows and ends by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a fresh mapping where nothing is.
        let mapped = unsafe { libc::mmap(at.cast(), len, READ_WRITE, flags, -1, 0) };
        assert_eq!(mapped, at.cast(), "mmap: errno {}", errno());
        // SAFETY: the child made the mapping of `len` bytes and has no other reference to the bytes.
        let mut other_buffer = unsafe { Buffer::over(mapped.cast(), len) };
        other_buffer.set(0, len, 5);
        drop(buffer);
        let others: Vec<Buffer> = (0..6).map(|_| Buffer::new(Origin::Calloc, MIB)).collect();
        others.iter().for_each(|other| other.check_all("of a child"));
        other_buffer.check_all("what a child mapped where it inherited nothing");
        let is_still_mapped = advise(mapped, len, libc::MADV_NORMAL) == 0;
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(c_int::from(!is_still_mapped)) };
    }
    assert_eq!(wait(pid), 0, "the child");
    buffer.check_all("what no child inherits");
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().expect("a scenario");
    let seed = arguments.next().and_then(|seed| seed.parse().ok()).expect("a seed");
    match scenario.as_str() {
        "freed_after_every_alteration" => freed_after_every_alteration(seed),
        "huge_pages_are_whose_who_asked" => huge_pages_are_whose_who_asked(seed),
        "mapped_over" => mapped_over(seed),
        "unmapped_and_used_by_others" => unmapped_and_used_by_others(seed),
        "advised_from_outside_and_sealed" => advised_from_outside_and_sealed(seed),
        "not_inherited" => not_inherited(seed),
        other => panic!("no scenario {other}"),
    }
}

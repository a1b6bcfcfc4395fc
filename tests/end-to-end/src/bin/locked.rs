//! Programs that change the mappings of memory with received data: locked, discarded, moved,
//! unmapped, made of huge pages.
//!
//! ```text
//! locked SCENARIO SEED
//! ```

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use uncopy_core::addr::PAGE_BYTES as PAGE;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, errno};

const MIB: usize = 1 << 20;

fn print_result(what: &str, result: c_int) {
    println!("{what}: {result} errno {}", if result == 0 { 0 } else { errno() });
}

fn first_page(buffer: &Buffer) -> usize {
    buffer.at(0).addr().next_multiple_of(PAGE) - buffer.at(0).addr()
}

/// Receives, copies, sends and checks as usual.
fn use_buffers(feeder: &mut Feeder, buffers: &mut [Buffer], what: &str) {
    for buffer in buffers.iter() {
        buffer.check_all(what);
    }
    for index in 0..buffers.len() {
        let len = buffers[index].len();
        feeder.receive(InputCall::Recv, &mut buffers[index], 0, len);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffers[index], 0, len);
        buffers[index].store(len / 2, 10_000, 3);
        feeder.send(OutputCall::Send, &copy, 0, 200_000);
        copy.check_all(what);
        let other = (index + 1) % buffers.len();
        if other != index {
            let [target, source] = buffers.get_disjoint_mut([other, index]).expect("different");
            let len = target.len().min(source.len());
            target.copy_from(CopyCall::Memmove, 0, source, 0, len);
        }
    }
    for buffer in buffers.iter() {
        buffer.check_all(what);
    }
}

fn make_buffers(seed: u64) -> (Feeder, Vec<Buffer>) {
    let mut feeder = Feeder::new(seed);
    let mut buffers: Vec<Buffer> = (0..3).map(|_| feeder.copied_buffer(MIB)).collect();
    let mut mapped = Buffer::new(Origin::Mapped, MIB);
    mapped.copy_from(CopyCall::Memcpy, 0, &buffers[0], 0, MIB);
    buffers.push(mapped);
    (feeder, buffers)
}

/// `mlock`, `mlock2` and `munlock` of buffers before and after they hold views.
fn locked_buffers(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    // SAFETY: locking changes no byte; the ranges are the buffers'.
    unsafe {
        print_result("mlock", libc::mlock(buffers[0].at(0).cast(), MIB));
        print_result("mlock2", libc::mlock2(buffers[1].at(5000).cast(), MIB / 2, libc::MLOCK_ONFAULT));
        print_result("mlock of a mapping", libc::mlock(buffers[3].at(0).cast(), MIB));
        let fresh = Buffer::new(Origin::Calloc, 3 * MIB);
        print_result("mlock of fresh memory", libc::mlock(fresh.at(0).cast(), fresh.len()));
        buffers.push(fresh);
    }
    use_buffers(&mut feeder, &mut buffers, "while locked");
    // SAFETY: munlock(2) changes no byte; the ranges are the buffers'.
    unsafe {
        print_result("munlock", libc::munlock(buffers[0].at(0).cast(), MIB));
        print_result("munlock of what was never locked", libc::munlock(buffers[2].at(0).cast(), MIB));
    }
    use_buffers(&mut feeder, &mut buffers, "when unlocked");
    buffers.swap_remove(0);
    feeder.copied_buffer(2 * MIB).check_all("in memory that was locked before it was freed");
    use_buffers(&mut feeder, &mut buffers, "later");
}

/// `mlockall` of current and future memory.
fn all_memory_locked(seed: u64) {
    let (mut feeder, mut buffers) = make_buffers(seed);
    for flags in
        [libc::MCL_CURRENT, libc::MCL_FUTURE, libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT]
    {
        // SAFETY: mlockall(2) takes flags and changes no byte of memory.
        print_result(&format!("mlockall {flags}"), unsafe { libc::mlockall(flags) });
        use_buffers(&mut feeder, &mut buffers, "with all memory locked");
        feeder.copied_buffer(3 * MIB + 77).check_all("in locked memory");
    }
    // SAFETY: munlockall(2) takes no arguments and changes no byte of memory.
    print_result("munlockall", unsafe { libc::munlockall() });
    use_buffers(&mut feeder, &mut buffers, "with no memory locked");
}

/// A program that locks all memory before it receives anything, as real-time programs do.
fn locked_before_anything_else(seed: u64) {
    // SAFETY: mlockall(2) takes flags and changes no byte of memory.
    print_result("mlockall", unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) });
    let (mut feeder, mut buffers) = make_buffers(seed);
    use_buffers(&mut feeder, &mut buffers, "in locked memory");
}

/// Pages of the allocator's blocks returned to the kernel: they read as zeroes, the rest as before.
fn discarded_pages(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for advice in [libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED] {
        let mut buffer = feeder.copied_buffer(MIB);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        let at = first_page(&buffer) + 16 * PAGE;
        // SAFETY: whole pages inside the buffer, whose bytes are not used afterwards.
        print_result("madvise", unsafe { libc::madvise(buffer.at(at).cast(), 40 * PAGE, advice) });
        buffer.note_received(at, &vec![0; 40 * PAGE]);
        buffer.check_all("with a discarded part");
        copy.check_all("a copy of what was discarded");
        let again = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        again.check_all("a copy of the discarded part");
        feeder.receive(InputCall::Recv, &mut buffer, 0, MIB);
        feeder.send(OutputCall::Send, &buffer, 0, 300_000);
        buffer.check_all("received where pages were discarded");
    }
    let mut buffer = feeder.copied_buffer(MIB);
    for advice in [
        libc::MADV_WILLNEED,
        libc::MADV_SEQUENTIAL,
        libc::MADV_DONTFORK,
        libc::MADV_DOFORK,
        libc::MADV_DONTDUMP,
        libc::MADV_COLD,
        libc::MADV_PAGEOUT,
        libc::MADV_POPULATE_READ,
        libc::MADV_POPULATE_WRITE,
        libc::MADV_MERGEABLE,
    ] {
        let at = first_page(&buffer);
        // SAFETY: advice that changes no byte, on whole pages inside the buffer.
        let result = unsafe { libc::madvise(buffer.at(at).cast(), 100 * PAGE, advice) };
        println!("advice {advice}: {result}");
        buffer.check_all("after harmless advice");
        feeder.receive(InputCall::Recv, &mut buffer, 0, MIB);
        buffer = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
    }
    buffer.check_all("in the end");
}

/// Pages of the allocator's blocks moved to another address, unmapped, and mapped anew.
fn moved_and_unmapped_pages(seed: u64) {
    let mut feeder = Feeder::new(seed);
    for _ in 0..3 {
        let mut buffer = feeder.copied_buffer(MIB);
        let at = first_page(&buffer) + 8 * PAGE;
        let (page, len): (*mut c_void, usize) = (buffer.at(at).cast(), 32 * PAGE);
        // SAFETY: whole pages inside the buffer; they are mapped again before anything else uses them.
        unsafe {
            let moved = libc::mremap(
                page,
                len,
                len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP,
                null_mut::<c_void>(),
            );
            assert_ne!(moved, libc::MAP_FAILED, "mremap: {}", errno());
            let same = oracle::first_difference(moved.cast(), buffer.mirror_at(at), len);
            assert_eq!(same, None, "what was moved");
            libc::munmap(moved, len);
            buffer.note_received(at, &vec![0; 32 * PAGE]);
            buffer.check_all("with a part moved away");
            assert_eq!(libc::munmap(page.byte_add(len / 2), PAGE), 0);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = libc::mmap(page.byte_add(len / 2), PAGE, protection, flags, -1, 0);
            assert_eq!(mapped, page.byte_add(len / 2), "mmap: {}", errno());
        }
        buffer.check_all("with a page mapped anew");
        feeder.receive(InputCall::Recv, &mut buffer, 0, MIB);
        let copy = Buffer::copy_of(CopyCall::Memcpy, &buffer, 0, MIB);
        feeder.send(OutputCall::Write, &copy, 0, MIB);
        buffer.check_all("received where pages were moved");
        copy.check_all("copied from there");
    }
}

/// Buffers with huge pages requested, and views that are collapsed into huge pages.
fn huge_pages(seed: u64) {
    const HUGE: usize = 2 * MIB;
    let mut feeder = Feeder::new(seed);
    for origin in [Origin::Malloc, Origin::Mapped] {
        let mut buffer = Buffer::new(origin, 8 * MIB);
        let source = feeder.copied_buffer(8 * MIB);
        let at = buffer.at(0).addr().next_multiple_of(HUGE) - buffer.at(0).addr();
        for round in 0..4 {
            let advice =
                [libc::MADV_HUGEPAGE, libc::MADV_COLLAPSE, libc::MADV_NOHUGEPAGE, libc::MADV_HUGEPAGE][round];
            feeder.receive(InputCall::Recv, &mut buffer, round * 100, 5 * MIB);
            // SAFETY: advice that changes no byte, on pages inside the buffer.
            let _ = unsafe { libc::madvise(buffer.at(at).cast(), 2 * HUGE, advice) };
            buffer.check_all("after advice about huge pages");
            buffer.copy_from(CopyCall::Memcpy, 77, &source, 0, 6 * MIB);
            buffer.store(3 * MIB, 100_000, 9);
            let copy = Buffer::copy_of(CopyCall::Memmove, &buffer, 0, 8 * MIB);
            feeder.send(OutputCall::Send, &copy, MIB, 2 * MIB);
            copy.check_all("a copy of huge pages");
            buffer.check_all("huge pages");
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "locked_buffers" => locked_buffers(seed),
        "all_memory_locked" => all_memory_locked(seed),
        "locked_before_anything_else" => locked_before_anything_else(seed),
        "discarded_pages" => discarded_pages(seed),
        "moved_and_unmapped_pages" => moved_and_unmapped_pages(seed),
        "huge_pages" => huge_pages(seed),
        other => panic!("unknown scenario {other}"),
    }
}

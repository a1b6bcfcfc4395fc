//! Writes of all kinds, syncs and file offsets.

use libc::{c_int, off_t};
use uncopy_tests::random::Random;

use crate::file::{File, bytes, show, show_content};

const PAGE_BYTES: usize = 4096;

pub fn sequential() {
    let file = File::enter_log("file", 0);
    for (turn, len) in [1, 0, 511, 4096, 4097, 70_000, 1 << 20, 13].into_iter().enumerate() {
        show("write", file.write(&bytes(turn, len)));
        if turn % 3 == 0 {
            show("sync", file.sync());
        }
    }
    file.show_state("written");
    show("write to a closed descriptor", File(1000).write(b"x"));
    file.close();
    show_content("file", "closed");
}

pub fn at_offsets() {
    let file = File::enter_log("file", 0);
    show("write", file.write(&bytes(1, 10_000)));
    for (turn, offset) in [0, 5, 4095, 9000, 600, 20_000, 123].into_iter().enumerate() {
        show("pwrite", file.pwrite(&bytes(turn + 7, 300 * turn + 1), offset));
        show("offset", file.seek(0, libc::SEEK_CUR));
        show("size", file.size());
    }
    show("pwrite of nothing beyond the end", file.pwrite(&[], 1 << 30));
    show("size", file.size());
    show("pwrite at a negative offset", file.pwrite(b"x", -1));
    show("pwrite at the last offset", file.pwrite(b"xy", off_t::MAX - 1));
    show("write", file.write(b"at the offset"));
    show("sync", file.sync());
    file.show_state("written");
    show_content("file", "read");
}

pub fn vectors() {
    let file = File::enter_log("file", 0);
    let (one, two, three) = (bytes(1, 5), bytes(2, 5000), bytes(3, 70_000));
    show("writev", file.writev(&[&one, &two, &[], &three]));
    show("writev of nothing", file.writev(&[]));
    show("writev of empty parts", file.writev(&[&[], &[]]));
    show("pwritev", file.pwritev(&[&three, &one], 2));
    show("pwritev2", file.pwritev2(&[&two, &one], 50_000, 0));
    show("pwritev2 at the offset", file.pwritev2(&[&one], -1, 0));
    show("pwritev2 that appends", file.pwritev2(&[&two], 0, libc::RWF_APPEND));
    file.show_state("written");
    show("pwritev2 that syncs", file.pwritev2(&[&one], 9, libc::RWF_DSYNC));
    show("pwritev2 with unknown flags", file.pwritev2(&[&one], 9, 1 << 30));
    let many = vec![&one[..]; 1025];
    show("writev of too many parts", file.writev(&many));
    show("writev of many parts", file.writev(&many[..1024]));
    file.show_state("written");
    show_content("file", "read");
}

pub fn appends() {
    let file = File::enter_log("file", libc::O_APPEND);
    file.show_state("begun");
    show("write", file.write(&bytes(1, 1000)));
    show("seek", file.seek(10, libc::SEEK_SET));
    show("write behind a seek", file.write(&bytes(2, 1000)));
    file.show_state("appended");
    // Linux appends whatever the offset is (pwrite(2), "Bugs").
    show("pwrite", file.pwrite(&bytes(3, 50), 7));
    file.show_state("appended by pwrite");
    let flags = file.fcntl(libc::F_GETFL, 0) as c_int;
    show("no append", file.fcntl(libc::F_SETFL, flags & !libc::O_APPEND));
    show("seek", file.seek(100, libc::SEEK_SET));
    show("write", file.write(&bytes(4, 50)));
    file.show_state("overwritten");
    show("append again", file.fcntl(libc::F_SETFL, flags | libc::O_APPEND));
    for turn in 0..8 {
        file.write(&bytes(turn, 333));
        show("sync", file.sync());
    }
    file.show_state("appended again");
    show_content("file", "read");
}

/// Writes from memory that cannot be read.
pub fn faults() {
    let file = File::enter_log("file", 0);
    // SAFETY: a new mapping of two pages, of which the second is made inaccessible; the calls read from it only
    // through the kernel, which returns EFAULT for what it cannot read.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(std::ptr::null_mut(), 2 * PAGE_BYTES, protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        pages.cast::<u8>().write_bytes(7, PAGE_BYTES);
        let hidden = pages.byte_add(PAGE_BYTES);
        assert_eq!(libc::mprotect(hidden, PAGE_BYTES, libc::PROT_NONE), 0);
        show("write from nowhere", libc::write(file.0, std::ptr::without_provenance(8), 100) as i64);
        show("write from a hidden page", libc::write(file.0, hidden, 100) as i64);
        file.show_state("refused");
        show("pwrite from nowhere", libc::pwrite(file.0, hidden, 100, 3) as i64);
        // How much of a partly hidden buffer is written is up to the file system: only that no other bytes are.
        let written = libc::write(file.0, pages.byte_add(PAGE_BYTES - 10), 100);
        println!(
            "write from a partly hidden buffer: {}",
            if written == 10 || written == -1 { "fine" } else { "wrong" }
        );
        let end = file.size();
        assert_eq!(end, 600 + written.max(0) as i64);
        show("truncate", file.truncate(600));
        show("seek", file.seek(0, libc::SEEK_END));
        show("write", libc::write(file.0, pages, PAGE_BYTES) as i64);
    }
    file.show_state("written");
    show_content("file", "read");
}

/// Writes up to a limit on the size of files (`RLIMIT_FSIZE`).
pub fn limits() {
    let limit = |bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: setrlimit(2) only reads `limit`.
        show("setrlimit", i64::from(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }));
    };
    // SAFETY: ignoring a signal runs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let file = File::enter_log("file", 0);
    show("write", file.write(&bytes(1, 9000)));
    limit(10_000);
    show("write across the limit", file.write(&bytes(2, 1000)));
    show("write beyond the limit", file.write(&bytes(3, 1)));
    show("pwrite across the limit", file.pwrite(&bytes(4, 1000), 9500));
    show("truncate beyond the limit", file.truncate(20_000));
    for turn in 0..8 {
        file.pwrite(&bytes(turn, 333), 100);
        show("sync", file.sync());
    }
    show("write beyond the limit", file.write(&bytes(3, 1)));
    limit(libc::RLIM_INFINITY);
    show("write", file.write(&bytes(5, 5000)));
    file.show_state("written");
    show_content("file", "read");
}

pub fn overlapping() {
    let file = File::enter_log("file", 0);
    let mut random = Random::new(7);
    let mut expected = std::fs::read("file").expect("the file");
    for turn in 0..2000 {
        let len = random.between(1, 6000);
        let offset = random.below(40_000);
        let part = bytes(turn, len);
        assert_eq!(file.pwrite(&part, offset as off_t), len as i64);
        if expected.len() < offset + len {
            expected.resize(offset + len, 0);
        }
        expected[offset..offset + len].copy_from_slice(&part);
        if random.one_in(5) {
            assert_eq!(file.sync(), 0);
        }
        if random.one_in(400) {
            assert!(std::fs::read("file").expect("the file") == expected, "turn {turn}");
        }
        assert_eq!(file.size(), expected.len() as i64, "turn {turn}");
    }
    assert!(std::fs::read("file").expect("the file") == expected, "at the end");
    show_content("file", "read");
}

pub fn holes() {
    let file = File::enter_log("file", 0);
    show("pwrite", file.pwrite(&bytes(1, 5000), 1 << 20));
    show("seek", file.seek(3 << 20, libc::SEEK_SET));
    show("write", file.write(&bytes(2, 5000)));
    show("sync", file.sync());
    file.show_state("with holes");
    // The first bytes of a hole belong to the block of the data before.
    show("data", file.seek(0, libc::SEEK_DATA));
    show("data in the second part", file.seek((1 << 20) + 10, libc::SEEK_DATA));
    show("data behind the end", file.seek(1 << 30, libc::SEEK_DATA));
    show("hole behind the last byte", file.seek((3 << 20) + 4999, libc::SEEK_HOLE));
    show("write", file.write(&bytes(3, 100)));
    file.show_state("written");
    show_content("file", "read");
}

/// Writes beyond 4 GiB: offsets do not fit 32 bits.
pub fn far() {
    const FAR: off_t = (5 << 30) + 123;
    let file = File::enter_log("file", 0);
    show("pwrite", file.pwrite(&bytes(1, 5000), FAR));
    show("size", file.size());
    show("seek", file.seek(0, libc::SEEK_END));
    show("write", file.write(&bytes(2, 5000)));
    show("pwrite", file.pwrite(&bytes(3, 9000), (1 << 32) - 4500));
    show("sync", file.sync());
    file.show_state("written");
    let reader = File::open("file", libc::O_RDONLY);
    for offset in [0, (1 << 32) - 5000, FAR - 5, FAR + 4990] {
        let mut found = vec![0; 10_000];
        // SAFETY: `found` is writable for its length.
        let got = unsafe { libc::pread(reader.0, found.as_mut_ptr().cast(), found.len(), offset) };
        println!("at {offset}: {got} bytes, {:016x}", crate::file::digest(&found));
    }
    show("size for the reader", reader.size());
}

pub fn syncs() {
    let file = File::enter_log("file", 0);
    // SAFETY: these calls take descriptors and numbers, and access no memory.
    unsafe {
        show("sync of nothing new", i64::from(libc::fsync(file.0)));
        file.write(&bytes(1, 5000));
        show("fsync", i64::from(libc::fsync(file.0)));
        file.write(&bytes(2, 5000));
        show("fdatasync", i64::from(libc::fdatasync(file.0)));
        file.write(&bytes(3, 5000));
        let how = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        show("sync_file_range", i64::from(libc::sync_file_range(file.0, 0, 0, how)));
        file.write(&bytes(4, 5000));
        show("syncfs", i64::from(libc::syncfs(file.0)));
        file.write(&bytes(5, 5000));
        libc::sync();
        file.write(&bytes(6, 5000));
        show("fadvise", i64::from(libc::posix_fadvise(file.0, 0, 0, libc::POSIX_FADV_DONTNEED)));
        show("flock", i64::from(libc::flock(file.0, libc::LOCK_EX)));
        show("fsync of a closed descriptor", i64::from(libc::fsync(1000)));
    }
    file.show_state("written");
    show_content("file", "read");
}

/// Writes, and syncs between two calls of getppid(2), which a tracer finds.
pub fn quiet_syncs() {
    let file = File::enter_log("file", libc::O_APPEND);
    let part = bytes(1, 4000);
    let marker = || {
        // SAFETY: getppid(2) takes no arguments.
        unsafe { libc::syscall(libc::SYS_getppid) };
    };
    for turn in 0..100 {
        assert_eq!(file.write(&part), 4000);
        marker();
        // SAFETY: fsync(2) accesses no memory.
        assert_eq!(if turn % 2 == 0 { file.sync() } else { i64::from(unsafe { libc::fsync(file.0) }) }, 0);
        marker();
    }
    file.show_state("written");
}

pub fn seeks() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 5000));
    for (offset, whence) in [
        (0, libc::SEEK_CUR),
        (0, libc::SEEK_END),
        (-10, libc::SEEK_END),
        (-10, libc::SEEK_CUR),
        (17, libc::SEEK_SET),
        (-18, libc::SEEK_CUR),
        (-1, libc::SEEK_SET),
        (off_t::MAX, libc::SEEK_CUR),
        (off_t::MAX, libc::SEEK_END),
        (0, 77),
        (20_000, libc::SEEK_SET),
    ] {
        show(&format!("seek {offset} {whence}"), file.seek(offset, whence));
        show("offset", file.seek(0, libc::SEEK_CUR));
    }
    show("size", file.size());
    show("write behind the end", file.write(&bytes(2, 100)));
    show("end", file.seek(0, libc::SEEK_END));
    show("seek of a closed descriptor", File(1000).seek(0, libc::SEEK_SET));
    show("last offset", file.seek(off_t::MAX, libc::SEEK_SET));
    show("write there", file.write(b"xy"));
    file.show_state("written");
    show_content("file", "read");
}

pub fn flags() {
    let file = File::enter_log("file", libc::O_APPEND);
    file.write(&bytes(1, 100));
    show("flags", file.fcntl(libc::F_GETFL, 0) & !i64::from(libc::O_LARGEFILE));
    show("lease", file.fcntl(libc::F_GETLEASE, 0));
    show("descriptor flags", file.fcntl(libc::F_GETFD, 0));
    let mut left: c_int = 0;
    show("seek", file.seek(30, libc::SEEK_SET));
    // SAFETY: FIONREAD writes one int to `left`.
    show("ioctl", i64::from(unsafe { libc::ioctl(file.0, libc::FIONREAD, &raw mut left) }));
    println!("left {left}");
    show("write", file.write(&bytes(2, 100)));
    for turn in 0..8 {
        file.write(&bytes(turn, 333));
        file.sync();
    }
    let mut byte = 0u8;
    // SAFETY: `byte` is writable; the file cannot be read by this descriptor.
    show("read", unsafe { libc::read(file.0, (&raw mut byte).cast(), 1) as i64 });
    file.show_state("written");
    // SAFETY: a system call made without libc's function; it accesses no memory.
    show("seek by syscall", unsafe { libc::syscall(libc::SYS_lseek, file.0, 0, libc::SEEK_END) });
    // SAFETY: a system call made without libc's function, with three bytes.
    show("write by syscall", unsafe { libc::syscall(libc::SYS_write, file.0, c"abc".as_ptr(), 3) });
    file.show_state("written");
    show_content("file", "read");
}

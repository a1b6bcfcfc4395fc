//! Reads by the descriptor that writes.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_int, off_t};
use uncopy_tests::oracle::errno;
use uncopy_tests::random::Random;

use crate::file::{File, bytes, digest, show, show_content};

/// Number of operations of [`random`].
const OPERATIONS: usize = 3000;
/// Upper bound of the file's size in [`random`], bytes.
const MAX_SIZE: usize = 200_000;

/// Prints the result of a read, and what it has read.
fn show_read(call: &str, result: i64, found: &[u8]) {
    let len = usize::try_from(result).unwrap_or(0);
    println!("{call}: {result}, {:016x}", digest(&found[..len]));
    if result < 0 {
        println!("error {}", errno());
    }
}

/// Reads with every call, between writes and syncs.
pub fn every_call(flags: c_int) {
    let file = File::enter_log_to_read("file", flags);
    let mut found = vec![0; 40_000];
    show_read("read at the end", file.read(&mut found[..1]), &found);
    show("seek", file.seek(0, libc::SEEK_SET));
    show_read("read one byte", file.read(&mut found[..1]), &found);
    file.show_state("read");
    for turn in 0..40_usize {
        show("write", file.write(&bytes(turn, 10 + turn * 97)));
        if turn % 3 == 0 {
            show("sync", file.sync());
        }
        let back = -(((turn * 53) % 900) as off_t);
        show("seek", file.seek(back, libc::SEEK_CUR));
        match turn % 5 {
            0 => show_read("read", file.read(&mut found[..700]), &found),
            1 => show_read("pread", file.pread(&mut found, (turn * 11) as off_t), &found),
            2 => show_read("readv", file.readv(&mut found[..300]), &found),
            3 => show_read("preadv", file.preadv(&mut found[..20_000], 5, 0), &found),
            _ => show_read("preadv2", file.preadv(&mut found[..4000], -1, 0), &found),
        }
        file.show_state("read");
        show("write", file.pwrite(&bytes(turn, 20), (turn * 40) as off_t));
        show_read("pread", file.pread(&mut found[..30], (turn * 40) as off_t - 5), &found);
    }
    show_read("read nothing", file.read(&mut found[..0]), &found);
    let nowhere = std::ptr::without_provenance_mut(4096);
    // SAFETY: the kernel refuses to store where nothing is mapped.
    show("read to a bad address", unsafe { libc::read(file.0, nowhere, 10) as i64 });
    // SAFETY: the kernel refuses to store where nothing is mapped.
    show("pread to a bad address", unsafe { libc::pread(file.0, nowhere, 10, 0) as i64 });
    file.show_state("at the end");
    show_content("file", "read by another descriptor");
}

/// Reads by system calls of the program's, and asynchronously.
pub fn around_libc() {
    let file = File::enter_log_to_read("file", 0);
    let mut found = vec![0_u8; 3000];
    for turn in 0..6_usize {
        file.write(&bytes(turn, 900));
        // SAFETY: the calls store into `found`, which lives through them.
        unsafe {
            let at = found.as_mut_ptr();
            let got = libc::syscall(libc::SYS_pread64, file.0, at, 800_usize, (turn * 70) as off_t);
            show_read("pread by syscall(2)", got, &found);
        }
        file.write(&bytes(turn, 30));
        file.show_state("written");
        file.sync();
    }
    let file = File::enter_log_to_read("other", 0);
    file.write(&bytes(9, 2500));
    // SAFETY: an all-zero aiocb is valid; it and its buffer live until the request has ended.
    unsafe {
        let mut request: libc::aiocb = zeroed();
        request.aio_fildes = file.0;
        request.aio_buf = found.as_mut_ptr().cast();
        request.aio_nbytes = 2000;
        request.aio_offset = 550;
        assert_eq!(libc::aio_read(&raw mut request), 0);
        while libc::aio_error(&raw const request) == libc::EINPROGRESS {
            libc::usleep(100);
        }
        show_read("aio_read", libc::aio_return(&raw mut request) as i64, &found);
    }
}

/// Maps the file by its own descriptor: what is written later is seen there.
pub fn own_mappings() {
    for (name, flags) in [("shared", libc::MAP_SHARED), ("private", libc::MAP_PRIVATE)] {
        let file = File::enter_log_to_read(name, 0);
        file.write(&bytes(1, 8000));
        // SAFETY: a new mapping within the file at an address that the kernel chooses.
        unsafe {
            let mapped = libc::mmap(null_mut(), 8000, libc::PROT_READ, flags, file.0, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            let content = || digest(std::slice::from_raw_parts(mapped.cast(), 8000));
            println!("{name}: {:016x}", content());
            for turn in 0..8 {
                file.pwrite(&bytes(turn, 900), (turn * 850) as off_t);
                println!("{name}, written: {:016x}", content());
                file.sync();
            }
            libc::munmap(mapped, 8000);
        }
        show_content(name, "read");
    }
}

/// Transfers out of the file by calls that the kernel makes without the program's memory.
pub fn transfers_out() {
    let file = File::enter_log_to_read("file", 0);
    let to = File::open("copy", libc::O_RDWR | libc::O_CREAT);
    for turn in 0..6_usize {
        file.write(&bytes(turn, 5000));
        let mut from: off_t = (turn * 600) as off_t;
        // SAFETY: the calls read and advance the offsets, which live through them.
        unsafe {
            show("sendfile", libc::sendfile(to.0, file.0, &raw mut from, 5000) as i64);
            file.write(&bytes(turn, 100));
            file.seek(-400, libc::SEEK_CUR);
            show("copy", libc::copy_file_range(file.0, null_mut(), to.0, null_mut(), 300, 0) as i64);
            file.show_state("copied");
            let (from, to) = File::pipe();
            show("splice", libc::splice(file.0, null_mut(), to.0, null_mut(), 50, 0) as i64);
            let mut found = [0; 50];
            show_read("from the pipe", from.read(&mut found), &found);
            from.close();
            to.close();
        }
        file.show_state("spliced");
        for turn in 0..4 {
            file.write(&bytes(turn, 77));
            file.sync();
        }
    }
    show_content("file", "read");
    show_content("copy", "read");
}

/// Reads what was written last, while another thread appends.
pub fn threads() {
    const RECORD: usize = 512;
    let file = File::enter_log_to_read("file", 0);
    let begun = file.size();
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2000_usize {
                let at = begun + (number * RECORD) as i64;
                assert_eq!(file.pwrite(&bytes(number, RECORD), at), RECORD as i64);
                written.store(number as u64 + 1, Relaxed);
                if number % 7 == 0 {
                    assert_eq!(file.sync(), 0);
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = [0; RECORD];
                while written.load(Relaxed) < 2000 {
                    let Some(last) = (written.load(Relaxed) as usize).checked_sub(1) else { continue };
                    assert_eq!(file.pread(&mut found, begun + (last * RECORD) as i64), RECORD as i64);
                    assert!(found[..] == bytes(last, RECORD), "record {last}");
                }
            });
        }
    });
    show_content("file", "read");
}

/// Makes random calls, and compares what it reads with what it has written.
pub fn random(arguments: &[String]) {
    let seed = arguments.first().map_or(1, |seed| seed.parse().expect("a number"));
    let mut random = Random::new(seed);
    let file = File::enter_log_to_read("file", 0);
    let mut content = std::fs::read("file").expect("the file");
    let (mut offset, mut found) = (content.len(), vec![0; MAX_SIZE]);
    let put = |content: &mut Vec<u8>, at: usize, written: &[u8]| {
        content.resize(content.len().max(at + written.len()), 0);
        content[at..at + written.len()].copy_from_slice(written);
    };
    for operation in 0..OPERATIONS {
        let len = if random.below(4) == 0 { 1 + random.below(20_000) } else { 1 + random.below(600) };
        let at = random.below(content.len() + 1);
        match random.below(10) {
            0..3 if offset + len <= MAX_SIZE => {
                let new = bytes(operation, len);
                assert_eq!(file.write(&new), len as i64);
                put(&mut content, offset, &new);
                offset += len;
            }
            3 if at + len <= MAX_SIZE => {
                let new = bytes(operation, len);
                assert_eq!(file.pwrite(&new, at as off_t), len as i64);
                put(&mut content, at, &new);
            }
            4 => {
                let got = file.read(&mut found[..len]);
                let expected = &content[offset..(offset + len).min(content.len())];
                assert_eq!(got, expected.len() as i64, "operation {operation}");
                assert!(found[..expected.len()] == *expected, "operation {operation}");
                offset += expected.len();
            }
            5 => {
                let got = file.pread(&mut found[..len], at as off_t);
                let expected = &content[at..(at + len).min(content.len())];
                assert_eq!(got, expected.len() as i64, "operation {operation}");
                assert!(found[..expected.len()] == *expected, "operation {operation}");
            }
            6 | 7 => {
                assert_eq!(file.seek(at as off_t, libc::SEEK_SET), at as i64);
                offset = at;
            }
            _ => assert_eq!(file.sync(), 0),
        }
        assert_eq!(file.seek(0, libc::SEEK_CUR), offset as i64, "operation {operation}");
    }
    file.show_state("at the end");
    assert!(std::fs::read("file").expect("the file") == content);
}

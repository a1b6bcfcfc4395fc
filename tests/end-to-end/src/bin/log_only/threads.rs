//! Threads that write to one file, and records for a program that is killed.

use std::ffi::{c_int, c_void};
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use uncopy_tests::unwound::Thread;

use crate::file::{File, bytes, show, show_content};

const THREADS: usize = 6;
const RECORDS: usize = 400;
/// Number of records between two pauses of a millisecond: without them the file would become long.
const RECORDS_PER_PAUSE: usize = 50;
/// Length of a thread's record: header and bytes that follow from it.
const RECORD_BYTES: usize = 500;

/// Returns a record of a thread.
fn record(thread: usize, number: usize) -> Vec<u8> {
    let mut record = format!("{thread:04} {number:08} ").into_bytes();
    let rest = RECORD_BYTES - record.len();
    record.extend(bytes(thread * 7919 + number, rest));
    record
}

/// Checks that a file consists of whole records, those of each thread in order.
fn check_records(mut found: &[u8]) {
    let mut next = [0; THREADS];
    while !found.is_empty() {
        let (one, rest) = found.split_at(RECORD_BYTES);
        let text = std::str::from_utf8(&one[..13]).expect("a header");
        let (thread, number) = text.split_once(' ').expect("two numbers");
        let (thread, number): (usize, usize) =
            (thread.parse().expect("a thread"), number.trim().parse().expect("a number"));
        assert_eq!(number, next[thread], "thread {thread}");
        assert!(one == record(thread, number), "thread {thread}, record {number}");
        next[thread] += 1;
        found = rest;
    }
    assert_eq!(next, [RECORDS; THREADS]);
}

/// Lets threads write records to one descriptor, some of them by two parts.
fn write_records(file: File) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in 0..RECORDS {
                    let record = record(thread, number);
                    let written = if number % 3 == 0 {
                        let (one, two) = record.split_at(number % RECORD_BYTES);
                        file.writev(&[one, two])
                    } else {
                        file.write(&record)
                    };
                    assert_eq!(written, RECORD_BYTES as i64);
                    if number % 16 == thread {
                        assert_eq!(file.sync(), 0);
                    }
                    if number % 50 == thread {
                        assert!(file.size() >= ((number + 1) * RECORD_BYTES) as i64);
                    }
                }
            });
        }
    });
}

pub fn appenders() {
    let file = File::enter_log("file", libc::O_APPEND);
    let begun = file.size() as usize;
    write_records(file);
    file.show_state("written");
    check_records(&std::fs::read("file").expect("the file")[begun..]);
}

/// Lets threads write at one file offset (write(2): the offset is updated atomically since Linux 3.14), while others
/// open the file now and then.
pub fn one_offset() {
    let file = File::enter_log("file", 0);
    let begun = file.size() as usize;
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write_records(file);
            written.store(1, Relaxed);
        });
        scope.spawn(|| {
            let mut seen = Vec::new();
            while written.load(Relaxed) == 0 {
                let found = std::fs::read("file").expect("the file");
                assert!(found.starts_with(&seen), "{} bytes, then {}", seen.len(), found.len());
                seen = found;
                std::thread::yield_now();
            }
        });
    });
    file.show_state("written");
    check_records(&std::fs::read("file").expect("the file")[begun..]);
}

/// Number of threads that are cancelled, one after another.
const CANCELLED: u64 = 120;
/// Descriptor of a thread that is cancelled.
static CANCELLED_FD: AtomicI32 = AtomicI32::new(-1);

// These calls are cancellation points: glibc unwinds the thread out of them.
unsafe extern "C-unwind" {
    fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize;
    fn read(fd: c_int, to: *mut c_void, len: usize) -> isize;
    fn fdatasync(fd: c_int) -> c_int;
}

/// Writes, syncs and reads until it is cancelled.
extern "C-unwind" fn work_until_cancelled(_argument: *mut c_void) -> *mut c_void {
    let (fd, mut bytes) = (CANCELLED_FD.load(Relaxed), [7_u8; 3000]);
    loop {
        // SAFETY: `bytes` live through the calls; nothing in this frame has a destructor.
        unsafe {
            write(fd, bytes.as_ptr().cast(), bytes.len());
            fdatasync(fd);
            libc::lseek(fd, 0, libc::SEEK_SET);
            read(fd, bytes.as_mut_ptr().cast(), bytes.len());
        }
    }
}

/// Cancels threads that use the file: others go on with it.
pub fn cancelled() {
    let file = File::enter_log_to_read("file", 0);
    CANCELLED_FD.store(file.0, Relaxed);
    for turn in 0..CANCELLED {
        // SAFETY: the thread uses nothing but the descriptor.
        let thread = unsafe { Thread::start(work_until_cancelled, null_mut()) };
        std::thread::sleep(Duration::from_micros(300 + turn * 37 % 4000));
        thread.cancel();
        assert_eq!((file.write(b"after"), file.sync()), (5, 0));
        assert_eq!(file.pread(&mut [0; 5], 0), 5);
    }
    show("ftruncate", file.truncate(0));
    show("write", file.pwrite(b"at the end", 0));
    file.seek(0, libc::SEEK_SET);
}

/// Appends numbered records until it is killed, and prints each number behind its write: `records FILE FLAGS`, with
/// flags `append` and `sync`. Every tenth record is printed.
pub fn records(arguments: &[String]) {
    let [name, flags] = arguments else { panic!("a file, and flags") };
    let is_append = flags.contains("append");
    let file = File::enter_log(name, if is_append { libc::O_APPEND } else { 0 });
    let mut output = std::io::stdout();
    for number in 0.. {
        assert_eq!(file.write(&record(0, number)), RECORD_BYTES as i64);
        if flags.contains("sync") {
            assert_eq!(file.sync(), 0);
        }
        if number % 10 == 0 {
            writeln!(output, "written {number}").expect("printed");
        }
        if number % RECORDS_PER_PAUSE == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    show("never", 0);
    show_content(name, "never");
}

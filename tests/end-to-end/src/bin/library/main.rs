//! Functions of libc and libstdc++ that access buffers with received data without an interposed
//! call: stdio, wide characters, C++'s operators, destructors of thread-specific data, and calls
//! that move bytes between descriptors only.
//!
//! ```text
//! library SCENARIO SEED
//! ```

mod stdio;

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use stdio::stream;
use uncopy_tests::calls::{CopyCall, InputCall, OutputCall};
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::{Buffer, Origin};
use uncopy_tests::oracle::{self, OracleBytes, errno};

const MIB: usize = 1 << 20;

type WideCopy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
type WideCopyChecked = unsafe extern "C" fn(*mut c_void, *const c_void, usize, usize) -> *mut c_void;

unsafe extern "C" {
    fn wmemcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    fn wmemmove(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    fn wmempcpy(to: *mut c_void, from: *const c_void, count: usize) -> *mut c_void;
    fn __wmemcpy_chk(to: *mut c_void, from: *const c_void, count: usize, object_len: usize) -> *mut c_void;
    fn __wmemmove_chk(to: *mut c_void, from: *const c_void, count: usize, object_len: usize) -> *mut c_void;
    fn __memcpy_chk(to: *mut c_void, from: *const c_void, len: usize, object_len: usize) -> *mut c_void;
    fn memccpy(to: *mut c_void, from: *const c_void, stop: c_int, len: usize) -> *mut c_void;
    fn swab(from: *const c_void, to: *mut c_void, len: isize);
    fn setvbuf(stream: *mut libc::FILE, buffer: *mut c_void, mode: c_int, len: usize) -> c_int;
    fn open_memstream(start: *mut *mut c_void, len: *mut usize) -> *mut libc::FILE;
}

/// Copies by functions of libc that nothing interposes on: from views, into views, within a view.
fn wide_and_other_copies(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let wide: [WideCopy; 3] = [wmemcpy, wmemmove, wmempcpy];
    let checked: [WideCopyChecked; 2] = [__wmemcpy_chk, __wmemmove_chk];
    for round in 0..7 {
        let source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        let count = 200_000;
        let (to, from): (*mut c_void, *const c_void) = (target.at(400).cast(), source.at(84).cast());
        // SAFETY: both ranges are inside their buffers.
        unsafe {
            match round {
                0..=2 => {
                    black_box(wide[round])(to, from, count);
                }
                3 | 4 => {
                    black_box(checked[round - 3])(to, from, count, count);
                }
                5 => {
                    let absent = memccpy(to, from, 300, 4 * count);
                    println!("memccpy: {}", absent.is_null() || absent.addr() > to.addr());
                    // The byte found ends the copy; the rest is made equal for the comparison below.
                    if !absent.is_null() {
                        CopyCall::Memcpy.copy(to.cast(), from.cast(), 4 * count);
                    }
                }
                _ => {
                    swab(from, to, 800_000);
                    let mut swapped = source.mirror(84, 800_000).to_vec();
                    swapped.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1));
                    target.note_received(400, &swapped);
                }
            }
        }
        if round < 6 {
            target.note_received(400, source.mirror(84, 4 * count));
        }
        target.check_all("copied by another function");
        source.check_all("its source");
        feeder.send(OutputCall::Send, &target, 100, 500_000);
    }
}

/// A checked copy out of a view to a smaller buffer ends the program.
fn checked_copy_without_room(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let (source, target) = (feeder.copied_buffer(MIB), feeder.copied_buffer(MIB));
    println!("before");
    // SAFETY: __memcpy_chk sees that the target is too small and aborts before copying.
    unsafe {
        black_box::<WideCopyChecked>(__memcpy_chk)(target.at(0).cast(), source.at(0).cast(), MIB, MIB - 1)
    };
    println!("after");
}

/// `fwrite` and `fread` on views, and streams whose own buffer is a view.
fn stdio_streams(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let path = c"stdio.data";
    for round in 0..4 {
        let source = feeder.copied_buffer(MIB);
        let mut target = feeder.copied_buffer(MIB);
        let own_buffer = feeder.copied_buffer(MIB / 2);
        // SAFETY: the stream's buffer outlives the stream; ranges are inside the buffers.
        unsafe {
            let output = stream(path, c"w");
            if round % 2 == 1 {
                assert_eq!(setvbuf(output, own_buffer.at(0).cast(), libc::_IOFBF, MIB / 2), 0);
            }
            let mut done = 0;
            for part in [1, 100, 5000, 300_000, 4096] {
                assert_eq!(libc::fwrite(source.at(done).cast(), 1, part, output), part);
                done += part;
            }
            assert_eq!(libc::fwrite(source.at(done).cast(), 1, MIB - done, output), MIB - done);
            assert_eq!(libc::fclose(output), 0);
            let input = stream(path, c"r");
            if round > 1 {
                let again = feeder.copied_buffer(MIB / 2);
                // The buffer is leaked, because the stream uses it until the program ends.
                assert_eq!(setvbuf(input, again.at(0).cast(), libc::_IOFBF, MIB / 2), 0);
                std::mem::forget(again);
            }
            assert_eq!(libc::fread(target.at(7).cast(), 1, 10, input), 10);
            assert_eq!(libc::fread(target.at(17).cast(), 1000, 900, input), 900);
            assert_eq!(libc::fseek(input, 12_345, libc::SEEK_SET), 0);
            assert_eq!(libc::fread(target.at(901_000).cast(), 1, 100_000, input), 100_000);
            libc::fclose(input);
            let (mut start, mut len) = (null_mut(), 0);
            let memory = open_memstream(&raw mut start, &raw mut len);
            assert_eq!(libc::fwrite(source.at(3).cast(), 1, 700_000, memory), 700_000);
            libc::fclose(memory);
            assert_eq!(len, 700_000);
            let same = oracle::first_difference(start.cast(), source.mirror_at(3), len);
            assert_eq!(same, None, "a stream in memory");
            libc::free(start);
        }
        target.note_received(7, source.mirror(0, 900_010));
        target.note_received(901_000, source.mirror(12_345, 100_000));
        target.check_all("read by fread");
        source.check_all("written by fwrite");
    }
}

fn symbol<F: Copy>(library: *mut c_void, name: &CStr) -> F {
    // SAFETY: dlsym(3) reads the name, a NUL-terminated `CStr`; callers pass the function's type as `F`.
    unsafe {
        let address = libc::dlsym(library, name.as_ptr());
        assert!(!address.is_null(), "{name:?}");
        assert_eq!(size_of::<F>(), size_of_val(&address));
        std::mem::transmute_copy(&address)
    }
}

/// C++'s operators new and delete, with sizes and alignments.
fn cxx_operators(seed: u64) {
    type New = unsafe extern "C" fn(usize) -> *mut c_void;
    type NewAligned = unsafe extern "C" fn(usize, usize) -> *mut c_void;
    type Delete = unsafe extern "C" fn(*mut c_void);
    type DeleteSized = unsafe extern "C" fn(*mut c_void, usize);
    type DeleteAligned = unsafe extern "C" fn(*mut c_void, usize, usize);
    // SAFETY: dlopen(3) reads a NUL-terminated literal; libstdc++'s initializers have no preconditions.
    let library = unsafe { libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!library.is_null(), "libstdc++");
    let new: [New; 2] = [symbol(library, c"_Znwm"), symbol(library, c"_Znam")];
    let new_aligned: NewAligned = symbol(library, c"_ZnwmSt11align_val_t");
    let delete: Delete = symbol(library, c"_ZdlPv");
    let delete_sized: [DeleteSized; 2] = [symbol(library, c"_ZdlPvm"), symbol(library, c"_ZdaPvm")];
    let delete_aligned: DeleteAligned = symbol(library, c"_ZdlPvmSt11align_val_t");
    let mut feeder = Feeder::new(seed);
    for (round, len) in [100, 40_000, 65_536, 300_001, MIB, 3 * MIB].into_iter().cycle().take(30).enumerate()
    {
        let source = feeder.copied_buffer(len.max(5000));
        // SAFETY: each block is deleted once, by the operator that belongs to the one that made it.
        unsafe {
            let block = if round % 3 == 0 { new_aligned(len, 8192) } else { new[round % 2](len) };
            assert!(!block.is_null() && (round % 3 != 0 || block.addr() % 8192 == 0), "operator new");
            CopyCall::Memcpy.copy(block.cast(), source.at(0), len);
            if round % 2 == 0 {
                let wrong = oracle::first_difference(block.cast(), source.mirror_at(0), len);
                assert_eq!(wrong, None, "a block of operator new");
            }
            match round % 3 {
                0 => delete_aligned(block, len, 8192),
                1 => delete_sized[round % 2](block, len),
                _ if round % 2 == 0 => delete(block),
                _ => delete_sized[1](block, len),
            }
        }
        source.check_all("its source");
    }
}

static SOURCE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static MIRROR: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static CORRECT_COPIES: AtomicUsize = AtomicUsize::new(0);

/// Copies, touches and frees when a thread has nearly ended.
extern "C" fn at_the_end_of_a_thread(block: *mut c_void) {
    // SAFETY: the block has half a megabyte, the source a whole one.
    unsafe {
        let source = SOURCE.load(Ordering::Relaxed);
        CopyCall::Memmove.copy(block.cast(), source.add(4096), MIB / 2);
        let wrong = oracle::first_difference(block.cast(), MIRROR.load(Ordering::Relaxed).add(4096), MIB / 2);
        if wrong.is_none() {
            CORRECT_COPIES.fetch_add(1, Ordering::Relaxed);
        }
        libc::free(block);
        libc::free(black_box(libc::malloc(MIB)));
    }
}

/// Destructors of thread-specific data that copy and free buffers, in short-lived threads.
fn thread_specific_destructors(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let source = feeder.copied_buffer(MIB);
    SOURCE.store(source.at(0), Ordering::Relaxed);
    MIRROR.store(source.mirror_at(0), Ordering::Relaxed);
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor is a function of this program, which is never unloaded.
    assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(at_the_end_of_a_thread)) }, 0);
    for _ in 0..20 {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(move || {
                    // SAFETY: `key` was made above; the destructor frees the block at the end of the thread.
                    unsafe { libc::pthread_setspecific(key, libc::malloc(MIB / 2)) }
                })
            })
            .collect();
        feeder.copied_buffer(300_000).check_all("meanwhile");
        for thread in threads {
            assert_eq!(thread.join().expect("thread"), 0);
        }
    }
    println!("{} destructors", CORRECT_COPIES.load(Ordering::Relaxed));
    source.check_all("what they copied from");
}

/// `sendfile`, `splice`, `tee` and `copy_file_range` read bytes that were written from views, and
/// their output is received into views.
fn between_descriptors(seed: u64) {
    let mut feeder = Feeder::new(seed);
    let open = |name: &str| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).open(name).expect("file")
    };
    let (file, other) = (open("from.data"), open("to.data"));
    let (reader, writer) = std::io::pipe().expect("pipe");
    let wire = OracleBytes::new(MIB);
    for round in 0..4 {
        let source = feeder.copied_buffer(MIB);
        let mut part = [source.part(0, MIB)];
        // SAFETY: parts and offsets are inside the buffers; descriptors are this program's.
        unsafe {
            assert_eq!(libc::pwritev(file.as_raw_fd(), part.as_ptr(), 1, 0), 1 << 20);
            let (mut from, mut to) = (5000i64, 0i64);
            let copied = libc::copy_file_range(
                file.as_raw_fd(),
                &raw mut from,
                other.as_raw_fd(),
                &raw mut to,
                900_000,
                0,
            );
            assert_eq!(copied, 900_000, "copy_file_range: errno {}", errno());
            let mut target = Buffer::new(Origin::Malloc, MIB);
            assert_eq!(libc::pread(other.as_raw_fd(), target.at(11).cast(), 900_000, 0), 900_000);
            target.note_received(11, source.mirror(5000, 900_000));
            target.check_all("moved by copy_file_range");
            let mut offset = 4096i64;
            let sent = libc::sendfile(feeder.near(), file.as_raw_fd(), &raw mut offset, 60_000);
            let sent = usize::try_from(sent).expect("sendfile");
            let mut got = 0;
            while got < sent {
                got += oracle::raw_read(feeder.far(), wire.at(got), sent - got).expect("read");
            }
            assert!(wire.slice(0, sent) == source.mirror(4096, sent), "sent by sendfile");
            part[0].iov_len = 60_000;
            assert_eq!(OutputCall::Write.output(writer.as_raw_fd(), &mut part, 0), Ok(60_000));
            let second = std::io::pipe().expect("pipe");
            assert_eq!(libc::tee(reader.as_raw_fd(), second.1.as_raw_fd(), 60_000, 0), 60_000);
            for fd in [reader.as_raw_fd(), second.0.as_raw_fd()] {
                let moved = libc::splice(fd, null_mut(), feeder.far(), null_mut(), 60_000, 0);
                let moved = usize::try_from(moved).expect("splice");
                let mut into = [target.part(100 * round, MIB - 100 * round)];
                let got = InputCall::Recv.input(feeder.near(), &mut into, 0).expect("received");
                assert_eq!(got, moved);
                target.note_received(100 * round, source.mirror(0, got));
                target.check_all("received after splice");
                assert_eq!(moved, 60_000, "splice moves what the pipe holds");
            }
        }
        source.check_all("moved by the kernel");
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seed = arguments[1].parse().expect("seed");
    match arguments[0].as_str() {
        "wide_and_other_copies" => wide_and_other_copies(seed),
        "checked_copy_without_room" => checked_copy_without_room(seed),
        "stdio_streams" => stdio_streams(seed),
        "stdio_beside_glibc" => stdio::beside_glibc(seed),
        "stdio_errors" => stdio::errors(seed),
        "stdio_cancelled" => stdio::cancelled(seed),
        "stdio_shared" => stdio::shared(seed),
        "cxx_operators" => cxx_operators(seed),
        "thread_specific_destructors" => thread_specific_destructors(seed),
        "between_descriptors" => between_descriptors(seed),
        other => panic!("unknown scenario {other}"),
    }
}

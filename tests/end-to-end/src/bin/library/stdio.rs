//! Streams: `fread` and `fwrite` beside glibc's own functions, under names that nothing interposes on.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::IntoRawFd as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uncopy_tests::feeder::Feeder;
use uncopy_tests::mirror::Buffer;
use uncopy_tests::oracle::errno;
use uncopy_tests::random::Random;
use uncopy_tests::scratch::HANG_LIMIT;

unsafe extern "C" {
    // Aliases of fread and fwrite in glibc.
    fn _IO_fread(to: *mut c_void, size: usize, count: usize, stream: *mut libc::FILE) -> usize;
    fn _IO_fwrite(from: *const c_void, size: usize, count: usize, stream: *mut libc::FILE) -> usize;
    fn fread_unlocked(to: *mut c_void, size: usize, count: usize, stream: *mut libc::FILE) -> usize;
    fn fwrite_unlocked(from: *const c_void, size: usize, count: usize, stream: *mut libc::FILE) -> usize;
    fn __fread_chk(
        to: *mut c_void,
        object_len: usize,
        size: usize,
        count: usize,
        stream: *mut libc::FILE,
    ) -> usize;
    fn setvbuf(stream: *mut libc::FILE, buffer: *mut c_void, mode: c_int, len: usize) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn flockfile(stream: *mut libc::FILE);
    fn funlockfile(stream: *mut libc::FILE);
}

const MIB: usize = 1 << 20;
const STEPS: usize = 60;
const MODES: [&CStr; 5] = [c"r", c"w", c"r+", c"w+", c"a+"];

/// Opens a stream, which the caller closes.
pub fn stream(path: &CStr, mode: &CStr) -> *mut libc::FILE {
    // SAFETY: both arguments are NUL-terminated `CStr`s that live through the call.
    let stream = unsafe { libc::fopen(path.as_ptr(), mode.as_ptr()) };
    assert!(!stream.is_null(), "fopen: errno {}", errno());
    stream
}

/// Two streams of files with the same bytes: one for the hooks, one for glibc.
struct StreamPair {
    files: [*mut libc::FILE; 2],
    /// Calls made on the streams so far.
    history: RefCell<Vec<String>>,
}

impl StreamPair {
    fn open(mode: &CStr, content: &[u8]) -> Self {
        let files = [c"hooked.data", c"plain.data"].map(|path| {
            std::fs::write(path.to_str().expect("text"), content).expect("written");
            stream(path, mode)
        });
        Self { files, history: RefCell::new(vec![format!("fopen {mode:?}")]) }
    }

    /// Makes a call on both streams, and compares results, errors, and the streams' observable state.
    fn call_both<R: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        mut call: impl FnMut(*mut libc::FILE, usize) -> R,
    ) {
        let found = [0, 1].map(|which| {
            let file = self.files[which];
            // SAFETY: both streams are open, and errno's location is valid in every thread.
            unsafe {
                *libc::__errno_location() = 0;
                let result = call(file, which);
                let error = errno();
                let offset = libc::lseek(libc::fileno(file), 0, libc::SEEK_CUR);
                (result, error, libc::ftell(file), offset, libc::feof(file) != 0, libc::ferror(file) != 0)
            }
        });
        let [hooked, plain] = &found;
        assert_eq!(hooked, plain, "{what} after {:?}", self.history.borrow());
        self.history.borrow_mut().push(format!("{what}: {plain:?}"));
    }
}

/// Returns a length near an edge of a stream's buffer, or a large one.
fn length(random: &mut Random) -> usize {
    let base = [0, 1, 4096, 16 << 10, 64 << 10, 100_000, 400_000][random.below(7)];
    base + random.below(5000)
}

/// Random calls on two streams, one by the hooks and one by glibc's own functions.
pub fn beside_glibc(seed: u64) {
    let mut random = Random::new(seed);
    let mut feeder = Feeder::new(seed);
    let source = feeder.copied_buffer(MIB);
    for mode in MODES {
        let streams = StreamPair::open(mode, source.mirror(0, 700_000));
        let buffer_bytes = [0, 1, 127, 128, 1000, 65_536][random.below(6)];
        let kind = [libc::_IOFBF, libc::_IOFBF, libc::_IONBF, libc::_IOLBF][random.below(4)];
        if random.below(2) == 0 {
            // SAFETY: nothing was done with the streams; the buffer is the stream's own.
            streams.call_both("setvbuf", |file, _| unsafe { setvbuf(file, null_mut(), kind, buffer_bytes) });
        }
        let (mut hooked, mut plain) = (feeder.copied_buffer(MIB), feeder.copied_buffer(MIB));
        // C leaves undefined a change between reading and writing without repositioning.
        let mut last_direction = None;
        for _ in 0..STEPS {
            let action = random.below(12);
            let direction = match action {
                0..=3 | 8 => Some(false),
                4..=6 | 10 => Some(true),
                _ => None,
            };
            let is_allowed = match direction {
                Some(true) => mode != c"r",
                Some(false) => mode != c"w",
                None => true,
            };
            if !is_allowed {
                continue;
            }
            if direction.is_some() && last_direction.is_some() && direction != last_direction {
                // SAFETY: `file` is one of the two open streams.
                streams.call_both("turn", |file, _| unsafe { libc::fseek(file, 0, libc::SEEK_CUR) });
            }
            last_direction = direction;
            step(action, &mut random, &streams, &source, &mut hooked, &mut plain);
        }
        // SAFETY: the streams are open, and not used any more.
        let closed = streams.files.map(|file| unsafe { libc::fclose(file) });
        assert_eq!(closed[0], closed[1]);
        let [first, second] = ["hooked.data", "plain.data"].map(|path| std::fs::read(path).expect("read"));
        assert!(first == second, "files differ after {mode:?}");
    }
    source.check_all("written by fwrite");
}

fn step(
    action: usize,
    random: &mut Random,
    streams: &StreamPair,
    source: &Buffer,
    hooked: &mut Buffer,
    plain: &mut Buffer,
) {
    let (len, at) = (length(random), random.below(500_000));
    let size = [1, 1, 1, 7, 4096][random.below(5)];
    let count = len / size;
    // SAFETY: the streams are open, and every range is within its buffer.
    unsafe {
        match action {
            0..=3 => {
                let unlocked = random.below(3);
                let targets = [hooked.at(at), plain.at(at)];
                let what = format!("fread {size} * {count}");
                let mut got = 0;
                streams.call_both(&what, |file, which| {
                    let to = targets[which].cast();
                    let items = match (which, unlocked) {
                        (1, _) => _IO_fread(to, size, count, file),
                        (_, 0) => fread_unlocked(to, size, count, file),
                        (_, 1) => __fread_chk(to, MIB - at, size, count, file),
                        _ => libc::fread(to, size, count, file),
                    };
                    got = items * size;
                    items
                });
                let bytes = std::slice::from_raw_parts(plain.at(at), got).to_vec();
                hooked.note_received(at, &bytes);
                plain.note_received(at, &bytes);
                hooked.check(at, got, &what);
            }
            4..=6 => {
                let unlocked = random.below(3) == 0;
                streams.call_both(&format!("fwrite {size} * {count}"), |file, which| {
                    let from = source.at(at).cast();
                    match (which, unlocked) {
                        (1, _) => _IO_fwrite(from, size, count, file),
                        (_, true) => fwrite_unlocked(from, size, count, file),
                        _ => libc::fwrite(from, size, count, file),
                    }
                });
            }
            7 => {
                let (to, whence) = (at as i64, [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END][at % 3]);
                let to = if whence == libc::SEEK_SET { to } else { -(to % 1000) };
                streams.call_both("fseek", |file, _| libc::fseek(file, to, whence));
            }
            8 => streams.call_both("getc", |file, _| libc::fgetc(file)),
            9 => streams.call_both("feof", |file, _| libc::feof(file) != 0),
            10 => streams.call_both("putc", |file, _| libc::fputc(10, file)),
            _ => streams.call_both("flush", |file, _| {
                libc::clearerr(file);
                libc::fflush(file)
            }),
        }
    }
}

/// Sizes whose product overflows, streams that cannot be read or written, and ends of files.
pub fn errors(_seed: u64) {
    let mut to = vec![0u8; MIB];
    let streams = StreamPair::open(c"r", &[7; 300_000]);
    let target = to.as_mut_ptr();
    let read = |size: usize, count: usize| {
        streams.call_both(&format!("fread {size} * {count}"), |file, which| {
            let function = if which == 0 { libc::fread } else { _IO_fread };
            // SAFETY: the file has less than the buffer has room for, and a length of none is not read.
            unsafe { function(target.cast(), size, count, file) }
        });
    };
    read(200_000, 1);
    read(usize::MAX / 2 + 1, 2);
    // Not tested further: after a push back, writes and flushes make glibc free memory that is not its own.
    streams.call_both("rewind and push back", |file, _| {
        // SAFETY: `file` is one of the two open streams.
        unsafe {
            libc::rewind(file);
            (libc::fgetc(file), libc::ungetc(65, file))
        }
    });
    read(1, 250_000);
    // SAFETY: `target` points to `MIB` bytes.
    assert_eq!(unsafe { [*target, *target.add(1)] }, [65, 7], "what was pushed back comes first");
    read(200_000, 5);
    read(200_000, 1);
    streams.call_both("fwrite to what is only read", |file, which| {
        let function = if which == 0 { libc::fwrite } else { _IO_fwrite };
        // SAFETY: `target` points to `MIB` bytes, and `file` is an open stream.
        unsafe { function(target.cast_const().cast(), 1, 200_000, file) }
    });
    // SAFETY: both streams are open, and nothing uses them afterwards.
    let closed = streams.files.map(|file| unsafe { libc::fclose(file) });
    assert_eq!(closed, [0, 0]);
    for path in [c"/dev/full", c"/"] {
        let mode = if path == c"/" { c"r" } else { c"w" };
        let files = [stream(path, mode), stream(path, mode)];
        let streams = StreamPair { files, history: RefCell::default() };
        streams.call_both("a call that fails", |file, which| {
            // SAFETY: `target` points to `MIB` bytes, and `file` is an open stream.
            unsafe {
                match (which, path == c"/") {
                    (0, true) => libc::fread(target.cast(), 1, 300_000, file),
                    (_, true) => _IO_fread(target.cast(), 1, 300_000, file),
                    (0, false) => libc::fwrite(target.cast_const().cast(), 1, 300_000, file),
                    (_, false) => _IO_fwrite(target.cast_const().cast(), 1, 300_000, file),
                }
            }
        });
    }
}

static IS_READING: AtomicBool = AtomicBool::new(false);

extern "C" fn read_forever(file: *mut c_void) -> *mut c_void {
    let mut to = vec![0u8; MIB];
    IS_READING.store(true, Ordering::Release);
    // SAFETY: the stream is open; the buffer is not read after the thread was cancelled.
    let got = unsafe { libc::fread(to.as_mut_ptr().cast(), 1, MIB, file.cast()) };
    panic!("fread of a pipe that nobody writes to gave {got}");
}

/// A thread that is cancelled in a large `fread` leaves the stream unlocked.
pub fn cancelled(_seed: u64) {
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    // SAFETY: the descriptor is the stream's from here on; the thread is waited for.
    unsafe {
        let file = libc::fdopen(reader.into_raw_fd(), c"r".as_ptr());
        assert!(!file.is_null());
        let mut thread = std::mem::zeroed();
        assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), read_forever, file.cast()), 0);
        let deadline = Instant::now() + HANG_LIMIT;
        while !IS_READING.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "the thread does not begin");
            std::thread::yield_now();
        }
        assert_eq!(pthread_cancel(thread), 0);
        assert_eq!(libc::pthread_join(thread, null_mut()), 0);
        libc::alarm(20);
        flockfile(file);
        funlockfile(file);
        libc::alarm(0);
        libc::fclose(file);
    }
}

/// Each call of two threads on one stream reads or writes its bytes as a whole: it holds the stream's lock.
pub fn shared(seed: u64) {
    const ROUNDS: usize = 40;
    const LEN: usize = 100_000;
    let mut feeder = Feeder::new(seed);
    let sources = [1u8, 2].map(|value| {
        let mut buffer = feeder.copied_buffer(LEN);
        buffer.set(0, LEN, value);
        Buffer::from_bytes(buffer.mirror(0, LEN))
    });
    let file = stream(c"shared.data", c"w") as usize;
    std::thread::scope(|scope| {
        for source in &sources {
            let from = source.at(0) as usize;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    // SAFETY: the stream is open until the threads have ended.
                    let wrote =
                        unsafe { libc::fwrite(from as *const c_void, 1, LEN, file as *mut libc::FILE) };
                    assert_eq!(wrote, LEN);
                }
            });
        }
    });
    // SAFETY: the stream is open, and the threads that used it have been joined.
    assert_eq!(unsafe { libc::fclose(file as *mut libc::FILE) }, 0);
    let bytes = std::fs::read("shared.data").expect("read");
    assert_eq!(bytes.len(), 2 * ROUNDS * LEN);
    for part in bytes.chunks(LEN) {
        assert!(part.iter().all(|byte| *byte == part[0]), "a call was split");
    }
}

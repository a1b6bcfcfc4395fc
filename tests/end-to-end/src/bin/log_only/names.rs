//! Status, reads by other descriptors, and calls that change a file otherwise than by writes.

use std::process::Command;

use libc::{c_char, c_int, off_t};

use crate::file::{File, bytes, c_name, digest, show, show_by_path, show_content};

/// Number of files that are closed and looked at.
const CLOSED_FILES: usize = 40;
/// Time stamp that a scenario sets, seconds since 1970.
const STAMP_S: i64 = 1_000_000_000;

unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
}

type Xstat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
type Fxstat = unsafe extern "C" fn(c_int, c_int, *mut libc::stat) -> c_int;

/// Prints size, type and links from every call that returns a file's status.
fn show_status(name: &str, file: File, when: &str) {
    let path = c_name(name);
    let empty = c"".as_ptr();
    // SAFETY: all-zero structures are valid, and each call fills its own; the paths are NUL-terminated; the symbols
    // have the types of glibc's functions, which it exports for programs linked before 2.33.
    unsafe {
        let line = |call: &str, result: c_int, found: &libc::stat| {
            println!(
                "{when}: {call}: {result}, {} bytes, {:o}, {} links",
                found.st_size, found.st_mode, found.st_nlink
            );
            assert!(found.st_size == 0 || found.st_blocks > 0, "{when}: {call}: no blocks");
        };
        let mut found: libc::stat = std::mem::zeroed();
        line("fstat", libc::fstat(file.0, &raw mut found), &found);
        line("stat", libc::stat(path.as_ptr(), &raw mut found), &found);
        line("lstat", libc::lstat(path.as_ptr(), &raw mut found), &found);
        line("fstatat", libc::fstatat(libc::AT_FDCWD, path.as_ptr(), &raw mut found, 0), &found);
        line(
            "fstatat of the file",
            libc::fstatat(file.0, empty, &raw mut found, libc::AT_EMPTY_PATH),
            &found,
        );
        let mut found64: libc::stat64 = std::mem::zeroed();
        let result = libc::fstat64(file.0, &raw mut found64);
        println!("{when}: fstat64: {result}, {} bytes", found64.st_size);
        let result = libc::stat64(path.as_ptr(), &raw mut found64);
        println!("{when}: stat64: {result}, {} bytes", found64.st_size);
        for (symbol, is_link) in [(c"__xstat", false), (c"__lxstat64", true)] {
            let function = libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr());
            assert!(!function.is_null(), "{symbol:?}");
            let function = std::mem::transmute::<*mut libc::c_void, Xstat>(function);
            line(
                if is_link { "__lxstat64" } else { "__xstat" },
                function(1, path.as_ptr(), &raw mut found),
                &found,
            );
        }
        let function = libc::dlsym(libc::RTLD_DEFAULT, c"__fxstat".as_ptr());
        let function = std::mem::transmute::<*mut libc::c_void, Fxstat>(function);
        line("__fxstat", function(1, file.0, &raw mut found), &found);
        let mut extended: libc::statx = std::mem::zeroed();
        let result =
            libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, libc::STATX_BASIC_STATS, &raw mut extended);
        println!("{when}: statx: {result}, {} bytes", extended.stx_size);
        let result = libc::statx(file.0, empty, libc::AT_EMPTY_PATH, libc::STATX_SIZE, &raw mut extended);
        println!("{when}: statx of the file: {result}, {} bytes", extended.stx_size);
    }
}

pub fn status() {
    let file = File::enter_log("file", 0);
    show_status("file", file, "begun");
    file.write(&bytes(1, 70_000));
    show_status("file", file, "written");
    file.pwrite(&bytes(2, 10), 500_000);
    show_status("file", file, "with a hole");
    file.pwrite(&bytes(3, 10), 5);
    show_status("file", file, "overwritten");
    assert_eq!(std::os::unix::fs::symlink("file", "symlink").map_err(|error| error.raw_os_error()), Ok(()));
    // SAFETY: an all-zero stat is valid; the path is NUL-terminated.
    unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        libc::stat(c"symlink".as_ptr(), &raw mut found);
        println!("by a symbolic link: {} bytes", found.st_size);
        libc::lstat(c"symlink".as_ptr(), &raw mut found);
        println!("the link: {} bytes", found.st_size);
        let by_syscall =
            libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, c"file".as_ptr(), &raw mut found, 0);
        println!("by syscall: {by_syscall}, {} bytes", found.st_size);
        println!("missing: {}", libc::stat(c"missing".as_ptr(), &raw mut found));
    }
    for turn in 0..8 {
        file.write(&bytes(turn, 333));
        file.sync();
    }
    show_status("file", file, "at the end");
    let entries = std::fs::read_dir(".").expect("the directory");
    let sizes = entries.map(|entry| entry.expect("an entry").metadata().expect("known").len());
    println!("largest: {:?}", sizes.max());
}

/// Closes many files and looks at each at once.
pub fn closed_files() {
    for number in 0..CLOSED_FILES {
        let name = format!("file{number}");
        let file = File::enter_log(&name, if number % 2 == 0 { libc::O_APPEND } else { 0 });
        file.write(&bytes(number, 1000 + 997 * number));
        file.close();
        println!("{name}: {} bytes", std::fs::metadata(&name).expect("known").len());
        if number % 4 == 0 {
            show_content(&name, &name);
        }
        let file = File::open(&name, libc::O_WRONLY | libc::O_APPEND);
        show("write again", file.write(&bytes(1, 77)));
        show("size", file.size());
        file.close();
        println!("{name}: {} bytes", std::fs::metadata(&name).expect("known").len());
    }
}

/// Reads the file by another descriptor and in another process, and goes on writing.
pub fn readers() {
    let file = File::enter_log("file", libc::O_APPEND);
    for turn in 0..6 {
        file.write(&bytes(turn, 5000 * turn + 3));
        let reader = File::open("file", libc::O_RDONLY);
        let mut found = vec![0; 100_000];
        // SAFETY: `found` is writable for its length.
        let got = unsafe { libc::read(reader.0, found.as_mut_ptr().cast(), found.len()) };
        println!("read {got} bytes, {:016x}", digest(&found));
        file.write(&bytes(turn + 9, 100));
        // SAFETY: `found` is writable for its length.
        let got = unsafe { libc::read(reader.0, found.as_mut_ptr().cast(), found.len()) };
        println!("read {got} bytes, {:016x}", digest(&found));
        reader.close();
        let copied = Command::new("cat").arg("file").output().expect("cat");
        println!("cat: {} bytes, {:016x}", copied.stdout.len(), digest(&copied.stdout));
        for turn in 0..8 {
            file.write(&bytes(turn, 333));
            file.sync();
        }
    }
    file.show_state("written");
    show_content("file", "read");
}

pub fn mappings() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 8000));
    // SAFETY: new mappings at addresses that the kernel chooses; what is read lies within the file.
    unsafe {
        let map =
            |fd: File, protection, flags| libc::mmap(std::ptr::null_mut(), 8000, protection, flags, fd.0, 0);
        let refused = map(file, libc::PROT_READ, libc::MAP_SHARED);
        show("map what cannot be read", if refused == libc::MAP_FAILED { -1 } else { 0 });
        let refused = map(file, libc::PROT_WRITE, libc::MAP_PRIVATE);
        show("map it privately", if refused == libc::MAP_FAILED { -1 } else { 0 });
        let other = File::open("file", libc::O_RDWR);
        let mapped = map(other, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).cast::<u8>();
        assert_ne!(mapped.cast(), libc::MAP_FAILED);
        println!("mapped: {:016x}", digest(std::slice::from_raw_parts(mapped, 8000)));
        other.close();
        for turn in 0..8 {
            file.pwrite(&bytes(turn, 100), 50 * turn as off_t);
            file.sync();
        }
        println!("written: {:016x}", digest(std::slice::from_raw_parts(mapped, 8000)));
        mapped.add(20).write_bytes(9, 1000);
        println!("by the mapping: {:016x}", digest(&std::fs::read("file").expect("the file")));
        file.write(&bytes(5, 10));
        libc::munmap(mapped.cast(), 8000);
    }
    file.show_state("written");
    show_content("file", "read");
}

/// Transfers into the file by calls that the kernel makes without the program's memory.
pub fn transfers() {
    std::fs::write("source", bytes(3, 50_000)).expect("the source");
    let source = File::open("source", libc::O_RDONLY);
    let file = File::enter_log("file", 0);
    for turn in 0..4_usize {
        file.write(&bytes(turn, 700));
        let mut from: off_t = 100;
        // SAFETY: the calls read and advance the offsets, which live through them.
        unsafe {
            show("sendfile", libc::sendfile(file.0, source.0, &raw mut from, 9000) as i64);
            file.show_state("sent");
            file.write(&bytes(turn + 1, 70));
            let (mut from, mut to): (off_t, off_t) = (5, 30_000);
            show("copy", libc::copy_file_range(source.0, &raw mut from, file.0, &raw mut to, 5000, 0) as i64);
            println!("offsets {from} {to}");
            let (from, to) = File::pipe();
            assert_eq!(to.write(&bytes(turn, 3000)), 3000);
            let null = std::ptr::null_mut();
            show("splice", libc::splice(from.0, null, file.0, null, 3000, 0) as i64);
            from.close();
            to.close();
        }
        file.show_state("spliced");
        for turn in 0..8 {
            file.write(&bytes(turn, 333));
            file.sync();
        }
    }
    show_content("file", "read");
    let append = File::enter_log("appended", libc::O_APPEND);
    append.write(&bytes(1, 100));
    let null = std::ptr::null_mut();
    // SAFETY: the call has no offsets to read.
    let copied = unsafe { libc::copy_file_range(source.0, null, append.0, null, 100, 0) as i64 };
    show("copy to a file that appends", copied);
    append.show_state("at the end");
}

pub fn truncation() {
    let file = File::enter_log("file", 0);
    for (turn, len) in [20_000, 3, 0, 4096, 100_000].into_iter().enumerate() {
        file.write(&bytes(turn, 7000));
        show("ftruncate", file.truncate(len));
        file.show_state("truncated");
        for turn in 0..8 {
            file.write(&bytes(turn, 50));
            file.sync();
        }
        // SAFETY: the path is NUL-terminated.
        show_by_path("truncate", "file", |path| unsafe { libc::truncate(path.as_ptr(), len / 2) });
        file.show_state("truncated by its path");
        show("write", file.write(&bytes(turn, 10)));
    }
    show("ftruncate to a negative length", file.truncate(-1));
    show_content("file", "read");
}

/// Opens the file again, with and without O_TRUNC, while it is open and after it was closed.
pub fn reopened() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 9000));
    let other = File::open("file", libc::O_WRONLY | libc::O_TRUNC);
    file.show_state("truncated by another descriptor");
    other.write(&bytes(2, 100));
    file.write(&bytes(3, 100));
    file.show_state("written by both");
    other.close();
    for turn in 0..8 {
        file.write(&bytes(turn, 50));
        file.sync();
    }
    let append = File::open("file", libc::O_WRONLY | libc::O_APPEND);
    append.write(&bytes(4, 100));
    file.pwrite(&bytes(5, 100), 20);
    append.show_state("appended");
    file.close();
    append.write(&bytes(6, 100));
    append.close();
    show_content("file", "closed");
    let again = File::enter_log("file", libc::O_APPEND);
    again.show_state("created again");
    show("exclusive", i64::from(File::try_open("file", libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL).0));
    again.close();
    let both = File::open("file", libc::O_RDWR);
    both.seek(0, libc::SEEK_END);
    for turn in 0..8 {
        both.write(&bytes(turn, 50));
        both.sync();
    }
    both.show_state("for reading too");
    show_content("file", "read");
}

pub fn allocation() {
    let file = File::enter_log("file", 0);
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    for (turn, mode) in [0, keep, keep | libc::FALLOC_FL_PUNCH_HOLE].into_iter().enumerate() {
        file.write(&bytes(turn, 9000));
        // SAFETY: fallocate(2) accesses no memory.
        show("fallocate", i64::from(unsafe { libc::fallocate(file.0, mode, 3000, 40_000) }));
        file.show_state("allocated");
        for turn in 0..8 {
            file.write(&bytes(turn, 50));
            file.sync();
        }
    }
    // SAFETY: posix_fallocate(3) accesses no memory.
    show("posix_fallocate", i64::from(unsafe { libc::posix_fallocate(file.0, 0, 90_000) }));
    file.show_state("allocated");
    show("write", file.write(&bytes(1, 10)));
    show_content("file", "read");
}

pub fn renames() {
    let file = File::enter_log("file", libc::O_APPEND);
    file.write(&bytes(1, 5000));
    std::fs::rename("file", "renamed").expect("renamed");
    show_content("renamed", "renamed");
    for turn in 0..8 {
        file.write(&bytes(turn, 333));
        file.sync();
    }
    let other = File::enter_log("other", 0);
    other.write(&bytes(2, 100));
    std::fs::rename("renamed", "other").expect("renamed over another");
    file.show_state("over another");
    other.show_state("without a name");
    show("write", other.write(&bytes(3, 100)));
    show("write", file.write(&bytes(3, 100)));
    file.close();
    std::fs::rename("other", "last").expect("renamed after it was closed");
    show_content("last", "at the end");
}

pub fn removals() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 5000));
    std::fs::remove_file("file").expect("removed");
    for turn in 0..8 {
        show("write", file.write(&bytes(turn, 333)));
        show("sync", file.sync());
    }
    file.show_state("without a name");
    let again = File::enter_log("file", 0);
    again.show_state("another of that name");
    file.close();
    again.write(&bytes(2, 70));
    again.close();
    show_content("file", "closed");
    std::fs::remove_file("file").expect("removed after it was closed");
    println!("exists: {}", std::fs::exists("file").expect("known"));
    let last = File::enter_log("last", libc::O_APPEND);
    last.write(&bytes(3, 70));
    // The program ends without closing a file that has no name.
    std::fs::remove_file("last").expect("removed");
}

pub fn links() {
    let file = File::enter_log("file", 0);
    file.write(&bytes(1, 5000));
    std::fs::hard_link("file", "second").expect("linked");
    show_content("second", "linked");
    for turn in 0..8 {
        file.write(&bytes(turn, 333));
        file.sync();
    }
    show_content("second", "written");
    let by_descriptor = c_name(&format!("/proc/self/fd/{}", file.0));
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths are NUL-terminated.
    let linked = unsafe { libc::linkat(here, by_descriptor.as_ptr(), here, c"third".as_ptr(), follow) };
    show("linkat", i64::from(linked));
    file.write(&bytes(2, 100));
    file.show_state("written");
    file.close();
    show_content("third", "closed");
}

/// Sets times of files: later writes by a keeper must not change them.
pub fn times() {
    let stamps = [libc::timespec { tv_sec: STAMP_S, tv_nsec: 0 }; 2];
    let times = [libc::timeval { tv_sec: STAMP_S, tv_usec: 0 }; 2];
    let time = libc::utimbuf { actime: STAMP_S, modtime: STAMP_S };
    for how in 0..6 {
        let name = format!("file{how}");
        let path = c_name(&name);
        let file = File::enter_log(&name, 0);
        file.write(&bytes(how, 5000));
        let (here, path) = (libc::AT_FDCWD, path.as_ptr());
        // SAFETY: the paths are NUL-terminated, and the calls only read the times.
        let result = unsafe {
            match how {
                0 => libc::futimens(file.0, stamps.as_ptr()),
                1 => libc::utimensat(here, path, stamps.as_ptr(), 0),
                2 => libc::utimes(path, times.as_ptr()),
                3 => libc::futimes(file.0, times.as_ptr()),
                4 => libc::lutimes(path, times.as_ptr()),
                _ => libc::utime(path, &raw const time),
            }
        };
        show(&name, i64::from(result));
        show("size", file.size());
        if how % 2 == 0 {
            file.close();
        }
        let modified = std::fs::metadata(&name).expect("known").modified().expect("a time");
        println!("{name}: {:?}", modified.duration_since(std::time::UNIX_EPOCH));
    }
}

/// Writes to the file by libc's streams.
pub fn streams() {
    let file = File::enter_log("file", libc::O_APPEND);
    file.write(&bytes(1, 500));
    // SAFETY: dprintf(3) with a format without arguments; the stream is used and closed here only.
    unsafe {
        show("dprintf", i64::from(dprintf(file.0, c"printed\n".as_ptr())));
        let file = File::enter_log("other", 0);
        file.write(&bytes(2, 500));
        let stream = libc::fdopen(file.0, c"w".as_ptr());
        assert!(!stream.is_null());
        show("fputs", i64::from(libc::fputs(c"put\n".as_ptr(), stream)));
        show("ftell", libc::ftell(stream));
        show("fseek", i64::from(libc::fseek(stream, 10, libc::SEEK_SET)));
        show("fputs", i64::from(libc::fputs(c"put\n".as_ptr(), stream)));
        show("fclose", i64::from(libc::fclose(stream)));
        let stream = libc::fopen(c"file".as_ptr(), c"a".as_ptr());
        assert!(!stream.is_null());
        libc::fputs(c"by another stream\n".as_ptr(), stream);
        libc::fclose(stream);
    }
    show("write", file.write(&bytes(3, 100)));
    file.show_state("written");
    show_content("file", "file");
    show_content("other", "other");
}

/// Returns the time of the last modification that the kernel knows, ns, by a system call.
fn kernels_time(name: &str) -> i64 {
    let name = c_name(name);
    // SAFETY: the path is NUL-terminated; an all-zero stat is valid, and the call fills it.
    let found = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        assert_eq!(libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, name.as_ptr(), &raw mut found, 0), 0);
        found
    };
    found.st_mtime * 1_000_000_000 + found.st_mtime_nsec
}

/// Looks at the time of the last modification: after a write, and after the file was closed.
pub fn modification() {
    let file = File::enter_log("file", 0);
    let time = |name| std::fs::metadata(name).and_then(|found| found.modified()).expect("a time");
    let since_1970 =
        |name| time(name).duration_since(std::time::UNIX_EPOCH).expect("later").as_nanos() as i64;
    for turn in 0..3 {
        let before = since_1970("file");
        std::thread::sleep(std::time::Duration::from_millis(30));
        file.write(&bytes(turn, 100));
        let written = since_1970("file");
        println!("later than before: {}", written > before);
        // A digest may come meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(700));
        println!("the same afterwards: {}", since_1970("file") == written);
    }
    file.write(&bytes(9, 100));
    file.sync();
    let written = since_1970("file");
    file.close();
    println!("the same after close: {}", since_1970("file") == written);
    std::thread::sleep(std::time::Duration::from_millis(1300));
    println!("the same for the kernel: {}", kernels_time("file") == written);
}

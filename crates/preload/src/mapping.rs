//! Calls by which a program changes the mapping of memory that malloc gave it, and calls that could
//! take our descriptor away.
//!
//! A block whose mapping the program changes becomes plain memory for good before the call is made.

use crate::files;
use crate::lanes as streams;
use crate::net;
use core::ffi::{c_int, c_long, c_void};
use libc::{off_t, size_t};
use smallvec::SmallVec;
use uncopy_engine::range::directory;
use uncopy_engine::service::activation;
use uncopy_interpose::{alias, before, entry, slots};
use uncopy_lanes::forks as lanes;
use uncopy_record::{self as record, Function, Timer};
use uncopy_store::program as store;
use uncopy_sys::last_thread;

type Pointer = *mut c_void;

slots! {
    MPROTECT = c"mprotect": unsafe extern "C" fn(Pointer, size_t, c_int) -> c_int;
    PKEY_MPROTECT = c"pkey_mprotect": unsafe extern "C" fn(Pointer, size_t, c_int, c_int) -> c_int;
    MADVISE = c"madvise": unsafe extern "C" fn(Pointer, size_t, c_int) -> c_int;
    MUNMAP = c"munmap": unsafe extern "C" fn(Pointer, size_t) -> c_int;
    MMAP = c"mmap": unsafe extern "C" fn(Pointer, size_t, c_int, c_int, c_int, off_t) -> Pointer;
    MREMAP = c"mremap": unsafe extern "C" fn(Pointer, size_t, size_t, c_int, Pointer) -> Pointer;
    MLOCK = c"mlock": unsafe extern "C" fn(*const c_void, size_t) -> c_int;
    MLOCK2 = c"mlock2": unsafe extern "C" fn(*const c_void, size_t, u32) -> c_int;
    FSTAT = c"fstat": unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
    FCNTL = c"fcntl": unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
    DUP = c"dup": unsafe extern "C" fn(c_int) -> c_int;
    DUP2 = c"dup2": unsafe extern "C" fn(c_int, c_int) -> c_int;
    DUP3 = c"dup3": unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    CLOSE = c"close": unsafe extern "C" fn(c_int) -> c_int;
    CLOSE_RANGE = c"close_range": unsafe extern "C" fn(u32, u32, c_int) -> c_int;
    CLOSEFROM = c"closefrom": unsafe extern "C" fn(c_int);
}

/// Makes memory ordinary for good, before the program changes its mapping.
pub fn disown(address: usize, len: usize) {
    directory::disown(address, len);
    streams::changed(address, len);
}

/// Advice that changes no byte and no fault leaves views alone.
const fn is_harmless(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_DONTDUMP
            | libc::MADV_DODUMP
    )
}

/// Advice after which the bytes are gone.
const fn drops_bytes(advice: c_int) -> bool {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_DONTNEED_LOCKED)
}

/// Looks at one of these calls that the program makes through libc's `syscall`, before it is made.
pub fn before_call(number: c_long, [address, len, new_len, detail, new_address]: [usize; 5]) {
    match number {
        libc::SYS_munmap => record::forget(Function::Munmap, address, len),
        libc::SYS_mremap => record::forget(Function::Mremap, address, len),
        libc::SYS_madvise if drops_bytes(new_len as c_int) => record::forget(Function::Madvise, address, len),
        _ => {}
    }
    match number {
        libc::SYS_madvise if is_harmless(new_len as c_int) => {}
        libc::SYS_mremap if detail as c_int & libc::MREMAP_FIXED != 0 => {
            disown(address, len);
            disown(new_address, new_len);
        }
        _ => disown(address, len),
    }
}

before!(mprotect MPROTECT (address: Pointer, len: size_t, protection: c_int) -> c_int, {
    disown(address as usize, len);
});

before!(pkey_mprotect PKEY_MPROTECT (address: Pointer, len: size_t, protection: c_int, key: c_int) -> c_int, {
    disown(address as usize, len);
});

before!(madvise MADVISE (address: Pointer, len: size_t, advice: c_int) -> c_int, {
    if !is_harmless(advice) {
        disown(address as usize, len);
        if drops_bytes(advice) {
            record::forget(Function::Madvise, address as usize, len);
        }
    }
});

before!(munmap MUNMAP (address: Pointer, len: size_t) -> c_int, {
    disown(address as usize, len);
    record::forget(Function::Munmap, address as usize, len);
});

/// Whether a mapping may take the place of another, and somebody is to know that.
fn is_over(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0 && (record::is_on() || streams::is_on())
}

entry!(mmap MMAP
(address: Pointer, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Pointer,
is_over(flags) || files::is_shared_mapping(flags, fd), {
    map(address, len, protection, flags, fd, offset)
});

entry!(mmap64 MMAP
(address: Pointer, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> Pointer,
is_over(flags) || files::is_shared_mapping(flags, fd), {
    map(address, len, protection, flags, fd, offset)
});

/// mmap, entered in a recording; also before libc's function is known.
unsafe fn map(
    address: Pointer,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Pointer {
    if files::is_shared_mapping(flags, fd) {
        files::refuse(fd);
    }
    if is_over(flags) {
        record::forget(Function::Mmap, address as usize, len);
        streams::changed(address as usize, len);
    }
    // SAFETY: the program's own mapping, with its own arguments.
    unsafe { uncopy_sys::mem::map_as_asked(address, len, protection, flags, fd, offset) }
}

/// The fifth argument is only looked at by the kernel with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`; taking
/// it in any case is what every libc does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: Pointer,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new_address: Pointer,
) -> Pointer {
    disown(address as usize, old_len);
    if flags & libc::MREMAP_FIXED != 0 {
        disown(new_address as usize, new_len);
    }
    let timer = Timer::begin(old_len);
    // SAFETY: the program's own arguments; its views there are plain memory by now.
    let moved = unsafe { MREMAP.call()(address, old_len, new_len, flags, new_address) };
    if let Some(timer) = timer
        && moved != libc::MAP_FAILED
        && moved != address
    {
        timer.relocated(Function::Mremap, moved as usize, address as usize, old_len.min(new_len));
        record::forget(Function::Mremap, address as usize, old_len);
    }
    moved
}

before!(mlock MLOCK (address: *const c_void, len: size_t) -> c_int, {
    disown(address as usize, len);
});

before!(mlock2 MLOCK2 (address: *const c_void, len: size_t, flags: u32) -> c_int, {
    disown(address as usize, len);
});

/// Our descriptors.
fn own_descriptors() -> impl Iterator<Item = c_int> {
    activation::descriptors()
        .into_iter()
        .flatten()
        .chain(lanes::descriptors())
        .chain(last_thread::descriptors())
        .chain(store::own_descriptors())
}

/// A descriptor of the program's has been duplicated, if `to` is one.
fn duplicated(from: c_int, to: c_int) {
    streams::duplicated(from, to);
    files::duplicated(from, to);
}

/// A descriptor of the program's is about to be closed.
fn closed(fd: c_int) {
    streams::closed(fd);
    net::closed(fd);
    files::closed(fd);
}

/// The same for those from `first` to `last`.
fn closed_range(first: u32, last: u32) {
    streams::closed_range(first, last);
    net::closed_range(first, last);
    files::closed_range(first, last);
}

/// Whether `fd` is ours and so, to the program, not open; `errno` then says so.
fn is_hidden(fd: c_int) -> bool {
    let hidden = fd >= 0 && own_descriptors().any(|own| own == fd);
    if hidden {
        uncopy_sys::errno::set(libc::EBADF);
    }
    hidden
}

before!(fstat FSTAT (fd: c_int, found: *mut libc::stat) -> c_int, {
    if is_hidden(fd) {
        return -1;
    }
});

alias!(fstat64 = fstat (fd: c_int, found: *mut libc::stat) -> c_int);

// The third argument is only looked at for commands that have one; taking it in any case is what
// every libc does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    if is_hidden(fd) {
        return -1;
    }
    if files::is_known(fd) {
        files::before_fcntl(fd, command, argument);
    }
    // SAFETY: the program's own arguments.
    let result = files::after_fcntl(fd, command, unsafe { FCNTL.call()(fd, command, argument) });
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        duplicated(fd, result);
    }
    result
}

alias!(fcntl64 = fcntl (fd: c_int, command: c_int, argument: usize) -> c_int);

before!(close CLOSE (fd: c_int) -> c_int, {
    if is_hidden(fd) {
        return -1;
    }
    closed(fd);
    record::closed(fd);
});

/// Makes way for a descriptor of the program's own at number `fd`.
fn make_way(fd: c_int) {
    if fd < 0 {
        return;
    }
    let is_engines = activation::descriptors().contains(&Some(fd));
    if is_engines || last_thread::descriptors().any(|own| own == fd) {
        let _errno = uncopy_sys::errno::Keep::new();
        if is_engines {
            activation::renumber_descriptor(fd);
        } else {
            last_thread::renumber(fd);
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    // SAFETY: touches no memory.
    let to = unsafe { DUP.call()(from) };
    duplicated(from, to);
    to
}

/// Before a descriptor of the program's comes to be `to`, which is closed then, unless there is no such descriptor.
fn make_way_for(from: c_int, to: c_int) {
    make_way(to);
    if from != to && uncopy_sys::fd::closes_on_exec(from).is_some() {
        closed(to);
    }
    record::closed(to);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    make_way_for(from, to);
    // SAFETY: touches no memory.
    let made = unsafe { DUP2.call()(from, to) };
    if from != to {
        duplicated(from, made);
    }
    made
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    make_way_for(from, to);
    // SAFETY: touches no memory.
    let made = unsafe { DUP3.call()(from, to, flags) };
    duplicated(from, made);
    made
}

/// Our descriptors in order.
fn hidden_in_order() -> SmallVec<[u32; 8]> {
    let mut hidden: SmallVec<[u32; 8]> = own_descriptors().filter_map(|fd| u32::try_from(fd).ok()).collect();
    hidden.sort_unstable();
    hidden
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let real = CLOSE_RANGE.call();
    let mut next = first;
    if first <= last {
        // With a flag they are closed by an exec, or in another table.
        if flags == 0 {
            closed_range(first, last);
        }
        for hidden in hidden_in_order().into_iter().filter(|fd| (first..=last).contains(fd)) {
            // UNSHARE is done by the first call.
            // SAFETY: the program's own descriptors, up to the one before ours.
            if hidden > next && unsafe { real(next, hidden - 1, flags) } != 0 {
                return -1;
            }
            next = hidden + 1;
        }
        if next > last {
            return 0;
        }
    }
    // SAFETY: the program's own descriptors, behind ours; a range that is none is the kernel's to refuse.
    unsafe { real(next, last, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let mut next = first.max(0);
    // SAFETY: the program's own descriptors, without ours.
    unsafe {
        for hidden in hidden_in_order() {
            let hidden = hidden as c_int;
            if hidden >= next {
                if hidden > next {
                    close_range(next as u32, hidden as u32 - 1, 0);
                }
                next = hidden + 1;
            }
        }
        closed_range(next as u32, u32::MAX);
        CLOSEFROM.call()(next);
    }
}

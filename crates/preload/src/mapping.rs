//! Calls by which a program changes the mapping of memory that malloc gave it, and calls that could
//! take our descriptor away.
//!
//! A block whose mapping the program changes becomes plain memory before the call is made.

use crate::files;
use crate::lanes as streams;
use crate::net;
use core::ffi::{c_int, c_long, c_ulong, c_void};
use libc::{iovec, off_t, size_t};
use smallvec::SmallVec;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_engine::range::alteration::Alteration;
use uncopy_engine::range::directory;
use uncopy_engine::service::activation;
use uncopy_engine::state::gate::is_in_heap;
use uncopy_interpose::{alias, before, entry, slots};
use uncopy_lanes::forks as lanes;
use uncopy_record::{self as record, Function, Timer};
use uncopy_store::program as store;
use uncopy_sys::last_thread;
use uncopy_sys::readable::is_readable;

type Pointer = *mut c_void;

/// Linux 6.10; not in the libc crate for glibc.
const SYS_MSEAL: c_long = 462;
/// Linux 5.17.
const SYS_SET_MEMPOLICY_HOME_NODE: c_long = 450;

/// The calls that [`before_call`] looks at.
pub const CALLS: [c_long; 15] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_pkey_mprotect,
    libc::SYS_madvise,
    libc::SYS_process_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mbind,
    SYS_SET_MEMPOLICY_HOME_NODE,
    libc::SYS_remap_file_pages,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    SYS_MSEAL,
];

slots! {
    PROCESS_MADVISE = c"process_madvise": unsafe extern "C" fn(c_int, *const iovec, size_t, c_int, u32) -> isize;
    MSEAL = c"mseal" if defined: unsafe extern "C" fn(Pointer, size_t, c_ulong) -> c_int;
    REMAP_FILE_PAGES = c"remap_file_pages": unsafe extern "C" fn(Pointer, size_t, c_int, size_t, c_int) -> c_int;
    SHMAT = c"shmat": unsafe extern "C" fn(c_int, *const c_void, c_int) -> Pointer;
    SHMDT = c"shmdt": unsafe extern "C" fn(*const c_void) -> c_int;
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

/// Tells all whom it concerns that the program is about to alter what is at some addresses.
pub fn disown(address: usize, len: usize, alteration: Alteration) {
    let _errno = uncopy_sys::errno::Keep::new();
    directory::disown(address, len, alteration);
    if alteration != Alteration::Advice {
        streams::changed(address, len);
    }
}

/// What advice does; `None`: nothing that is left, or that matters to views.
const fn alteration_by(advice: c_int) -> Option<Alteration> {
    match advice {
        libc::MADV_NORMAL | libc::MADV_WILLNEED | libc::MADV_DODUMP => None,
        libc::MADV_RANDOM | libc::MADV_SEQUENTIAL | libc::MADV_NOHUGEPAGE | libc::MADV_DONTDUMP => {
            Some(Alteration::Advice)
        }
        libc::MADV_HUGEPAGE => Some(Alteration::HugePages),
        libc::MADV_DONTFORK => Some(Alteration::NotInherited),
        libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_POPULATE_READ
        | libc::MADV_POPULATE_WRITE
        | libc::MADV_COLLAPSE => Some(Alteration::Pages),
        advice if drops_bytes(advice) => Some(Alteration::Pages),
        _ => Some(Alteration::Properties),
    }
}

/// Before the program gives advice about memory of this process.
fn advised(address: usize, len: usize, advice: c_int) {
    if let Some(alteration) = alteration_by(advice) {
        disown(address, len, alteration);
        if drops_bytes(advice) {
            record::forget(Function::Madvise, address, len);
        }
    }
}

/// Before the program gives advice about memory of a process, which may be this one: where it is not, blocks that happen to
/// have these addresses hold no views for a while.
fn advised_in_a_process(ranges: usize, count: usize, advice: c_int) {
    const MAX_RANGES: usize = 1024;
    if alteration_by(advice).is_none() || count > MAX_RANGES {
        return;
    }
    for index in 0..count {
        let at = ranges.wrapping_add(index * size_of::<iovec>());
        if !is_readable(at, size_of::<iovec>()) {
            return;
        }
        // SAFETY: just found to be readable; the program passes an array of them.
        let range = unsafe { (at as *const iovec).read_unaligned() };
        advised(range.iov_base as usize, range.iov_len, advice);
    }
}

/// Before a segment of System V shared memory takes the place of what is at `address`.
fn attached(id: c_int, address: usize, flags: c_int) {
    if flags & libc::SHM_REMAP == 0 {
        return;
    }
    let _errno = uncopy_sys::errno::Keep::new();
    if let Some(len) = uncopy_sys::mem::segment_len_bytes(id) {
        disown(address / PAGE_BYTES * PAGE_BYTES, len, Alteration::Covered);
    }
}

/// Before the program takes a segment of System V shared memory away, perhaps from where it had put it over a block: the
/// kernel takes all of its mappings.
fn detached(address: usize) {
    if !is_in_heap(address) {
        return;
    }
    let _errno = uncopy_sys::errno::Keep::new();
    let rest_bytes = directory::find(address).map_or(0, |at| at.base + at.bytes() - address);
    let mapped_bytes =
        uncopy_sys::procmap::range_at(address).ok().flatten().map_or(0, |(range, _)| range.end - address);
    disown(address, rest_bytes.max(mapped_bytes), Alteration::Vacated);
}

/// Before `mremap`: what is left of the old place.
fn remapped(address: usize, old_len: usize, new_len: usize, flags: c_int, new_address: usize) {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let moves_all = fixed || flags & libc::MREMAP_DONTUNMAP != 0 || new_len > old_len;
    let kept = if moves_all { 0 } else { new_len.next_multiple_of(PAGE_BYTES) };
    // Its views are put in place also where the mapping stays.
    disown(address, old_len, Alteration::Pages);
    if kept < old_len {
        disown(address + kept, old_len - kept, Alteration::Vacated);
    }
    if fixed {
        disown(new_address, new_len, Alteration::Covered);
    }
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
        _ => {}
    }
    match number {
        libc::SYS_mmap => mapped(address, len, detail as c_int, new_address as c_int),
        libc::SYS_munmap => disown(address, len, Alteration::Vacated),
        libc::SYS_madvise => advised(address, len, new_len as c_int),
        libc::SYS_process_madvise => advised_in_a_process(len, new_len, detail as c_int),
        libc::SYS_mremap => remapped(address, len, new_len, detail as c_int, new_address),
        libc::SYS_shmat => attached(address as c_int, len, new_len as c_int),
        libc::SYS_shmdt => detached(address),
        _ => disown(address, len, Alteration::Properties),
    }
}

before!(mprotect MPROTECT (address: Pointer, len: size_t, protection: c_int) -> c_int, {
    disown(address as usize, len, Alteration::Properties);
});

before!(pkey_mprotect PKEY_MPROTECT (address: Pointer, len: size_t, protection: c_int, key: c_int) -> c_int, {
    disown(address as usize, len, Alteration::Properties);
});

before!(madvise MADVISE (address: Pointer, len: size_t, advice: c_int) -> c_int, {
    advised(address as usize, len, advice);
});

/// A libc older than this call does not have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const iovec,
    count: size_t,
    advice: c_int,
    flags: u32,
) -> isize {
    advised_in_a_process(ranges as usize, count, advice);
    match PROCESS_MADVISE.find() {
        // SAFETY: the program's own arguments.
        Some(real) => unsafe { real(process, ranges, count, advice, flags) },
        None => {
            let arguments = [process as usize, ranges as usize, count, advice as usize, flags as usize, 0];
            // SAFETY: the program's own arguments.
            unsafe { made_by_the_kernel(libc::SYS_process_madvise, arguments) }
        }
    }
}

/// A libc older than this call does not have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mseal(address: Pointer, len: size_t, flags: c_ulong) -> c_int {
    disown(address as usize, len, Alteration::Properties);
    match MSEAL.find() {
        // SAFETY: the program's own arguments.
        Some(real) => unsafe { real(address, len, flags) },
        // SAFETY: the program's own arguments.
        None => unsafe {
            made_by_the_kernel(SYS_MSEAL, [address as usize, len, flags as usize, 0, 0, 0]) as c_int
        },
    }
}

/// Makes a system call of the program's for which libc has no function.
unsafe fn made_by_the_kernel(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's.
    let result = unsafe { uncopy_sys::raw::call(number as usize, arguments) };
    if (-4095..0).contains(&result) {
        uncopy_sys::errno::set(-result as c_int);
        return -1;
    }
    result as isize
}

before!(remap_file_pages REMAP_FILE_PAGES
(address: Pointer, len: size_t, protection: c_int, page: size_t, flags: c_int) -> c_int, {
    disown(address as usize, len, Alteration::Covered);
});

before!(shmat SHMAT (id: c_int, address: *const c_void, flags: c_int) -> Pointer, {
    attached(id, address as usize, flags);
});

before!(shmdt SHMDT (address: *const c_void) -> c_int, {
    detached(address as usize);
});

before!(munmap MUNMAP (address: Pointer, len: size_t) -> c_int, {
    disown(address as usize, len, Alteration::Vacated);
    record::forget(Function::Munmap, address as usize, len);
});

/// Whether a mapping may take the place of another.
const fn is_over(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0
}

/// Before the program maps something.
fn mapped(address: usize, len: usize, flags: c_int, fd: c_int) {
    if files::is_shared_mapping(flags, fd) {
        files::refuse(fd);
    }
    if is_over(flags) {
        record::forget(Function::Mmap, address, len);
        disown(address, len, Alteration::Covered);
    }
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
    mapped(address as usize, len, flags, fd);
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
    remapped(address as usize, old_len, new_len, flags, new_address as usize);
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
    disown(address as usize, len, Alteration::Properties);
});

before!(mlock2 MLOCK2 (address: *const c_void, len: size_t, flags: u32) -> c_int, {
    disown(address as usize, len, Alteration::Properties);
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

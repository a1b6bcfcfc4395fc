//! Calls by which a program changes the mapping of memory from malloc, and calls that could replace or close this
//! library's descriptors.
//!
//! A block whose mapping the program changes becomes plain memory before the call is made.

use crate::files;
use crate::lanes as streams;
use core::ffi::{c_int, c_long, c_ulong, c_void};
use libc::{iovec, off_t, size_t};
use smallvec::SmallVec;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_engine::background::activation;
use uncopy_engine::range::alteration::Alteration;
use uncopy_engine::range::directory;
use uncopy_engine::state::gate::is_in_heap;
use uncopy_fdtable as fdtable;
use uncopy_interpose::{alias, before, entry, slots};
use uncopy_lanes::forks as lanes;
use uncopy_record::{self as record, Function, Timer};
use uncopy_store::program as store;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::last_thread;
use uncopy_sys::readable::is_readable;

type Pointer = *mut c_void;

/// System call mseal (Linux 6.10); missing from the libc crate for glibc.
const SYS_MSEAL: c_long = 462;
/// System call set_mempolicy_home_node (Linux 5.17).
const SYS_SET_MEMPOLICY_HOME_NODE: c_long = 450;

/// System calls that [`before_call`] handles.
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
    MMAP = c"mmap": unsafe extern "C" fn(Pointer, size_t, c_int, c_int, ProgramFd, off_t) -> Pointer;
    MREMAP = c"mremap": unsafe extern "C" fn(Pointer, size_t, size_t, c_int, Pointer) -> Pointer;
    MLOCK = c"mlock": unsafe extern "C" fn(*const c_void, size_t) -> c_int;
    MLOCK2 = c"mlock2": unsafe extern "C" fn(*const c_void, size_t, u32) -> c_int;
    FSTAT = c"fstat": unsafe extern "C" fn(ProgramFd, *mut libc::stat) -> c_int;
    FCNTL = c"fcntl": unsafe extern "C" fn(ProgramFd, c_int, usize) -> c_int;
    DUP = c"dup": unsafe extern "C" fn(ProgramFd) -> ProgramFd;
    DUP2 = c"dup2": unsafe extern "C" fn(ProgramFd, ProgramFd) -> ProgramFd;
    DUP3 = c"dup3": unsafe extern "C" fn(ProgramFd, ProgramFd, c_int) -> ProgramFd;
    CLOSE = c"close": unsafe extern "C" fn(ProgramFd) -> c_int;
    CLOSE_RANGE = c"close_range": unsafe extern "C" fn(u32, u32, c_int) -> c_int;
    CLOSEFROM = c"closefrom": unsafe extern "C" fn(ProgramFd);
}

/// Announces a change of the memory at these addresses to the engine and to lanes.
pub fn disown(address: usize, len: usize, alteration: Alteration) {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    directory::disown(address, len, alteration);
    if alteration != Alteration::Advice {
        streams::invalidate_copies(address, len);
    }
}

/// Returns the effect of madvise(2) with this advice; `None` if it has none on views.
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

fn before_madvise(address: usize, len: usize, advice: c_int) {
    if let Some(alteration) = alteration_by(advice) {
        disown(address, len, alteration);
        if drops_bytes(advice) {
            record::record_discard(Function::Madvise, address, len);
        }
    }
}

/// Prepares for advice about memory of a process that may be this one. If it is another, blocks that happen to
/// have the same addresses lose their views for a while.
fn before_process_madvise(ranges: usize, count: usize, advice: c_int) {
    const MAX_RANGES: usize = 1024;
    if alteration_by(advice).is_none() || count > MAX_RANGES {
        return;
    }
    for index in 0..count {
        let at = ranges.wrapping_add(index * size_of::<iovec>());
        if !is_readable(at, size_of::<iovec>()) {
            return;
        }
        // SAFETY: `at` was checked to be readable for an iovec, which any bytes are valid for.
        let range = unsafe { (at as *const iovec).read_unaligned() };
        before_madvise(range.iov_base as usize, range.iov_len, advice);
    }
}

/// Prepares for attaching a System V shared memory segment over the memory at `address`.
fn before_shmat(id: c_int, address: usize, flags: c_int) {
    if flags & libc::SHM_REMAP == 0 {
        return;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    if let Some(len) = uncopy_sys::mem::segment_len_bytes(id) {
        disown(address / PAGE_BYTES * PAGE_BYTES, len, Alteration::MappedOver);
    }
}

/// Prepares for detaching a System V shared memory segment, perhaps attached over a block.
fn before_shmdt(address: usize) {
    if !is_in_heap(address) {
        return;
    }
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let rest_bytes = directory::find(address).map_or(0, |at| at.base + at.bytes() - address);
    let mapped_bytes =
        uncopy_sys::procmap::range_at(address).ok().flatten().map_or(0, |(range, _)| range.end - address);
    disown(address, rest_bytes.max(mapped_bytes), Alteration::Unmapped);
}

/// Prepares for `mremap`: for the old range, and for the new one if it is fixed.
fn before_mremap(address: usize, old_len: usize, new_len: usize, flags: c_int, new_address: usize) {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let moves_all = fixed || flags & libc::MREMAP_DONTUNMAP != 0 || new_len > old_len;
    let kept = if moves_all { 0 } else { new_len.next_multiple_of(PAGE_BYTES) };
    // Views are materialized even if the mapping stays.
    disown(address, old_len, Alteration::Pages);
    if kept < old_len {
        disown(address + kept, old_len - kept, Alteration::Unmapped);
    }
    if fixed {
        disown(new_address, new_len, Alteration::MappedOver);
    }
}

const fn drops_bytes(advice: c_int) -> bool {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_DONTNEED_LOCKED)
}

/// Prepares for one of these system calls that the program makes by `syscall`.
pub fn before_call(number: c_long, [address, len, new_len, detail, new_address]: [usize; 5]) {
    match number {
        libc::SYS_munmap => record::record_discard(Function::Munmap, address, len),
        libc::SYS_mremap => record::record_discard(Function::Mremap, address, len),
        _ => {}
    }
    match number {
        libc::SYS_mmap => before_mmap(address, len, detail as c_int, ProgramFd::of_argument(new_address)),
        libc::SYS_munmap => disown(address, len, Alteration::Unmapped),
        libc::SYS_madvise => before_madvise(address, len, new_len as c_int),
        libc::SYS_process_madvise => before_process_madvise(len, new_len, detail as c_int),
        libc::SYS_mremap => before_mremap(address, len, new_len, detail as c_int, new_address),
        libc::SYS_shmat => before_shmat(address as c_int, len, new_len as c_int),
        libc::SYS_shmdt => before_shmdt(address),
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
    before_madvise(address as usize, len, advice);
});

/// Hooks process_madvise(2), which older libcs lack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const iovec,
    count: size_t,
    advice: c_int,
    flags: u32,
) -> isize {
    before_process_madvise(ranges as usize, count, advice);
    match PROCESS_MADVISE.find() {
        // SAFETY: the program's own arguments, passed on to libc unchanged.
        Some(real) => unsafe { real(process, ranges, count, advice, flags) },
        None => {
            let arguments = [process as usize, ranges as usize, count, advice as usize, flags as usize, 0];
            // SAFETY: the program's own arguments for this system call.
            unsafe { raw_syscall(libc::SYS_process_madvise, arguments) }
        }
    }
}

/// Hooks mseal(2), which older libcs lack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mseal(address: Pointer, len: size_t, flags: c_ulong) -> c_int {
    disown(address as usize, len, Alteration::Properties);
    match MSEAL.find() {
        // SAFETY: the program's own arguments, passed on to libc unchanged.
        Some(real) => unsafe { real(address, len, flags) },
        // SAFETY: the program's own arguments for this system call.
        None => unsafe { raw_syscall(SYS_MSEAL, [address as usize, len, flags as usize, 0, 0, 0]) as c_int },
    }
}

/// Makes a system call of the program's for which libc has no function.
unsafe fn raw_syscall(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller passes the program's own arguments for this system call.
    let result = unsafe { uncopy_sys::raw::call(number as usize, arguments) };
    if (-4095..0).contains(&result) {
        uncopy_sys::errno::set(-result as c_int);
        return -1;
    }
    result as isize
}

before!(remap_file_pages REMAP_FILE_PAGES
(address: Pointer, len: size_t, protection: c_int, page: size_t, flags: c_int) -> c_int, {
    disown(address as usize, len, Alteration::MappedOver);
});

before!(shmat SHMAT (id: c_int, address: *const c_void, flags: c_int) -> Pointer, {
    before_shmat(id, address as usize, flags);
});

before!(shmdt SHMDT (address: *const c_void) -> c_int, {
    before_shmdt(address as usize);
});

before!(munmap MUNMAP (address: Pointer, len: size_t) -> c_int, {
    disown(address as usize, len, Alteration::Unmapped);
    record::record_discard(Function::Munmap, address as usize, len);
});

const fn replaces_mapping(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0
}

/// Prepares for mapping a file or anonymous memory.
fn before_mmap(address: usize, len: usize, flags: c_int, fd: ProgramFd) {
    if files::excludes_mapped(flags, fd) {
        files::exclude(fd);
    }
    if replaces_mapping(flags) {
        record::record_discard(Function::Mmap, address, len);
        disown(address, len, Alteration::MappedOver);
    }
}

entry!(mmap MMAP
(address: Pointer, len: size_t, protection: c_int, flags: c_int, fd: ProgramFd, offset: off_t) -> Pointer,
replaces_mapping(flags) || files::excludes_mapped(flags, fd), {
    map(address, len, protection, flags, fd, offset)
});

entry!(mmap64 MMAP
(address: Pointer, len: size_t, protection: c_int, flags: c_int, fd: ProgramFd, offset: off_t) -> Pointer,
replaces_mapping(flags) || files::excludes_mapped(flags, fd), {
    map(address, len, protection, flags, fd, offset)
});

/// Maps memory as mmap does and records that. Works before libc's function is known.
unsafe fn map(
    address: Pointer,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: ProgramFd,
    offset: off_t,
) -> Pointer {
    before_mmap(address as usize, len, flags, fd);
    // SAFETY: the program's own arguments of mmap(2); views in the range were materialized before.
    unsafe { uncopy_sys::mem::map_for_program(address, len, protection, flags, fd, offset) }
}

/// Hooks mremap(2). The kernel reads the fifth argument only with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`; every libc
/// takes it in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    address: Pointer,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new_address: Pointer,
) -> Pointer {
    before_mremap(address as usize, old_len, new_len, flags, new_address as usize);
    let timer = Timer::begin(old_len);
    // SAFETY: the program's own arguments; both ranges hold no views any more.
    let moved = unsafe { MREMAP.call()(address, old_len, new_len, flags, new_address) };
    if let Some(timer) = timer
        && moved != libc::MAP_FAILED
        && moved != address
    {
        timer.record_relocation(Function::Mremap, moved as usize, address as usize, old_len.min(new_len));
        record::record_discard(Function::Mremap, address as usize, old_len);
    }
    moved
}

before!(mlock MLOCK (address: *const c_void, len: size_t) -> c_int, {
    disown(address as usize, len, Alteration::Properties);
});

before!(mlock2 MLOCK2 (address: *const c_void, len: size_t, flags: u32) -> c_int, {
    disown(address as usize, len, Alteration::Properties);
});

/// Returns the numbers of this library's descriptors.
fn own_descriptors() -> impl Iterator<Item = ProgramFd> {
    activation::descriptors()
        .chain(lanes::descriptors())
        .chain(last_thread::descriptors())
        .chain(store::own_descriptors())
}

/// True if `fd` is this library's, so that the program must find it closed; then `errno` is EBADF.
fn is_hidden(fd: ProgramFd) -> bool {
    let hidden = fd.is_valid() && own_descriptors().any(|own| own == fd);
    if hidden {
        uncopy_sys::errno::set(libc::EBADF);
    }
    hidden
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fstat(fd: ProgramFd, found: *mut libc::stat) -> c_int {
    if is_hidden(fd) {
        return -1;
    }
    // SAFETY: the program's own arguments; fstat(2) fills `found` if it succeeds.
    unsafe { files::fstat_by(fd, found, || FSTAT.call()(fd, found)) }
}

alias!(fstat64 = fstat (fd: ProgramFd, found: *mut libc::stat) -> c_int);

// fcntl has a third argument for some commands only; every libc takes it in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: ProgramFd, command: c_int, argument: usize) -> c_int {
    if is_hidden(fd) {
        return -1;
    }
    let _outside = if files::is_tracked(fd) { files::before_fcntl(fd, command, argument) } else { None };
    // SAFETY: the program's own arguments, passed on to libc unchanged.
    let result = files::after_fcntl(fd, command, unsafe { FCNTL.call()(fd, command, argument) });
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        fdtable::on_dup(fd, ProgramFd::new(result));
    }
    result
}

alias!(fcntl64 = fcntl (fd: ProgramFd, command: c_int, argument: usize) -> c_int);

before!(close CLOSE (fd: ProgramFd) -> c_int, {
    if is_hidden(fd) {
        return -1;
    }
    fdtable::on_close(fd);
});

/// Moves this library's descriptor away from number `fd`, which the program wants.
fn make_way(fd: ProgramFd) {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let _ = activation::relocate_descriptor(fd) || last_thread::relocate_descriptor(fd);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(from: ProgramFd) -> ProgramFd {
    // SAFETY: dup(2) takes any number and accesses no memory.
    let to = unsafe { DUP.call()(from) };
    fdtable::on_dup(from, to);
    to
}

/// Prepares for `from` being duplicated to `to`, which closes `to`, unless `from` is not open.
fn make_way_for(from: ProgramFd, to: ProgramFd) {
    make_way(to);
    if from != to && uncopy_sys::fd::closes_on_exec(from).is_some() {
        fdtable::on_close(to);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(from: ProgramFd, to: ProgramFd) -> ProgramFd {
    make_way_for(from, to);
    // SAFETY: dup2(2) takes any numbers and accesses no memory.
    let made = unsafe { DUP2.call()(from, to) };
    if from != to {
        fdtable::on_dup(from, made);
    }
    made
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(from: ProgramFd, to: ProgramFd, flags: c_int) -> ProgramFd {
    make_way_for(from, to);
    // SAFETY: dup3(2) takes any numbers and accesses no memory.
    let made = unsafe { DUP3.call()(from, to, flags) };
    fdtable::on_dup(from, made);
    made
}

/// Returns this library's descriptors in ascending order.
fn hidden_in_order() -> SmallVec<[u32; 8]> {
    let mut hidden: SmallVec<[u32; 8]> =
        own_descriptors().filter_map(|fd| u32::try_from(fd.index()?).ok()).collect();
    hidden.sort_unstable();
    hidden
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    let real = CLOSE_RANGE.call();
    let mut next = first;
    if first <= last {
        // With flags, nothing is closed in this table now: either at exec, or in a new table.
        if flags == 0 {
            fdtable::on_close_range(first, last);
        }
        for hidden in hidden_in_order().into_iter().filter(|fd| (first..=last).contains(fd)) {
            // The first call unshares the table (CLOSE_RANGE_UNSHARE), so later ones apply to the new one.
            // SAFETY: close_range(2) accesses no memory; this range ends before the next descriptor of this
            // library.
            if hidden > next && unsafe { real(next, hidden - 1, flags) } != 0 {
                return -1;
            }
            next = hidden + 1;
        }
        if next > last {
            return 0;
        }
    }
    // SAFETY: close_range(2) accesses no memory; the range has none of this library's descriptors.
    unsafe { real(next, last, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let mut next = first.max(0);
    // SAFETY: close(2) and closefrom(3) access no memory; this library's descriptors are left out.
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
        fdtable::on_close_range(next as u32, u32::MAX);
        CLOSEFROM.call()(ProgramFd::new(next));
    }
}

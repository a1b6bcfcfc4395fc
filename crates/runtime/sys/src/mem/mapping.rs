//! Mappings of our own: reserved ranges, committed piece by piece, and replacement of mappings.

use crate::call::{kernel, syscall};
use crate::descriptor::ProgramFd;
use crate::errno::{Errno, check};
use std::ffi::c_void;

/// A reserved range of addresses, which lives as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    base: usize,
    len_bytes: usize,
}

pub(super) fn map(len_bytes: usize, protection: i32, flags: i32, fd: i32) -> Result<usize, Errno> {
    // SAFETY: without MAP_FIXED the mapping replaces nothing.
    let address =
        unsafe { kernel!(Map, libc::mmap(core::ptr::null_mut(), len_bytes, protection, flags, fd, 0)) };
    if address == libc::MAP_FAILED { Err(Errno(crate::errno::get())) } else { Ok(address as usize) }
}

impl Reservation {
    /// Reserves `len_bytes` bytes (whole pages) of inaccessible addresses, which take no memory.
    ///
    /// # Errors
    /// Errors of mmap(2); ENOMEM if `RLIMIT_AS` is too low.
    pub fn new(len_bytes: usize) -> Result<Self, Errno> {
        #[cfg(feature = "inject")]
        if crate::inject::is_too_long(len_bytes) {
            return Err(Errno(libc::ENOMEM));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        #[cfg(not(loom))]
        let base = map(len_bytes, libc::PROT_NONE, flags, -1)?;
        #[cfg(loom)]
        let base = model::reserve(len_bytes, flags)?;
        Ok(Self { base, len_bytes })
    }

    /// Returns the reservation with this address and length, which was made before.
    #[must_use]
    pub const fn from_existing(base: usize, len_bytes: usize) -> Self {
        Self { base, len_bytes }
    }

    /// Unmaps the range from `len_bytes` on and returns the rest.
    ///
    /// # Safety
    /// Nothing may use the part that is unmapped.
    #[must_use]
    pub unsafe fn shortened(self, len_bytes: usize) -> Self {
        if len_bytes >= self.len_bytes {
            return self;
        }
        // SAFETY: the end of this reservation, which the caller gives up. After an error it stays unused.
        let _ = unsafe { unmap(self.base + len_bytes, self.len_bytes - len_bytes) };
        Self { len_bytes, ..self }
    }

    /// Address of the first byte.
    #[must_use]
    pub const fn base(self) -> usize {
        self.base
    }

    /// Length, bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        self.len_bytes
    }

    /// Makes part of the range readable and writable. Pages appear on first access, as zeroes.
    ///
    /// # Errors
    /// Errors of mprotect(2); EINVAL outside the range.
    pub fn commit(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: `within` has checked that the range is part of this reservation, which is ours;
        // more access breaks no code.
        check(unsafe { kernel!(Protect, syscall!(libc::SYS_mprotect, address, len_bytes, protection)) })
            .map(drop)
    }

    /// Returns the pages of part of the range to the kernel. They read as zeroes afterwards, or
    /// fault as missing if they are registered with userfaultfd.
    ///
    /// # Errors
    /// Errors of madvise(2); EINVAL outside the range.
    ///
    /// # Safety
    /// The bytes must no longer be needed.
    pub unsafe fn discard(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        let advice = libc::MADV_DONTNEED;
        // SAFETY: `within` has checked that the range is ours; the caller gives up its bytes.
        check(unsafe { kernel!(Discard, syscall!(libc::SYS_madvise, address, len_bytes, advice)) })?;
        #[cfg(loom)]
        crate::uffd::set_present(address, len_bytes, false);
        Ok(())
    }

    /// Advises the kernel about part of the range; a refusal is ignored.
    pub fn advise(self, address: usize, len_bytes: usize, advice: Advice) {
        if self.within(address, len_bytes).is_ok() {
            let advice = match advice {
                Advice::NoHugePages => libc::MADV_NOHUGEPAGE,
                Advice::NotInCoreDumps => libc::MADV_DONTDUMP,
                Advice::InCoreDumps => libc::MADV_DODUMP,
            };
            // SAFETY: none of these advices changes a byte.
            unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, address, len_bytes, advice)) };
        }
    }

    /// Makes the whole range read as zeroes in children forked from here on (Linux 4.14).
    ///
    /// # Errors
    /// Errors of madvise(2).
    pub fn wipe_on_fork(self) -> Result<(), Errno> {
        let advice = libc::MADV_WIPEONFORK;
        // SAFETY: MADV_WIPEONFORK changes no byte of this process.
        let result =
            unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, self.base, self.len_bytes, advice)) };
        check(result).map(drop)
    }

    /// Moves the pages of one part of the range to another, whose old pages are lost; the source
    /// reads as zeroes afterwards.
    ///
    /// # Errors
    /// Errors of mremap(2), ENOMEM if there are too many mappings; nothing has moved then.
    ///
    /// # Safety
    /// The destination's bytes must no longer be needed, and neither part may be registered with userfaultfd.
    pub unsafe fn relocate(self, from: usize, to: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(from, len_bytes)?;
        self.within(to, len_bytes)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: `within` has checked that both parts are ours; the caller gives up the destination's bytes.
        let moved =
            unsafe { kernel!(Remap, syscall!(libc::SYS_mremap, from, len_bytes, len_bytes, flags, to)) };
        check(moved).map(drop)
    }

    /// Replaces part of the range by a fresh mapping, as [`commit`](Self::commit) makes it.
    ///
    /// # Errors
    /// Errors of mmap(2); EINVAL outside the range. Nothing has changed then.
    ///
    /// # Safety
    /// The old bytes must no longer be needed.
    pub unsafe fn renew(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        // SAFETY: the caller gives up the old bytes, which is all that `map_again` requires.
        unsafe { self.map_again(address, len_bytes, libc::PROT_READ | libc::PROT_WRITE) }
    }

    /// Makes part of the range inaccessible again; its pages return to the kernel.
    ///
    /// # Errors
    /// Errors of mmap(2); EINVAL outside the range. Nothing has changed then.
    ///
    /// # Safety
    /// The old bytes must no longer be needed.
    pub unsafe fn withdraw(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        // SAFETY: the caller gives up the old bytes, which is all that `map_again` requires.
        unsafe { self.map_again(address, len_bytes, libc::PROT_NONE) }
    }

    /// # Safety
    /// The old bytes must no longer be needed.
    unsafe fn map_again(self, address: usize, len_bytes: usize, protection: i32) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        // The same flags as for the whole range, because the kernel merges only mappings with equal flags.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: `within` has checked that the range is ours; the caller gives up the old bytes.
        unsafe { map_at(address, len_bytes, protection, flags, -1) }?;
        #[cfg(loom)]
        crate::uffd::set_present(address, len_bytes, false);
        Ok(())
    }

    /// Makes every page of part of the range present.
    ///
    /// # Errors
    /// Errors of madvise(2), EINVAL before Linux 5.14.
    pub fn populate(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        let advice = libc::MADV_POPULATE_WRITE;
        // SAFETY: MADV_POPULATE_WRITE changes no byte.
        let result = unsafe { kernel!(Populate, syscall!(libc::SYS_madvise, address, len_bytes, advice)) };
        check(result)?;
        #[cfg(loom)]
        crate::uffd::set_present(address, len_bytes, true);
        Ok(())
    }

    fn within(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        let inside = address >= self.base
            && address.checked_add(len_bytes).is_some_and(|end| end <= self.base + self.len_bytes);
        if inside { Ok(()) } else { Err(Errno(libc::EINVAL)) }
    }
}

/// Advice about memory, for [`Reservation::advise`].
#[derive(Clone, Copy, Debug)]
pub enum Advice {
    /// No huge pages: pages are moved one by one, which would split them.
    NoHugePages,
    /// Excluded from core dumps: the arena, and addresses without memory.
    NotInCoreDumps,
    /// Included in core dumps: the program's own memory.
    InCoreDumps,
}

/// Replaces the range at `address` in one step by a new private mapping. `fill` first gets the
/// address of the new mapping, zeroes at that time, to write its bytes.
///
/// # Errors
/// Errors of mmap(2) or mremap(2); nothing has changed then.
///
/// # Safety
/// The range must be whole pages of ours whose old bytes are no longer needed.
pub unsafe fn replace(address: usize, len_bytes: usize, fill: impl FnOnce(usize)) -> Result<(), Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let made = map(len_bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
    fill(made);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the source was mapped above; the destination is ours, and the caller gives up its old bytes.
    unsafe {
        let moved = kernel!(Remap, syscall!(libc::SYS_mremap, made, len_bytes, len_bytes, flags, address));
        check(moved).map(drop).inspect_err(|_| {
            kernel!(Unmap, syscall!(libc::SYS_munmap, made, len_bytes));
        })
    }
}

/// Unmaps a range of addresses.
///
/// # Errors
/// Errors of munmap(2).
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn unmap(address: usize, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller vouches that nothing uses the range.
    check(unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, address, len_bytes)) }).map(drop)
}

/// Maps a read-only range of zeroes that takes no memory beyond the page tables.
///
/// # Errors
/// Errors of mmap(2).
pub fn map_zeroes(len_bytes: usize) -> Result<usize, Errno> {
    #[cfg(loom)]
    return Reservation::new(len_bytes)
        .and_then(|zeroes| zeroes.commit(zeroes.base(), len_bytes).map(|()| zeroes.base()));
    #[cfg(not(loom))]
    map(len_bytes, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
}

/// Maps a range of zeroes that this process shares with children that it forks later.
///
/// # Errors
/// Errors of mmap(2).
pub fn map_for_children(len_bytes: usize) -> Result<usize, Errno> {
    map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
}

/// Returns the length of a segment of System V shared memory, bytes; `None` if it does not exist or
/// permissions forbid the query.
#[must_use]
pub fn segment_len_bytes(id: i32) -> Option<usize> {
    // SAFETY: `shmid_ds` consists of integers, for which all-zero bytes are valid.
    let mut state: libc::shmid_ds = unsafe { core::mem::zeroed() };
    // SAFETY: IPC_STAT writes one `shmid_ds` to `state`, which lives through the call.
    let result = unsafe { kernel!(Stat, syscall!(libc::SYS_shmctl, id, libc::IPC_STAT, &raw mut state)) };
    (result == 0).then_some(state.shm_segsz)
}

/// The soft limit on a process's address space, bytes; `None` if there is none.
#[must_use]
pub fn address_space_limit() -> Option<u64> {
    #[cfg(loom)]
    return Some(1 << 32);
    #[cfg(not(loom))]
    limit(libc::RLIMIT_AS)
}

/// The soft limit on a process's private writable memory, touched or not, bytes; `None` if there is none.
#[must_use]
pub fn data_limit() -> Option<u64> {
    #[cfg(loom)]
    return None;
    #[cfg(not(loom))]
    limit(libc::RLIMIT_DATA)
}

/// The soft limit on the length of the first thread's stack, bytes; `None` if there is none.
#[cfg(not(loom))]
pub(crate) fn stack_limit() -> Option<u64> {
    limit(libc::RLIMIT_STACK)
}

/// The soft limit on the length of files that the process writes, bytes; `None` if there is none.
#[cfg(not(loom))]
#[must_use]
pub fn file_size_limit() -> Option<u64> {
    limit(libc::RLIMIT_FSIZE)
}

#[cfg(not(loom))]
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit writes one value of the type of `limit`, which lives through the call.
    let result = unsafe { kernel!(Limit, libc::getrlimit(resource, &mut limit)) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The kernel's page size, bytes.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions and accesses no memory of the caller.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// Makes the pages of a range of ordinary memory present.
///
/// # Errors
/// Errors of madvise(2): EINVAL before Linux 5.14, ENOMEM if part of the range is not mapped,
/// EFAULT if it is not writable.
pub fn populate(address: usize, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: MADV_POPULATE_WRITE changes no byte.
    let result = unsafe {
        kernel!(Populate, syscall!(libc::SYS_madvise, address, len_bytes, libc::MADV_POPULATE_WRITE))
    };
    check(result).map(drop)
}

/// Maps private zeroes at `address`, replacing what is mapped there, or at an address of the kernel's choice.
///
/// # Errors
/// Errors of mmap(2).
///
/// # Safety
/// `address`, if given, must be a mapping of ours of at least `len_bytes` that may be replaced.
pub unsafe fn map_private(len_bytes: usize, address: Option<usize>) -> Result<usize, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let Some(address) = address else { return map(len_bytes, protection, flags, -1) };
    // SAFETY: the caller vouches that the old mapping is ours and may be replaced.
    unsafe { map_at(address, len_bytes, protection, flags, -1) }.map(|()| address)
}

/// Maps memory or a file at `address`, replacing what is mapped there. A direct system call,
/// because libuncopy.so interposes on mmap for mappings that replace others.
///
/// # Safety
/// The range must be ours, and its old bytes no longer needed.
pub(crate) unsafe fn map_at(
    address: usize,
    len_bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
) -> Result<(), Errno> {
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: MAP_FIXED replaces a range that is ours, whose bytes the caller gives up.
    let mapped =
        unsafe { kernel!(Map, syscall!(libc::SYS_mmap, address, len_bytes, protection, flags, fd, 0)) };
    check(mapped).map(drop)
}

/// Calls mmap(2) as the program asked; returns MAP_FAILED and sets `errno` if the kernel refuses.
///
/// # Safety
/// See mmap(2): with MAP_FIXED the caller must own the range.
pub unsafe fn map_for_program(
    address: *mut c_void,
    len_bytes: usize,
    protection: i32,
    flags: i32,
    fd: ProgramFd,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's own arguments, whose effects are the program's responsibility.
    unsafe { syscall!(libc::SYS_mmap, address, len_bytes, protection, flags, fd, offset) as *mut c_void }
}

/// Reservations of a model, which its next run uses again.
#[cfg(loom)]
mod model {
    use super::{Errno, map};
    use std::sync::Mutex;

    /// Address, length, and whether this run uses the reservation.
    static RESERVATIONS: Mutex<Vec<(usize, usize, bool)>> = Mutex::new(Vec::new());

    pub fn begin() {
        for made in RESERVATIONS.lock().expect("not poisoned").iter_mut() {
            made.2 = false;
        }
    }

    pub fn reserve(len_bytes: usize, flags: i32) -> Result<usize, Errno> {
        let mut all = RESERVATIONS.lock().expect("not poisoned");
        if let Some(found) = all.iter_mut().find(|made| made.1 == len_bytes && !made.2) {
            found.2 = true;
            let flags = flags | libc::MAP_FIXED;
            // SAFETY: the range was reserved by an earlier run, which has ended.
            unsafe { libc::mmap(found.0 as *mut _, len_bytes, libc::PROT_NONE, flags, -1, 0) };
            return Ok(found.0);
        }
        let base = map(len_bytes, libc::PROT_NONE, flags, -1)?;
        all.push((base, len_bytes, true));
        Ok(base)
    }
}

#[cfg(loom)]
pub(crate) fn begin_model() {
    model::begin();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    #[test]
    fn only_our_own_reservation_can_be_committed_or_discarded() {
        let reservation = Reservation::new(1 << 20).expect("addresses");
        let base = reservation.base();
        reservation.commit(base, 2 * PAGE_BYTES).expect("commit");
        // SAFETY: `commit` has made the two pages at `base` writable.
        unsafe { *(base as *mut u8) = 7 };
        assert_eq!(reservation.commit(base + (1 << 20), PAGE_BYTES), Err(Errno(libc::EINVAL)));
        assert_eq!(reservation.commit(usize::MAX - PAGE_BYTES, 2 * PAGE_BYTES), Err(Errno(libc::EINVAL)));
        // SAFETY: this test alone knows the reservation, and reads only the zeroes afterwards.
        unsafe { reservation.discard(base, 2 * PAGE_BYTES) }.expect("discard");
        // SAFETY: `commit` has made the page readable.
        assert_eq!(unsafe { *(base as *const u8) }, 0);
    }
}

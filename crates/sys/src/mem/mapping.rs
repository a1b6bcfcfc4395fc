//! Mappings of our own: reserved ranges that are committed piece by piece, and what is mapped in their place.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use std::ffi::c_void;

/// A reserved range of addresses. It lives as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    base: usize,
    len_bytes: usize,
}

pub(super) fn map(len_bytes: usize, protection: i32, flags: i32, fd: i32) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let address =
        unsafe { kernel!(Map, libc::mmap(core::ptr::null_mut(), len_bytes, protection, flags, fd, 0)) };
    if address == libc::MAP_FAILED { Err(Errno(crate::errno::get())) } else { Ok(address as usize) }
}

impl Reservation {
    /// Reserves `len_bytes` bytes (whole pages) of inaccessible addresses. Takes no memory.
    ///
    /// # Errors
    /// What mmap says; ENOMEM where `RLIMIT_AS` is too low.
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

    /// A reservation made before, of which address and length were kept.
    #[must_use]
    pub const fn part_of_ours(base: usize, len_bytes: usize) -> Self {
        Self { base, len_bytes }
    }

    /// What is left after the part from `len_bytes` on is given back.
    ///
    /// # Safety
    /// Nobody may need that part.
    #[must_use]
    pub unsafe fn shortened(self, len_bytes: usize) -> Self {
        if len_bytes >= self.len_bytes {
            return self;
        }
        // SAFETY: the end of our own range, which the caller says nobody needs. What cannot be given back stays unused.
        let _ = unsafe { unmap(self.base + len_bytes, self.len_bytes - len_bytes) };
        Self { len_bytes, ..self }
    }

    /// First address.
    #[must_use]
    pub const fn base(self) -> usize {
        self.base
    }

    /// Length, bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        self.len_bytes
    }

    /// Makes part of the range readable and writable. Pages appear on first touch, as zeroes.
    ///
    /// # Errors
    /// What mprotect says; EINVAL outside the range.
    pub fn commit(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range is our own reservation; giving access to it disturbs nothing.
        check(unsafe { kernel!(Protect, syscall!(libc::SYS_mprotect, address, len_bytes, protection)) })
            .map(drop)
    }

    /// Gives the pages of part of the range back to the kernel. They read as zeroes afterwards,
    /// or fault as missing where they are registered with userfaultfd.
    ///
    /// # Errors
    /// What madvise says; EINVAL outside the range.
    ///
    /// # Safety
    /// Nobody may need the bytes any more.
    pub unsafe fn discard(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        let advice = libc::MADV_DONTNEED;
        // SAFETY: within our own range, whose bytes the caller says nobody needs.
        check(unsafe { kernel!(Discard, syscall!(libc::SYS_madvise, address, len_bytes, advice)) })?;
        #[cfg(loom)]
        crate::uffd::set_present(address, len_bytes, false);
        Ok(())
    }

    /// Advises the kernel about part of the range; a refusal is not an error.
    pub fn advise(self, address: usize, len_bytes: usize, advice: Advice) {
        if self.within(address, len_bytes).is_ok() {
            let advice = match advice {
                Advice::NoHugePages => libc::MADV_NOHUGEPAGE,
                Advice::NotInCoreDumps => libc::MADV_DONTDUMP,
                Advice::InCoreDumps => libc::MADV_DODUMP,
            };
            // SAFETY: neither advice changes any byte.
            unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, address, len_bytes, advice)) };
        }
    }

    /// Makes the whole range read as zeroes in children forked from here on (Linux 4.14).
    ///
    /// # Errors
    /// What madvise says.
    pub fn wipe_on_fork(self) -> Result<(), Errno> {
        let advice = libc::MADV_WIPEONFORK;
        // SAFETY: changes no byte of this process.
        let result =
            unsafe { kernel!(Advise, syscall!(libc::SYS_madvise, self.base, self.len_bytes, advice)) };
        check(result).map(drop)
    }

    /// Moves the pages of one part of the range to another part; the source reads as zeroes
    /// afterwards, the destination's old pages are gone.
    ///
    /// # Errors
    /// What mremap says (ENOMEM when there are too many mappings); nothing has moved then.
    ///
    /// # Safety
    /// Nobody may need the destination's bytes; neither part is registered with userfaultfd.
    pub unsafe fn relocate(self, from: usize, to: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(from, len_bytes)?;
        self.within(to, len_bytes)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: both parts are ours; the caller gives up the destination's bytes.
        let moved =
            unsafe { kernel!(Remap, syscall!(libc::SYS_mremap, from, len_bytes, len_bytes, flags, to)) };
        check(moved).map(drop)
    }

    /// Puts a fresh mapping, as [`commit`](Self::commit) makes one, in the place of what is in part of the range.
    ///
    /// # Errors
    /// What mmap says; EINVAL outside the range. Nothing has changed then.
    ///
    /// # Safety
    /// Nobody may need what is there.
    pub unsafe fn renew(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.map_again(address, len_bytes, libc::PROT_READ | libc::PROT_WRITE) }
    }

    /// Makes part of the range inaccessible again, whatever is there; that takes no memory from then on.
    ///
    /// # Errors
    /// What mmap says; EINVAL outside the range. Nothing has changed then.
    ///
    /// # Safety
    /// Nobody may need what is there.
    pub unsafe fn withdraw(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        // SAFETY: as the caller promises.
        unsafe { self.map_again(address, len_bytes, libc::PROT_NONE) }
    }

    /// # Safety
    /// Nobody may need what is there.
    unsafe fn map_again(self, address: usize, len_bytes: usize, protection: i32) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        // The flags of the whole range: the kernel joins only mappings that agree in them.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: within our own range, where the caller says that nobody needs what is there.
        unsafe { map_at(address, len_bytes, protection, flags, -1) }?;
        #[cfg(loom)]
        crate::uffd::set_present(address, len_bytes, false);
        Ok(())
    }

    /// Makes every page of part of the range present.
    ///
    /// # Errors
    /// What madvise says (EINVAL before Linux 5.14).
    pub fn populate(self, address: usize, len_bytes: usize) -> Result<(), Errno> {
        self.within(address, len_bytes)?;
        let advice = libc::MADV_POPULATE_WRITE;
        // SAFETY: changes no byte.
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

/// Advice for [`Reservation::advise`].
#[derive(Clone, Copy, Debug)]
pub enum Advice {
    /// Pages are moved one by one: huge ones would be split.
    NoHugePages,
    /// The arena, and addresses without memory, are of no use in a core dump.
    NotInCoreDumps,
    /// The program's own memory is.
    InCoreDumps,
}

/// Puts a new private mapping in the place of what is at `address`, at once: `fill` gets the address of its
/// bytes, zeroes at first, beforehand.
///
/// # Errors
/// What mmap or mremap say; nothing has changed then.
///
/// # Safety
/// The range must be whole pages of ours whose old bytes nobody needs.
pub unsafe fn replace(address: usize, len_bytes: usize, fill: impl FnOnce(usize)) -> Result<(), Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let made = map(len_bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
    fill(made);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the source was made above; the destination is ours, and the caller gives its bytes up.
    unsafe {
        let moved = kernel!(Remap, syscall!(libc::SYS_mremap, made, len_bytes, len_bytes, flags, address));
        check(moved).map(drop).inspect_err(|_| {
            kernel!(Unmap, syscall!(libc::SYS_munmap, made, len_bytes));
        })
    }
}

/// Takes a range of addresses, and what is there, out of the process.
///
/// # Errors
/// What munmap says.
///
/// # Safety
/// Nobody may need the range any more.
pub unsafe fn unmap(address: usize, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: the caller says that nobody needs the range.
    check(unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, address, len_bytes)) }).map(drop)
}

/// A read-only range of zeroes that takes no memory beyond the page tables.
///
/// # Errors
/// What mmap says.
pub fn map_zeroes(len_bytes: usize) -> Result<usize, Errno> {
    #[cfg(loom)]
    return Reservation::new(len_bytes)
        .and_then(|zeroes| zeroes.commit(zeroes.base(), len_bytes).map(|()| zeroes.base()));
    #[cfg(not(loom))]
    map(len_bytes, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
}

/// Length of a segment of System V shared memory, bytes. `None`: there is none with this number, or it may not be looked at.
#[must_use]
pub fn segment_len_bytes(id: i32) -> Option<usize> {
    // SAFETY: all-zero bytes are a valid structure.
    let mut state: libc::shmid_ds = unsafe { core::mem::zeroed() };
    // SAFETY: the structure that the command fills.
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

#[cfg(not(loom))]
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for the call.
    let result = unsafe { kernel!(Limit, libc::getrlimit(resource, &mut limit)) };
    (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The kernel's page size, bytes.
#[must_use]
pub fn page_size() -> usize {
    // SAFETY: sysconf has no requirements.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// Makes the pages of a range of ordinary memory present.
///
/// # Errors
/// What madvise says: EINVAL before Linux 5.14, ENOMEM where nothing is mapped, EFAULT where nothing can be
/// written.
pub fn populate(address: usize, len_bytes: usize) -> Result<(), Errno> {
    // SAFETY: changes no byte.
    let result = unsafe {
        kernel!(Populate, syscall!(libc::SYS_madvise, address, len_bytes, libc::MADV_POPULATE_WRITE))
    };
    check(result).map(drop)
}

/// Maps private zeroes at `address`, replacing what is there; or anywhere.
///
/// # Errors
/// What mmap says.
///
/// # Safety
/// `address`, if given, must be a mapping of ours of at least `len_bytes` that may be replaced.
pub unsafe fn map_private(len_bytes: usize, address: Option<usize>) -> Result<usize, Errno> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let Some(address) = address else { return map(len_bytes, protection, flags, -1) };
    // SAFETY: the caller says that the mapping is ours and may be replaced.
    unsafe { map_at(address, len_bytes, protection, flags, -1) }.map(|()| address)
}

/// Maps something in the place of what is at `address`. Not by libc's function, which the library interposes on for
/// mappings over others.
///
/// # Safety
/// The range must be ours, and its old bytes nobody's.
pub(crate) unsafe fn map_at(
    address: usize,
    len_bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
) -> Result<(), Errno> {
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: MAP_FIXED replaces what is there: the caller says that it is ours, and its bytes nobody's.
    let mapped =
        unsafe { kernel!(Map, syscall!(libc::SYS_mmap, address, len_bytes, protection, flags, fd, 0)) };
    check(mapped).map(drop)
}

/// mmap as the program asks for it; -1 and `errno` if the kernel refuses.
///
/// # Safety
/// As for mmap.
pub unsafe fn map_as_asked(
    address: *mut c_void,
    len_bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the program's own call, made as it asked for it.
    unsafe { syscall!(libc::SYS_mmap, address, len_bytes, protection, flags, fd, offset) as *mut c_void }
}

/// Reservations of a model, which are used again by its next run.
#[cfg(loom)]
mod model {
    use super::{Errno, map};
    use std::sync::Mutex;

    /// Address, length, whether this run has it.
    static MADE: Mutex<Vec<(usize, usize, bool)>> = Mutex::new(Vec::new());

    pub fn begin() {
        for made in MADE.lock().expect("not poisoned").iter_mut() {
            made.2 = false;
        }
    }

    pub fn reserve(len_bytes: usize, flags: i32) -> Result<usize, Errno> {
        let mut all = MADE.lock().expect("not poisoned");
        if let Some(found) = all.iter_mut().find(|made| made.1 == len_bytes && !made.2) {
            found.2 = true;
            let flags = flags | libc::MAP_FIXED;
            // SAFETY: the range is ours, and the run that used it has ended.
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
        // SAFETY: just committed.
        unsafe { *(base as *mut u8) = 7 };
        assert_eq!(reservation.commit(base + (1 << 20), PAGE_BYTES), Err(Errno(libc::EINVAL)));
        assert_eq!(reservation.commit(usize::MAX - PAGE_BYTES, 2 * PAGE_BYTES), Err(Errno(libc::EINVAL)));
        // SAFETY: nobody needs the bytes.
        unsafe { reservation.discard(base, 2 * PAGE_BYTES) }.expect("discard");
        // SAFETY: committed.
        assert_eq!(unsafe { *(base as *const u8) }, 0);
    }
}

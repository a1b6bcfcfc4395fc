//! Mappings of our own: reserved ranges that are committed piece by piece.

use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use std::ffi::{CStr, c_void};
use std::ops::Range;

/// Bytes of a page: the only size that uncopy works with. It stays out where the kernel's are others ([`page_size`]).
pub const PAGE_BYTES: usize = 4096;

/// A reserved range of addresses. It lives as long as the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    base: usize,
    len_bytes: usize,
}

fn map(len_bytes: usize, protection: i32, flags: i32, fd: i32) -> Result<usize, Errno> {
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
        // SAFETY: the caller's promise. What cannot be given back stays and is not used.
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
        // SAFETY: the caller's promise.
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
    /// Hidden memory, and addresses without memory, are of no use in a core dump.
    NotInCoreDumps,
    /// The program's own memory is.
    InCoreDumps,
}

/// Of an entry of a page table as `/proc/self/pagemap` shows it: in memory, swapped out
/// (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT_OR_SWAPPED: u64 = 3 << 62;

/// Looks at entries of this process's page table with `look`, which gets the descriptor of `/proc/self/pagemap`; a
/// negative one where there is none.
fn page_table<R>(look: impl FnOnce(isize) -> R) -> R {
    let path = c"/proc/self/pagemap";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is terminated.
    let fd = unsafe { kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)) };
    let found = look(fd as isize);
    if fd >= 0 {
        // SAFETY: opened above.
        unsafe { kernel!(Close, syscall!(libc::SYS_close, fd)) };
    }
    found
}

/// Reads entries of the page table from the page at `page_address` on. False: not all of them.
fn entries(fd: isize, page_address: usize, entries: &mut [u64]) -> bool {
    let (len_bytes, at) = (size_of_val(entries), page_address / PAGE_BYTES * 8);
    // SAFETY: the entries are valid for their bytes.
    let got = unsafe { kernel!(Read, syscall!(libc::SYS_pread64, fd, entries.as_mut_ptr(), len_bytes, at)) };
    usize::try_from(got) == Ok(len_bytes)
}

/// Whether the page at an address is there, in memory or swapped out (`/proc/self/pagemap`; where there is no
/// /proc, `mincore`, which takes a page that is swapped out for an absent one).
#[must_use]
pub fn is_there(page_address: usize) -> bool {
    let mut entry = [0u64];
    if page_table(|fd| entries(fd, page_address, &mut entry)) {
        return entry[0] & PRESENT_OR_SWAPPED != 0;
    }
    let mut found = 0u8;
    // SAFETY: one byte is written for the one page.
    let result =
        unsafe { kernel!(Stat, syscall!(libc::SYS_mincore, page_address, PAGE_BYTES, &raw mut found)) };
    check(result).is_ok() && found & 1 == 1
}

/// Whether pages can be swapped out here.
fn has_swap() -> bool {
    // SAFETY: an all-zero sysinfo is a valid buffer to fill.
    let mut found: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: the buffer is valid.
    let result = unsafe { kernel!(Stat, syscall!(libc::SYS_sysinfo, &raw mut found)) };
    check(result).is_err() || found.totalswap > 0
}

/// Calls `absent` for every run of pages, counted from the one at `page_address`, that are neither in memory nor
/// swapped out, of `pages` pages of private memory without a file. Pages that come or go meanwhile may be told either
/// way.
///
/// # Errors
/// What mincore says; ENOENT where pages may be swapped out and there is no /proc to tell which, E2BIG where there would
/// be more than `max_runs` runs. Some may have been told then.
pub fn absent_runs(
    page_address: usize,
    pages: u32,
    max_runs: usize,
    absent: impl FnMut(Range<u32>),
) -> Result<(), Errno> {
    if cfg!(loom) {
        return Err(Errno(libc::ENOENT));
    }
    // mincore takes a page that is swapped out for an absent one.
    if has_swap() {
        return page_table(|fd| scan(page_address, pages, Some(fd), max_runs, absent));
    }
    scan(page_address, pages, None, max_runs, absent)?;
    if has_swap() { Err(Errno(libc::ENOENT)) } else { Ok(()) }
}

/// What [`absent_runs`] does, with the page table for what may be swapped out.
fn scan(
    page_address: usize,
    pages: u32,
    page_table: Option<isize>,
    max_runs: usize,
    mut absent: impl FnMut(Range<u32>),
) -> Result<(), Errno> {
    /// Pages looked at in one go: the stack may be small.
    const STEP_PAGES: u32 = 128;
    let mut resident = [0u8; STEP_PAGES as usize];
    let mut table = [0u64; STEP_PAGES as usize];
    let mut runs = 0;
    // The first page of the run that reaches to where it is looked now.
    let mut start = None;
    let mut end = |run: Range<u32>| {
        runs += 1;
        absent(run);
        if runs < max_runs { Ok(()) } else { Err(Errno(libc::E2BIG)) }
    };
    let mut first = 0;
    while first < pages {
        let step = STEP_PAGES.min(pages - first) as usize;
        let address = page_address + first as usize * PAGE_BYTES;
        // SAFETY: a byte is written for each page, of which there are no more than bytes.
        let result = unsafe {
            kernel!(Stat, syscall!(libc::SYS_mincore, address, step * PAGE_BYTES, resident.as_mut_ptr()))
        };
        check(result)?;
        if let Some(fd) = page_table
            && !entries(fd, address, &mut table[..step])
        {
            return Err(Errno(libc::ENOENT));
        }
        for (page, (resident, entry)) in (first..).zip(resident[..step].iter().zip(&table)) {
            let is_absent = resident & 1 == 0 && entry & PRESENT_OR_SWAPPED == 0;
            match start {
                None if is_absent => start = Some(page),
                Some(begun) if !is_absent => {
                    start = None;
                    end(begun..page)?;
                }
                _ => {}
            }
        }
        first += STEP_PAGES;
    }
    start.map_or(Ok(()), |begun| end(begun..pages))
}

/// How many pages from `page_address` on are there, of `pages` and at most 64: as [`is_there`] says, but with one call
/// where they are in memory. All of them where the kernel does not say.
#[must_use]
pub fn present(page_address: usize, pages: usize) -> usize {
    let mut found = [0u8; 64];
    let pages = pages.min(found.len());
    // SAFETY: a byte is written for each page.
    let result = unsafe {
        kernel!(Stat, syscall!(libc::SYS_mincore, page_address, pages * PAGE_BYTES, found.as_mut_ptr()))
    };
    if check(result).is_err() {
        return pages;
    }
    (0..pages).take_while(|page| found[*page] & 1 == 1 || is_there(page_address + page * PAGE_BYTES)).count()
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
    // SAFETY: the source was made above; the caller's promise for the destination.
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
    // SAFETY: the caller's promise.
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

/// Creates a file that only its owner can read, in a directory that only its owner can enter, and
/// maps it shared at `address` if given (replacing what is there), else anywhere.
///
/// A file that exists under that name is replaced, never opened.
///
/// # Errors
/// EPERM if the directory is not a real directory of ours with mode 0700; else what failed.
///
/// # Safety
/// `address`, if given, must be a mapping of ours of at least `len_bytes` that may be replaced.
pub unsafe fn map_private_file(
    directory: &CStr,
    path: &CStr,
    len_bytes: usize,
    address: Option<usize>,
) -> Result<usize, Errno> {
    make_private_directory(directory)?;
    // SAFETY: the strings are terminated; the fd is ours to close.
    unsafe {
        kernel!(Name, libc::unlink(path.as_ptr()));
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let fd =
            kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600)) as i32;
        check(i64::from(fd))?;
        // Really allocated: touching a page for which there is no room would end the program.
        let sized = check(i64::from(kernel!(Allocate, libc::fallocate(fd, 0, 0, len_bytes as libc::off_t))));
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = match (sized, address) {
            (Err(errno), _) => Err(errno),
            (Ok(_), None) => map(len_bytes, protection, libc::MAP_SHARED, fd),
            (Ok(_), Some(address)) => {
                map_at(address, len_bytes, protection, libc::MAP_SHARED, fd).map(|()| address)
            }
        };
        kernel!(Close, syscall!(libc::SYS_close, fd));
        if mapped.is_err() {
            kernel!(Name, libc::unlink(path.as_ptr()));
        }
        mapped
    }
}

/// Maps a file that exists, shared, if it is an ordinary one of ours and as long.
///
/// # Errors
/// EPERM if it is something else; else what failed.
pub fn map_file(path: &CStr, len_bytes: usize) -> Result<usize, Errno> {
    // SAFETY: the path is terminated; an all-zero stat is a valid buffer; the fd is ours to close.
    unsafe {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0)) as i32;
        check(i64::from(fd))?;
        let mut found: libc::stat = core::mem::zeroed();
        let known = check(kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)));
        let is_ours = found.st_mode & libc::S_IFMT == libc::S_IFREG
            && found.st_uid == libc::geteuid()
            && usize::try_from(found.st_size) == Ok(len_bytes);
        let mapped = match known {
            Err(errno) => Err(errno),
            Ok(_) if !is_ours => Err(Errno(libc::EPERM)),
            Ok(_) => map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd),
        };
        kernel!(Close, syscall!(libc::SYS_close, fd));
        mapped
    }
}

/// Makes a file that only its owner can read in a directory that exists, and maps it shared at `address`, in place of
/// what is there. It takes no memory yet: [`populate`] before the first byte is written.
///
/// # Errors
/// EPERM if the directory is not a real one of ours with mode 0700, EEXIST if the name is taken; else what failed.
///
/// # Safety
/// `address` must be a mapping of ours of at least `len_bytes` that may be replaced.
pub unsafe fn map_new_file(
    directory: &CStr,
    name: &CStr,
    len_bytes: usize,
    address: usize,
) -> Result<(), Errno> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the strings are terminated; the stat buffer is valid; the descriptors are ours to close; the caller's
    // promise for the address.
    unsafe {
        let opened = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, directory.as_ptr(), flags, 0));
        let parent = check(opened)? as i32;
        let mut found: libc::stat = core::mem::zeroed();
        let known = check(kernel!(Stat, syscall!(libc::SYS_fstat, parent, &raw mut found)));
        let is_ours = found.st_uid == libc::geteuid() && found.st_mode & 0o7777 == 0o700;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let made = known.and_then(|_| {
            if !is_ours {
                return Err(Errno(libc::EPERM));
            }
            let fd = kernel!(Open, syscall!(libc::SYS_openat, parent, name.as_ptr(), flags, 0o600));
            let fd = check(fd)? as i32;
            let sized = check(kernel!(Allocate, syscall!(libc::SYS_ftruncate, fd, len_bytes)));
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = sized.and_then(|_| map_at(address, len_bytes, protection, libc::MAP_SHARED, fd));
            kernel!(Close, syscall!(libc::SYS_close, fd));
            if mapped.is_err() {
                kernel!(Name, syscall!(libc::SYS_unlinkat, parent, name.as_ptr(), 0));
            }
            mapped
        });
        kernel!(Close, syscall!(libc::SYS_close, parent));
        made
    }
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

/// Makes a directory that only its owner can enter, or finds that it is one.
///
/// # Errors
/// EPERM if it is not a real directory of ours with mode 0700; else what failed.
pub fn make_private_directory(directory: &CStr) -> Result<(), Errno> {
    // SAFETY: the string is terminated; an all-zero stat is a valid buffer.
    unsafe {
        if kernel!(Name, libc::mkdir(directory.as_ptr(), 0o700)) == -1 && crate::errno::get() != libc::EEXIST
        {
            return Err(Errno(crate::errno::get()));
        }
        let mut found: libc::stat = core::mem::zeroed();
        check(i64::from(kernel!(Stat, libc::lstat(directory.as_ptr(), &mut found))))?;
        let ours = found.st_mode & libc::S_IFMT == libc::S_IFDIR
            && found.st_uid == libc::geteuid()
            && found.st_mode & 0o777 == 0o700;
        if ours { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}

/// The kernel's limit on a process's mappings (vm.max_map_count).
#[must_use]
pub fn mappings_limit() -> Option<u64> {
    let mut text = [0u8; 24];
    let len_bytes = read_file(c"/proc/sys/vm/max_map_count", &mut text)?;
    core::str::from_utf8(&text[..len_bytes]).ok()?.trim().parse().ok()
}

/// Reads the beginning of a file; how many bytes it got.
pub(crate) fn read_file(path: &CStr, text: &mut [u8]) -> Option<usize> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path is terminated, the buffer valid, the descriptor ours to close.
    let got = unsafe {
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0));
        if fd < 0 {
            return None;
        }
        let got = kernel!(Read, syscall!(libc::SYS_read, fd, text.as_mut_ptr(), text.len()));
        kernel!(Close, syscall!(libc::SYS_close, fd));
        got
    };
    usize::try_from(got).ok()
}

/// Writes one message to standard error with one system call, cut to 512 bytes, without allocating.
pub fn say(message: core::fmt::Arguments<'_>) {
    struct Buffer([u8; 512], usize);
    impl core::fmt::Write for Buffer {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let len = text.len().min(self.0.len() - self.1);
            self.0[self.1..self.1 + len].copy_from_slice(&text.as_bytes()[..len]);
            self.1 += len;
            Ok(())
        }
    }
    let mut buffer = Buffer([0; 512], 0);
    // Writing to the buffer cannot fail.
    let _ = core::fmt::Write::write_fmt(&mut buffer, message);
    // SAFETY: the buffer is valid for its length.
    unsafe { kernel!(Write, syscall!(libc::SYS_write, 2, buffer.0.as_ptr(), buffer.1)) };
}

/// Whether something exists under this path.
#[must_use]
pub fn exists(path: &CStr) -> bool {
    // SAFETY: the path is terminated.
    unsafe { kernel!(Stat, libc::access(path.as_ptr(), libc::F_OK)) == 0 }
}

/// Removes a file of a directory that only its owner can enter, if it is one of ours; it may be gone already.
pub fn unlink_in(directory: &CStr, name: &CStr) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the strings are terminated; the stat buffer is valid; the descriptor is ours to close.
    unsafe {
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, directory.as_ptr(), flags, 0));
        if fd < 0 {
            return;
        }
        let mut found: libc::stat = core::mem::zeroed();
        let known = kernel!(Stat, syscall!(libc::SYS_fstat, fd, &raw mut found)) == 0;
        if known && found.st_uid == libc::geteuid() && found.st_mode & 0o7777 == 0o700 {
            kernel!(Name, syscall!(libc::SYS_unlinkat, fd, name.as_ptr(), 0));
        }
        kernel!(Close, syscall!(libc::SYS_close, fd));
    }
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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

    #[test]
    fn runs_of_absent_pages_are_those_that_were_not_touched() {
        const PAGES: u32 = 1500;
        let reservation = Reservation::new(PAGES as usize * PAGE_BYTES).expect("addresses");
        let base = reservation.base();
        reservation.commit(base, PAGES as usize * PAGE_BYTES).expect("commit");
        reservation.advise(base, PAGES as usize * PAGE_BYTES, Advice::NoHugePages);
        let absent = |most| {
            let mut runs = std::vec::Vec::new();
            let told = absent_runs(base, PAGES, most, |run| runs.push(run)).map(|()| runs);
            // As where pages can be swapped out.
            let mut runs = std::vec::Vec::new();
            let found = page_table(|fd| scan(base, PAGES, Some(fd), most, |run| runs.push(run)));
            assert_eq!(told, found.map(|()| runs));
            told
        };
        assert_eq!(absent(10), Ok(std::vec![0..PAGES]));
        // At the ends of what is read at a time, and at the ends of all.
        for page in [0, 5, 127, 128, 1023, 1499] {
            // SAFETY: committed above.
            unsafe { *((base + page * PAGE_BYTES) as *mut u8) = 1 };
        }
        assert_eq!(absent(10), Ok(std::vec![1..5, 6..127, 129..1023, 1024..1499]));
        assert_eq!(absent(4), Err(Errno(libc::E2BIG)));
        reservation.populate(base, PAGES as usize * PAGE_BYTES).expect("populate");
        assert_eq!(absent(1), Ok(std::vec![]));
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let directory = std::env::temp_dir().join(format!("uncopy-mem-test-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("temporary directory");
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("chmod");
        let c_directory = std::ffi::CString::new(directory.to_str().expect("UTF-8")).expect("no NUL");
        let c_path = std::ffi::CString::new(directory.join("1").to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: no address is given.
        let refused = unsafe { map_private_file(&c_directory, &c_path, PAGE_BYTES, None) };
        assert_eq!(refused, Err(Errno(libc::EPERM)));
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("chmod");
        // SAFETY: no address is given.
        let address = unsafe { map_private_file(&c_directory, &c_path, PAGE_BYTES, None) }.expect("mapped");
        // SAFETY: just mapped, one page.
        unsafe { *(address as *mut u8) = 9 };
        assert_eq!(std::fs::read(directory.join("1")).expect("readable")[0], 9);
        std::fs::remove_dir_all(&directory).expect("cleaned up");
    }
}

//! Which pages are there, in memory or swapped out.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

/// Of an entry of a page table as `/proc/self/pagemap` shows it: in memory, swapped out
/// (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT_OR_SWAPPED: u64 = 3 << 62;

/// Whether `mincore` may be called; not where there was a filter of system calls before the program, which may end it for that:
/// systemd's `@system-service` lacks it. Without /proc nobody knows, and it is called.
fn may_ask() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    let mut answer = ANSWER.load(Ordering::Relaxed);
    if answer == UNKNOWN {
        answer = if is_filtered() { NO } else { YES };
        ANSWER.store(answer, Ordering::Relaxed);
    }
    answer == YES
}

/// Whether this process has a filter of system calls (proc_pid_status(5)).
fn is_filtered() -> bool {
    const KEY: &[u8] = b"\nSeccomp:\t";
    let path = c"/proc/self/status";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let mut text = [0u8; 4096];
    // SAFETY: the path is terminated, the text is valid for its length, and the descriptor is opened here.
    let got = unsafe {
        let fd = kernel!(Open, syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0));
        if fd < 0 {
            return false;
        }
        let got = kernel!(Read, syscall!(libc::SYS_read, fd, text.as_mut_ptr(), text.len()));
        kernel!(Close, syscall!(libc::SYS_close, fd));
        got
    };
    let text = &text[..usize::try_from(got).unwrap_or(0)];
    let mode =
        text.windows(KEY.len()).position(|window| window == KEY).and_then(|at| text.get(at + KEY.len()));
    mode.is_some_and(|mode| *mode != b'0')
}

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
    if !may_ask() {
        return false;
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
    let may_ask = may_ask();
    // mincore takes a page that is swapped out for an absent one.
    if !may_ask || has_swap() {
        return page_table(|fd| scan(page_address, pages, may_ask, Some(fd), max_runs, absent));
    }
    scan(page_address, pages, may_ask, None, max_runs, absent)?;
    if has_swap() { Err(Errno(libc::ENOENT)) } else { Ok(()) }
}

/// What [`absent_runs`] does, by mincore where that may be called, and with the page table for what may be swapped out.
fn scan(
    page_address: usize,
    pages: u32,
    may_ask: bool,
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
        if may_ask {
            // SAFETY: a byte is written for each page, of which there are no more than bytes.
            let result = unsafe {
                kernel!(Stat, syscall!(libc::SYS_mincore, address, step * PAGE_BYTES, resident.as_mut_ptr()))
            };
            check(result)?;
        }
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
    if !may_ask() {
        return present_in_table(page_address, pages);
    }
    // SAFETY: a byte is written for each page.
    let result = unsafe {
        kernel!(Stat, syscall!(libc::SYS_mincore, page_address, pages * PAGE_BYTES, found.as_mut_ptr()))
    };
    if check(result).is_err() {
        return pages;
    }
    (0..pages).take_while(|page| found[*page] & 1 == 1 || is_there(page_address + page * PAGE_BYTES)).count()
}

/// The same without mincore.
fn present_in_table(page_address: usize, pages: usize) -> usize {
    let mut table = [0u64; 64];
    let table = &mut table[..pages];
    if !page_table(|fd| entries(fd, page_address, table)) {
        return pages;
    }
    table.iter().take_while(|entry| **entry & PRESENT_OR_SWAPPED != 0).count()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mem::{Advice, Reservation};

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
            // As where pages can be swapped out, and as where a filter may be in the way.
            for may_ask in [true, false] {
                let mut runs = std::vec::Vec::new();
                let found = page_table(|fd| scan(base, PAGES, may_ask, Some(fd), most, |run| runs.push(run)));
                assert_eq!(told, found.map(|()| runs));
            }
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
        for (page, pages) in [(0, 10), (1, 10), (5, 3), (1023, 64), (1499, 1)] {
            let address = base + page * PAGE_BYTES;
            assert_eq!(present(address, pages), present_in_table(address, pages), "{page}");
        }
        assert_eq!(present_in_table(base, 10), 1);
        reservation.populate(base, PAGES as usize * PAGE_BYTES).expect("populate");
        assert_eq!(absent(1), Ok(std::vec![]));
    }
}

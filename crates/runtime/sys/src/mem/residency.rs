//! Residency of pages: present in memory, swapped out, or absent.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use crate::descriptor::OwnFd;
use crate::errno::{Errno, check};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bits of a page table entry in `/proc/self/pagemap`: present or swapped out
/// (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT_OR_SWAPPED: u64 = 3 << 62;

/// Whether mincore(2) may be called. Not under a seccomp filter from before the program, which may
/// end the process for it: systemd's `@system-service` lacks mincore. Without /proc no filter can
/// be detected, and mincore is called.
fn may_call_mincore() -> bool {
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

/// Whether this process has a seccomp filter (proc_pid_status(5)).
fn is_filtered() -> bool {
    const KEY: &[u8] = b"\nSeccomp:\t";
    let path = c"/proc/self/status";
    let mut text = [0u8; 4096];
    let Some(got_bytes) = crate::file::read_start(path, &mut text) else { return false };
    let text = &text[..got_bytes];
    let mode =
        text.windows(KEY.len()).position(|window| window == KEY).and_then(|at| text.get(at + KEY.len()));
    mode.is_some_and(|mode| *mode != b'0')
}

fn page_table() -> Option<OwnFd> {
    crate::file::open(c"/proc/self/pagemap", libc::O_RDONLY, 0).ok()
}

/// Reads page table entries from the page at `page_address` on. Returns false unless all were read.
fn entries(fd: &OwnFd, page_address: usize, entries: &mut [u64]) -> bool {
    let (len_bytes, at) = (size_of_val(entries), page_address / PAGE_BYTES * 8);
    // SAFETY: pread(2) writes at most `len_bytes` bytes, the size of `entries`.
    let got = unsafe { kernel!(Read, syscall!(libc::SYS_pread64, fd, entries.as_mut_ptr(), len_bytes, at)) };
    usize::try_from(got) == Ok(len_bytes)
}

/// Whether the page at an address is present or swapped out. Without /proc, mincore(2) is used,
/// which reports a swapped-out page as absent.
#[must_use]
pub fn is_present_or_swapped(page_address: usize) -> bool {
    let mut entry = [0u64];
    if page_table().is_some_and(|fd| entries(&fd, page_address, &mut entry)) {
        return entry[0] & PRESENT_OR_SWAPPED != 0;
    }
    if !may_call_mincore() {
        return false;
    }
    let mut found = 0u8;
    // SAFETY: mincore(2) writes one byte for one page to `found`, which lives through the call.
    let result =
        unsafe { kernel!(Stat, syscall!(libc::SYS_mincore, page_address, PAGE_BYTES, &raw mut found)) };
    check(result).is_ok() && found & 1 == 1
}

/// Whether this system has swap space; true if unknown.
fn has_swap() -> bool {
    // SAFETY: `sysinfo` consists of integers, for which all-zero bytes are valid.
    let mut found: libc::sysinfo = unsafe { core::mem::zeroed() };
    // SAFETY: sysinfo(2) writes one structure to `found`, which lives through the call.
    let result = unsafe { kernel!(Stat, syscall!(libc::SYS_sysinfo, &raw mut found)) };
    check(result).is_err() || found.totalswap > 0
}

/// Calls `absent` for every run of pages that are neither present nor swapped out, among `pages`
/// pages of private anonymous memory at `page_address`, from which the runs are counted. Pages that
/// change meanwhile may be reported either way.
///
/// # Errors
/// Errors of mincore(2); ENOENT if pages may be swapped out and /proc is missing, E2BIG if there
/// are more than `max_runs` runs. Some runs may have been reported then.
pub fn absent_runs(
    page_address: usize,
    pages: u32,
    max_runs: usize,
    absent: impl FnMut(Range<u32>),
) -> Result<(), Errno> {
    if cfg!(loom) {
        return Err(Errno(libc::ENOENT));
    }
    let may_call_mincore = may_call_mincore();
    // mincore(2) reports a swapped-out page as absent.
    if !may_call_mincore || has_swap() {
        let table = page_table().ok_or(Errno::ENOENT)?;
        return scan(page_address, pages, may_call_mincore, Some(&table), max_runs, absent);
    }
    scan(page_address, pages, may_call_mincore, None, max_runs, absent)?;
    if has_swap() { Err(Errno(libc::ENOENT)) } else { Ok(()) }
}

/// Does the work of [`absent_runs`], by mincore(2) if `may_call_mincore`, and by the page table if it is given.
fn scan(
    page_address: usize,
    pages: u32,
    may_call_mincore: bool,
    page_table: Option<&OwnFd>,
    max_runs: usize,
    mut absent: impl FnMut(Range<u32>),
) -> Result<(), Errno> {
    /// Pages per step, few because the stack may be small.
    const STEP_PAGES: u32 = 128;
    let mut resident = [0u8; STEP_PAGES as usize];
    let mut table = [0u64; STEP_PAGES as usize];
    let mut runs = 0;
    // First page of the absent run that reaches to the current page.
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
        if may_call_mincore {
            // SAFETY: mincore(2) writes one byte for each of `step` pages, and `resident` has
            // `STEP_PAGES` bytes.
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

/// Returns how many of the first `pages` pages (at most 64) at `page_address` are present or swapped out, up
/// to the first absent one; all of them if the kernel does not tell. One system call if they are present.
#[must_use]
pub fn leading_present_pages(page_address: usize, pages: usize) -> usize {
    let mut found = [0u8; 64];
    let pages = pages.min(found.len());
    if !may_call_mincore() {
        return present_in_table(page_address, pages);
    }
    // SAFETY: mincore(2) writes one byte for each of `pages` pages, of which `found` has room for 64.
    let result = unsafe {
        kernel!(Stat, syscall!(libc::SYS_mincore, page_address, pages * PAGE_BYTES, found.as_mut_ptr()))
    };
    if check(result).is_err() {
        return pages;
    }
    (0..pages)
        .take_while(|page| found[*page] & 1 == 1 || is_present_or_swapped(page_address + page * PAGE_BYTES))
        .count()
}

/// Does the work of [`leading_present_pages`] by the page table.
fn present_in_table(page_address: usize, pages: usize) -> usize {
    let mut table = [0u64; 64];
    let table = &mut table[..pages];
    if !page_table().is_some_and(|fd| entries(&fd, page_address, table)) {
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
            let reported_runs = absent_runs(base, PAGES, most, |run| runs.push(run)).map(|()| runs);
            // First by mincore, then as under a filter; with the page table as if pages may be swapped out.
            for may_call_mincore in [true, false] {
                let mut runs = std::vec::Vec::new();
                let table = page_table();
                let found = scan(base, PAGES, may_call_mincore, table.as_ref(), most, |run| runs.push(run));
                assert_eq!(reported_runs, found.map(|()| runs));
            }
            reported_runs
        };
        assert_eq!(absent(10), Ok(std::vec![0..PAGES]));
        // Pages at the edges of the steps and of the whole range.
        for page in [0, 5, 127, 128, 1023, 1499] {
            // SAFETY: the page was committed above and is used by this test alone.
            unsafe { *((base + page * PAGE_BYTES) as *mut u8) = 1 };
        }
        assert_eq!(absent(10), Ok(std::vec![1..5, 6..127, 129..1023, 1024..1499]));
        assert_eq!(absent(4), Err(Errno(libc::E2BIG)));
        for (page, pages) in [(0, 10), (1, 10), (5, 3), (1023, 64), (1499, 1)] {
            let address = base + page * PAGE_BYTES;
            assert_eq!(leading_present_pages(address, pages), present_in_table(address, pages), "{page}");
        }
        assert_eq!(present_in_table(base, 10), 1);
        reservation.populate(base, PAGES as usize * PAGE_BYTES).expect("populate");
        assert_eq!(absent(1), Ok(std::vec![]));
    }
}

//! Foreign ranges that come and go while threads fault in them under their locks, and while the program
//! gives their pages back.
//!
//! Faults and changes are read from one descriptor, and not while a range is made plain. A thread that
//! waited for a range's lock meanwhile would wait for ever: the lock's owner may be faulting.

use super::{BROAD, PREEMPTIONS, active, end};
use crate::arena::pages::ARENA;
use crate::arena::segment::Draft;
use crate::background::release;
use crate::range::block::BlockRef;
use crate::range::foreign::FOREIGN;
use uncopy_core::addr::{PAGE_BYTES, PageRange};
use uncopy_core::page_map::{Dropped, View};
use uncopy_sys::presence::Section;
use uncopy_sys::sync::{check, spawn};
use uncopy_sys::uffd::{drop_pages, load, set_present};

const PAGES: usize = 2;

/// The program's memory, at the same address in every order that is tried.
fn memory() -> usize {
    static MAPPED: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *MAPPED.get_or_init(|| {
        let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no existing memory.
        let address =
            unsafe { libc::mmap(core::ptr::null_mut(), 2 * PAGES * PAGE_BYTES, both, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        address as usize
    })
}

/// A registered range with neither viewed nor present pages: none was touched.
fn untouched() -> BlockRef {
    let at = FOREIGN.claim(memory(), PAGES * PAGE_BYTES).expect("private anonymous memory");
    at.lock().register().expect("registered");
    set_present(at.base, at.bytes(), false);
    at
}

/// A registered range whose first page is a view of a segment of sevens.
fn viewed() -> BlockRef {
    let at = untouched();
    let draft = Draft::new(PAGE_BYTES).expect("a draft");
    // SAFETY: the draft is at least a page long, and only this thread uses it.
    unsafe { core::ptr::write_bytes(draft.address() as *mut u8, 7, PAGE_BYTES) };
    let view = View { segment: draft.freeze(0), offset_bytes: 0, site: 0 };
    at.lock().change(|map| map.set_viewed(PageRange::new(0, 1), view, &mut Dropped::new()));
    at
}

/// Reads, as a copy does, pages that are present by the page map, under the range's lock.
fn read_under_the_lock(at: BlockRef) {
    let _section = Section::enter().expect("no fork");
    let locked = at.lock();
    if locked.map().is_some() {
        assert_eq!(load(at.base), 0);
    }
}

/// Makes a range plain while another thread faults in it under its lock.
fn with_a_fault_under_the_lock(make_plain: fn(BlockRef)) {
    let at = active(untouched);
    let reading = spawn(move || read_under_the_lock(at));
    make_plain(at);
    reading.join().expect("thread");
    end();
}

#[test]
fn a_range_is_given_up_while_another_thread_faults_in_it_under_its_lock() {
    check(PREEMPTIONS, || {
        with_a_fault_under_the_lock(|at| FOREIGN.disown(at.base, at.base + PAGE_BYTES));
    });
}

#[test]
fn a_range_grows_while_another_thread_faults_in_it_under_its_lock() {
    check(PREEMPTIONS, || {
        with_a_fault_under_the_lock(|at| {
            let _section = Section::enter().expect("no fork");
            let grown = FOREIGN.claim(at.base + PAGE_BYTES, PAGES * PAGE_BYTES).expect("one range");
            assert_eq!((grown.base, grown.bytes()), (at.base, (PAGES + 1) * PAGE_BYTES));
        });
    });
}

#[test]
fn everything_is_released_while_a_thread_faults_under_a_ranges_lock() {
    check(BROAD, || {
        with_a_fault_under_the_lock(|_| assert!(release::release_all("a model")));
        // The handler continues with views that cannot be released.
        ARENA.uffd().close();
    });
}

/// Bytes that were given back do not reappear, whatever happens to the range at the same time.
fn while_its_page_is_given_back(work: fn(BlockRef)) {
    let at = active(viewed);
    let other = spawn(move || work(at));
    drop_pages(at.base, PAGE_BYTES);
    other.join().expect("thread");
    assert_eq!(load(at.base), 0, "given back");
    end();
}

#[test]
fn a_page_that_is_given_back_while_its_range_is_given_up_is_empty() {
    check(BROAD, || while_its_page_is_given_back(|at| FOREIGN.disown(at.base, at.base + at.bytes())));
}

#[test]
fn a_page_that_is_given_back_while_its_range_grows_is_empty() {
    check(BROAD, || {
        while_its_page_is_given_back(|at| {
            let _section = Section::enter().expect("no fork");
            // Refused if the views cannot be put in place.
            let _ = FOREIGN.claim(at.base + PAGE_BYTES, PAGES * PAGE_BYTES);
        });
    });
}

//! Tests with the kernel's userfaultfd: each range of memory is registered with the right descriptor,
//! whatever fails, and no change of mappings is missed.

use crate::arena::pages::ARENA;
use crate::arena::segment::Draft;
use crate::background::activation;
use crate::call::input::{Input, Part};
use crate::life::fork;
use crate::range::alteration::Alteration;
use crate::range::apply::{Source, apply};
use crate::range::block::Flag;
use crate::range::directory;
use crate::range::foreign::FOREIGN;
use crate::state::policy::{POLICY, with_mode};
use std::sync::{MutexGuard, Once};
use std::thread;
use std::time::{Duration, Instant};
use uncopy_core::addr::{ByteRange, PAGE_BYTES};
use uncopy_core::options::{Options, Policy};
use uncopy_core::page_map::Dropped;
use uncopy_core::plan::{Piece, plan};
use uncopy_core::policy::SiteKind;
use uncopy_sys::inject::{self, Kind};
use uncopy_sys::lock::Critical;

const LEN_BYTES: usize = 64 * PAGE_BYTES;
const LIMIT: Duration = Duration::from_secs(30);

/// Maps private anonymous memory, as the program would; the mapping is never removed.
fn mapping(len_bytes: usize) -> usize {
    let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the kernel's choice affects no existing memory.
    let address = unsafe { libc::mmap(core::ptr::null_mut(), len_bytes, both, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    address as usize
}

/// Activates the engine of this process, with everything elided. One test at a time has it, while the guard lives.
fn engine() -> MutexGuard<'static, ()> {
    static BEGUN: Once = Once::new();
    let turn = with_mode(Policy::Always);
    BEGUN.call_once(|| {
        let (policy, min_size_bytes) = (Policy::Always, PAGE_BYTES);
        activation::configure(&Options { policy, min_size_bytes, foreign: true, ..Options::default() });
        assert!(activation::ensure_heap());
        assert!(activation::activate(), "userfaultfd: run as root, or see uncopy doctor");
    });
    turn
}

/// UFFDIO_REGISTER returns EBUSY for memory of another userfaultfd, and succeeds for memory of its own.
fn arena_is_registered_with_main() -> bool {
    let len_bytes = ARENA.committed_pages() as usize * PAGE_BYTES;
    ARENA.uffd().register(ARENA.address(0), len_bytes).is_ok()
}

#[test]
fn page_of_a_foreign_range_that_cannot_be_copied_in_takes_fresh_arena_pages_of_the_main_descriptor() {
    let _turn = engine();
    let address = mapping(LEN_BYTES);
    {
        let _critical = Critical::enter();
        let at = FOREIGN.claim(address, LEN_BYTES).expect("private anonymous memory");
        let draft = Draft::new(LEN_BYTES).expect("memory");
        // SAFETY: the draft is `LEN_BYTES` long, and only this thread uses it.
        unsafe { core::ptr::write_bytes(draft.address() as *mut u8, 7, LEN_BYTES) };
        let segment = draft.freeze(0);
        let pieces = [Piece::Segment { segment: segment.clone(), offset_bytes: 0, len_bytes: LEN_BYTES }];
        let source = Source { start: 0, pieces: &pieces, plain: 0 };
        let mut dropped = Dropped::new();
        let mut locked = at.lock();
        locked.register().expect("registered");
        let steps = plan(0, &pieces, 1);
        // SAFETY: the range is registered and locked; the source is a segment, whose bytes are present
        // while `pieces` holds it.
        let done = unsafe { apply(&mut locked, &source, &steps, 0, &mut dropped) };
        assert_eq!(done.elided_bytes, LEN_BYTES, "the range is one view");
        drop(locked);
        // A second reference, so that pages are copied in and not moved; the arena has no pages left to take.
        core::mem::forget(segment);
        ARENA.exhaust();
    }
    let before = ARENA.committed_pages();
    inject::refuse(Kind::Copy, libc::ENOMEM);
    // SAFETY: the mapping is never removed, and `address` is within it.
    let reader = thread::spawn(move || unsafe { (address as *const u8).read_volatile() });
    let end = Instant::now() + LIMIT;
    while ARENA.committed_pages() == before {
        assert!(Instant::now() < end, "no page was taken from the arena");
        thread::yield_now();
    }
    inject::stop_refusing();
    assert!(arena_is_registered_with_main(), "arena memory belongs to another userfaultfd");
    while !reader.is_finished() {
        assert!(Instant::now() < end, "the touched page was not put in place");
        thread::yield_now();
    }
    assert_eq!(reader.join().expect("read"), 7);
}

#[test]
fn mapping_that_changes_while_a_fork_is_under_way_holds_no_view_from_then_on() {
    let _turn = engine();
    let address = mapping(LEN_BYTES);
    let at = {
        let _critical = Critical::enter();
        FOREIGN.claim(address, LEN_BYTES).expect("private anonymous memory")
    };
    fork::prepare();
    // Like a hook of mprotect in another thread, which must not wait for the engine.
    thread::spawn(move || directory::disown(address, LEN_BYTES, Alteration::Properties))
        .join()
        .expect("disowned");
    fork::parent();
    assert!(at.block.has(Flag::DISOWNED), "an input could be put where only reading is allowed");
}

/// Receives `len_bytes` bytes of `byte` into `room`; returns the address that received them first.
fn receive(room: Part, len_bytes: usize, byte: u8, caller: usize) -> Option<usize> {
    let mut parts = [room];
    let input = Input::begin(&mut parts, caller)?;
    let to = input.parts()[0].address;
    // SAFETY: the input's part is at least `len_bytes` long, and only this thread uses it.
    unsafe { core::ptr::write_bytes(to as *mut u8, byte, len_bytes) };
    input.finish(len_bytes);
    Some(to)
}

/// Only the first piece's site is credited with the savings of a message's copies. An echo server of 512 KiB and 12
/// copies had its first pieces as views and not the rest, after the first trial had made its buffers' pages present,
/// and from then on neither: CPU 0.85 [0.74–0.99] of plain's, where it can be 0.67 [0.64–0.71].
#[test]
fn what_goes_on_with_a_view_is_part_of_it_although_inputs_of_its_size_do_not_pay() {
    const FIRST_BYTES: usize = 16 * PAGE_BYTES + 100;
    const CALLER: usize = 0x5151;
    let _turn = engine();
    POLICY.set_mode(Policy::Auto);
    let address = mapping(LEN_BYTES);
    let rest = Part { address: address + FIRST_BYTES, len_bytes: LEN_BYTES - FIRST_BYTES };
    let site = POLICY.sites.site(SiteKind::Input, CALLER, rest.len_bytes);
    while !POLICY.sites.debit(site, 10_000) {}
    assert_eq!(receive(rest, 10, 0, CALLER), None, "it does not pay by itself");
    let begin = receive(Part { address, len_bytes: LEN_BYTES }, FIRST_BYTES, 1, CALLER).expect("a view");
    assert_eq!(receive(rest, rest.len_bytes, 2, CALLER), Some(begin + FIRST_BYTES), "behind the first piece");
    let at = directory::find(address).expect("a foreign range");
    let range = at.range(address, LEN_BYTES).expect("within it");
    let pieces = {
        let _critical = Critical::enter();
        at.lock().pieces(ByteRange::at(range.start, LEN_BYTES))
    };
    let is_segments = |piece: &Piece<_>| matches!(piece, Piece::Segment { .. });
    assert!(pieces.len() == 1 && pieces.iter().all(is_segments), "one view");
    // SAFETY: the mapping is never removed, and `at` is within it; absent pages are placed by the handler.
    let read = |at: usize| unsafe { (address as *const u8).add(at).read_volatile() };
    assert_eq!([0, FIRST_BYTES - 1, FIRST_BYTES, LEN_BYTES - 1].map(read), [1, 1, 2, 2]);
}

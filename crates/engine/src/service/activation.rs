//! How the engine comes to work: options, the block heap, userfaultfd and its handler thread.
//!
//! Nothing exists until it is needed: the block heap is reserved at the first large allocation;
//! userfaultfd, the arena, the handler thread and the stats file come with the first large input
//! into a block.

use crate::arena::pages::ARENA;
use crate::range::carrying;
use crate::range::changes::CHANGES;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::service::{calibration, handler};
use crate::state::gate::{HEAP_MIN_BYTES, LEAVES_ALLOCATIONS, heap_min_bytes};
use crate::state::phase::{Phase, STATE, set_min_size};
use crate::state::policy::POLICY;
use crate::state::{counters, early, ledger, limits, recording};
use core::fmt;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::options::{CostSource, Heap, Options, Policy};
use uncopy_core::policy::trials::{MAX_FACTORS, Trials};
use uncopy_core::recording::Sampled;
use uncopy_sys::errno::Errno;
use uncopy_sys::filter::{self, Feature};
use uncopy_sys::lock::Critical;
use uncopy_sys::mem;
use uncopy_sys::presence::Section;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use uncopy_sys::uffd::{self, OpenError, Reports, Uffd};
use uncopy_trials::Pace;

/// What the block heap and the arena may take of a limit on the address space: the rest is what the
/// program has left.
const HEAP_SHARE: u64 = 16;
const ARENA_SHARE: u64 = 32;
/// Memory is committed some MiB at a time for each size of blocks; below this limit the program would miss it.
const MIN_DATA_LIMIT_BYTES: u64 = 4 << 30;
/// Share of the kernel's limit on mappings that may be registered blocks: each may cost two mappings.
const REGISTERED_SHARE: u64 = 4;

uncopy_sys::statics! {
    /// Descriptor of /dev/userfaultfd that the command opened; -1: none.
    static INHERITED_DEVICE: AtomicI32 = AtomicI32::new(-1);
    static MEASURES_COSTS: AtomicBool = AtomicBool::new(false);
    /// Length of the slices of trials, ms; 0: the usual one.
    static SLICE_MS: AtomicU64 = AtomicU64::new(0);
}

/// Why the engine cannot work here.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Obstacle {
    PageSize(usize),
    DataLimit(u64),
    HeapAddresses(Errno),
    ArenaAddresses(Errno),
    Filter(Errno),
    Uffd(OpenError),
    HandlerThread(Errno),
    /// In a forked child.
    Registration(Errno),
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageSize(bytes) => write!(f, "the kernel's pages have {bytes} bytes, not {PAGE_BYTES}"),
            Self::DataLimit(bytes) => {
                let (limit, least) = (bytes >> 20, MIN_DATA_LIMIT_BYTES >> 20);
                write!(f, "RLIMIT_DATA is {limit} MiB; uncopy takes memory ahead and needs {least} MiB")
            }
            Self::HeapAddresses(errno) => write!(f, "no addresses for the block heap: {errno}"),
            Self::ArenaAddresses(errno) => write!(f, "no addresses for the arena: {errno}"),
            Self::Filter(Errno::EPERM) => {
                write!(f, "a seccomp filter ends processes for calls that uncopy makes")
            }
            Self::Filter(errno) => write!(f, "the seccomp filter could not be tried out: {errno}"),
            Self::Uffd(error) => error.fmt(f),
            Self::HandlerThread(errno) => write!(f, "the handler thread could not be started: {errno}"),
            Self::Registration(errno) => {
                write!(f, "a forked child's memory could not be registered: {errno}")
            }
        }
    }
}

/// Takes the options. Called once, before any other thread exists.
pub fn configure(options: &Options<'_>) {
    if options.off {
        STATE.switch_off("off: UNCOPY_OFF is set");
        return;
    }
    POLICY.set_mode(options.policy);
    match options.costs {
        CostSource::Measure => MEASURES_COSTS.store(true, Relaxed),
        CostSource::Assume => {}
        // They are those of moves.
        CostSource::Given(_) if !options.moves => MEASURES_COSTS.store(true, Relaxed),
        CostSource::Given(costs) => POLICY.costs.adopt(&costs),
    }
    if !options.moves {
        uffd::leave_moves();
    }
    INHERITED_DEVICE.store(options.uffd_fd.unwrap_or(-1), Relaxed);
    limits::configure(options.memory_bytes);
    SLICE_MS.store(options.slice_ms.unwrap_or(0), Relaxed);
    match (options.heap, options.policy) {
        (Heap::Off, _) => {
            STATE.switch_off("nothing can be elided: UNCOPY_HEAP is off");
            return;
        }
        (Heap::On, _) | (Heap::Auto, Policy::Always) => carrying::serve_all(),
        // A recording shows what blocks would do, also for the first ones.
        (Heap::Auto, _) if options.record.is_some() => carrying::serve_all(),
        (Heap::Auto, Policy::Auto | Policy::Never) => {}
    }
    let is_wanted = options.heap == Heap::On || options.policy != Policy::Never;
    if is_wanted && !LEAVES_ALLOCATIONS.load(Relaxed) {
        // A block smaller than two copies of the least size rarely holds one.
        HEAP_MIN_BYTES.store(options.min_size_bytes.saturating_mul(2), Relaxed);
    }
    if options.record.is_some() {
        counters::set_reason("nothing is elided but samples: it is recorded what is copied");
        POLICY.pause(true);
    } else if options.policy == Policy::Never {
        counters::set_reason("nothing is elided: UNCOPY_POLICY is never");
    }
    // What goes by a lane pays from the first byte on.
    if options.policy == Policy::Auto && options.lanes.is_none() && options.net.is_none() {
        early::configure(options.begin_after_bytes);
    }
    if options.policy != Policy::Never {
        set_min_size(options.min_size_bytes);
        if options.foreign {
            FOREIGN.switch_on();
        }
    }
}

/// Reserves the block heap if that has not been tried yet; whether there is one.
pub fn ensure_heap() -> bool {
    if HEAP.is_reserved() {
        return true;
    }
    if heap_min_bytes() == usize::MAX {
        return false;
    }
    let Some(_section) = Section::enter() else { return false };
    let _guard = STATE.activation.guard();
    HEAP.is_reserved() || reserve_heap().inspect_err(give_up).is_ok()
}

fn give_up(obstacle: &Obstacle) {
    STATE.give_up(&obstacle.to_string());
}

fn reserve_heap() -> Result<(), Obstacle> {
    if mem::page_size() != PAGE_BYTES {
        return Err(Obstacle::PageSize(mem::page_size()));
    }
    if let Some(limit) = mem::data_limit().filter(|limit| *limit < MIN_DATA_LIMIT_BYTES) {
        return Err(Obstacle::DataLimit(limit));
    }
    HEAP.reserve(address_space_share(HEAP_SHARE)).map_err(Obstacle::HeapAddresses)
}

/// Whether the engine is active; activates it if it was not needed before.
pub fn activate() -> bool {
    match STATE.phase() {
        Phase::Active => return true,
        Phase::Inactive => return false,
        Phase::Dormant => {}
    }
    let _critical = Critical::enter();
    let _guard = STATE.activation.guard();
    if STATE.phase() == Phase::Dormant && !uncopy_sys::thread::ours_may_start() {
        STATE.retire("the program's first thread has ended");
    }
    if STATE.phase() == Phase::Dormant {
        match start() {
            Ok(()) => {
                settle_costs();
                early::end();
                STATE.activate();
                recording::say(Sampled::Yes);
                counters::publish_once();
                begin_trials();
            }
            Err(obstacle) => {
                give_up(&obstacle);
                // `uncopy ps` tells the reason. A filter that ends processes is not tried any further.
                if !matches!(obstacle, Obstacle::Filter(_)) {
                    counters::publish_once();
                }
            }
        }
    }
    STATE.is_active()
}

fn start() -> Result<(), Obstacle> {
    if filter::is_filtered() {
        let device = INHERITED_DEVICE.load(Relaxed);
        filter::try_out((device >= 0).then_some(device)).map_err(Obstacle::Filter)?;
    }
    limits::read_limits();
    ARENA.reserve(address_space_share(ARENA_SHARE)).map_err(Obstacle::ArenaAddresses)?;
    if let Some(most) = mem::mappings_limit() {
        STATE.set_max_registered(most / REGISTERED_SHARE);
    }
    open_uffds()
}

/// Something counts, and may not pay, that the engine need not be active for: what is counted is told, and it is tried whether that
/// pays.
pub fn begin_without_engine() {
    // A fork waits until it is left.
    let Some(_section) = Section::enter() else { return };
    let _guard = STATE.activation.guard();
    if STATE.is_active() {
        return;
    }
    // A filter may end the process for a call.
    if filter::allows(Feature::Files) {
        counters::publish_once();
    }
    if filter::allows(Feature::Clock) {
        begin_trials();
    }
}

/// Begins to try whether what the engine does pays.
fn begin_trials() {
    if !cfg!(loom) && POLICY.mode() == Policy::Auto {
        let slice_ms = SLICE_MS.load(Relaxed);
        let pace = if slice_ms == 0 { Pace::USUAL } else { Pace::of_ms(slice_ms) };
        uncopy_trials::begin(pace, Some(show_trials));
    }
}

fn show_trials(trials: &Trials) {
    for factor in 0..MAX_FACTORS {
        let standing = trials.standing(factor);
        if standing.pairs > 0 {
            counters::set_trial(factor, &standing);
        }
    }
}

/// Puts the constants of the machine in force that nobody has given. Under the lock of activation.
fn settle_costs() {
    // A filter may end the process for reading the clock.
    let may_read_clock = !cfg!(loom) && filter::allows(Feature::Clock);
    if POLICY.is_set_to(Policy::Auto) && may_read_clock {
        uncopy_sys::clock::begin();
        if MEASURES_COSTS.load(Relaxed) && !filter::is_filtered() {
            POLICY.costs.adopt(&calibration::measure());
        }
    }
    ledger::set_costs(&POLICY.costs.snapshot());
    uncopy_record::session::set_costs(&POLICY.costs.snapshot());
}

/// Opens the userfaultfd of the heap and, if foreign ranges are wanted, theirs, and starts the handler
/// thread of both.
pub(crate) fn open_uffds() -> Result<(), Obstacle> {
    let device = Some(INHERITED_DEVICE.load(Relaxed)).filter(|device| *device >= 0);
    let main = Uffd::open(device, Reports::Faults).map_err(Obstacle::Uffd)?;
    // Without it there are no foreign ranges, and all else is as it was. Dropping pages of theirs would be reported.
    let has_foreign = FOREIGN.is_on() && uffd::moves();
    let foreign = has_foreign.then(|| Uffd::open(device, Reports::Changes).ok()).flatten();
    if let Err(errno) = handler::start(main, foreign) {
        main.close();
        if let Some(foreign) = foreign {
            foreign.close();
        }
        return Err(Obstacle::HandlerThread(errno));
    }
    ARENA.descriptor().renumber(Some(main));
    CHANGES.descriptor().renumber(foreign);
    Ok(())
}

/// Closes the program's descriptors. A handler with a table of its own goes on serving what is registered.
pub(crate) fn close_uffds() {
    for descriptor in [ARENA.descriptor(), CHANGES.descriptor()] {
        if let Some(uffd) = descriptor.open() {
            descriptor.renumber(None);
            uffd.close();
        }
    }
}

/// Our descriptors, as the program must not find them.
#[must_use]
pub fn descriptors() -> [Option<i32>; 2] {
    let main = if STATE.is_active() { ARENA.descriptor().open() } else { None };
    [main, CHANGES.open()].map(|uffd| uffd.map(Uffd::fd))
}

/// Gives a descriptor of ours another number, because the program is about to use this one. Where
/// there is no other, placements fail from here on and bytes are copied instead; the handler has a
/// table of its own.
pub fn renumber_descriptor(fd: i32) {
    let new = uncopy_sys::fd::duplicate_high(fd).map(Uffd::from_fd);
    let is_main = ARENA.descriptor().open().is_some_and(|main| main.fd() == fd);
    if is_main { ARENA.descriptor() } else { CHANGES.descriptor() }.renumber(new);
    Uffd::from_fd(fd).close();
}

/// The share of the address space limit that one reservation may take, bytes.
fn address_space_share(divisor: u64) -> usize {
    mem::address_space_limit()
        .map_or(usize::MAX, |limit| usize::try_from(limit / divisor).unwrap_or(usize::MAX))
}

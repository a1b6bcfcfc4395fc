//! Activation of the engine: options, the block heap, userfaultfd and its handler thread.
//!
//! Nothing is set up before it is needed: the block heap is reserved at the first large allocation; userfaultfd, the
//! arena, the handler thread and the counters' file come with the first large input into a block.

use crate::arena::descriptor::UffdDescriptor;
use crate::arena::pages::ARENA;
use crate::background::{calibration, handler};
use crate::range::carriers;
use crate::range::changes::CHANGES;
use crate::range::foreign::FOREIGN;
use crate::range::heap::HEAP;
use crate::state::gate::{HEAP_IS_DISABLED, HEAP_MIN_BYTES, heap_min_bytes};
use crate::state::phase::{Phase, STATE, set_min_engine_bytes};
use crate::state::policy::POLICY;
use crate::state::{counters, ledger, limits, recording, warmup};
use core::fmt;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::options::{CostSource, Heap, Options, Policy};
use uncopy_core::policy::trials::{MAX_FACTORS, Trials};
use uncopy_core::recording::Sampled;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::filter::{self, CallGroup};
use uncopy_sys::lock::Critical;
use uncopy_sys::mem;
use uncopy_sys::presence::Section;
use uncopy_sys::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use uncopy_sys::uffd::{self, OpenError, Reports, Uffd};
use uncopy_trials::Pace;

/// Divisors: shares of a limit on the address space that the block heap and the arena may reserve. The
/// program has the rest.
const HEAP_SHARE: u64 = 16;
const ARENA_SHARE: u64 = 32;
/// Smallest limit on data with which the engine works. Memory is committed some MiB at a time for each size
/// of blocks, which a program below this limit would miss.
const MIN_DATA_LIMIT_BYTES: u64 = 4 << 30;
/// Divisor: share of the kernel's limit on mappings that may be registered blocks, each of which may cost
/// two mappings.
const REGISTERED_SHARE: u64 = 4;

uncopy_sys::statics! {
    /// Descriptor of /dev/userfaultfd that the command opened; -1: none was passed.
    static INHERITED_DEVICE: AtomicI32 = AtomicI32::new(-1);
    static MEASURES_COSTS: AtomicBool = AtomicBool::new(false);
    /// Length of the slices of trials, ms; 0: the default.
    static SLICE_MS: AtomicU64 = AtomicU64::new(0);
}

/// Reason why the engine cannot work in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Obstacle {
    PageSize(usize),
    DataLimit(u64),
    HeapAddresses(Errno),
    ArenaAddresses(Errno),
    Filter(Errno),
    Uffd(OpenError),
    HandlerThread(Errno),
    /// Registering the memory of a forked child failed.
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

/// Applies the options. Called once, before any other thread exists.
pub fn configure(options: &Options<'_>) {
    if options.off {
        STATE.switch_off("off: UNCOPY_OFF is set");
        return;
    }
    POLICY.set_mode(options.policy);
    match options.costs {
        CostSource::Measure => MEASURES_COSTS.store(true, Relaxed),
        CostSource::Assume => {}
        // The given costs include those of moves, which are not made.
        CostSource::Given(_) if !options.moves => MEASURES_COSTS.store(true, Relaxed),
        CostSource::Given(costs) => POLICY.costs.adopt(&costs),
    }
    if !options.moves {
        uffd::disable_moves();
    }
    INHERITED_DEVICE.store(options.uffd_fd.unwrap_or(-1), Relaxed);
    limits::configure(options.memory_bytes);
    SLICE_MS.store(options.slice_ms.unwrap_or(0), Relaxed);
    match (options.heap, options.policy) {
        (Heap::Off, _) => {
            STATE.switch_off("nothing can be elided: UNCOPY_HEAP is off");
            return;
        }
        (Heap::On, _) | (Heap::Auto, Policy::Always) => carriers::serve_all(),
        // A recording is to show the effect of blocks, including a site's first ones.
        (Heap::Auto, _) if options.record.is_some() => carriers::serve_all(),
        (Heap::Auto, Policy::Auto | Policy::Never) => {}
    }
    let is_wanted = options.heap == Heap::On || options.policy != Policy::Never;
    if is_wanted && !HEAP_IS_DISABLED.load(Relaxed) {
        // A block shorter than two copies of the least size rarely holds a copy.
        HEAP_MIN_BYTES.store(options.min_size_bytes.saturating_mul(2), Relaxed);
    }
    if options.record.is_some() {
        counters::set_reason("nothing is elided but samples: it is recorded what is copied");
        POLICY.set_paused(true);
    } else if options.policy == Policy::Never {
        counters::set_reason("nothing is elided: UNCOPY_POLICY is never");
    }
    // Eliding pays from the first byte on for data that goes by a lane.
    if options.policy == Policy::Auto && options.lanes.is_none() && options.net.is_none() {
        warmup::configure(options.begin_after_bytes);
    }
    if options.policy != Policy::Never {
        set_min_engine_bytes(options.min_size_bytes);
        if options.foreign {
            FOREIGN.switch_on();
        }
    }
}

/// Reserves the block heap if that was not tried yet; returns whether there is one.
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

/// Returns whether the engine is active, after activating it if it was dormant.
pub fn activate() -> bool {
    match STATE.phase() {
        Phase::Active => return true,
        Phase::Inactive => return false,
        Phase::Dormant => {}
    }
    let _critical = Critical::enter();
    let _guard = STATE.activation.guard();
    if STATE.phase() == Phase::Dormant && !uncopy_sys::thread::may_start_library_threads() {
        STATE.retire("the program's first thread has ended");
    }
    if STATE.phase() == Phase::Dormant {
        match start() {
            Ok(()) => {
                settle_costs();
                warmup::end();
                STATE.activate();
                recording::set_sampled(Sampled::Yes);
                counters::publish_once();
                begin_trials();
            }
            Err(obstacle) => {
                give_up(&obstacle);
                // `uncopy ps` shows the reason. After a filter's refusal no further calls are tried.
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
        filter::probe_calls(inherited_device()).map_err(Obstacle::Filter)?;
    }
    limits::read_limits();
    ARENA.reserve(address_space_share(ARENA_SHARE)).map_err(Obstacle::ArenaAddresses)?;
    if let Some(max_mappings) = mem::mappings_limit() {
        STATE.set_max_registered(max_mappings / REGISTERED_SHARE);
    }
    open_uffds()
}

/// Publishes the counters and begins trials for a feature that works without an active engine, and that is
/// counted and may not pay.
pub fn begin_without_engine() {
    // A fork waits until the section is left.
    let Some(_section) = Section::enter() else { return };
    let _guard = STATE.activation.guard();
    if STATE.is_active() {
        return;
    }
    // A filter may end the process for a call.
    if filter::allows(CallGroup::Files) {
        counters::publish_once();
    }
    if filter::allows(CallGroup::Clock) {
        begin_trials();
    }
}

/// Begins trials of whether the engine's work pays.
fn begin_trials() {
    if !cfg!(loom) && POLICY.mode() == Policy::Auto {
        let slice_ms = SLICE_MS.load(Relaxed);
        let pace = if slice_ms == 0 { Pace::DEFAULT } else { Pace::with_slice_ms(slice_ms) };
        uncopy_trials::begin(pace, Some(show_trials));
    }
}

fn show_trials(trials: &Trials) {
    for factor in 0..MAX_FACTORS {
        let standing = trials.report(factor);
        if standing.pairs > 0 {
            counters::set_trial(factor, &standing);
        }
    }
}

/// Puts measured constants in force where the options give none. Under the lock of activation.
fn settle_costs() {
    // A filter may end the process for reading the clock.
    let may_read_clock = !cfg!(loom) && filter::allows(CallGroup::Clock);
    if POLICY.is_configured_as(Policy::Auto) && may_read_clock {
        uncopy_sys::clock::begin_calibration();
        if MEASURES_COSTS.load(Relaxed) && !filter::is_filtered() {
            POLICY.costs.adopt(&calibration::measure());
        }
    }
    ledger::set_costs(&POLICY.costs.snapshot());
    uncopy_record::session::set_costs(&POLICY.costs.snapshot());
}

/// Opens the userfaultfd of the heap and, if wanted, that of foreign ranges, and starts the handler thread of both.
pub(crate) fn open_uffds() -> Result<(), Obstacle> {
    let device = inherited_device();
    let main = Uffd::open(device, Reports::Faults).map_err(Obstacle::Uffd)?;
    // Foreign ranges are optional. Without moves there are none, because dropping their pages would be reported.
    let has_foreign = FOREIGN.is_on() && uffd::can_move_pages();
    let foreign = has_foreign.then(|| Uffd::open(device, Reports::Changes).ok()).flatten();
    if let Err(errno) = handler::start(main, foreign) {
        main.close();
        if let Some(foreign) = foreign {
            foreign.close();
        }
        return Err(Obstacle::HandlerThread(errno));
    }
    ARENA.descriptor().set_program_fd(Some(main));
    CHANGES.descriptor().set_program_fd(foreign);
    Ok(())
}

/// Closes the program's descriptors. A handler with its own table still serves registered memory.
pub(crate) fn close_uffds() {
    for descriptor in [ARENA.descriptor(), CHANGES.descriptor()] {
        if let Some(uffd) = descriptor.open() {
            descriptor.set_program_fd(None);
            uffd.close();
        }
    }
}

/// The engine's descriptors, each with its userfaultfd.
fn own_descriptors() -> impl Iterator<Item = (&'static UffdDescriptor, Uffd)> {
    let main = STATE.is_active().then(|| ARENA.descriptor());
    let descriptors = main.into_iter().chain([CHANGES.descriptor()]);
    descriptors.filter_map(|descriptor| descriptor.open().map(|uffd| (descriptor, uffd)))
}

/// Device for opening userfaultfds, if the program was given one.
fn inherited_device() -> Option<ProgramFd> {
    Some(ProgramFd::new(INHERITED_DEVICE.load(Relaxed))).filter(|device| device.is_valid())
}

/// Descriptors of the engine in the program's table, which must look closed to the program.
pub fn descriptors() -> impl Iterator<Item = ProgramFd> {
    own_descriptors().map(|(_, uffd)| uffd.as_program())
}

/// Moves one of the engine's descriptors to another number, because the program is about to use this one.
/// False: no descriptor has the number. If no other number is free, placements fail from then on and bytes
/// are copied instead; the handler has its own table.
pub fn relocate_descriptor(fd: ProgramFd) -> bool {
    let Some((descriptor, uffd)) = own_descriptors().find(|(_, uffd)| uffd.as_program() == fd) else {
        return false;
    };
    descriptor.set_program_fd(uncopy_sys::fd::duplicate_high(fd).map(Uffd::from));
    uffd.close();
    true
}

/// Share of the address space limit that one reservation may take, bytes.
fn address_space_share(divisor: u64) -> usize {
    mem::address_space_limit()
        .map_or(usize::MAX, |limit| usize::try_from(limit / divisor).unwrap_or(usize::MAX))
}

//! The one engine of a process: options, activation, and the reason why it is inactive.
//!
//! Nothing exists until it is needed: the block heap is reserved at the first large allocation;
//! userfaultfd, the arena, the handler thread and the stats file come with the first large input
//! into a block.

use crate::account::accounts;
use crate::account::sampling;
use crate::arena::pages::Arena;
use crate::range::block::BlockRef;
use crate::range::constants;
use crate::range::foreign::Foreign;
use crate::range::heap::Heap;
use crate::service::calibration;
use crate::service::handler;
use crate::state::counters;
use crate::state::gate::{HEAP_MIN_BYTES, MIN_SIZE_BYTES, set_min_size};
use crate::state::limits;
use uncopy_core::addr::PAGE_BYTES;
use uncopy_core::options::{CostSource, Options, Policy};
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::{Learned, Placement, Sampling, SharedCosts, Sites, Touches};
use uncopy_core::recording::Sampled;
use uncopy_core::stats::Counter;
use uncopy_sys::errno::Errno;
use uncopy_sys::lock::{Critical, Lock};
use uncopy_sys::mem;
use uncopy_sys::presence::Section;
use uncopy_sys::sync::Apart;
use uncopy_sys::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use uncopy_sys::uffd::{Reports, Uffd};

/// Where the engine is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Not configured, or nothing needed it yet.
    Dormant = 0,
    /// Serving.
    Active = 1,
    /// Plain copies from here on.
    Inactive = 2,
}

/// What the block heap and the arena may take of a limit on the address space: the rest is what the
/// program has left.
const HEAP_SHARE: u64 = 16;
const ARENA_SHARE: u64 = 32;
/// Memory is committed some MiB at a time for each size of blocks; below this limit the program would miss it.
const MIN_DATA_LIMIT_BYTES: u64 = 4 << 30;
/// Registered blocks at most: each may cost two mappings.
const REGISTERED_SHARE: u64 = 4;
const REGISTERED_DEFAULT: u64 = 16_000;
/// Set in the policy while nothing is to be elided.
const PAUSED: u8 = 1 << 7;

/// The engine. Its parts lie apart: what one thread writes must not slow down what another reads.
pub struct Engine {
    /// The program's large allocations.
    pub heap: Apart<Heap>,
    /// Memory outside the heap that holds views.
    pub foreign: Apart<Foreign>,
    /// Where segments live.
    pub arena: Apart<Arena>,
    /// What things cost on this machine.
    pub costs: Apart<SharedCosts>,
    /// Accounts of the call sites.
    pub sites: Apart<Sites>,
    /// Which inputs are sampled while a program is recorded.
    pub sampling: Apart<Sampling>,
    /// What programs touch of the sites' buffers.
    pub touches: Apart<Touches>,
    /// Accounts of the allocation sites.
    pub placement: Apart<Placement>,
    start: Apart<Lock>,
    phase: AtomicU8,
    policy: AtomicU8,
    inherited_device: AtomicI32,
    max_registered: AtomicU64,
    measures_costs: AtomicBool,
    said: AtomicBool,
    has_given_back: AtomicBool,
}

uncopy_sys::statics! {
    /// The process's engine.
    pub static ENGINE: Engine = Engine {
        heap: Apart(Heap::new()),
        foreign: Apart(Foreign::new()),
        arena: Apart(Arena::new()),
        costs: Apart(SharedCosts::new()),
        sites: Apart(Sites::new()),
        sampling: Apart(Sampling::new()),
        touches: Apart(Touches::new()),
        placement: Apart(Placement::new()),
        start: Apart(Lock::new()),
        phase: AtomicU8::new(Phase::Dormant as u8),
        policy: AtomicU8::new(0),
        inherited_device: AtomicI32::new(-1),
        max_registered: AtomicU64::new(REGISTERED_DEFAULT),
        measures_costs: AtomicBool::new(false),
        said: AtomicBool::new(false),
        has_given_back: AtomicBool::new(false),
    };
}

impl Engine {
    /// Takes the options. Called once, before any other thread exists.
    pub fn configure(&self, options: &Options<'_>) {
        if options.off {
            counters::set_reason("off: UNCOPY_OFF is set");
            self.phase.store(Phase::Inactive as u8, Relaxed);
            return;
        }
        self.policy.store(
            match options.policy {
                Policy::Auto => 0,
                Policy::Always => 1,
                Policy::Never => 2,
            },
            Relaxed,
        );
        match options.costs {
            CostSource::Measure => self.measures_costs.store(true, Relaxed),
            CostSource::Assume => {}
            CostSource::Given(costs) => self.costs.adopt(&costs),
        }
        self.inherited_device.store(options.uffd_fd.unwrap_or(-1), Relaxed);
        limits::configure(options.memory_bytes);
        if !options.heap {
            counters::set_reason("nothing can be elided: UNCOPY_HEAP is off");
            self.phase.store(Phase::Inactive as u8, Relaxed);
            return;
        }
        // A block smaller than two copies of the least size rarely holds one.
        HEAP_MIN_BYTES.store(options.min_size_bytes.saturating_mul(2), Relaxed);
        if options.record.is_some() {
            counters::set_reason("nothing is elided but samples: it is recorded what is copied");
            self.pause(true);
        } else if options.policy == Policy::Never {
            counters::set_reason("nothing is elided: UNCOPY_POLICY is never");
        }
        if options.policy != Policy::Never {
            set_min_size(options.min_size_bytes);
            if options.foreign {
                self.foreign.switch_on();
            }
        }
    }

    /// Smallest copy, input or output that the engine looks at, bytes; `usize::MAX`: none.
    #[inline]
    #[must_use]
    pub fn min_size_bytes(&self) -> usize {
        MIN_SIZE_BYTES.load(Relaxed)
    }

    /// Smallest allocation that the block heap serves, bytes; `usize::MAX`: none.
    #[inline]
    #[must_use]
    pub fn heap_min_bytes(&self) -> usize {
        HEAP_MIN_BYTES.load(Relaxed)
    }

    /// The policy in force.
    #[must_use]
    pub fn policy(&self) -> Policy {
        match self.policy.load(Relaxed) {
            0 => Policy::Auto,
            1 => Policy::Always,
            _ => Policy::Never,
        }
    }

    /// Whether nothing is elided for the time being, but samples.
    pub(crate) fn is_paused(&self) -> bool {
        self.policy.load(Relaxed) & PAUSED != 0
    }

    /// Whether every input is sampled (for testing).
    pub(crate) fn samples_all(&self) -> bool {
        self.policy.load(Relaxed) & !PAUSED == Policy::Always as u8
    }

    /// Elides nothing more for the time being, or goes on as before. Views that exist stay.
    pub(crate) fn pause(&self, pauses: bool) {
        if pauses {
            self.policy.fetch_or(PAUSED, Relaxed);
        } else {
            self.policy.fetch_and(!PAUSED, Relaxed);
        }
    }

    /// Which pages of the site's next buffer are copied because the program touches them. Asked once for each
    /// call that could elide.
    #[must_use]
    pub fn to_copy(&self, site: SiteId) -> Learned {
        if self.policy() == Policy::Auto { self.touches.to_copy(site) } else { Learned::default() }
    }

    /// Whether every block is registered from the start (for testing).
    #[must_use]
    pub fn always_places_registered(&self) -> bool {
        self.policy() == Policy::Always
    }

    /// Blocks that may be registered, given the kernel's limit on mappings.
    #[must_use]
    pub fn max_registered(&self) -> u64 {
        self.max_registered.load(Relaxed)
    }

    /// Whether new views may be made.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.phase.load(Acquire) == Phase::Active as u8
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Dormant,
            1 => Phase::Active,
            _ => Phase::Inactive,
        }
    }

    /// Reserves the block heap if that has not been tried yet.
    pub fn ensure_heap(&self) -> bool {
        if self.heap.is_reserved() {
            return true;
        }
        if self.heap_min_bytes() == usize::MAX {
            return false;
        }
        let Some(_section) = Section::enter() else { return false };
        let _guard = self.start.guard();
        if self.heap.is_reserved() {
            return true;
        }
        let reserved = self.reserve_heap();
        match reserved {
            Ok(()) => true,
            Err(why) => {
                self.give_up(&why);
                false
            }
        }
    }

    fn reserve_heap(&self) -> Result<(), String> {
        if mem::page_size() != PAGE_BYTES {
            return Err(format!("the kernel's pages have {} bytes, not {PAGE_BYTES}", mem::page_size()));
        }
        if let Some(limit) = mem::data_limit().filter(|limit| *limit < MIN_DATA_LIMIT_BYTES) {
            let (limit, least) = (limit >> 20, MIN_DATA_LIMIT_BYTES >> 20);
            return Err(format!(
                "RLIMIT_DATA is {limit} MiB; uncopy takes memory ahead and needs {least} MiB"
            ));
        }
        self.heap
            .reserve(address_space_share(HEAP_SHARE))
            .map_err(|errno| format!("no addresses for the block heap: {errno}"))
    }

    /// Whether the engine is active; activates it if it was not needed before.
    pub fn activate(&self) -> bool {
        match self.phase() {
            Phase::Active => return true,
            Phase::Inactive => return false,
            Phase::Dormant => {}
        }
        let _critical = Critical::enter();
        let _guard = self.start.guard();
        if self.phase() == Phase::Dormant {
            match self.start() {
                Ok(()) => {
                    self.settle_costs();
                    self.phase.store(Phase::Active as u8, Release);
                    sampling::say(Sampled::Yes);
                    counters::publish();
                }
                Err(why) => self.give_up(&why),
            }
        }
        self.is_active()
    }

    fn start(&self) -> Result<(), String> {
        if uncopy_sys::filter::is_filtered() {
            let device = self.inherited_device.load(Relaxed);
            uncopy_sys::filter::try_out((device >= 0).then_some(device)).map_err(|errno| match errno {
                Errno::EPERM => "a seccomp filter ends processes for calls that uncopy makes".to_owned(),
                _ => format!("the seccomp filter could not be tried out: {errno}"),
            })?;
        }
        limits::read_limits();
        self.arena
            .reserve(address_space_share(ARENA_SHARE))
            .map_err(|errno| format!("no addresses for the arena: {errno}"))?;
        if let Some(most) = mem::mappings_limit() {
            self.max_registered.store(most / REGISTERED_SHARE, Relaxed);
        }
        self.open_uffds()
    }

    /// Puts the constants of the machine in force that nobody has given. Under the lock of activation.
    fn settle_costs(&self) {
        let depends_on_them = self.policy.load(Relaxed) & !PAUSED == Policy::Auto as u8;
        // A filter may end the process for reading the clock.
        let may_read_clock = !cfg!(loom) && !uncopy_sys::filter::is_filtered();
        if depends_on_them && may_read_clock {
            uncopy_sys::clock::begin();
            if self.measures_costs.load(Relaxed) {
                self.costs.adopt(&calibration::measure(&self.arena));
            }
        }
        accounts::set_costs(&self.costs.snapshot());
        uncopy_record::session::set_costs(&self.costs.snapshot());
    }

    /// Opens the userfaultfd of the heap and, if foreign ranges are wanted, theirs, and starts the handler
    /// thread of both.
    ///
    /// # Errors
    /// Why not, as a sentence part.
    pub(crate) fn open_uffds(&self) -> Result<(), String> {
        let device = Some(self.inherited_device.load(Relaxed)).filter(|device| *device >= 0);
        let main = Uffd::open(device, Reports::Faults).map_err(|error| error.to_string())?;
        // Without it there are no foreign ranges, and all else is as it was.
        let foreign = self.foreign.is_on().then(|| Uffd::open(device, Reports::Changes).ok()).flatten();
        self.arena.descriptor().set(Some(main));
        self.foreign.descriptor().set(foreign);
        handler::start_handler().map_err(|errno| {
            self.close_uffds();
            format!("the handler thread could not be started: {errno}")
        })
    }

    /// Closes what [`Engine::open_uffds`] opened.
    pub(crate) fn close_uffds(&self) {
        for descriptor in [self.arena.descriptor(), self.foreign.descriptor()] {
            if let Some(uffd) = descriptor.open() {
                uffd.close();
            }
            descriptor.set(None);
        }
    }

    /// Our descriptors, as the program must not find them.
    #[must_use]
    pub fn descriptors(&self) -> [Option<i32>; 2] {
        let main = Some(self.arena.uffd()).filter(|_| self.is_active());
        [main.map(Uffd::fd), self.foreign.uffd().map(Uffd::fd)]
    }

    /// Gives a descriptor of ours another number, because the program is about to use this one. Where
    /// there is no other, placements fail from here on and bytes are copied instead; the handler has a
    /// table of its own.
    pub fn renumber_descriptor(&self, fd: i32) {
        let new = uncopy_sys::fd::duplicate_high(fd);
        if self.arena.uffd().fd() == fd {
            self.arena.descriptor().renumber(new);
        } else {
            self.foreign.descriptor().renumber(new);
        }
        Uffd::from_fd(fd).close();
    }

    /// Ends elision for good, without a message: for a reason that is not a failure. Returns whether
    /// there ever was a userfaultfd, which goes on serving what there is.
    pub(crate) fn retire(&self, why: &str) -> bool {
        let _critical = Critical::enter();
        let _guard = self.start.guard();
        self.retire_now(why)
    }

    /// The same for a thread that never waits: false if it must be tried again.
    pub(crate) fn try_retire(&self, why: &str) -> bool {
        let is_free = self.start.try_lock();
        if is_free {
            self.retire_now(why);
            self.start.unlock();
        }
        is_free
    }

    fn retire_now(&self, why: &str) -> bool {
        if self.phase.swap(Phase::Inactive as u8, AcqRel) != Phase::Inactive as u8 {
            set_min_size(usize::MAX);
            HEAP_MIN_BYTES.store(usize::MAX, Relaxed);
            counters::set_reason(why);
        }
        self.arena.descriptor().open().is_some()
    }

    /// The block of the heap, or the foreign range, that holds `address`.
    #[inline]
    #[must_use]
    pub fn find(&'static self, address: usize) -> Option<BlockRef> {
        self.heap.find(address).or_else(|| self.foreign.find(address))
    }

    /// Makes what `address..address + len_bytes` touches ordinary memory, because the program is about to
    /// change its mapping.
    pub fn disown(&'static self, address: usize, len_bytes: usize) {
        self.heap.disown(address, len_bytes);
        self.foreign.disown(address, address.saturating_add(len_bytes));
        constants::forget(address, len_bytes);
    }

    /// Calls `each` for every block of the heap and every foreign range.
    pub fn for_each_block(&'static self, mut each: impl FnMut(BlockRef)) {
        self.heap.for_each_block(&mut each);
        self.foreign.for_each_range(each);
    }

    /// Lock of activation, to be held across a fork.
    pub(crate) fn start_lock(&self) -> &Lock {
        &self.start
    }

    /// Turns everything back into plain memory where uncopy's own data had to come from the reserve. Called
    /// where no lock is held.
    #[inline]
    pub fn look_after_memory(&self) {
        if uncopy_sys::alloc::is_low() && self.phase() == Phase::Active {
            let why = "the kernel gives no memory for uncopy's own data";
            crate::service::release::release_all(why);
            self.say_once(why);
        }
    }

    /// Gives unused addresses back as well: the program limits itself to less of them.
    ///
    /// False if that was done before, or there is nothing to give back.
    pub fn give_back_addresses(&self) -> bool {
        if !self.heap.is_reserved() || self.has_given_back.swap(true, Relaxed) {
            return false;
        }
        let _critical = Critical::enter();
        self.heap.give_back_addresses();
        self.arena.give_back_addresses();
        true
    }

    /// Plain copies from here on: for the reason given, said once.
    pub fn give_up(&self, why: &str) {
        sampling::say(Sampled::Impossible);
        self.phase.store(Phase::Inactive as u8, Release);
        set_min_size(usize::MAX);
        HEAP_MIN_BYTES.store(usize::MAX, Relaxed);
        counters::add(Counter::Fallbacks, 1);
        counters::set_reason(why);
        self.say_once(why);
    }

    fn say_once(&self, why: &str) {
        if !self.said.swap(true, Relaxed) {
            mem::say(format_args!("uncopy: inactive: {why}; see 'uncopy doctor'\n"));
        }
    }
}

/// The share of the address space limit that one reservation may take, bytes.
fn address_space_share(divisor: u64) -> usize {
    mem::address_space_limit()
        .map_or(usize::MAX, |limit| usize::try_from(limit / divisor).unwrap_or(usize::MAX))
}

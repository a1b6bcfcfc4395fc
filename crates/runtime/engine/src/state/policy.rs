//! The policy in force, and the accounts that its decisions rest on.

use uncopy_core::options::Policy;
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::trials::catalogue::ELISION;
use uncopy_core::policy::{Carriers, Learned, Placement, Sampling, SharedCosts, Sites, Touches};
use uncopy_sys::sync::CachePadded;
use uncopy_sys::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bit of the mode that is set while eliding is paused.
const PAUSED: u8 = 1 << 7;

/// Accounts and learned facts of the process, on cache lines of their own: one thread's writes must not
/// slow down another's reads.
pub struct Accounts {
    /// Costs of operations on this machine.
    pub costs: CachePadded<SharedCosts>,
    /// Accounts of the call sites.
    pub sites: CachePadded<Sites>,
    /// Inputs that are sampled while a program is recorded.
    pub sampling: CachePadded<Sampling>,
    /// Pages of the sites' buffers that the program touches.
    pub touches: CachePadded<Touches>,
    /// Allocation sites whose buffers carry data.
    pub carriers: CachePadded<Carriers>,
    /// Accounts of the allocation sites.
    pub placement: CachePadded<Placement>,
    mode: CachePadded<AtomicU8>,
}

uncopy_sys::statics! {
    /// Policy and accounts of this process.
    pub static POLICY: Accounts = Accounts {
        costs: CachePadded(SharedCosts::new()),
        sites: CachePadded(Sites::new()),
        sampling: CachePadded(Sampling::new()),
        touches: CachePadded(Touches::new()),
        carriers: CachePadded(Carriers::new()),
        placement: CachePadded(Placement::new()),
        mode: CachePadded(AtomicU8::new(Policy::Auto as u8)),
    };
}

/// Gives a test the policy of this process, which it sets to `mode`, for as long as the guard lives.
#[cfg(all(test, not(loom)))]
pub(crate) fn with_mode(mode: Policy) -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    POLICY.set_mode(mode);
    turn
}

impl Accounts {
    /// Sets the mode (`--policy`).
    pub(crate) fn set_mode(&self, mode: Policy) {
        self.mode.store(mode as u8, Relaxed);
    }

    /// Returns the mode in force; `Never` while paused.
    #[must_use]
    pub fn mode(&self) -> Policy {
        match self.mode.load(Relaxed) {
            mode if mode == Policy::Auto as u8 => Policy::Auto,
            mode if mode == Policy::Always as u8 => Policy::Always,
            _ => Policy::Never,
        }
    }

    /// Whether the configured mode is `mode`, paused or not.
    pub(crate) fn is_configured_as(&self, mode: Policy) -> bool {
        self.mode.load(Relaxed) & !PAUSED == mode as u8
    }

    /// Whether eliding is paused, except for samples.
    pub(crate) fn is_paused(&self) -> bool {
        self.mode.load(Relaxed) & PAUSED != 0
    }

    /// Pauses eliding, or resumes it. Existing views stay.
    pub(crate) fn set_paused(&self, pauses: bool) {
        if pauses {
            self.mode.fetch_or(PAUSED, Relaxed);
        } else {
            self.mode.fetch_and(!PAUSED, Relaxed);
        }
    }

    /// Whether calls are elided at the moment: a trial may leave eliding out. To be asked where a call
    /// could be elided.
    #[must_use]
    pub fn elides(&self) -> bool {
        uncopy_trials::is_on(ELISION)
    }

    /// Whether a trial leaves eliding out at the moment. To be asked where no call could be elided.
    #[must_use]
    pub fn trial_disables_eliding(&self) -> bool {
        uncopy_trials::is_left_out(ELISION)
    }

    /// Pages of the site's next buffer to copy because the program touches them. To be asked once for each
    /// call that could elide.
    #[must_use]
    pub fn pages_to_copy(&self, site: SiteId) -> Learned {
        if self.mode() == Policy::Auto { self.touches.begin_call(site) } else { Learned::default() }
    }

    /// Whether every block is registered from the start (for testing).
    #[must_use]
    pub fn registers_every_block(&self) -> bool {
        self.mode() == Policy::Always
    }
}

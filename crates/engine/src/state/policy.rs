//! The policy in force, and the accounts that it decides by.

use uncopy_core::options::Policy;
use uncopy_core::page_map::SiteId;
use uncopy_core::policy::trials::catalogue::ELISION;
use uncopy_core::policy::{Carriers, Learned, Placement, Sampling, SharedCosts, Sites, Touches};
use uncopy_sys::sync::Apart;
use uncopy_sys::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Set in the mode while nothing is to be elided.
const PAUSED: u8 = 1 << 7;

/// Accounts and learned facts of the process. They lie apart: what one thread writes must not slow down what another
/// reads.
pub struct Accounts {
    /// What things cost on this machine.
    pub costs: Apart<SharedCosts>,
    /// Accounts of the call sites.
    pub sites: Apart<Sites>,
    /// Inputs that are sampled while a program is recorded.
    pub sampling: Apart<Sampling>,
    /// What programs touch of the sites' buffers.
    pub touches: Apart<Touches>,
    /// Allocation sites whose buffers carry data.
    pub carriers: Apart<Carriers>,
    /// Accounts of the allocation sites.
    pub placement: Apart<Placement>,
    mode: Apart<AtomicU8>,
}

uncopy_sys::statics! {
    /// The process's policy.
    pub static POLICY: Accounts = Accounts {
        costs: Apart(SharedCosts::new()),
        sites: Apart(Sites::new()),
        sampling: Apart(Sampling::new()),
        touches: Apart(Touches::new()),
        carriers: Apart(Carriers::new()),
        placement: Apart(Placement::new()),
        mode: Apart(AtomicU8::new(Policy::Auto as u8)),
    };
}

impl Accounts {
    /// Sets the mode (`--policy`).
    pub(crate) fn set_mode(&self, mode: Policy) {
        self.mode.store(mode as u8, Relaxed);
    }

    /// The mode in force.
    #[must_use]
    pub fn mode(&self) -> Policy {
        match self.mode.load(Relaxed) {
            mode if mode == Policy::Auto as u8 => Policy::Auto,
            mode if mode == Policy::Always as u8 => Policy::Always,
            _ => Policy::Never,
        }
    }

    /// The mode that a pause suspends.
    pub(crate) fn is_set_to(&self, mode: Policy) -> bool {
        self.mode.load(Relaxed) & !PAUSED == mode as u8
    }

    /// Whether nothing is elided for the time being, but samples.
    pub(crate) fn is_paused(&self) -> bool {
        self.mode.load(Relaxed) & PAUSED != 0
    }

    /// Elides nothing more for the time being, or goes on as before. Views that exist stay.
    pub(crate) fn pause(&self, pauses: bool) {
        if pauses {
            self.mode.fetch_or(PAUSED, Relaxed);
        } else {
            self.mode.fetch_and(!PAUSED, Relaxed);
        }
    }

    /// Whether anything is elided at the moment: whether that pays at all is tried now and then. Asked where something
    /// could be.
    #[must_use]
    pub fn elides(&self) -> bool {
        uncopy_trials::is_on(ELISION)
    }

    /// Whether nothing is elided at the moment. Asked where nothing could be.
    #[must_use]
    pub fn leaves_eliding_out(&self) -> bool {
        uncopy_trials::is_left_out(ELISION)
    }

    /// Which pages of the site's next buffer are copied because the program touches them. Asked once for each
    /// call that could elide.
    #[must_use]
    pub fn to_copy(&self, site: SiteId) -> Learned {
        if self.mode() == Policy::Auto { self.touches.to_copy(site) } else { Learned::default() }
    }

    /// Whether every block is registered from the start (for testing).
    #[must_use]
    pub fn always_places_registered(&self) -> bool {
        self.mode() == Policy::Always
    }
}

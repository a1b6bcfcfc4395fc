//! Initialisation: reservations before the first allocation, and the userfaultfd before the first loan.

use crate::classes::MAX_SMALL_BYTES;
use crate::options::{ALIGNMENT, ConfigureError, Options};
use crate::pages::{self, PAGE_BYTES, PAGES};
use crate::process::{BATCH_PAGES, BUFFERS, IS_OFF, IS_READY, OPTIONS, Process, START, TABLE};
use crate::process::{close_inherited, is_ready, pageblock_pages, record_reason};
use crate::status::InactiveReason;
use crate::{fork, handler, small};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::os::fd::AsRawFd as _;
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::lock::Critical;
use uncopy_sys::uffd::{OpenError, Reports, Uffd};
use uncopy_sys::{filter, mem};

/// True if the kernel can wipe memory in children; otherwise nothing is ever lent.
static IS_WIPED: AtomicBool = AtomicBool::new(false);
/// Descriptor of `/dev/userfaultfd` that the program has opened; -1 for none.
static DEVICE: AtomicI32 = AtomicI32::new(-1);

pub(crate) fn configure(options: Options) -> Result<(), ConfigureError> {
    let pages = options.pageblock_pages;
    if !(1..=64).contains(&pages) {
        return Err(ConfigureError::PageblockPages(pages));
    }
    let threshold = options.large_threshold;
    let max_threshold = MAX_SMALL_BYTES.min(pages * PAGE_BYTES / 2);
    if !(ALIGNMENT..=max_threshold).contains(&threshold) {
        return Err(ConfigureError::LargeThreshold(threshold));
    }
    let _critical = Critical::enter();
    let _guard = START.guard();
    if is_ready() {
        return Err(ConfigureError::InUse);
    }
    let cap_pages = match options.memory_cap {
        0 => u32::MAX,
        bytes => u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX),
    };
    OPTIONS.pageblock_pages.store(pages as u32, Relaxed);
    OPTIONS.large_threshold.store(threshold as u32, Relaxed);
    OPTIONS.cap_pages.store(cap_pages, Relaxed);
    DEVICE.store(options.uffd_device.map_or(-1, |device| device.as_raw_fd()), Relaxed);
    Ok(())
}

/// Makes all reservations, once. Returns false if the kernel refuses; the next call tries again.
#[cold]
pub(crate) fn initialise() -> bool {
    let _critical = Critical::enter();
    let _guard = START.guard();
    if is_ready() {
        return true;
    }
    if mem::page_size() != PAGE_BYTES {
        record_reason(InactiveReason::PageSize, 0);
        return false;
    }
    let created = TABLE.create(1, true).and_then(|is_wiped| {
        let cap_pages = OPTIONS.cap_pages.load(Relaxed);
        Ok(PAGES.create(cap_pages)? & is_wiped)
    });
    let Ok(is_wiped) = created else { return false };
    if !TABLE.ensure_committed(1) {
        return false;
    }
    IS_WIPED.store(is_wiped, Relaxed);
    small::set_classes(&Options {
        pageblock_pages: pageblock_pages() as usize,
        large_threshold: OPTIONS.large_threshold.load(Relaxed) as usize,
        ..Options::new()
    });
    IS_READY.store(true, Release);
    fork::register_handlers();
    true
}

impl Process {
    /// Returns the descriptor, starting to protect pages if needed.
    #[inline]
    pub(crate) fn activate(&self) -> Option<Uffd> {
        self.uffd().or_else(|| if self.is_dormant() { self.start_protection() } else { None })
    }

    #[cold]
    fn start_protection(&self) -> Option<Uffd> {
        let _critical = Critical::enter();
        let _guard = self.activation.guard();
        if self.is_dormant() {
            match self.try_start() {
                Ok(uffd) => self.set_active(uffd),
                Err((why, errno)) => self.stop(why, errno),
            }
        }
        self.uffd()
    }

    fn try_start(&self) -> Result<Uffd, (InactiveReason, i32)> {
        if IS_OFF.load(Relaxed) {
            return Err((InactiveReason::SwitchedOff, 0));
        }
        if !IS_WIPED.load(Relaxed) {
            return Err((InactiveReason::NotWiped, 0));
        }
        let device = Some(ProgramFd::new(DEVICE.load(Relaxed))).filter(|fd| fd.is_valid());
        if filter::is_filtered() {
            filter::probe_calls(device).map_err(|errno| (InactiveReason::Filtered, errno.0))?;
        }
        close_inherited();
        let batch_bytes = BATCH_PAGES as usize * PAGE_BYTES;
        if BUFFERS.scratch.load(Acquire) == 0 {
            let zeroes = mem::map_zeroes(batch_bytes).map_err(|errno| (InactiveReason::NoMemory, errno.0))?;
            // SAFETY: without an address hint the kernel chooses an unused range, which affects no other
            // mapping.
            let scratch = unsafe { mem::map_private(batch_bytes, None) };
            BUFFERS.zeroes.store(zeroes, Release);
            BUFFERS.scratch.store(scratch.map_err(|errno| (InactiveReason::NoMemory, errno.0))?, Release);
        }
        let uffd = Uffd::open(device, Reports::Writes).map_err(|error| match error {
            OpenError::Refused(errno) => (InactiveReason::Refused, errno.0),
            OpenError::NoFeature(errno) => (InactiveReason::NoFeature, errno.0),
        })?;
        let started =
            handler::start(uffd).map_err(|errno| (InactiveReason::NoHandler, errno.0)).and_then(|()| {
                let range = pages::range();
                let registered = uffd.register_for_write_protection(range.base(), range.len_bytes());
                registered.map_err(|errno| (InactiveReason::NotRegistered, errno.0))
            });
        if started.is_err() {
            // A handler thread that was started ends when it finds its descriptor closed.
            uffd.close();
        }
        started.map(|()| uffd)
    }
}

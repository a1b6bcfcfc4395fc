//! Enabling lanes, and starting them at the first large transfer on a stream.

use crate::room::take_shared;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::ssize_t;
use std::sync::OnceLock;
use uncopy_core::bounds::shared_bytes;
use uncopy_core::scope::Scope;
use uncopy_engine::arena::segment::share_by;
use uncopy_engine::service::activation;
use uncopy_engine::state::ledger;
use uncopy_engine::state::phase::look_at_streams;
use uncopy_lanes::begin::begin;
use uncopy_lanes::process::{self, MIN_LARGE_BYTES};
use uncopy_lanes::{handover, outcome};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::presence::Section;
use uncopy_sys::{awake, cgroup, errno, ids, rights};

/// True if streams may become lanes.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// True if streams may become lanes.
#[inline(always)]
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

struct Config {
    scope: Scope<'static>,
    directory: String,
    max_bytes: Option<usize>,
    /// Effective user id when lanes were enabled.
    user: u32,
}

static CONFIG: OnceLock<Config> = OnceLock::new();
/// True once this process has started its lanes, or failed to.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// True once neither this process nor its forked children may start lanes. The lock is held while they start.
static IS_OVER: Guarded<bool> = Guarded::new(false);

/// Enables lanes for the life of the process: new streams in `scope` between processes that meet in `directory`
/// may become lanes, streams open now may not. Shared memory is limited to `max_bytes`.
pub fn switch_on(scope: Scope<'_>, directory: &[u8], max_bytes: Option<usize>) {
    let text: &'static str = Box::leak(scope.text().into());
    let directory = String::from_utf8_lossy(directory).into_owned();
    if let Some(scope) = Scope::parse(text.as_bytes())
        && CONFIG.set(Config { scope, directory, max_bytes, user: ids::effective_user() }).is_ok()
    {
        handover::note_inherited();
        outcome::tell_by(ledger::add_stream);
        awake::wake();
        IS_ON.store(true, Relaxed);
        look_at_streams();
    }
}

/// Starts the lanes of this process at the first call that moves many bytes on a stream in scope. To be called
/// with the result of each call.
pub fn note_large(fd: ProgramFd, len_bytes: ssize_t) {
    if len_bytes < MIN_LARGE_BYTES as ssize_t || HAS_BEGUN.load(Relaxed) {
        return;
    }
    let _errno = errno::Keep::new();
    // Not during a fork: the child would find the lock taken.
    let Some(_section) = Section::enter() else { return };
    let is_over = IS_OVER.lock();
    if let Some(Config { scope, directory, max_bytes, user }) = CONFIG.get()
        && !*is_over
        && process::is_fit(fd, scope)
        && !HAS_BEGUN.swap(true, Relaxed)
        && rights::is_open()
        && let Err(errno) = begin(directory, *scope, shared_bytes(*max_bytes, cgroup::memory_limit()))
            .inspect(|()| share_by(take_shared))
            .inspect(|()| activation::begin_without_engine())
    {
        // A process that has changed its user is expected not to have access.
        if ids::effective_user() != *user {
            return;
        }
        let why = if errno.0 == libc::EPERM { "others can enter " } else { "nothing can be made in " };
        uncopy_sys::mem::say(format_args!("uncopy: no lanes: {why}{directory} ({errno:?})\n"));
    }
}

/// Lets a forked child start lanes of its own.
pub fn begin_anew() {
    HAS_BEGUN.store(false, Relaxed);
}

/// Keeps this process and its forked children from starting lanes.
pub fn begin_never() {
    *IS_OVER.lock() = true;
}

/// Disables lanes: no stream is examined any more.
pub fn switch_off() {
    IS_ON.store(false, Relaxed);
}

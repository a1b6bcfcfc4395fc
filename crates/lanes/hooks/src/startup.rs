//! Enabling lanes, and starting them at the first large transfer on a stream.

use crate::input_memory::alloc_shared;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use libc::ssize_t;
use std::sync::OnceLock;
use uncopy_core::bounds::shared_bytes;
use uncopy_core::policy::sites::Exit;
use uncopy_core::scope::Scope;
use uncopy_engine::arena::segment::set_shared_allocator;
use uncopy_engine::background::activation;
use uncopy_engine::state::ledger;
use uncopy_engine::state::phase::handle_all_stream_io;
use uncopy_lanes::begin::begin;
use uncopy_lanes::process::{self, MIN_LARGE_BYTES};
use uncopy_lanes::{handover, outcome};
use uncopy_sys::descriptor::ProgramFd;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::presence::Section;
use uncopy_sys::{cgroup, errno, features, ids, rights};

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
        outcome::set_callback(ledger::add_stream);
        features::set_active();
        IS_ON.store(true, Relaxed);
        handle_all_stream_io();
    }
}

/// Starts the lanes of this process at the first call that moves many bytes on a stream in scope. To be called
/// with the result of each call.
pub fn note_large(fd: ProgramFd, len_bytes: ssize_t) {
    if len_bytes < MIN_LARGE_BYTES as ssize_t || HAS_BEGUN.load(Relaxed) {
        return;
    }
    let _errno = errno::SavedErrno::new();
    // Not during a fork: the child would find the lock taken.
    let Some(_section) = Section::enter() else { return };
    let is_over = IS_OVER.lock();
    if let Some(Config { scope, directory, max_bytes, user }) = CONFIG.get()
        && !*is_over
        && process::is_eligible(fd, scope)
        && !HAS_BEGUN.swap(true, Relaxed)
        && rights::is_accessible()
        && let Err(errno) = begin(directory, *scope, shared_bytes(*max_bytes, cgroup::memory_limit()))
            .inspect(|()| set_shared_allocator(Exit::Lane, alloc_shared))
            .inspect(|()| activation::begin_without_engine())
    {
        // A process that has changed its user is expected not to have access.
        if ids::effective_user() != *user {
            return;
        }
        let why = if errno.0 == libc::EPERM { "others can enter " } else { "nothing can be made in " };
        uncopy_sys::mem::write_stderr(format_args!("uncopy: no lanes: {why}{directory} ({errno:?})\n"));
    }
}

/// Lets a forked child start lanes of its own.
pub fn allow_start_in_child() {
    HAS_BEGUN.store(false, Relaxed);
}

/// Keeps this process and its forked children from starting lanes.
pub fn forbid_start() {
    *IS_OVER.lock() = true;
}

/// Disables lanes: no stream is examined any more.
pub fn switch_off() {
    IS_ON.store(false, Relaxed);
}

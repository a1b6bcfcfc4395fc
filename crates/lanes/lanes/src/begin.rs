//! Start of a process's lanes: the thread, its socket in the shared directory, links to the other processes.

extern crate alloc;
use crate::board::Board;
use crate::lane_thread::{LaneThread, Lanes, SOCKET_SUFFIX, board_bytes};
use crate::process::{PROCESS, Process};
use alloc::ffi::CString;
use core::ffi::c_void;
use uncopy_core::scope::Scope;
use uncopy_sys::descriptor::OwnFd;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::handler::HandlerStart;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::mem::{self, SharedMemory};
use uncopy_sys::sync::atomic::Ordering::Release;
use uncopy_sys::{ids, wait};

/// Longest sleep of the thread, milliseconds: it polls for memory that peers have returned.
const SLEEP_MS: i32 = 1000;

static START: HandlerStart = HandlerStart::new(Role::Lanes);

struct Config {
    directory: CString,
    scope: Scope<'static>,
    max_bytes: usize,
}

static CONFIG: Guarded<Option<Config>> = Guarded::new(None);

/// EPERM if others can enter the directory; otherwise the error of the allocation, thread or socket.
pub fn begin(directory: &str, scope: Scope<'static>, max_bytes: usize) -> Result<(), Errno> {
    let directory = CString::new(directory).map_err(|_| Errno(libc::EINVAL))?;
    mem::make_private_directory(&directory)?;
    *CONFIG.lock() = Some(Config { directory, scope, max_bytes });
    START.run(serve, 0)
}

extern "C" fn serve(argument: *mut c_void) -> *mut c_void {
    let _critical = uncopy_sys::lock::Critical::enter();
    let config = CONFIG.lock().take();
    // Before any descriptor is made: without a table of its own (seccomp), these are in the program's table.
    let (_, mut last_thread) = START.isolate([-1, -1]);
    match config.ok_or(Errno(libc::EINVAL)).and_then(make) {
        Err(errno) => START.report(Err(errno)),
        Ok((process, mut service)) => {
            START.report(Ok(()));
            while !process.is_stopping() {
                service.run_pending();
                let program = last_thread.fd().map(OwnFd::reference);
                wait::for_any(service.descriptors().chain(program), SLEEP_MS);
                if last_thread.has_ended(program.is_some_and(wait::is_ready)) {
                    mem::unlink(process.path());
                    last_thread::end_process();
                }
            }
            if let Err(errno) = service.detach() {
                // Otherwise peers' memory would stay mapped, or change under what the program has received.
                mem::write_stderr(format_args!("uncopy: no memory to end lanes with ({errno:?})\n"));
                std::process::abort();
            }
        }
    }
    argument
}

/// Makes this process's lanes; runs in their thread.
fn make(Config { directory, scope, max_bytes }: Config) -> Result<(&'static Process, LaneThread), Errno> {
    let id = ids::random().filter(|id| *id != 0).ok_or(Errno(libc::EAGAIN))?;
    let board = SharedMemory::make(c"uncopy-board", board_bytes())?;
    // SAFETY: the mapping is a page-aligned `Board` that lives as long as the service; zero is valid for its
    // atomics.
    let words = unsafe { &*(board.base() as *const Board) };
    let directory = directory.to_str().map_err(|_| Errno(libc::EINVAL))?;
    let path =
        CString::new(format!("{directory}/{id:016x}{SOCKET_SUFFIX}")).map_err(|_| Errno(libc::EINVAL))?;
    let process: &'static Process = Box::leak(Box::new(Process::new(Lanes::new(id, words), path, scope)));
    process.lanes().peers.pool.limit(max_bytes);
    let service = LaneThread::begin(process.lanes(), board, process.path(), || others(directory))?;
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Release);
    uncopy_trials::count_peers(peers_cpu_ns);
    Ok((process, service))
}

/// Processor time that peers have used since they were sent something large, nanoseconds.
fn peers_cpu_ns() -> u64 {
    crate::process::process().map_or(0, |process| process.lanes().peers.cpu_ns())
}

/// Returns the ids of the processes that listen in a directory, and the paths of their sockets.
fn others(directory: &str) -> Vec<(u64, CString)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let id = u64::from_str_radix(name.strip_suffix(SOCKET_SUFFIX)?, 16).ok()?;
        Some((id, CString::new(entry.path().into_os_string().into_encoded_bytes()).ok()?))
    });
    others.collect()
}

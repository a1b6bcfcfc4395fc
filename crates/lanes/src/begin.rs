//! How a process's lanes begin: a thread, a socket in the directory where processes meet, links with those that are there.

extern crate alloc;
use crate::board::Board;
use crate::process::{PROCESS, Process};
use crate::service::{Lanes, SUFFIX, Service, board_bytes};
use alloc::ffi::CString;
use core::ffi::c_void;
use uncopy_core::scope::Scope;
use uncopy_sys::errno::Errno;
use uncopy_sys::guarded::Guarded;
use uncopy_sys::handler::Start;
use uncopy_sys::last_thread::{self, Role};
use uncopy_sys::mem::{self, Shared};
use uncopy_sys::sync::atomic::Ordering::Release;
use uncopy_sys::{ids, wait};

/// How long the thread sleeps at most: it looks then whether peers have given memory back.
const SLEEP_MS: i32 = 1000;

static START: Start = Start::new(Role::Lanes);

/// What the thread begins with.
struct Beginning {
    directory: CString,
    scope: Scope<'static>,
    max_bytes: usize,
}

static BEGINNING: Guarded<Option<Beginning>> = Guarded::new(None);

/// Begins: this process can be linked with, and links with those that wait in `directory`, which only its owner can
/// enter. Streams in `scope` may become lanes; shared memory takes `max_bytes` at most.
///
/// # Errors
/// EPERM if the directory is not one that only its owner can enter; else what memory, the thread or the socket need and do not
/// get.
pub fn begin(directory: &str, scope: Scope<'static>, max_bytes: usize) -> Result<(), Errno> {
    let directory = CString::new(directory).map_err(|_| Errno(libc::EINVAL))?;
    mem::make_private_directory(&directory)?;
    *BEGINNING.lock() = Some(Beginning { directory, scope, max_bytes });
    START.run(serve, 0)
}

extern "C" fn serve(argument: *mut c_void) -> *mut c_void {
    let _critical = uncopy_sys::lock::Critical::enter();
    let beginning = BEGINNING.lock().take();
    // Before a descriptor is made: where it is refused (seccomp), they are the program's to close.
    let (_, mut last_thread) = START.isolate([-1, -1]);
    match beginning.ok_or(Errno(libc::EINVAL)).and_then(make) {
        Err(errno) => START.tell(Err(errno)),
        Ok((process, mut service)) => {
            START.tell(Ok(()));
            while !process.is_stopping() {
                service.turn();
                let program = Some(last_thread.fd()).filter(|fd| *fd >= 0);
                wait::for_any(service.descriptors().chain(program), SLEEP_MS);
                if last_thread.has_ended(program.is_some_and(wait::is_ready)) {
                    mem::unlink(process.path());
                    last_thread::end_process();
                }
            }
            if let Err(errno) = service.detach() {
                // Others' memory would stay where it must not, or change below what the program has received.
                mem::say(format_args!("uncopy: no memory to end lanes with ({errno:?})\n"));
                std::process::abort();
            }
        }
    }
    argument
}

/// Makes what this process has, in its thread.
fn make(Beginning { directory, scope, max_bytes }: Beginning) -> Result<(&'static Process, Service), Errno> {
    let id = ids::random().filter(|id| *id != 0).ok_or(Errno(libc::EAGAIN))?;
    let board = Shared::make(c"uncopy-board", board_bytes())?;
    // SAFETY: zeroed memory of that length, mapped for good; all of a board is atomic words, for which zero is valid.
    let words = unsafe { &*(board.base() as *const Board) };
    let directory = directory.to_str().map_err(|_| Errno(libc::EINVAL))?;
    let path = CString::new(format!("{directory}/{id:016x}{SUFFIX}")).map_err(|_| Errno(libc::EINVAL))?;
    let process: &'static Process = Box::leak(Box::new(Process::new(Lanes::new(id, words), path, scope)));
    process.lanes().peers.pool.limit(max_bytes);
    let service = Service::begin(process.lanes(), board, process.path(), || others(directory))?;
    PROCESS.store(core::ptr::from_ref(process).cast_mut(), Release);
    uncopy_trials::count_others(peers_cpu_ns);
    Ok((process, service))
}

/// What peers have used for what is sent to them.
fn peers_cpu_ns() -> u64 {
    crate::process::process().map_or(0, |process| process.lanes().peers.cpu_ns())
}

/// The processes whose sockets are in a directory, with the sockets' names.
fn others(directory: &str) -> Vec<(u64, CString)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let id = u64::from_str_radix(name.strip_suffix(SUFFIX)?, 16).ok()?;
        Some((id, CString::new(entry.path().into_os_string().into_encoded_bytes()).ok()?))
    });
    others.collect()
}

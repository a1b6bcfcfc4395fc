//! `libuncopy.so`: hooks in front of libc's functions, and nothing else.
//!
//! Every hook is a few lines: decide, call the engine, else call libc. Calls below the threshold go to libc by a
//! compare and a tail jump ([`uncopy_interpose`] describes how).
//!
//! | module | hooks |
//! |---|---|
//! | [`reading`] | read, recv and their families |
//! | [`writing`] | write, send and their families |
//! | [`passing`] | sendfile, splice, copy_file_range, for recordings |
//! | [`pipeline`] | none: the stages that calls of both pass through |
//! | [`messages`] | none: common parts of recvmmsg and sendmmsg |
//! | [`mapping`] | mprotect, madvise, munmap and the like on malloc's memory; close and its like |
//! | [`credentials`] | setuid and its family, setgroups, capset: end what is shared with other processes |
//! | [`loading`] | dlopen, dlclose |
//! | [`limits`] | calls that restrict the process: seccomp, setrlimit, mlockall |
//! | [`process`] | `_Fork`, `_exit`; fork through `pthread_atfork` |
//! | [`calls`] | `clone`, and `syscall` where it makes or ends a process |
//! | [`namespaces`] | unshare and setns |
//! | [`signals`] | sigaction and its older relatives: handlers are wrapped |
//! | [`requests`] | ioctls of the program's own userfaultfd |
//! | [`sockets`] | ioctl and setsockopt, where they matter to lanes, files or a service of TCP |
//! | [`start`] | none: actions when the library is loaded |
//! | [`exit`] | none: actions at the end of the process |
//! | [`uncopy_memory_hooks`] | memcpy, malloc and their families |
//! | [`uncopy_exec_hooks`] | exec and its family, posix_spawn, system, popen |
//! | [`uncopy_store_hooks`] | open, fsync and their families, and other changes of files, for `--log` |
//! | [`uncopy_net_hooks`] | bind, listen, connect, accept and their like, for `--net` |
//! | [`uncopy_lanes_hooks`] | none: receives and sends on lanes |
//!
//! Exported functions have libc's contracts; their safety conditions are those of the C standard and of POSIX for
//! the function of the same name.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "each hook has the contract of the libc function of the same name"
)]
#![allow(missing_docs, reason = "as above")]

#[cfg(target_arch = "x86_64")]
mod calls;
mod credentials;
mod exit;
mod limits;
mod loading;
mod mapping;
mod messages;
mod namespaces;
mod passing;
mod pipeline;
mod process;
mod reading;
mod requests;
#[cfg(target_arch = "x86_64")]
mod signals;
mod sockets;
mod start;
mod stdio;
mod writing;

use uncopy_exec_hooks as exec;
use uncopy_lanes_hooks as lanes;
use uncopy_memory_hooks as memory;
use uncopy_net_hooks as net;
use uncopy_store_hooks as files;

/// Links in the twin allocator's C interface, whose `uncopy_` functions nothing here calls.
pub use uncopy_capi as interface;

// The engine and the kernel must agree on the page size.
const _: () = assert!(uncopy_core::addr::PAGE_BYTES == uncopy_sys::PAGE_BYTES);
// Any path that the options allow must be usable by a service.
const _: () = assert!(uncopy_core::options::MAX_NET_BYTES == uncopy_net::paths::MAX_CONTROL_PATH_BYTES);

/// Global allocator, so that uncopy's own data never live in the program's heap.
#[global_allocator]
static PRIVATE: uncopy_sys::alloc::PrivateHeap = uncopy_sys::alloc::PrivateHeap::new();

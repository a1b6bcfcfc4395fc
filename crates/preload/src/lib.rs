//! `libuncopy.so`: stands between a program and libc, and does nothing else.
//!
//! Every hook is a few lines: decide, call the engine, else go to libc. What is below the threshold
//! goes there by a compare and a tail jump ([`uncopy_interpose`] describes how).
//!
//! | module | hooks |
//! |---|---|
//! | [`memory`] | memcpy, memmove, mempcpy, bcopy and their FORTIFY variants |
//! | [`allocation`] | malloc and its family |
//! | [`families`] | what other allocators than glibc's have beside it; free_sized, `__libc_free` and their like |
//! | [`first`] | none: functions of malloc's family in front of ours, and second names |
//! | [`reading`] | read, recv and their families |
//! | [`writing`] | write, send and their families |
//! | [`passing`] | sendfile, splice, copy_file_range, for recordings |
//! | [`messages`] | none: what recvmmsg and sendmmsg have in common |
//! | [`mapping`] | mprotect, madvise, munmap and the like on malloc's memory; close and its like |
//! | [`credentials`] | setuid and its family, setgroups, capset: what is shared with other processes ends |
//! | [`loading`] | dlopen, dlclose |
//! | [`limits`] | calls after which the kernel allows less: seccomp, setrlimit, mlockall |
//! | [`process`] | `_Fork`, `_exit`; fork through `pthread_atfork` |
//! | [`executing`] | exec and its family, posix_spawn, system, popen |
//! | [`successor`] | none: which environment another program gets |
//! | [`calls`] | `clone`, and `syscall` where it makes or ends a process |
//! | [`namespaces`] | unshare and setns |
//! | [`signals`] | sigaction and its older relatives: handlers are wrapped |
//! | [`lanes`] | none: what receives and sends do on lanes |
//! | [`requests`] | what a userfaultfd of the program's own is asked for |
//! | [`sockets`] | ioctl and setsockopt, where they matter to lanes, files or a service of TCP |
//! | [`net`] | bind, listen, connect, accept and their like, for `--net` |
//! | [`files`] | open, fsync and their families, and what changes files otherwise, for `--log` |
//! | [`start`] | none: what happens when the library is loaded |
//! | [`exit`] | none: what is done once before the process ends |
//!
//! Exported functions have libc's contracts; their safety conditions are those of the C standard and
//! of POSIX for the function of the same name.
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

mod allocation;
#[cfg(target_arch = "x86_64")]
mod calls;
mod credentials;
mod executing;
mod exit;
mod families;
mod files;
mod first;
mod lanes;
mod lending;
mod limits;
mod loading;
mod mapping;
mod memory;
mod messages;
mod namespaces;
mod net;
mod passing;
mod process;
mod reading;
mod requests;
#[cfg(target_arch = "x86_64")]
mod signals;
mod sockets;
mod start;
mod stdio;
mod successor;
mod writing;

/// Links the C interface to the twin allocator in, whose `uncopy_` functions nothing here calls.
pub use uncopy_capi as interface;

// The engine's pages and the kernel's are the same.
const _: () = assert!(uncopy_core::addr::PAGE_BYTES == uncopy_sys::PAGE_BYTES);
// The paths that are legal, and those that a service can have.
const _: () = assert!(uncopy_core::options::MAX_NET_BYTES == uncopy_net::places::MAX_CONTROL_BYTES);

/// uncopy's own data never live in the program's heap.
#[global_allocator]
static PRIVATE: uncopy_sys::alloc::Private = uncopy_sys::alloc::Private::new();

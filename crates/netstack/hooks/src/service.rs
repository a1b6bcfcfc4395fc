//! The program's access to the user-level TCP service.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use uncopy_engine::state::phase::handle_all_stream_io;
use uncopy_net::client::Client;
use uncopy_sys::filter::{self, CallGroup};
use uncopy_sys::lock::Critical;
use uncopy_sys::{errno, features};

/// Maximum backlog of a listener (the default of net.core.somaxconn since Linux 5.4).
pub const MAX_BACKLOG: u32 = 4096;

static CLIENT: AtomicPtr<Client> = AtomicPtr::new(core::ptr::null_mut());

/// Returns the client of the service; `None`: the program uses none.
#[inline(always)]
pub fn client() -> Option<&'static Client> {
    // SAFETY: the pointer is null or comes from `Box::leak` in `switch_on`; the client is never freed.
    unsafe { CLIENT.load(Acquire).as_ref() }
}

#[inline(always)]
pub fn is_on() -> bool {
    client().is_some()
}

/// Connects to the service. Returns the folder of its lanes; `None`: it does not answer, which was reported.
pub fn switch_on(control: &[u8]) -> Option<&'static str> {
    if !filter::allows(CallGroup::Ipc) {
        uncopy_sys::mem::write_stderr(format_args!(
            "uncopy: no net: a filter of system calls does not let it through\n"
        ));
        return None;
    }
    match Client::new(control) {
        Ok(client) => {
            let client = Box::leak(Box::new(client));
            features::set_active();
            CLIENT.store(client, Release);
            if let Some(process) = client.service_pid() {
                uncopy_lanes::lane_thread::trust(process);
            }
            handle_all_stream_io();
            Some(client.lanes_directory())
        }
        Err(why) => {
            let control = control.escape_ascii();
            uncopy_sys::mem::write_stderr(format_args!(
                "uncopy: no net: nobody answers at {control} ({why:?}); see 'uncopy doctor'\n"
            ));
            None
        }
    }
}

/// Disables the hooks: from here on no socket is looked at.
pub fn disable() {
    CLIENT.store(core::ptr::null_mut(), Release);
}

/// Keeps a connection to the service open before a change of user or root directory makes connecting
/// impossible.
pub fn before_change() {
    if let Some(client) = client() {
        let _errno = errno::SavedErrno::new();
        let _critical = Critical::enter();
        client.keep_connection();
    }
}

/// Returns whether an address has the family of `domain`.
pub const fn matches_domain(domain: c_int, address: &SocketAddr) -> bool {
    address.is_ipv6() == (domain == libc::AF_INET6)
}

/// Returns the unspecified address of a domain, with port 0.
pub const fn unspecified_address(domain: c_int) -> SocketAddr {
    match domain {
        libc::AF_INET6 => SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        _ => SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    }
}

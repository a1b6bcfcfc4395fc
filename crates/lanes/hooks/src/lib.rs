//! Hooks of lanes: receives and sends on streams that may be lanes. Without `--lanes`, each costs one load.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

mod descriptors;
mod input_memory;
mod lent;
mod receive;
mod send;
mod startup;

pub use descriptors::{
    before_exec, before_privilege_change, before_spawn, end, end_all, end_if_started, invalidate_copies,
};
pub use receive::{discard, fill, make_passthrough, receivable, receive, receive_message};
pub use send::{send, send_unchanged, transfer};
pub use startup::{allow_start_in_child, is_on};
use uncopy_core::scope::Scope;
use uncopy_fdtable::{self as fdtable, Feature};

/// Enables lanes for the life of the process: new streams in `scope` between processes that meet in `directory`
/// may become lanes, streams open now may not. Shared memory is limited to `max_bytes`.
pub fn switch_on(scope: Scope<'_>, directory: &[u8], max_bytes: Option<usize>) {
    fdtable::register(Feature::Lanes, &descriptors::FD_CALLBACKS);
    startup::switch_on(scope, directory, max_bytes);
}

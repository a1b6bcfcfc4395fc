//! Hooks of lanes: receives and sends on streams that may be lanes. Without `--lanes`, each costs one load.
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

mod descriptors;
mod lent;
mod meeting;
mod receive;
mod room;
mod send;

pub use descriptors::{before_change, before_exec, before_spawn, changed, end, end_all, end_begun};
pub use meeting::{begin_anew, is_on};
pub use receive::{discard, fill, leave, receivable, receive, receive_message};
pub use send::{pass, send, send_literally};
use uncopy_core::scope::Scope;
use uncopy_fdtable::{self as fdtable, Feature};

/// Enables lanes for the life of the process: new streams in `scope` between processes that meet in `directory`
/// may become lanes, streams open now may not. Shared memory is limited to `max_bytes`.
pub fn switch_on(scope: Scope<'_>, directory: &[u8], max_bytes: Option<usize>) {
    fdtable::follow(Feature::Lanes, &descriptors::FOLLOWER);
    meeting::switch_on(scope, directory, max_bytes);
}

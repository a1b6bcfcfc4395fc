//! Stages of a call that moves bytes between the program's memory and a descriptor, in this order. Each stage
//! makes the call by the next one, or completes it itself.
//!
//! | stage | a send | a receive |
//! |---|---|---|
//! | [`observe`] | counts the bytes moved, and records them | the same, and notes where large input arrived |
//! | [`service`] | reports the error of a service's connection (`--net`), and raises its signal | the same; reads what came before the program shut the connection |
//! | [`lane`] | sends large parts by reference (`--lanes`) | receives references |
//! | [`log`] | logs writes to files that take part in a log (`--log`) | has the log write to a file first (`--log-mode only`) |
//! | [`engine`] | gathers parts whose bytes lie elsewhere, or lends them to the kernel | lets the kernel fill the engine's buffers |
//! | system call | the program's, with its own buffers or the engine's | the same |
//!
//! A hook describes its call by an [`Op`], and provides a closure that makes the call with other buffers. A new
//! feature is a stage here; a new libc function is a hook in `reading.rs` or `writing.rs`. Calls of several
//! messages (sendmmsg, recvmmsg) do not use the pipeline.

mod engine;
mod lane;
mod lending;
mod log;
mod observe;
mod op;
mod service;

pub use engine::may_have_views;
use libc::ssize_t;
pub use op::{Buffers, Op};
use uncopy_sys::iovec::Part;

/// Runs a stage if the call is a candidate, else continues with the next. The test is a load and a compare.
macro_rules! stage {
    ($stage:ident::$way:ident($op:ident $(, $argument:expr)*), $next:expr) => {
        if $stage::is_candidate($op) { $stage::$way($op $(, $argument)*, &|| $next) } else { $next }
    };
}

/// Makes a call that sends bytes. `call` makes the program's own: unchanged, or with parts as its buffers.
#[inline(always)]
pub fn send(op: &Op, call: impl Fn(Option<&[Part]>) -> ssize_t) -> ssize_t {
    observe::send(op, || {
        service::send(op, || stage!(lane::send(op), stage!(log::send(op, &call), engine::send(op, &call))))
    })
}

/// Makes a call that receives bytes; `call` as for [`send`].
#[inline(always)]
pub fn receive(op: &Op, call: impl Fn(Option<&[Part]>) -> ssize_t) -> ssize_t {
    observe::receive(op, || {
        service::receive(op, || {
            stage!(lane::receive(op), stage!(log::receive(op), engine::receive(op, &call)))
        })
    })
}

/// Makes a receive that does not store its bytes (MSG_TRUNC), without the engine.
#[inline(always)]
pub fn discard(op: &Op, call: impl FnOnce() -> ssize_t) -> ssize_t {
    service::discard(op, || lane::discard(op, call))
}

#[cfg(test)]
mod tests {
    /// Source of this file, whose table lists the stages.
    const SOURCE: &str = include_str!("pipeline.rs");

    fn listed(column: usize) -> Vec<&'static str> {
        let rows = SOURCE.lines().filter_map(|line| line.strip_prefix("//! | [`"));
        let does_something =
            |row: &&str| !row.split('|').nth(column).is_some_and(|cell| cell.trim().is_empty());
        rows.filter(does_something).filter_map(|row| row.split_once('`').map(|(name, _)| name)).collect()
    }

    /// Returns the stages that a function names, in order.
    fn named(function: &str) -> Vec<&'static str> {
        let (_, behind) = SOURCE.split_once(&format!("pub fn {function}(")).expect("the function");
        let (body, _) = behind.split_once("\n}").expect("its end");
        let words =
            body.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != ':' && letter != '_');
        let suffix = format!("::{function}");
        words.filter_map(|word| word.strip_suffix(suffix.as_str())).collect()
    }

    #[test]
    fn stages_follow_one_another_as_the_table_says() {
        assert_eq!(listed(1), ["observe", "service", "lane", "log", "engine"]);
        assert_eq!(named("send"), listed(1));
        assert_eq!(named("receive"), listed(2));
    }
}

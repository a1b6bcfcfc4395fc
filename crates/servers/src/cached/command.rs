//! What a command line leads to, of the classic commands as of the meta commands.

use crate::cached::cache::Caller;
use crate::cached::expiry::Expiry;
use crate::cached::statistics::Counter;
use crate::cached::store::Offer;
use crate::cached::value::{Draft, END_OF_LINE};

/// What a command that asks for values wants.
#[derive(Clone, Copy, Debug)]
pub struct Retrieval {
    /// The versions too.
    pub with_cas: bool,
    /// The items to expire then.
    pub touch: Option<Expiry>,
}

/// A value that is on its way.
#[derive(Debug)]
pub struct Storing {
    /// Its bytes so far.
    pub draft: Draft,
    /// Where it goes.
    pub key: Box<[u8]>,
    /// How it is to be stored.
    pub offer: Offer,
    /// What the client is told.
    pub answer: Answer,
}

/// How the outcome of storing is told.
#[derive(Debug)]
pub enum Answer {
    /// As the classic commands do, or not at all.
    Text {
        /// The client does not want to know.
        is_silent: bool,
    },
    /// As meta commands do.
    Meta {
        /// The client wants to know of failures only.
        is_quiet: bool,
        /// The flags of the request, as they came.
        flags: Box<[u8]>,
    },
}

/// What follows a command line.
#[derive(Debug)]
pub enum Next {
    /// The next command.
    Line,
    /// Keys.
    Keys(Retrieval),
    /// A value.
    Body(Box<Storing>),
    /// A value that is refused, bytes.
    Skip(usize),
    /// Nothing: the client said good-bye.
    Close,
}

/// Room for a value of `len_bytes` under `key`, or why not, as the answer.
///
/// # Errors
/// The line that tells the client.
pub fn begin_value(key: &[u8], len_bytes: usize, caller: &Caller<'_>) -> Result<Draft, &'static str> {
    let store = &caller.cache.store;
    if !store.may_hold(key.len(), len_bytes) {
        caller.count(Counter::TooLarge);
        return Err("SERVER_ERROR object too large for cache");
    }
    Draft::new(len_bytes, store.budget()).ok_or_else(|| {
        caller.count(Counter::NoMemory);
        "SERVER_ERROR out of memory storing object"
    })
}

/// What a refused value of `len_bytes` still sends.
pub fn refused(len_bytes: usize) -> Next {
    Next::Skip(len_bytes.saturating_add(END_OF_LINE.len()))
}

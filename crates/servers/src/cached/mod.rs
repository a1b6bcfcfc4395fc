//! `uncopy-cached`: a cache that speaks memcached's protocol, its values in twin memory.
//!
//! ```text
//!   server      threads, accepting, ending        listening   sockets
//!   worker      one thread's clients ─┬─ connection  one client by TCP or a UNIX socket
//!                                     └─ datagrams   requests and answers by UDP
//!   session     the protocol, bytes in, answers out: tokens, text, meta (command, arithmetic, number)
//!   response    what waits to be sent             outlet      how it leaves: copied or by reference, by a lane
//!   store       items by key, in stripes          budget      how much memory they may use
//!   value       the bytes of items in twin memory
//!   cache       what all of these share           statistics, expiry
//! ```
//!
//! Invariants: a value is never written once it is complete; twin memory holds values with their line ends, and nothing
//! else; what a client can make the server hold is bounded (a line, one value to come, one full response).

mod arguments;
mod arithmetic;
mod budget;
mod cache;
mod command;
mod connection;
mod datagrams;
mod expiry;
mod lane;
mod listening;
mod meta;
mod number;
mod outlet;
mod response;
mod server;
mod session;
mod statistics;
mod store;
mod stripe;
mod text;
mod tokens;
mod value;
mod worker;

pub use arguments::Settings;

impl crate::Program for Settings {
    const NAME: &'static str = "uncopy-cached";

    fn wants_manual(&self) -> bool {
        self.man
    }

    fn manual() -> std::io::Result<Vec<u8>> {
        arguments::manual()
    }

    fn run(self) -> Result<(), String> {
        server::run(self)
    }
}

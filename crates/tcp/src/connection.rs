//! One connection: the state machine of RFC 9293.
//!
//! Its driver calls [`Connection::on_segment`], [`Connection::on_timer`] or what the program does, then takes segments by
//! [`Connection::poll_transmit`] until there is none, then asks for [`Connection::deadline_ns`].

mod input;
mod output;
mod state;
mod statistics;
mod timers;

pub use state::{Connection, Events, Received, State};
pub use statistics::Statistics;

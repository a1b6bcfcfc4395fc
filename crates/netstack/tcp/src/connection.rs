//! One connection: the state machine of RFC 9293.
//!
//! After each call of [`Connection::on_segment`], [`Connection::on_timer`] or a program's call, the driver
//! calls [`Connection::poll_transmit`] until it returns `None`, then reads [`Connection::deadline_ns`].

mod calls;
mod input;
mod output;
mod state;
mod statistics;
mod timers;

pub use state::{Connection, Events, Received, State};
pub use statistics::Statistics;

//! TCP without input and output.
//!
//! ```text
//!            packet in            packet out
//!                │                    ▲
//!         ┌──────▼────────────────────┴──────┐
//!   time ►│  wire ── stack ── connection     │
//!         └──────▲────────────────────┬──────┘
//!          send, close            receive, events
//! ```
//!
//! There is no socket, clock or thread in it. Whoever drives it says what happens and when (`now_ns`, any clock that never goes
//! back), and takes out what is to be sent; the same events give the same packets. Payload is the type parameter of
//! [`payload::Payload`]: of it, only the length and parts by reference are used, so no byte is read or copied here. Sent
//! payload is kept until it is acknowledged, and retransmitted from there. The checksum of payload is the link's.
//!
//! Inside, a byte's place in a stream is a [`sequence::Position`], which never wraps.
//!
//! | module | what it is |
//! |---|---|
//! | [`payload`], [`sequence`], [`ranges`] | bytes by reference, places in a stream, sets of places |
//! | [`options`], [`segment`], [`wire`] | a TCP segment, and as it is in a packet |
//! | [`send`], [`receive`] | bytes until they are acknowledged, or read |
//! | [`recovery`], [`congestion`], [`rtt`] | what is lost, how much may be on its way, how long to wait |
//! | [`connection`] | the state machine, its timers, what it sends |
//! | [`stack`], [`secret`] | all connections and listeners; numbers that others cannot foresee |
//! | `oracles` | hostile peers, for tests and fuzzing |
//! | [`config`], [`error`] | what a connection is told, and what it says |
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "64-bit machines; what becomes smaller is bounded where it does"
)]

pub mod config;
pub mod congestion;
pub mod connection;
pub mod error;
pub mod options;
#[cfg(any(test, feature = "oracles"))]
pub mod oracles;
pub mod payload;
pub mod ranges;
pub mod receive;
pub mod recovery;
pub mod rtt;
pub mod secret;
pub mod segment;
pub mod send;
pub mod sequence;
pub mod stack;
pub mod wire;

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
//! The driver reports events with their time (`now_ns`, from any monotonic clock) and takes out the
//! segments to send. The crate has no socket, clock or thread; the same events give the same
//! segments. Of the payload ([`payload::Payload`]) it uses the length and sub-ranges by reference,
//! and neither reads nor copies a byte; the link handles the payload's checksum. Sent payload is
//! kept until acknowledged, and retransmitted from there.
//!
//! Inside, a byte's place in a stream is a [`sequence::Position`], which never wraps.
//!
//! | module | what it is |
//! |---|---|
//! | [`payload`], [`sequence`], [`ranges`] | bytes by reference, stream positions, sets of positions |
//! | [`options`], [`segment`], [`wire`] | a TCP segment, and its form in a packet |
//! | [`send`], [`receive`] | bytes until acknowledged, and until read |
//! | [`recovery`], [`congestion`], [`rtt`] | loss detection, congestion control, retransmission timeout |
//! | [`connection`] | the state machine, its timers, and segments to send |
//! | [`stack`], [`secret`] | all connections and listeners; unpredictable numbers |
//! | `oracles` | hostile peers, for tests and fuzzing |
//! | [`config`], [`error`] | options of a connection, and its errors |
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

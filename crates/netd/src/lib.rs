//! `uncopy net`: a service that has a TCP of its own, for programs of its user.
//!
//! ```text
//!           link (TUN)                          programs
//!               │ packets                          ▲ UNIX streams, large parts by reference (lanes)
//!   ┌───────────▼──────────┐  segments  ┌──────────┴──────────┐
//!   │ rooms: shared memory ├───────────►│ TCP ──► streams     │
//!   └──────────────────────┘            └─────────────────────┘
//! ```
//!
//! What the link receives lies in shared memory from the beginning; a program gets it by reference. What a program sends by
//! reference is given to the link from where it is, and kept until the peer has acknowledged it. One thread does everything but link
//! processes for lanes.
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | what the service is told |
//! | [`payload`], [`rooms`], [`filling`] | received and sent bytes by reference, memory for them, and how packets fill it |
//! | [`stream`] | a program's end of a connection |
//! | [`connection`] | a connection that a program has |
//! | [`slots`], [`listeners`] | connections and listeners, by what programs know them by |
//! | [`control`] | questions of programs |
//! | [`icmp`] | what ICMP says of segments, and echo |
//! | [`list`] | what there is, as JSON |
//! | [`directory`] | the folder where programs find the service |
//! | [`service`] | all of it, in a loop: `packets` between the link and TCP, `streams` between TCP and programs |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

mod connection;
pub mod control;
pub mod directory;
pub mod filling;
pub mod icmp;
pub mod list;
pub mod listeners;
pub mod payload;
pub mod rooms;
pub mod service;
pub mod settings;
pub mod slots;
pub mod stream;

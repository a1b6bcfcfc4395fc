//! `uncopy net`: a service with its own TCP for the programs of its user.
//!
//! ```text
//!           link (TUN)                          programs
//!               │ packets                          ▲ UNIX streams, large parts by reference (lanes)
//!   ┌───────────▼──────────┐  segments  ┌──────────┴──────────┐
//!   │ shared memory        ├───────────►│ TCP ──► streams     │
//!   └──────────────────────┘            └─────────────────────┘
//! ```
//!
//! Received packets are in shared memory from the start, and programs get them by reference. Bytes
//! that a program sends by reference go to the link without a copy, and are kept until the peer
//! acknowledges them. One thread does everything except connecting processes for lanes.
//!
//! | module | what it is |
//! |---|---|
//! | [`settings`] | settings of the service |
//! | [`payload`], [`receive_buffers`], [`packet_buffer`] | bytes by reference, buffers for them, and how packets fill buffers |
//! | [`stream`] | a program's end of a connection |
//! | [`connection`] | a connection of a program |
//! | [`slots`], [`listeners`] | connections by slot and serial number; bound sockets |
//! | [`control`] | requests of programs |
//! | [`icmp`] | ICMP errors for segments, and echo |
//! | [`list`] | the JSON document of `uncopy net ls` |
//! | [`directory`] | the directory where programs find the service |
//! | [`service`] | the event loop: `packets` between link and TCP, `streams` between TCP and programs |
#![cfg(target_os = "linux")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "addresses and lengths have 64 bits, here as in the kernel's structures"
)]

mod connection;
pub mod control;
pub mod directory;
pub mod icmp;
pub mod list;
pub mod listeners;
pub mod packet_buffer;
pub mod payload;
pub mod receive_buffers;
pub mod service;
pub mod settings;
pub mod slots;
pub mod stream;

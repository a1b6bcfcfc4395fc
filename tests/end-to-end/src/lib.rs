//! End-to-end tests of uncopy: what the test programs and the harness that drives them share.
//!
//! Two sides use this library:
//!
//! - the *harness* (`tests/e2e`) starts programs plain or under `libuncopy.so` in one of several
//!   [`Mode`]s, waits for them with a deadline, reports every thread's stack when one hangs, and
//!   reads the counters that the program leaves behind, so that no test passes because nothing
//!   was elided: [`artifacts`], [`launch`], [`running`], [`counters`], [`scenario`], [`scratch`],
//!   [`programs`], [`shares`], [`lane_programs`], [`packaged_server`], [`redis`], [`memcached`], [`http`], [`crash_cycles`];
//! - the *programs* (`src/bin/*.rs`, and `programs/*.c`) run under uncopy and check their own memory byte by byte
//!   against mirrors that no interposed call ever touches: [`calls`], [`mirror`], [`oracle`], [`feeder`],
//!   [`forked`], [`connected_pairs`], [`endpoint`], [`jump`], [`random`].
//!
//! Environment of the harness:
//!
//! | variable | effect |
//! |---|---|
//! | `UNCOPY_BIN_DIR` | directory of `libuncopy.so`, `uncopy` and `uncopy-bench` (default: `target/release`) |
//! | `UNCOPY_TEST_PLAIN=1` | start every program directly: checks the tests themselves |
//! | `UNCOPY_TEST_SEED` | seed of every random walk (default: fixed seeds) |
//! | `UNCOPY_TEST_SIZE` | size of random and long tests: 1 in `make test`, 10 in `make test-all` |
//! | `UNCOPY_TEST_KEEP=1` | keep the scratch directories |

pub mod artifacts;
pub mod calls;
pub mod connected_pairs;
pub mod counters;
pub mod crash_cycles;
pub mod endpoint;
pub mod fault_injection;
pub mod feeder;
pub mod forked;
pub mod http;
pub mod jump;
pub mod lane_programs;
pub mod launch;
pub mod log_runs;
pub mod memcached;
pub mod mirror;
pub mod mode;
pub mod net_service;
pub mod oracle;
pub mod packaged_server;
pub mod programs;
pub mod random;
pub mod recordings;
pub mod redis;
pub mod resources;
pub mod restrictions;
pub mod running;
pub mod scenario;
pub mod scratch;
pub mod shares;
pub mod stepped;
pub mod unwound;

pub use launch::{Mode, Program};
pub use scratch::Scratch;

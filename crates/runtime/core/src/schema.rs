//! Versions of the JSON documents that uncopy writes, each in the top-level field `schema`.
//!
//! A version is raised if a reader of the previous one would go wrong because a field is gone or has
//! another meaning. New fields do not raise it. `docs/reference.md` lists the documents.

/// Version of a process's counters: a line of `uncopy stats`, the file of `--stats`.
pub const STATS: u32 = 1;
/// Version of `uncopy ps --json`.
pub const PS: u32 = 1;
/// Version of `uncopy doctor --json`.
pub const DOCTOR: u32 = 1;
/// Version of `uncopy doctor --calibrate --json`.
pub const CALIBRATION: u32 = 1;
/// Version of `uncopy run --explain FILE.json`.
pub const EXPLAIN: u32 = 1;
/// Version of `uncopy profile` and `uncopy report --json`; also in their `version`, for readers of uncopy
/// 0.1.
pub const PROFILE: u32 = 1;
/// Version of `uncopy report --diff A B --json`.
pub const DIFF: u32 = 1;
/// Version of `uncopy profile --pid --json` and `uncopy profile -a --json`: samples.
pub const SAMPLES: u32 = 1;
/// Version of `uncopy log ls --json`.
pub const LOG: u32 = 1;
/// Version of `uncopy net ls --json` and `uncopy net stats --json`.
pub const NET: u32 = 1;
/// Version of `uncopy-bench EXPERIMENT --json`.
pub const BENCH: u32 = 1;

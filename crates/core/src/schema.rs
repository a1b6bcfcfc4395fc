//! Versions of the JSON documents that uncopy writes: each says its own in the field `schema`, at its top.
//!
//! A version is raised where a reader of the one before would go wrong: a field has gone, or means something else. New fields
//! may come at any time. `docs/reference.md` lists the documents.

/// One process's counters: a line of `uncopy stats`, the file of `--stats`.
pub const STATS: u32 = 1;
/// `uncopy ps --json`.
pub const PS: u32 = 1;
/// `uncopy doctor --json`.
pub const DOCTOR: u32 = 1;
/// `uncopy doctor --calibrate --json`.
pub const CALIBRATION: u32 = 1;
/// `uncopy run --explain FILE.json`.
pub const EXPLAIN: u32 = 1;
/// What `uncopy profile` writes and `uncopy report --json` prints. Its `version` is the same, for readers of uncopy 0.1.
pub const PROFILE: u32 = 1;
/// `uncopy report --diff A B --json`.
pub const DIFF: u32 = 1;
/// `uncopy log ls --json`.
pub const LOG: u32 = 1;
/// `uncopy net ls --json` and `uncopy net stats --json`.
pub const NET: u32 = 1;
/// `uncopy bench EXPERIMENT --json`.
pub const BENCH: u32 = 1;
/// What `uncopy-files --stats` writes.
pub const FILES: u32 = 1;

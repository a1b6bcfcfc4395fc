//! The time that deadlines and ages are counted in. Reading it must cost next to nothing.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// What the clock shows when it is first read, milliseconds: not 0, so that there are moments that lie in the past.
pub const START_MS: u64 = 2000;

/// Milliseconds since shortly before the server started, as fine as the kernel's tick.
pub fn now_ms() -> u64 {
    static FIRST_MS: OnceLock<u64> = OnceLock::new();
    let time = clock_gettime(ClockId::MonotonicCoarse);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    let ms = part(time.tv_sec) * 1000 + part(time.tv_nsec) / 1_000_000;
    ms - FIRST_MS.get_or_init(|| ms).min(&ms) + START_MS
}

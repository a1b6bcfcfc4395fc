//! The time, looked at once for all that is done between two waits, and the date as answers give it, made
//! once a second.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A thread's clock.
#[derive(Debug)]
pub struct Clock {
    begin: Instant,
    now_ms: u64,
    now: SystemTime,
    date: String,
    date_second: u64,
}

impl Default for Clock {
    fn default() -> Self {
        let mut clock = Self {
            begin: Instant::now(),
            now_ms: 0,
            now: UNIX_EPOCH,
            date: String::new(),
            date_second: u64::MAX,
        };
        clock.look();
        clock
    }
}

impl Clock {
    /// Looks what time it is.
    pub fn look(&mut self) {
        self.now_ms = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.now = SystemTime::now();
        let second = self.now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.date_second {
            self.date = httpdate::fmt_http_date(self.now);
            self.date_second = second;
        }
    }

    /// Milliseconds since the clock was made, when it was looked at last.
    #[must_use]
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The time, when the clock was looked at last.
    #[must_use]
    pub const fn now(&self) -> SystemTime {
        self.now
    }

    /// The value of the field Date.
    #[must_use]
    pub fn date(&self) -> &str {
        &self.date
    }
}

//! The time, read at once for all that is done between two waits, and the date as answers give it, made once a second.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock;

/// A thread's clock.
#[derive(Debug)]
pub struct Clock {
    now_ms: u64,
    now: SystemTime,
    date: String,
    date_second: u64,
}

impl Default for Clock {
    fn default() -> Self {
        let mut clock = Self { now_ms: 0, now: UNIX_EPOCH, date: String::new(), date_second: u64::MAX };
        clock.update();
        clock
    }
}

impl Clock {
    /// Reads what time it is.
    pub fn update(&mut self) {
        self.now_ms = clock::now_ms();
        self.now = SystemTime::now();
        let second = self.now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.date_second {
            self.date = httpdate::fmt_http_date(self.now);
            self.date_second = second;
        }
    }

    /// Milliseconds of [`clock::now_ms`], when it was read last.
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The time, when it was read last.
    pub const fn now(&self) -> SystemTime {
        self.now
    }

    /// The value of the field Date.
    pub fn date(&self) -> &str {
        &self.date
    }
}

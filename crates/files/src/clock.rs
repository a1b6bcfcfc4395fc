//! The time, and the date as answers give it, made once a second.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A thread's clock.
#[derive(Debug)]
pub struct Clock {
    begin: Instant,
    date: String,
    date_second: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { begin: Instant::now(), date: String::new(), date_second: u64::MAX }
    }
}

impl Clock {
    /// Milliseconds since the clock was made.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time, and the value of the field Date.
    pub fn date(&mut self) -> (SystemTime, &str) {
        let now = SystemTime::now();
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        if second != self.date_second {
            self.date = httpdate::fmt_http_date(now);
            self.date_second = second;
        }
        (now, &self.date)
    }
}

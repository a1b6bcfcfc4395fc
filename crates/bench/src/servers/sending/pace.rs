//! A fixed rate: sleeps until what was sent is due.

use std::time::{Duration, Instant};

/// Being early by less is not slept away: a sleep and the wake-up that ends it cost as much as sending some 10 KiB.
const EARLY: Duration = Duration::from_micros(500);
/// What is late by more is not made up for: the rate must not be exceeded later.
const LATE: Duration = Duration::from_millis(10);

/// A rate that is kept to.
#[derive(Debug)]
pub struct Pace {
    ns_per_byte: f64,
    due: Instant,
}

impl Pace {
    /// `bits_per_s` from now on; 0: as fast as can be.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate of a few digits")]
    pub fn new(bits_per_s: u64) -> Self {
        let ns_per_byte = if bits_per_s == 0 { 0.0 } else { 8e9 / bits_per_s as f64 };
        Self { ns_per_byte, due: Instant::now() }
    }

    /// `len_bytes` were sent at `now`: returns how long to sleep.
    #[expect(clippy::cast_precision_loss, reason = "lengths of a call")]
    pub fn sent(&mut self, len_bytes: usize, now: Instant) -> Option<Duration> {
        self.due += Duration::from_secs_f64(self.ns_per_byte * len_bytes as f64 / 1e9);
        let early = self.due.saturating_duration_since(now);
        self.due = self.due.max(now.checked_sub(LATE).unwrap_or(now));
        (early > EARLY).then_some(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_add_up_to_the_rate_and_lost_time_is_not_made_up_for() {
        // 8 Mbit/s: a microsecond for each byte.
        let mut pace = Pace::new(8_000_000);
        let begin = pace.due;
        let ms = Duration::from_millis;
        assert_eq!(pace.sent(400, begin), None);
        assert_eq!(pace.sent(1600, begin), Some(ms(2)));
        assert_eq!(pace.sent(1000, begin + ms(2)), Some(ms(1)));
        assert_eq!(pace.sent(1000, begin + ms(100)), None);
        assert_eq!(pace.sent(20_000, begin + ms(100)), Some(ms(10)));
        assert_eq!(Pace::new(0).sent(1 << 30, begin), None);
    }
}

//! Rate limit: sleeps until the bytes sent are due.

use std::time::{Duration, Instant};

/// Minimum lead that is slept away: a sleep with its wake-up costs as much as sending some 10 KiB.
const MIN_SLEEP: Duration = Duration::from_micros(500);
/// Maximum delay that is made up for, so that a stall does not cause a burst above the rate.
const MAX_DEBT: Duration = Duration::from_millis(10);

/// A rate limit with the time at which the next bytes are due.
#[derive(Debug)]
pub struct Pace {
    ns_per_byte: f64,
    due: Instant,
}

impl Pace {
    /// Creates a limit of `bits_per_s` from now on; 0: unlimited.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a rate of a few digits")]
    pub fn new(bits_per_s: u64) -> Self {
        let ns_per_byte = if bits_per_s == 0 { 0.0 } else { 8e9 / bits_per_s as f64 };
        Self { ns_per_byte, due: Instant::now() }
    }

    /// Counts `len_bytes` sent at `now`, and returns how long to sleep.
    #[expect(clippy::cast_precision_loss, reason = "lengths of a call")]
    pub fn sent(&mut self, len_bytes: usize, now: Instant) -> Option<Duration> {
        self.due += Duration::from_secs_f64(self.ns_per_byte * len_bytes as f64 / 1e9);
        let early = self.due.saturating_duration_since(now);
        self.due = self.due.max(now.checked_sub(MAX_DEBT).unwrap_or(now));
        (early > MIN_SLEEP).then_some(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_add_up_to_the_rate_and_lost_time_is_not_made_up_for() {
        // At 8 Mbit/s, a byte takes a microsecond.
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

//! Round-trip time and retransmission timeout (RFC 6298).

use crate::config::{INITIAL_RTO_NS, MAX_RTO_NS, MIN_RTO_NS};

/// Smoothed round-trip time, its variation, and the retransmission timeout, in nanoseconds.
#[derive(Clone, Debug)]
pub struct RoundTrip {
    smoothed_ns: Option<u64>,
    variation_ns: u64,
    rto_ns: u64,
    backoffs: u32,
}

impl Default for RoundTrip {
    fn default() -> Self {
        Self { smoothed_ns: None, variation_ns: 0, rto_ns: INITIAL_RTO_NS, backoffs: 0 }
    }
}

impl RoundTrip {
    /// Adds a round-trip sample (sections 2.2 and 2.3). `samples` is the number of samples expected
    /// per round trip (RFC 7323, appendix G).
    pub fn measure(&mut self, sample_ns: u64, samples: u64) {
        let samples = samples.max(1);
        match self.smoothed_ns {
            None => {
                self.smoothed_ns = Some(sample_ns);
                self.variation_ns = sample_ns / 2;
            }
            Some(smoothed) => {
                let (variation_share, smoothed_share) = (4 * samples, 8 * samples);
                let distance = smoothed.abs_diff(sample_ns);
                self.variation_ns =
                    self.variation_ns - self.variation_ns / variation_share + distance / variation_share;
                self.smoothed_ns = Some(smoothed - smoothed / smoothed_share + sample_ns / smoothed_share);
            }
        }
        let smoothed = self.smoothed_ns.unwrap_or_default();
        // Linux applies the minimum to the variation's term, not to the sum, so it covers delayed ACKs.
        self.rto_ns = (smoothed + (4 * self.variation_ns).max(MIN_RTO_NS)).min(MAX_RTO_NS);
    }

    /// Returns the retransmission timeout with backoff.
    pub fn timeout_ns(&self) -> u64 {
        self.rto_ns.saturating_mul(1 << self.backoffs.min(20)).min(MAX_RTO_NS)
    }

    /// Doubles the timeout after the timer expired (section 5.5).
    pub fn back_off(&mut self) {
        self.backoffs += 1;
    }

    /// Resets the backoff after new data was acknowledged.
    pub fn reset_backoff(&mut self) {
        self.backoffs = 0;
    }

    /// Returns the number of expirations since new data was last acknowledged.
    pub fn backoffs(&self) -> u32 {
        self.backoffs
    }

    /// Returns the smoothed round-trip time, or `None` before the first sample.
    pub fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MILLISECOND_NS, SECOND_NS};

    #[test]
    fn the_timeout_follows_round_trips_and_doubles_up_to_its_bound() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout_ns(), SECOND_NS);
        round_trip.measure(200 * MILLISECOND_NS, 1);
        assert_eq!(round_trip.timeout_ns(), 600 * MILLISECOND_NS);
        for _ in 0..200 {
            round_trip.measure(50 * MILLISECOND_NS, 1);
        }
        let settled = round_trip.timeout_ns();
        assert!((250 * MILLISECOND_NS..260 * MILLISECOND_NS).contains(&settled), "{settled}");
        round_trip.back_off();
        assert_eq!(round_trip.timeout_ns(), 2 * settled);
        (0..60).for_each(|_| round_trip.back_off());
        assert_eq!(round_trip.timeout_ns(), MAX_RTO_NS);
        round_trip.reset_backoff();
        assert_eq!(round_trip.timeout_ns(), settled);
    }
}

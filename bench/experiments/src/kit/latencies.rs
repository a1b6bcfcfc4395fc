//! Histograms of exchange latencies.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 3;

/// A histogram of latencies, ns.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new(DIGITS).expect("a histogram has up to five digits"))
    }
}

impl Latencies {
    /// Records a single latency.
    pub fn record(&mut self, latency: Duration) {
        self.record_many(latency, 1);
    }

    /// Records `count` equal latencies.
    pub fn record_many(&mut self, latency: Duration, count: u64) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.0.record_n(ns, count).expect("the histogram grows");
    }

    /// Returns each latency, ns, with its number of occurrences.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
    }

    /// Adds all latencies of `others`.
    pub fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("the histogram grows");
    }

    /// Returns the number of latencies.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns the latency at `quantile` (0 to 1), µs; `None` for an empty histogram.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "three digits")]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(quantile) as f64 / 1e3)
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(all: I) -> Self {
        let mut latencies = Self::default();
        all.into_iter().for_each(|latency| latencies.record(latency));
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_have_three_digits_at_any_magnitude() {
        let ns = |ns| std::iter::once(Duration::from_nanos(ns)).collect::<Latencies>().quantile_us(0.5);
        assert_eq!((ns(0), ns(7), ns(2047)), (Some(0.0), Some(0.007), Some(2.047)));
        for exact in [12_345, 987_654_321, 600_000_000_000, u64::MAX] {
            #[expect(clippy::cast_precision_loss, reason = "three digits")]
            let exact_us = exact as f64 / 1e3;
            let found = ns(exact).expect("one latency");
            assert!((found / exact_us - 1.0).abs() < 1e-3, "{exact}: {found}");
        }
        assert_eq!(Latencies::default().quantile_us(0.5), None);
    }
}

//! Lengths of slices and their stages.

/// Lengths of the stages, and the traffic that a slice needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time before the first trial.
    pub warm_up_ms: u64,
    /// First part of each slice, ms. It is not measured: pages move and caches are refilled.
    pub settle_ms: u64,
    /// Second part of each slice, which is measured, ms.
    pub measure_ms: u64,
    /// Minimum number of calls in the measured part, which goes on until it has them.
    pub min_calls: u64,
    /// Minimum processor time of each part, as the divisor of its length. A program that is idle for most
    /// of a part would be measured by a few calls.
    pub min_cpu_divisor: u64,
}

impl Pace {
    /// The default. An echo server of 512 KiB and Redis (`uncopy-bench`) settle within a few ms. The
    /// processor-time clock advances in steps of 4 ms where the kernel's tick has 250 Hz.
    pub const DEFAULT: Self =
        Self { warm_up_ms: 100, settle_ms: 12, measure_ms: 28, min_calls: 16, min_cpu_divisor: 3 };

    /// Returns a pace with slices of `slice_ms` in all.
    #[must_use]
    pub const fn with_slice_ms(slice_ms: u64) -> Self {
        let settle_ms =
            slice_ms * Self::DEFAULT.settle_ms / (Self::DEFAULT.settle_ms + Self::DEFAULT.measure_ms);
        let min_calls = if slice_ms < 20 { 1 } else { Self::DEFAULT.min_calls };
        let min_cpu_divisor = if slice_ms < 20 { u64::MAX } else { Self::DEFAULT.min_cpu_divisor };
        Self { warm_up_ms: slice_ms, settle_ms, measure_ms: slice_ms - settle_ms, min_calls, min_cpu_divisor }
    }

    /// Returns the length of a pair of slices, ms.
    #[must_use]
    pub const fn pair_ms(&self) -> u64 {
        2 * (self.settle_ms + self.measure_ms)
    }
}

//! How long slices are.

/// The length of the stages, ms, and the number of calls that a slice needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time before the first trial.
    pub warm_up_ms: u64,
    /// The first part of each slice, which does not count: pages move, caches fill with something else.
    pub settle_ms: u64,
    /// The part that counts.
    pub measure_ms: u64,
    /// Calls in that part at least; it goes on until there are so many.
    pub min_calls: u64,
    /// Processor time that each part takes at least, as one in so many of its length: a program that is idle for most of it
    /// would be measured by a few calls.
    pub min_cpu_share: u64,
}

impl Pace {
    /// The usual one: transitions of an echo server of 512 KiB and of Redis (`uncopy bench`) are over after a few ms; the
    /// clock's steps are 4 ms where the kernel's tick has 250 Hz.
    pub const USUAL: Self =
        Self { warm_up_ms: 100, settle_ms: 12, measure_ms: 28, min_calls: 16, min_cpu_share: 3 };

    /// Slices of so many ms in all.
    #[must_use]
    pub const fn of_ms(slice_ms: u64) -> Self {
        let settle_ms = slice_ms * Self::USUAL.settle_ms / (Self::USUAL.settle_ms + Self::USUAL.measure_ms);
        let min_calls = if slice_ms < 20 { 1 } else { Self::USUAL.min_calls };
        let min_cpu_share = if slice_ms < 20 { u64::MAX } else { Self::USUAL.min_cpu_share };
        Self { warm_up_ms: slice_ms, settle_ms, measure_ms: slice_ms - settle_ms, min_calls, min_cpu_share }
    }

    /// A whole pair of slices, ms.
    #[must_use]
    pub const fn pair_ms(&self) -> u64 {
        2 * (self.settle_ms + self.measure_ms)
    }
}

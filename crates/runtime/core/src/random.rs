//! A random number generator of a few instructions, with one word of state.

/// Difference between two consecutive states.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the random number for a state (splitmix64, Sebastiano Vigna). The next state is [`STEP`] later.
#[must_use]
pub const fn splitmix64(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

/// Returns the size of random tests and simulations: `UNCOPY_TEST_SIZE`, or 1 as in `make test`. The full
/// size of `make test-all` is 10; longer searches use more. For tests only.
///
/// # Panics
/// If the variable is not a number above 0.
#[doc(hidden)]
#[must_use]
pub fn test_size() -> u64 {
    let size = std::env::var("UNCOPY_TEST_SIZE").map_or(Some(1), |text| text.parse().ok());
    size.filter(|size| *size > 0).expect("UNCOPY_TEST_SIZE is a number above 0")
}

//! Random numbers for choices that nobody must be able to line up with: a few instructions, no state but one word.

/// The step between states.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number that belongs to a state; states follow one another by [`STEP`] (Sebastiano Vigna's splitmix64).
#[must_use]
pub const fn splitmix64(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

//! The pure core next to obviously right models, driven by arbitrary bytes.
//!
//! Each function takes any bytes, reads operations from them, carries them out on a part of the core and on
//! a model of one state for each page or byte, and panics where they differ. `fuzz/` gives them to libFuzzer;
//! the tests below give them random bytes, so that they cannot rot.

mod bytes;
mod extents;
mod options;
mod page_map;
mod plan;

pub use extents::extents;
pub use options::{options, stats_file};
pub use page_map::page_map;
pub use plan::plan;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{STEP, splitmix64};

    /// Random bytes: splitmix64, whose seed is the number of the input.
    fn random(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut word = move || {
            state = state.wrapping_add(STEP);
            splitmix64(state)
        };
        let len = (word() % 600) as usize;
        (0..len).map(|_| word().to_le_bytes()[0]).collect()
    }

    fn holds(oracle: fn(&[u8])) {
        for seed in 0..3_000 {
            oracle(&random(seed));
        }
    }

    #[test]
    fn page_maps_are_as_one_state_for_each_page() {
        holds(page_map);
    }

    #[test]
    fn extents_are_as_a_set_of_pages() {
        holds(extents);
    }

    #[test]
    fn plans_move_every_byte_where_it_belongs() {
        holds(plan);
    }

    #[test]
    fn options_take_any_bytes() {
        holds(options);
        for value in ["UNCOPY_MIN_SIZE=4096", "UNCOPY_POLICY=always", "UNCOPY_HEAP=off", "UNCOPY_=", "=", ""]
        {
            options(value.as_bytes());
        }
    }

    #[test]
    fn stats_files_may_hold_anything() {
        holds(stats_file);
        let mut file = vec![0xff; crate::stats::FILE_BYTES];
        stats_file(&file);
        file[..8].copy_from_slice(&crate::stats::MAGIC);
        stats_file(&file);
        file[16..24].copy_from_slice(&8u64.to_ne_bytes());
        stats_file(&file);
    }
}

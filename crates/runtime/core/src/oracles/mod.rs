//! Parts of the core compared with obviously right models, driven by arbitrary bytes.
//!
//! Each function decodes operations from its input, applies them to a part of the core and to a model with
//! one state per page or byte, and panics if the two differ. `fuzz/` runs them under libFuzzer, the tests
//! below with random bytes.

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
    use crate::random::{STEP, splitmix64, test_size};

    fn random_bytes(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut word = move || {
            state = state.wrapping_add(STEP);
            splitmix64(state)
        };
        let len = (word() % 600) as usize;
        (0..len).map(|_| word().to_le_bytes()[0]).collect()
    }

    fn check(oracle: fn(&[u8])) {
        for seed in 0..300 * test_size() {
            oracle(&random_bytes(seed));
        }
    }

    #[test]
    fn page_maps_are_as_one_state_for_each_page() {
        check(page_map);
    }

    #[test]
    fn extents_are_as_a_set_of_pages() {
        check(extents);
    }

    #[test]
    fn plans_move_every_byte_where_it_belongs() {
        check(plan);
    }

    #[test]
    fn options_take_any_bytes() {
        check(options);
        for value in ["UNCOPY_MIN_SIZE=4096", "UNCOPY_POLICY=always", "UNCOPY_HEAP=off", "UNCOPY_=", "=", ""]
        {
            options(value.as_bytes());
        }
    }

    #[test]
    fn stats_files_may_hold_anything() {
        check(stats_file);
        let mut file = vec![0xff; crate::stats::FILE_BYTES];
        stats_file(&file);
        file[..8].copy_from_slice(&crate::stats::MAGIC);
        stats_file(&file);
        file[16..24].copy_from_slice(&8u64.to_ne_bytes());
        stats_file(&file);
    }
}

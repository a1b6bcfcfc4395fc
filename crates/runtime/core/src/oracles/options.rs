//! Parsers of external input: environment variables and the counters' file.

use crate::options::{MIN_SIZE_HIGH_BYTES, MIN_SIZE_LOW_BYTES, Options};
use crate::stats::{FILE_BYTES, Snapshot};

/// Applies lines of the form `NAME=VALUE`.
///
/// # Panics
/// If an option gets a value that is not legal, or a refused value changes an option.
pub fn options(data: &[u8]) {
    let mut options = Options::default();
    for line in data.split(|byte| *byte == b'\n') {
        let split = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
        let (name, value) = (&line[..split], line.get(split + 1..).unwrap_or_default());
        let before = options;
        if let Err(error) = options.apply(name, value) {
            assert!(!error.to_string().is_empty());
            assert_eq!(options, before, "a refused value changed something");
        }
        assert!((MIN_SIZE_LOW_BYTES..=MIN_SIZE_HIGH_BYTES).contains(&options.min_size_bytes));
    }
}

/// Parses a counters' file.
///
/// # Panics
/// If the JSON made of it is not one line.
pub fn stats_file(data: &[u8]) {
    let mut file = data.to_vec();
    for len_bytes in [file.len(), FILE_BYTES] {
        file.resize(len_bytes, 0);
        if let Ok(snapshot) = Snapshot::parse(&file) {
            let json = snapshot.to_json();
            assert!(json.starts_with('{') && json.ends_with('}') && !json.contains('\n'), "{json}");
        }
    }
}

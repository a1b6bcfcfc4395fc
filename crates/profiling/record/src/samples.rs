//! Per-stack tallies of which handled bytes the program later accessed, stored as rows of the recording.

use crate::area::Area;
use crate::session;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use uncopy_core::recording::{Call, SAMPLE_BYTES, SAMPLES, SAMPLES_OFFSET, Tally, sample_key};

/// One row of the sample table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    area: Area,
    offset: usize,
}

/// Returns the row for a call of kind `call` from `stack` (a stack id of this recording), claiming a free row
/// if there is none yet. Returns `None` if the table is full or nothing is being recorded.
#[must_use]
pub fn row(stack: u32, call: Call) -> Option<Row> {
    let area = session::area()?;
    let key = sample_key(stack, call);
    let first = (stack as usize).wrapping_mul(0x9E37_79B1) % SAMPLES;
    (0..SAMPLES).find_map(|step| {
        let offset = SAMPLES_OFFSET + (first + step) % SAMPLES * SAMPLE_BYTES;
        let word = area.word(offset);
        let found = match word.load(Acquire) {
            0 => word.compare_exchange(0, key, AcqRel, Acquire).err().unwrap_or(key),
            found => found,
        };
        (found == key).then_some(Row { area, offset })
    })
}

/// Returns row `index` of the current recording, or `None` if no event has been recorded yet. Never waits.
#[must_use]
pub fn at(index: usize) -> Option<Row> {
    let area = session::area_in_use()?;
    Some(Row { area, offset: SAMPLES_OFFSET + index % SAMPLES * SAMPLE_BYTES })
}

impl Row {
    /// Returns the index that [`at`] takes for this row.
    #[must_use]
    pub fn index(self) -> usize {
        (self.offset - SAMPLES_OFFSET) / SAMPLE_BYTES
    }

    /// Adds `added` to the row's counts.
    pub fn add(self, added: Tally) {
        for (index, value) in added.words().into_iter().enumerate().filter(|(_, value)| *value != 0) {
            self.area.word(self.offset + 8 * (index + 1)).fetch_add(value, Relaxed);
        }
    }
}

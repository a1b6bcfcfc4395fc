//! What programs touch of what their sites handled, by the site's stack: rows of the recording.

use crate::area::Area;
use crate::session;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use uncopy_core::recording::{Call, SAMPLE_BYTES, SAMPLES, SAMPLES_OFFSET, Tally, sample_key};

/// The row of a site.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    area: Area,
    offset: usize,
}

/// The row of the site that `stack` (an id of this recording) is where it does `call`; `None` where there is no room,
/// or no recording.
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

/// The row of this number in the recording that is on. Waits for nobody.
#[must_use]
pub fn at(index: usize) -> Option<Row> {
    let area = session::area_in_use()?;
    Some(Row { area, offset: SAMPLES_OFFSET + index % SAMPLES * SAMPLE_BYTES })
}

impl Row {
    /// The row's number.
    #[must_use]
    pub fn index(self) -> usize {
        (self.offset - SAMPLES_OFFSET) / SAMPLE_BYTES
    }

    /// Adds to the row.
    pub fn add(self, added: Tally) {
        for (index, value) in added.words().into_iter().enumerate().filter(|(_, value)| *value != 0) {
            self.area.word(self.offset + 8 * (index + 1)).fetch_add(value, Relaxed);
        }
    }
}

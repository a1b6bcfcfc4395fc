//! Places in the ring, without a lock: a place is reserved by moving `head`, filled, and published by its first word.

use crate::area::Area;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use uncopy_core::recording::{
    DROPPED_OFFSET, EVENT_BYTES, Event, GAP_BIT, HEAD_OFFSET, RING_OFFSET, SLOTS, TAIL_OFFSET,
};

/// Enters an event at the next place, behind a Gap if any before it were dropped; or drops it, and counts that.
#[inline]
pub fn publish(area: Area, mut event: Event) {
    let head = area.word(HEAD_OFFSET);
    let mut seen = head.load(Acquire);
    loop {
        let position = seen & !GAP_BIT;
        let gap = u64::from(seen & GAP_BIT != 0);
        let waiting = position.wrapping_sub(area.word(TAIL_OFFSET).load(Acquire));
        if waiting > SLOTS as u64 - 1 - gap {
            return dropped(area, 1);
        }
        // The mark of a gap goes with the same exchange: nobody comes in between.
        match head.compare_exchange_weak(seen, position + 1 + gap, AcqRel, Acquire) {
            Ok(_) if gap == 1 => {
                write(area, &Event::gap(position, area.word(DROPPED_OFFSET).load(Relaxed)));
                event.sequence = position + 1;
                break;
            }
            Ok(_) => {
                event.sequence = position;
                break;
            }
            Err(now) => seen = now,
        }
    }
    write(area, &event);
}

/// Counts events that are not entered, and sees to it that a Gap precedes the next.
#[cold]
pub fn dropped(area: Area, events: u64) {
    area.word(DROPPED_OFFSET).fetch_add(events, Relaxed);
    area.word(HEAD_OFFSET).fetch_or(GAP_BIT, AcqRel);
}

#[inline]
fn write(area: Area, event: &Event) {
    let slot = RING_OFFSET + (event.sequence as usize % SLOTS) * EVENT_BYTES;
    let words = event.encode();
    for (index, word) in words.iter().enumerate().skip(1) {
        area.word(slot + 8 * index).store(*word, Relaxed);
    }
    area.word(slot).store(words[0], Release);
}

//! Lock-free ring of events. A producer reserves a slot by advancing `head`, fills the slot, and publishes it
//! by storing its first word.

use crate::area::Area;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use uncopy_core::recording::{
    DROPPED_OFFSET, EVENT_BYTES, Event, GAP_BIT, HEAD_OFFSET, RING_OFFSET, SLOTS, TAIL_OFFSET,
};

/// Appends an event, preceded by a Gap event if events were dropped since the last one. If the ring is full,
/// drops the event and counts it.
#[inline]
pub fn publish(area: Area, mut event: Event) {
    let head = area.word(HEAD_OFFSET);
    let mut seen = head.load(Acquire);
    loop {
        let position = seen & !GAP_BIT;
        let gap = u64::from(seen & GAP_BIT != 0);
        let waiting = position.wrapping_sub(area.word(TAIL_OFFSET).load(Acquire));
        if waiting > SLOTS as u64 - 1 - gap {
            return count_dropped(area, 1);
        }
        // The exchange also clears GAP_BIT, so no other thread writes between the Gap and its event.
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

/// Counts `events` dropped events and makes the next published event start with a Gap.
#[cold]
pub fn count_dropped(area: Area, events: u64) {
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

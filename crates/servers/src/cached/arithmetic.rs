//! Arithmetic on the numbers that items hold, for `incr`, `decr` and `ma`.

use crate::cached::cache::Caller;
use crate::cached::number;
use crate::cached::statistics::Counter;
use crate::cached::store::Slot;
use crate::cached::value::Draft;

/// What comes of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The item holds this number.
    To(u64),
    /// There is no item.
    NotFound,
    /// It holds no number.
    NotANumber,
    /// No memory.
    NoMemory,
}

/// Adds `delta` to the number that an item holds, or takes it away: upwards it wraps, downwards it stops at 0.
pub fn change(slot: &mut Slot<'_>, is_increment: bool, delta: u64, caller: &Caller<'_>) -> Changed {
    let (hit, miss) = match is_increment {
        true => (Counter::IncrementHits, Counter::IncrementMisses),
        false => (Counter::DecrementHits, Counter::DecrementMisses),
    };
    let Some(item) = slot.item() else {
        caller.count(miss);
        return Changed::NotFound;
    };
    let Some(old) = number::stored(item.value.bytes()) else { return Changed::NotANumber };
    let new = if is_increment { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
    let mut digits = [0; 20];
    let digits = number::decimal(new, &mut digits);
    // A number that got shorter keeps its length (protocol.txt), and one that got longer is a new item.
    let old_len_bytes = item.value.bytes().len();
    let blanks = old_len_bytes.saturating_sub(digits.len());
    let is_new = digits.len() > old_len_bytes;
    let Some(value) = Draft::of(&[digits, &b" ".repeat(blanks)], caller.cache.store.budget()) else {
        return Changed::NoMemory;
    };
    slot.replace_value(value, is_new);
    slot.bump();
    caller.count(hit);
    Changed::To(new)
}

//! A table of values by slot and serial number. Free slots are reused in the order in which they became free.

use std::collections::VecDeque;

struct Slot<T> {
    serial: u32,
    value: Option<T>,
}

/// Values that programs identify by a slot and a serial number.
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    max: usize,
}

impl<T> Slots<T> {
    /// Returns an empty table for at most `max` values.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), max }
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// True if there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores a value. Returns its slot and serial number, or `None` if the table is full.
    pub fn add(&mut self, value: T) -> Option<(u32, u32)> {
        // Unused slots come first, so that the state table keeps the state of freed ones for a while.
        let slot = if self.slots.len() < self.max {
            self.slots.push(Slot { serial: 0, value: None });
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        let place = &mut self.slots[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        place.value = Some(value);
        Some((slot, place.serial))
    }

    /// Returns the value in a slot if it has this serial number.
    pub fn get_by_serial(&mut self, slot: u32, serial: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize).filter(|place| place.serial == serial)?.value.as_mut()
    }

    /// Returns the value in a slot.
    pub fn get(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)?.value.as_mut()
    }

    /// Returns the serial number of a slot.
    #[must_use]
    pub fn serial(&self, slot: u32) -> u32 {
        self.slots.get(slot as usize).map_or(0, |place| place.serial)
    }

    /// Removes and returns the value in a slot.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.slots.get_mut(slot as usize)?.value.take();
        if value.is_some() {
            self.free.push_back(slot);
        }
        value
    }

    /// Returns all values with their slots.
    pub fn all(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.slots.iter().enumerate();
        numbered.filter_map(|(slot, place)| place.value.as_ref().map(|value| (slot as u32, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_reused_under_another_serial() {
        let mut slots = Slots::new(2);
        let (first, serial) = slots.add('a').expect("room");
        let (second, _) = slots.add('b').expect("room");
        assert_eq!((slots.add('c'), slots.len()), (None, 2));
        assert_eq!(slots.get_by_serial(first, serial).copied(), Some('a'));
        assert_eq!((slots.remove(first), slots.remove(first)), (Some('a'), None));
        let again = slots.add('d').expect("room");
        assert_eq!(again, (first, serial + 1));
        assert_eq!(slots.get_by_serial(first, serial), None);
        slots.remove(first);
        slots.remove(second);
        assert!(slots.is_empty() && slots.all().next().is_none());
        assert_eq!(slots.add('e').map(|(slot, _)| slot), Some(first), "the one that is free for longest");
    }
}

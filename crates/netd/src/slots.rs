//! Places on the board, and what is at each: a place that is free again is used again last.

use std::collections::VecDeque;

struct Place<T> {
    serial: u32,
    value: Option<T>,
}

/// What programs know by a place and a serial number.
pub struct Slots<T> {
    places: Vec<Place<T>>,
    free: VecDeque<u32>,
    max: usize,
}

impl<T> Slots<T> {
    /// None, at most `max` at a time.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { places: Vec::new(), free: VecDeque::new(), max }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts something at a free place. The place and the serial number, if there is one.
    pub fn add(&mut self, value: T) -> Option<(u32, u32)> {
        // Those that have not been used come first: what the board says of the others stays for a while.
        let slot = if self.places.len() < self.max {
            self.places.push(Place { serial: 0, value: None });
            self.places.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        let place = &mut self.places[slot as usize];
        place.serial = place.serial.wrapping_add(1);
        place.value = Some(value);
        Some((slot, place.serial))
    }

    /// What is at a place with this serial number.
    pub fn known(&mut self, slot: u32, serial: u32) -> Option<&mut T> {
        self.places.get_mut(slot as usize).filter(|place| place.serial == serial)?.value.as_mut()
    }

    /// What is at a place.
    pub fn get(&mut self, slot: u32) -> Option<&mut T> {
        self.places.get_mut(slot as usize)?.value.as_mut()
    }

    /// The serial number of what is at a place.
    #[must_use]
    pub fn serial(&self, slot: u32) -> u32 {
        self.places.get(slot as usize).map_or(0, |place| place.serial)
    }

    /// Takes away what is at a place.
    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let value = self.places.get_mut(slot as usize)?.value.take();
        if value.is_some() {
            self.free.push_back(slot);
        }
        value
    }

    /// Everything, with its place.
    pub fn all(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.places.iter().enumerate();
        numbered.filter_map(|(slot, place)| place.value.as_ref().map(|value| (slot as u32, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_number() {
        let mut slots = Slots::new(2);
        let (first, serial) = slots.add('a').expect("room");
        let (second, _) = slots.add('b').expect("room");
        assert_eq!((slots.add('c'), slots.len()), (None, 2));
        assert_eq!(slots.known(first, serial).copied(), Some('a'));
        assert_eq!((slots.remove(first), slots.remove(first)), (Some('a'), None));
        let again = slots.add('d').expect("room");
        assert_eq!(again, (first, serial + 1));
        assert_eq!(slots.known(first, serial), None);
        slots.remove(first);
        slots.remove(second);
        assert!(slots.is_empty() && slots.all().next().is_none());
        assert_eq!(slots.add('e').map(|(slot, _)| slot), Some(first), "the one that is free for longest");
    }
}

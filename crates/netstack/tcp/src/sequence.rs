//! Positions in a stream.
//!
//! A [`Position`] is a 64-bit number whose low 32 bits are the sequence number of RFC 9293 (section 3.4).
//! A stream begins at 2³² plus its initial sequence number, so a number up to 2³¹ below is a position too.

/// The position of a byte, SYN or FIN in a stream.
pub type Position = u64;

/// Returns the position of the SYN with this initial sequence number.
pub fn first_position(initial: u32) -> Position {
    (1 << 32) + u64::from(initial)
}

/// Returns the sequence number of a position.
pub fn sequence_number(position: Position) -> u32 {
    position as u32
}

/// Returns the position nearest to `expected` with this sequence number.
pub fn nearest_position(expected: Position, number: u32) -> Position {
    let distance = number.wrapping_sub(expected as u32).cast_signed();
    expected.wrapping_add_signed(i64::from(distance))
}

/// True if timestamp `left` is older than `right` (RFC 7323, section 5.2).
pub fn is_older(left: u32, right: u32) -> bool {
    left.wrapping_sub(right).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_the_nearest_position_on_both_sides_of_the_wrap() {
        for initial in [0, 1, u32::MAX, u32::MAX - 5, 1 << 31] {
            let first = first_position(initial);
            for distance in [0, 1, 70_000, (1 << 31) - 1] {
                let later = first + distance;
                assert_eq!(nearest_position(first, sequence_number(later)), later);
                assert_eq!(nearest_position(later, sequence_number(first)), first);
            }
        }
    }

    #[test]
    fn timestamps_are_compared_around_the_wrap() {
        assert!(is_older(u32::MAX, 0));
        assert!(!is_older(0, u32::MAX));
        assert!(!is_older(7, 7));
    }
}

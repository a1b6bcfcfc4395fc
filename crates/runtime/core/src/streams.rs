//! Outcomes of streams that might become lanes and of connections that the user-level TCP might serve, for
//! `uncopy run --explain`.

extern crate std;
use std::format;
use std::string::String;

/// Outcome of a stream with large parts. The discriminant is the index in [`Streams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Outcome {
    /// Became a lane: this end received by reference.
    Lane,
    /// The other end is not known.
    Unpaired,
    /// The stream is not named by `--lanes`.
    OutOfScope,
    /// Another process may have the stream, too.
    Shared,
    /// The program uses a feature that a lane does not have.
    Unsuited,
    /// The process had the maximum number of streams.
    Crowded,
    /// A TCP connection that the service serves.
    Served,
    /// A TCP connection that the kernel serves although there is a service.
    Unserved,
}

/// Length of all counts in a file, bytes.
pub const STREAMS_BYTES: usize = 8 * Outcome::ALL.len();

impl Outcome {
    /// Every outcome, in order.
    pub const ALL: [Self; 8] = [
        Self::Lane,
        Self::Unpaired,
        Self::OutOfScope,
        Self::Shared,
        Self::Unsuited,
        Self::Crowded,
        Self::Served,
        Self::Unserved,
    ];

    /// Returns the name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lane => "lanes",
            Self::Unpaired => "unpaired",
            Self::OutOfScope => "out_of_scope",
            Self::Shared => "shared",
            Self::Unsuited => "unsuited",
            Self::Crowded => "crowded",
            Self::Served => "served",
            Self::Unserved => "unserved",
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Served | Self::Unserved => "connections of TCP",
            _ => "streams with large parts",
        }
    }

    /// Returns the phrase that follows the number in messages.
    #[must_use]
    pub const fn phrase(self) -> &'static str {
        match self {
            Self::Lane => "became lanes: what came was received by reference",
            Self::Unpaired => {
                "not: their other end is not on this host, not under uncopy run --lanes, another user's, or meets in another \
                 --lanes-dir"
            }
            Self::OutOfScope => "not: --lanes does not name them",
            Self::Shared => {
                "not, or not any more: another process may have them, too (fork, exec, SCM_RIGHTS, inherited)"
            }
            Self::Unsuited => {
                "not, or not any more: the program uses what a lane cannot do (out-of-band bytes, SO_RCVLOWAT, kTLS, …)"
            }
            Self::Crowded => "not: too many streams at a time",
            Self::Served => "through the service that --net names",
            Self::Unserved => "not: the service does not have or reach their address",
        }
    }
}

/// Number of streams by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams([u64; Outcome::ALL.len()]);

impl Streams {
    /// Parses [`STREAMS_BYTES`] bytes; any content is accepted.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, i64::from_ne_bytes));
        // A count may be negative: a stream's outcomes are counted up and down one by one.
        Self(core::array::from_fn(|_| u64::try_from(words.next().unwrap_or(0)).unwrap_or(0)))
    }

    /// Returns the number of streams with this outcome.
    #[must_use]
    pub const fn get(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Returns a line of text for each outcome that occurred.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let seen = Outcome::ALL.into_iter().filter(|outcome| self.get(*outcome) > 0);
        seen.map(|outcome| format!("{}: {} {}", outcome.noun(), self.get(outcome), outcome.phrase()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn only_outcomes_that_occurred_have_lines() {
        let mut words = [0i64; Outcome::ALL.len()];
        words[Outcome::Lane as usize] = 3;
        words[Outcome::Shared as usize] = -1;
        words[Outcome::Unpaired as usize] = 1;
        words[Outcome::Served as usize] = 2;
        let bytes: Vec<u8> = words.into_iter().flat_map(i64::to_ne_bytes).collect();
        assert_eq!(bytes.len(), STREAMS_BYTES);
        let streams = Streams::parse(&bytes);
        assert_eq!(Outcome::ALL.map(|outcome| streams.get(outcome)), [3, 1, 0, 0, 0, 0, 2, 0]);
        let lines: Vec<String> = streams.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("streams with large parts: 3 became lanes"), "{lines:?}");
        assert!(lines[1].starts_with("streams with large parts: 1 not: "), "{lines:?}");
        assert!(lines[2].starts_with("connections of TCP: 2 through the service"), "{lines:?}");
        assert_eq!(Streams::parse(&bytes[..5]), Streams::default());
    }

    #[test]
    fn places_are_those_in_the_list() {
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
    }
}

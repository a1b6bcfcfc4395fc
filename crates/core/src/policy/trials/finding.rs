//! What follows from evidence: it saves, it costs, it makes no difference, or nobody knows.

use super::evidence::Evidence;

/// That something saves or costs is wrong with this probability at most, for each direction half; that it makes no difference
/// with [`SHOWN_ALPHA`].
const ALPHA: f64 = 0.001;
/// The intervals that users see.
pub(super) const SHOWN_ALPHA: f64 = 0.05;
/// Pairs before anything is decided.
pub(super) const MIN_PAIRS: u32 = 16;
/// A difference within this is none.
const NO_DIFFERENCE: f64 = 0.015;

/// What the evidence says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Finding {
    /// Nothing yet.
    Unknown,
    /// It saves time.
    Saves,
    /// It costs time.
    Costs,
    /// It makes no difference, to within [`NO_DIFFERENCE`], or saves too little.
    Equal,
}

impl Finding {
    /// What evidence says of something that is worth it if it saves more than `min_gain`, as a part.
    pub(super) fn of(evidence: &Evidence, min_gain: f64) -> Self {
        if evidence.pairs() < MIN_PAIRS {
            return Self::Unknown;
        }
        let (mean, radius) = (evidence.mean(), evidence.radius(ALPHA));
        let (lowest, highest) = (mean - radius, mean + radius);
        if highest < -min_gain {
            Self::Saves
        } else if lowest > 0.0 {
            Self::Costs
        } else if lowest > -min_gain || mean.abs() + evidence.radius(SHOWN_ALPHA) < NO_DIFFERENCE {
            Self::Equal
        } else {
            Self::Unknown
        }
    }

    /// Whether what was found is done from then on.
    pub(super) const fn is_on(self) -> bool {
        matches!(self, Self::Saves)
    }

    /// The finding with this number in a file.
    #[must_use]
    pub const fn of_number(number: u8) -> Self {
        match number {
            1 => Self::Saves,
            2 => Self::Costs,
            3 => Self::Equal,
            _ => Self::Unknown,
        }
    }
}

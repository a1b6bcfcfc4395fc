//! Findings from evidence: a factor saves time, costs time, makes no difference, or is undecided.

use super::evidence::Evidence;

/// Maximum probability of a wrong [`Finding::Saves`] or [`Finding::Costs`], half for each. That of a wrong
/// [`Finding::Equal`] is [`SHOWN_ALPHA`].
const ALPHA: f64 = 0.001;
/// Error probability of the intervals that users see.
pub(super) const SHOWN_ALPHA: f64 = 0.05;
/// Minimum number of pairs for a finding.
pub(super) const MIN_PAIRS: u32 = 16;
/// Differences within this, as a fraction, count as none.
const NO_DIFFERENCE: f64 = 0.015;

/// Conclusion from the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Finding {
    /// The evidence does not suffice.
    Unknown,
    /// The factor saves more than its minimum gain.
    Saves,
    /// The factor costs time.
    Costs,
    /// The factor makes no difference, to within [`NO_DIFFERENCE`], or saves too little.
    Equal,
}

impl Finding {
    /// Draws the conclusion for a factor that pays if it saves more than the fraction `min_gain`.
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

    /// Whether a factor with this finding is on.
    pub(super) const fn is_on(self) -> bool {
        matches!(self, Self::Saves)
    }

    /// Returns the finding with this number in a file.
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Saves,
            2 => Self::Costs,
            3 => Self::Equal,
            _ => Self::Unknown,
        }
    }
}

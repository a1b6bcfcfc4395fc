//! Report on a factor: three words in a file that other programs read, and text.

use super::MAX_FACTORS;
use super::catalogue::{ELISION, FactorName};
use super::finding::{Finding, MIN_PAIRS};
use core::fmt;

extern crate std;
use std::string::{String, ToString as _};
use std::vec::Vec;

/// Length of the reports on all factors, bytes.
pub const TRIALS_BYTES: usize = MAX_FACTORS * WORDS * 8;
const WORDS: usize = 3;
const ON_FLAG: u64 = 1 << 8;
const PAIRS_SHIFT: u32 = 32;

/// Returns the offset of the report on a factor, bytes.
#[must_use]
pub const fn offset(factor: usize) -> usize {
    factor % MAX_FACTORS * WORDS * 8
}

/// Report on a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FactorReport {
    /// Conclusion from the evidence.
    pub finding: Finding,
    /// Whether the factor is on outside trials.
    pub is_on: bool,
    /// Number of pairs that the ratio is measured from.
    pub pairs: u32,
    /// Processor time per byte with the factor, divided by that without: below 1 if it saves time.
    pub ratio: f64,
    /// Half the width of the 95 % interval around the ratio, which is valid at every moment.
    pub radius: f64,
}

impl FactorReport {
    /// Encodes the report as words of a file.
    #[must_use]
    pub fn to_words(&self) -> [u64; WORDS] {
        let is_on = if self.is_on { ON_FLAG } else { 0 };
        let word = self.finding as u64 | is_on | u64::from(self.pairs) << PAIRS_SHIFT;
        [word, self.ratio.to_bits(), self.radius.to_bits()]
    }

    fn from_words([word, ratio, radius]: [u64; WORDS]) -> Self {
        Self {
            finding: Finding::from_number((word & 0xff) as u8),
            is_on: word & ON_FLAG != 0,
            pairs: (word >> PAIRS_SHIFT) as u32,
            ratio: f64::from_bits(ratio),
            radius: f64::from_bits(radius),
        }
    }

    /// Returns the finding as a word for JSON.
    #[must_use]
    pub const fn verdict(&self) -> &'static str {
        match self.finding {
            Finding::Unknown => "unknown",
            Finding::Saves => "saves",
            Finding::Costs => "costs",
            Finding::Equal => "no difference",
        }
    }
}

/// Displays as `saves 23.1 % ± 3.0 of the CPU per byte (412 pairs of slices)`.
impl fmt::Display for FactorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gain, radius) = (100.0 * (1.0 - self.ratio), 100.0 * self.radius);
        let verb = if gain >= 0.0 { "saves" } else { "costs" };
        match self.finding {
            Finding::Unknown if self.pairs < MIN_PAIRS => return write!(f, "not enough traffic to tell"),
            Finding::Unknown => write!(
                f,
                "too noisy to tell yet: {verb} {:.1} % ± {radius:.1} of the CPU per byte",
                gain.abs()
            )?,
            Finding::Equal if gain.abs() <= radius => {
                write!(f, "costs nothing measurable and saves nothing (± {radius:.1} %)")?
            }
            _ => write!(f, "{verb} {:.1} % ± {radius:.1} of the CPU per byte", gain.abs())?,
        }
        write!(f, " ({} pairs of slices)", self.pairs)?;
        match (self.finding, self.is_on) {
            (Finding::Unknown, _) | (_, true) => Ok(()),
            (Finding::Equal, false) if gain > radius => write!(f, "; too little: off"),
            (_, false) => write!(f, "; off"),
        }
    }
}

/// Reports on the factors that were tried, by number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FactorReports(pub Vec<(usize, FactorReport)>);

impl FactorReports {
    /// Parses [`TRIALS_BYTES`] bytes; any content is accepted.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let words = |record: &[u8]| {
            let mut words = record.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
            core::array::from_fn(|_| words.next().unwrap_or(0))
        };
        let records = bytes
            .chunks_exact(8 * WORDS)
            .take(MAX_FACTORS)
            .map(|record| FactorReport::from_words(words(record)));
        Self(records.enumerate().filter(|(_, standing)| standing.pairs > 0).collect())
    }

    /// Returns a line of text for each factor.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(factor, standing)| std::format!("{}: {standing}", FactorName(*factor)))
    }

    /// Returns the report on eliding, if it was tried.
    #[must_use]
    pub fn elision(&self) -> Option<&FactorReport> {
        self.0.iter().find(|(factor, _)| *factor == ELISION).map(|(_, standing)| standing)
    }

    /// Returns the report on eliding if its whole interval has the opposite sign of an estimated saving.
    #[must_use]
    pub fn contradicting(&self, estimated_ns: i128) -> Option<&FactorReport> {
        let standing = self.elision()?;
        let costs = estimated_ns > 0 && standing.ratio - standing.radius > 1.0;
        let saves = estimated_ns < 0 && standing.ratio + standing.radius < 1.0;
        (costs || saves).then_some(standing)
    }

    /// Returns a JSON array of the reports.
    #[must_use]
    pub fn to_json(&self) -> String {
        let number =
            |value: f64| if value.is_finite() { std::format!("{value:.4}") } else { "null".to_string() };
        let objects: Vec<String> = (self.0.iter())
            .map(|(factor, standing)| {
                std::format!(
                    "{{\"what\": \"{}\", \"finding\": \"{}\", \"on\": {}, \"pairs\": {}, \"ratio\": {}, \"low\": {}, \"high\": {}, \"text\": \"{standing}\"}}",
                    FactorName(*factor),
                    standing.verdict(),
                    standing.is_on,
                    standing.pairs,
                    number(standing.ratio),
                    number(standing.ratio - standing.radius),
                    number(standing.ratio + standing.radius),
                )
            })
            .collect();
        std::format!("[{}]", objects.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(finding: Finding, is_on: bool, pairs: u32, ratio: f64, radius: f64) -> FactorReport {
        FactorReport { finding, is_on, pairs, ratio, radius }
    }

    #[test]
    fn reports_show_the_interval_and_whether_the_factor_is_off() {
        for (report, text) in [
            (
                standing(Finding::Saves, true, 412, 0.769, 0.03),
                "saves 23.1 % ± 3.0 of the CPU per byte (412 pairs of slices)",
            ),
            (
                standing(Finding::Costs, false, 12, 1.42, 0.05),
                "costs 42.0 % ± 5.0 of the CPU per byte (12 pairs of slices); off",
            ),
            (
                standing(Finding::Equal, false, 380, 1.002, 0.012),
                "costs nothing measurable and saves nothing (± 1.2 %) (380 pairs of slices); off",
            ),
            (
                standing(Finding::Equal, false, 380, 0.97, 0.012),
                "saves 3.0 % ± 1.2 of the CPU per byte (380 pairs of slices); too little: off",
            ),
            (standing(Finding::Unknown, true, 3, 0.5, 0.4), "not enough traffic to tell"),
            (
                standing(Finding::Unknown, true, 40, 0.97, 0.08),
                "too noisy to tell yet: saves 3.0 % ± 8.0 of the CPU per byte (40 pairs of slices)",
            ),
        ] {
            assert_eq!(report.to_string(), text);
        }
    }

    #[test]
    fn an_estimate_of_the_wrong_sign_is_seen_where_the_interval_leaves_no_doubt() {
        for (factor, ratio, radius, is_wrong) in [
            (ELISION, 1.1, 0.05, [true, false]),
            (ELISION, 0.9, 0.05, [false, true]),
            (ELISION, 1.1, 0.2, [false, false]),
            (ELISION, 1.1, f64::INFINITY, [false, false]),
            (ELISION + 1, 1.1, 0.05, [false, false]),
        ] {
            let told =
                FactorReports(std::vec![(factor, standing(Finding::Unknown, true, 20, ratio, radius))]);
            assert_eq!([1, -1].map(|ns| told.contradicting(ns).is_some()), is_wrong, "{told:?}");
        }
        assert!(FactorReports::default().contradicting(4).is_none());
    }

    #[test]
    fn words_read_back_and_whatever_they_hold_reading_returns() {
        let report = standing(Finding::Saves, true, 412, 0.769, 0.03);
        let mut bytes = std::vec![0; TRIALS_BYTES];
        for (at, word) in report.to_words().into_iter().enumerate() {
            bytes[24 * 5 + 8 * at..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        let read = FactorReports::parse(&bytes);
        assert_eq!(read, FactorReports(std::vec![(5, report)]));
        assert!(
            read.to_json()
                .contains("\"finding\": \"saves\", \"on\": true, \"pairs\": 412, \"ratio\": 0.7690")
        );
        let _ = FactorReports::parse(&std::vec![0xff; TRIALS_BYTES]).to_json();
        assert_eq!(FactorReports::parse(&[]), FactorReports::default());
    }
}

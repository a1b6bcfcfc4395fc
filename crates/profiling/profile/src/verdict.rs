//! One-sentence verdict on a profile: how much uncopy would save.

use crate::format::{bytes, one_line, percent};
use crate::model::{Call, Profile};
use uncopy_core::policy::trials::catalogue::{ELISION, FactorName};

/// Minimum predicted gain; smaller ones would be lost in the noise of a measurement.
const MIN_GAIN: f64 = 0.03;

/// Whether uncopy is worthwhile for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benefit {
    /// uncopy would save CPU time.
    Saves,
    /// uncopy would make little difference, or cost time.
    Little,
    /// Unknown, because nothing was recorded.
    Unknown,
}

/// Verdict with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramVerdict {
    /// Whether uncopy is worthwhile.
    pub benefit: Benefit,
    /// The verdict as a sentence.
    pub sentence: String,
}

/// Returns the program's name without its directory.
#[must_use]
pub fn program_name(profile: &Profile) -> String {
    let command = profile.command.first().map_or("the program", String::as_str);
    one_line(command.rsplit('/').next().unwrap_or(command))
}

/// Returns the ratio measured for eliding in the program itself and its confidence interval, if conclusive.
fn measured(profile: &Profile) -> Option<(f64, f64, f64)> {
    let elision = FactorName(ELISION).to_string();
    let measured = profile.measured.iter().find(|measured| measured.what == elision)?;
    let (ratio, low, high) = (measured.ratio?, measured.low?, measured.high?);
    let is_sure = high < 1.0 || low > 1.0 || high - low <= 2.0 * MIN_GAIN;
    is_sure.then_some((ratio, low, high))
}

/// Returns the CPU time for the same work with uncopy, relative to that without, and whether it was measured
/// or only estimated.
#[must_use]
pub fn cpu_ratio(profile: &Profile) -> (f64, bool) {
    measured(profile).map_or((profile.prediction.cpu_ratio, false), |(ratio, _, _)| (ratio, true))
}

/// Returns the verdict. A measurement made in the program takes precedence over the estimate.
#[must_use]
pub fn verdict(profile: &Profile) -> ProgramVerdict {
    let program = program_name(profile);
    let say = |benefit, sentence| ProgramVerdict { benefit, sentence };
    if let Some((ratio, low, high)) = measured(profile) {
        let text = percent((1.0 - ratio).abs());
        if high < 1.0 {
            return say(
                Benefit::Saves,
                format!("uncopy saves {text} of the CPU time of {program}, as was measured in it."),
            );
        }
        let sentence = if low > 1.0 {
            format!(
                "uncopy costs {program} {text} more CPU time than it takes without, as was measured in it."
            )
        } else {
            format!("uncopy makes no difference to {program} that could be measured in it.")
        };
        return say(Benefit::Little, sentence);
    }
    let least = bytes(profile.min_size_bytes);
    if profile.operations.is_empty() {
        let sentence = format!(
            "Nothing is known of {program}: it moved nothing of {least} or more while it was recorded."
        );
        return say(Benefit::Unknown, sentence);
    }
    let prediction = &profile.prediction;
    let saved = 1.0 - prediction.cpu_ratio;
    // Compares throughput, the figure shown beside the verdict.
    let is_gain = prediction.ratio - 1.0 >= MIN_GAIN;
    if is_gain && profile.operations.iter().any(|operation| operation.elidable_copies > 0) {
        return say(
            Benefit::Saves,
            format!("uncopy would save about {} of the CPU time of {program}.", percent(saved)),
        );
    }
    let why = if profile.sites.iter().any(|site| site.call == Call::Copy) {
        let share = percent(prediction.cpu_share);
        format!(
            "its copies of {least} or more take {share} of its CPU time, of which {} could be saved",
            percent(saved.max(0.0))
        )
    } else {
        format!("it makes no copies of {least} or more")
    };
    say(Benefit::Little, format!("uncopy would make little difference to {program}: {why}."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Measurement;

    fn sample() -> Profile {
        Profile::parse(include_bytes!("../samples/redis-set.json")).expect("well-formed")
    }

    fn measurement(ratio: f64, radius: f64) -> Vec<Measurement> {
        let (low, high) = (Some(ratio - radius), Some(ratio + radius));
        vec![Measurement {
            what: FactorName(ELISION).to_string(),
            ratio: Some(ratio),
            low,
            high,
            ..Default::default()
        }]
    }

    #[test]
    fn estimate_is_given_until_something_was_measured() {
        let estimated = verdict(&sample());
        let saved = percent(1.0 - sample().prediction.cpu_ratio);
        assert_eq!(estimated.benefit, Benefit::Saves);
        assert_eq!(
            estimated.sentence,
            format!("uncopy would save about {saved} of the CPU time of redis-server.")
        );
        for (ratio, radius, benefit, part) in [
            (0.8, 0.1, Benefit::Saves, "saves 20 % of"),
            (1.2, 0.1, Benefit::Little, "costs redis-server 20 % more"),
            (0.99, 0.02, Benefit::Little, "no difference"),
            (0.9, 0.2, Benefit::Saves, "would save about"),
        ] {
            let found = verdict(&Profile { measured: measurement(ratio, radius), ..sample() });
            assert_eq!(found.benefit, benefit, "{}", found.sentence);
            assert!(found.sentence.contains(part), "{}", found.sentence);
        }
    }

    #[test]
    fn little_and_nothing_are_told_apart() {
        let mut little = sample();
        (little.prediction.ratio, little.prediction.cpu_ratio) = (1.01, 0.99);
        let found = verdict(&little);
        assert_eq!(found.benefit, Benefit::Little);
        assert!(found.sentence.contains("of which 1 % could be saved"), "{}", found.sentence);
        let nothing = verdict(&Profile { min_size_bytes: 16384, ..Profile::default() });
        assert_eq!(nothing.benefit, Benefit::Unknown);
        assert!(nothing.sentence.contains("moved nothing of 16K or more"), "{}", nothing.sentence);
    }
}

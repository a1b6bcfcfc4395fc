//! The command line of `uncopy bench apps`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::apps::{CASES, Case, Effort};
use crate::experiments::echo::point::Schedule;
use crate::kit::arguments::{Form, seconds, size_parser};
use crate::kit::rounds::Rounds;
use crate::kit::side::Side;

fn names() -> PossibleValuesParser {
    CASES.iter().map(|case| case.name).collect::<Vec<_>>().into()
}

/// Arguments of `apps`.
#[derive(Debug, Args)]
pub struct Apps {
    /// Cases; all of them if none is named
    #[arg(value_name = "NAME", value_parser = names())]
    pub names: Vec<String>,
    /// List the cases, what the papers measured with them, and what is missing here
    #[arg(long)]
    pub list: bool,
    /// Rounds; each runs every side once. N..M: at least N, and up to M while the medians are uncertain
    #[arg(long, value_name = "N|N..M", default_value = "5", default_value_if("quick", "true", "3"))]
    pub rounds: Rounds,
    /// Length of each measurement, about
    #[arg(long, value_name = "SECONDS", default_value = "1", default_value_if("quick", "true", "0.3"), value_parser = seconds)]
    pub seconds: Duration,
    /// What is compared with plain
    #[arg(
        long,
        value_name = "SIDE,...",
        default_value = "uncopy,heap-only",
        value_delimiter = ',',
        value_enum
    )]
    pub sides: Vec<Side>,
    /// Do not measure: load each case for --seconds under uncopy profile, which writes DIR/NAME.json
    #[arg(long, value_name = "DIR")]
    pub profile: Option<PathBuf>,
    /// With --profile: shortest call that is recorded [default: that of uncopy profile]
    #[arg(long, value_name = "BYTES", requires = "profile", value_parser = size_parser())]
    pub min_size: Option<usize>,
    #[command(flatten)]
    pub form: Form,
}

impl Apps {
    /// The cases that are named, in the order of the registry.
    #[must_use]
    pub fn cases(&self) -> Vec<&'static Case> {
        let named = |case: &&Case| self.names.is_empty() || self.names.iter().any(|name| name == case.name);
        CASES.iter().filter(named).collect()
    }

    /// How much of each.
    #[must_use]
    pub fn effort(&self) -> Effort {
        if self.form.quick { Effort::Quick } else { Effort::Full }
    }

    /// How often and how long, plain first. Packaged servers have no version without copies.
    #[must_use]
    pub fn schedule(&self) -> Schedule {
        let mut sides = vec![Side::Plain];
        for side in &self.sides {
            if !sides.contains(side) && *side != Side::Limit {
                sides.push(*side);
            }
        }
        Schedule { rounds: self.rounds, duration: self.seconds, sides }
    }
}

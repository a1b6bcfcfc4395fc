//! A case of [`SAME_SIDE_CASES`] whose clients and backends are under the same side as the server itself.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::environment::{Environment, Wrapper};
use super::programs::Programs;
use super::{Case, Effort, SAME_SIDE_CASES};
use crate::kit::{Experiment, Failure, Launcher, Outcome, Result, Side, remote};

/// Returns the parser of the names of these cases.
pub fn case_parser() -> PossibleValuesParser {
    SAME_SIDE_CASES.iter().map(|case| case.name).collect::<Vec<_>>().into()
}

/// An application and its clients
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct AppPair {
    /// Name of the case
    #[arg(value_name = "NAME", value_parser = case_parser())]
    pub name: String,
    /// Title of the case's point
    #[arg(value_name = "TITLE")]
    pub title: String,
}

/// Returns the arguments of `uncopy-bench` that start a point of `case`.
#[must_use]
pub fn arguments(case: &Case, title: &str) -> Vec<String> {
    vec!["app-pair".to_owned(), case.name.to_owned(), title.to_owned()]
}

impl Experiment for AppPair {
    const IS_SERVER: bool = true;

    fn run(&self) -> Result<Outcome> {
        let unknown =
            || Failure::new(format!("there is no case {} with the title {}", self.name, self.title));
        let case = SAME_SIDE_CASES.iter().find(|case| case.name == self.name).ok_or_else(unknown)?;
        let points = (case.points)(Effort::Full);
        let point = points.iter().find(|point| point.title == self.title).ok_or_else(unknown)?;
        let launcher = Launcher::for_current_process()?;
        let programs = Programs::find(case.packages)?;
        let environment = Environment::new(&launcher, Wrapper::Side(Side::Plain), &programs);
        remote::serve_requests(|| point.work.start(&environment))?;
        Ok(Outcome::Status(0))
    }
}

//! `uncopy-bench report`: every experiment, beside the papers' results.
//!
//! | module | purpose |
//! |---|---|
//! | `register` | the cases of the page; papers' measurements without a counterpart |
//! | `goals` | ratios to reach, from the papers and of this project |
//! | `run` | running the experiments one after the other in a bounded time |
//! | `collect` | conversion of an experiment's figures to cases |
//! | `model` | the results, stored in the file `results.json` |
//! | `pool` | a case over all runs |
//! | `judge` | verdict on each case |
//! | `headline` | results of the page's cases |
//! | `page`, `chart`, `details` | rendering of the results |
//!
//! Invariant: the pages follow from `results.json` alone; `--from` renders them again.

mod chart;
mod collect;
mod details;
mod goals;
mod headline;
mod judge;
mod markdown;
mod model;
mod page;
mod pool;
mod register;
mod run;
mod workloads;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use model::{RESULTS_PATH, Results, Run};

use crate::experiments::entries;
use crate::kit::experiment::STATUS_FAILED;
use crate::kit::{Failure, Result, While, print};

/// Path of the chart, below the directory of the page.
const CHART_PATH: &str = "results/chart.svg";
const DETAILS_PATH: &str = "results/details.md";

fn entry_parser() -> PossibleValuesParser {
    entries().iter().map(|entry| entry.id).collect::<Vec<_>>().into()
}

/// Run all experiments and write one page with a chart, beside the papers' results
#[derive(Debug, Args)]
pub struct Arguments {
    /// Take less than 10 minutes; the results are too rough for conclusions
    #[arg(long)]
    pub quick: bool,
    /// Directory for results.md and, in results/, the chart, the tables and results.json. Earlier runs in it are kept
    /// and shown beside this one
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Measure only these experiments
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = entry_parser())]
    pub only: Vec<String>,
    /// Continue the last run in DIR: measure the experiments without results
    #[arg(long)]
    pub resume: bool,
    /// Begin no experiment that may take longer than what is left of this time [default: no limit; with --quick, 9]
    #[arg(long, value_name = "N")]
    pub minutes: Option<u32>,
    /// Do not measure: render the pages of these results again
    #[arg(long, value_name = "results.json", conflicts_with_all = ["quick", "only", "resume", "minutes"])]
    pub from: Option<PathBuf>,
}

/// Measures the experiments and writes the pages; returns the exit status.
///
/// # Errors
/// [`Failure`] when nothing could be measured or written. A failed experiment is reported in the pages, with status 1.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let out = &arguments.out;
    let file = out.join(RESULTS_PATH);
    let directory = file.parent().unwrap_or(out);
    std::fs::create_dir_all(directory).doing(format_args!("creating {}", directory.display()))?;
    let mut results = match &arguments.from {
        Some(path) => read(path)?,
        None if file.exists() => read(&file)?,
        None => Results::default(),
    };
    if arguments.from.is_none() {
        let started = run::new_run(arguments.quick);
        check_compatible(&results, &started).map_err(|failure| {
            Failure::new(format!("{}: {failure}; choose another --out, or remove the file", file.display()))
        })?;
        if !arguments.resume || results.runs.is_empty() {
            results.runs.push(started);
        }
        let minutes = arguments.minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes)));
        let limit = minutes.or_else(|| arguments.quick.then_some(run::QUICK_LIMIT));
        run::run_all(&mut results, &arguments.only, limit, |so_far| write_all(so_far, out))?;
    }
    write_all(&results, out)?;
    let last = results.runs.last().into_iter().flat_map(|run| &run.experiments);
    let failed: Vec<&str> =
        last.filter(|measured| measured.failure.is_some()).map(|measured| measured.id.as_str()).collect();
    print(&format!("{}\n{}\n", page::summary(&results.by_system().first), out.join("results.md").display()))?;
    if failed.is_empty() {
        return Ok(0);
    }
    eprintln!("uncopy: no results for {}; the pages have the reasons", failed.join(", "));
    Ok(STATUS_FAILED)
}

/// Checks that a run like `started` can be shown beside those of `results`.
fn check_compatible(results: &Results, started: &Run) -> Result<()> {
    match results.runs.last() {
        Some(last) if last.quick != started.quick => {
            Err(Failure::new("its runs and this one differ in --quick"))
        }
        Some(last) if last.tree != started.tree => Err(Failure::new(format!(
            "its runs measured other sources (tree {})",
            last.tree.as_deref().unwrap_or("unknown")
        ))),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<Results> {
    let text = std::fs::read_to_string(path).doing(format_args!("reading {}", path.display()))?;
    Results::parse(&text).map_err(|failure| Failure::new(format!("{}: {failure}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).doing(format_args!("writing {}", path.display()))
}

fn write_all(results: &Results, out: &Path) -> Result<()> {
    write(&out.join(RESULTS_PATH), &results.to_json()?)?;
    let systems = results.by_system();
    write(&out.join(CHART_PATH), &chart::draw(&headline::chart_rows(&systems.first)))?;
    write(&out.join(DETAILS_PATH), &details::render(&systems.first))?;
    write(&out.join("results.md"), &page::render(results, &systems, CHART_PATH, DETAILS_PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_of_the_same_sources_and_length_are_shown_together() {
        let run = |quick, tree: &str| Run { quick, tree: Some(tree.to_owned()), ..Run::default() };
        let results = Results { runs: vec![run(false, "a")], ..Results::default() };
        assert!(check_compatible(&results, &run(false, "a")).is_ok());
        assert!(check_compatible(&Results::default(), &run(true, "b")).is_ok());
        for other in [run(true, "a"), run(false, "b")] {
            assert!(check_compatible(&results, &other).is_err(), "{other:?}");
        }
    }
}

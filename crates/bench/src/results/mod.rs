//! `uncopy bench report`: every experiment, beside what the papers say.
//!
//! | module | what it is |
//! |---|---|
//! | `register` | the experiments: what they show of the papers, how they are run |
//! | `run` | running them one after the other in a bounded time |
//! | `collect` | from an experiment's figures to rows |
//! | `model` | the results, which are the file `results.json` |
//! | `judge` | whether uncopy helped, and whether it was too noisy to tell |
//! | `page`, `markdown` | the results to read |
//!
//! Invariant: what is shown follows from `results.json` alone; `--from` renders it again.

mod collect;
mod judge;
mod markdown;
mod model;
mod page;
mod register;
mod run;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use model::Results;

use crate::experiments::entries;
use crate::kit::experiment::STATUS_FAILED;
use crate::kit::{Failure, Result, While, print};

/// Where plots lie, beside the Markdown page.
const PLOTS: &str = "results";

fn names() -> PossibleValuesParser {
    entries().iter().map(|entry| entry.id).collect::<Vec<_>>().into()
}

/// All experiments beside what the papers say, as pages of HTML and Markdown
#[derive(Debug, Args)]
pub struct Arguments {
    /// Take less than 10 minutes instead of 60; figures too rough for conclusions
    #[arg(long)]
    pub quick: bool,
    /// Where to write results.html, results.md with its plots, and results.json
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Measure these only
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = names())]
    pub only: Vec<String>,
    /// Measure everything twice and tell where the medians of the ratios differ
    #[arg(long)]
    pub repeat: bool,
    /// Measure nothing: write the pages of these results again
    #[arg(long, value_name = "results.json", conflicts_with_all = ["quick", "only", "repeat"])]
    pub from: Option<PathBuf>,
}

/// Measures and writes the pages; returns the exit status.
///
/// # Errors
/// [`Failure`] when nothing could be measured or written. An experiment that fails is told in the pages
/// and makes the status 1.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let results = match &arguments.from {
        Some(path) => {
            let text = std::fs::read_to_string(path).doing(format_args!("reading {}", path.display()))?;
            Results::parse(&text).map_err(|failure| Failure::new(format!("{}: {failure}", path.display())))?
        }
        None => {
            std::fs::create_dir_all(&arguments.out)
                .doing(format_args!("making {}", arguments.out.display()))?;
            run::all(arguments.quick, arguments.repeat, &arguments.only, |so_far| {
                write_json(so_far, &arguments.out)
            })?
        }
    };
    write_all(&results, &arguments.out)?;
    let failed: Vec<&str> = results
        .experiments
        .iter()
        .filter(|measured| measured.failure.is_some())
        .map(|measured| measured.id.as_str())
        .collect();
    let shown = arguments.out.join("results.html");
    print(&format!("{}\n{}\n", page::summary(&results), shown.display()))?;
    if failed.is_empty() {
        return Ok(0);
    }
    eprintln!("uncopy: no figures of {}; the pages say why", failed.join(", "));
    Ok(STATUS_FAILED)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).doing(format_args!("writing {}", path.display()))
}

fn write_json(results: &Results, out: &Path) -> Result<()> {
    write(&out.join("results.json"), &results.to_json()?)
}

fn write_all(results: &Results, out: &Path) -> Result<()> {
    let plots = out.join(PLOTS);
    std::fs::create_dir_all(&plots).doing(format_args!("making {}", plots.display()))?;
    for measured in &results.experiments {
        // A plot without points is no reason to have no pages.
        if let Some(svg) = measured.plot.as_ref().and_then(|plot| plot.to_svg().ok()) {
            write(&plots.join(format!("{}.svg", measured.id)), &svg)?;
        }
    }
    write_json(results, out)?;
    write(&out.join("results.md"), &markdown::render(results))?;
    write(&out.join("results.html"), &page::render(results))
}

//! Programs on one host that exchange data: all plain, all under uncopy, all with lanes. The processor time is
//! that of all of them, including clients and the servers behind a proxy.

use std::process::Command;

use clap::Args;
use clap::builder::PossibleValuesParser;
use uncopy_testbed::nobody::SETPRIV;

use crate::apps::environment::{Environment, Unprivileged, Wrapper};
use crate::apps::programs::Programs;
use crate::apps::{BACKEND_CASES, Case, Effort, Point, SAME_SIDE_CASES, pair as app};
use crate::kit::figures::{self, CPU, LEGEND, RATE};
use crate::kit::remote::RemoteServer;
use crate::kit::{
    Align, CommonOptions, Comparison, Experiment, Failure, Launcher, Outcome, Plot, Progress, Report,
    ReportEntry, Result, RunningServer, Side, Slices, SlicingOptions, Table, TemporaryDirectory, claim,
    copies_parser, entry, format_count, format_size, run_with_noise_reduction, size_parser,
};
use crate::servers::echo::pair::{self as echo, Transport};

/// Name of the echo among the applications' names.
const ECHO: &str = "echo";

fn case_parser() -> PossibleValuesParser {
    let cases = SAME_SIDE_CASES.iter().chain(BACKEND_CASES).map(|case| case.name);
    std::iter::once(ECHO).chain(cases).collect::<Vec<_>>().into()
}

/// Programs on one host, with and without lanes between them: an echo, proxies, a broker, Redis
#[derive(Debug, Args)]
pub struct Lanes {
    /// Workloads to measure [default: all; with --quick, the echo]
    #[arg(value_name = "NAME", value_parser = case_parser())]
    pub names: Vec<String>,
    /// Transports of the echo
    #[arg(long, value_name = "TRANSPORT,...", default_value = "tcp,unix", value_delimiter = ',', value_enum)]
    pub transport: Vec<Transport>,
    /// Message sizes of the echo, in bytes
    #[arg(long, value_name = "SIZE,...", default_value = "64,16384,65536,524288",
        default_value_if("quick", "true", "64,524288"), value_delimiter = ',', value_parser = size_parser())]
    pub sizes: Vec<usize>,
    /// Numbers of copies per message in the echo server
    #[arg(long, value_name = "N,N,...", default_value = "0,12", default_value_if("quick", "true", "0"), value_delimiter = ',', value_parser = copies_parser())]
    pub copies: Vec<usize>,
    #[command(flatten)]
    pub slicing: SlicingOptions,
    #[command(flatten)]
    pub common: CommonOptions,
}

/// Length below which messages are copied once at most, bytes: eliding could gain nothing.
const MIN_COPIED_BYTES: usize = 512 << 10;
/// Sides compared with plain.
const SIDES: [Side; 2] = [Side::Uncopy, Side::Lanes];
/// Alternatives available to a user, compared for applications.
const RIVALS: [Side; 4] = [Side::HeapOnly, Side::TunedGlibc, Side::Mimalloc, Side::Jemalloc];

impl Experiment for Lanes {
    const ENTRIES: &'static [ReportEntry] = &[entry(
        "lanes",
        "Programs on one host, with lanes between them",
        &[claim(
            "not in the papers",
            "zIO elides API copies on a stack of its own, not between programs of one host.",
        )],
        "lanes --seconds 30 --processes 3",
        "lanes --quick",
    )
    .taking(60)];
    const REPORT_POSITION: u8 = 155;

    fn run(&self) -> Result<Outcome> {
        run_with_noise_reduction(&self.common, |launcher, progress| Ok(self.measure(launcher, progress)))
    }
}

impl Lanes {
    fn measure(&self, launcher: &Launcher, progress: &mut Progress) -> Report {
        let is_selected = |name: &str, is_default: bool| match self.names.as_slice() {
            [] => is_default,
            names => names.iter().any(|named| named == name),
        };
        let (mut comparisons, mut versions) = (Vec::new(), Vec::new());
        if is_selected(ECHO, true) {
            comparisons = self.echo(launcher, progress);
        }
        for case in SAME_SIDE_CASES.iter().filter(|case| is_selected(case.name, !self.common.quick)) {
            comparisons.extend(self.application(case, launcher, progress, &mut versions, ClientSide::Same));
        }
        for case in BACKEND_CASES.iter().filter(|case| is_selected(case.name, !self.common.quick)) {
            comparisons.extend(self.application(case, launcher, progress, &mut versions, ClientSide::Plain));
        }
        Report { versions, ..Report::of(comparisons, render, plot) }
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes of messages, few copies")]
    fn echo(&self, launcher: &Launcher, progress: &mut Progress) -> Vec<Comparison> {
        let slices = self.slicing.slices(&SIDES);
        let mut comparisons = Vec::new();
        for transport in &self.transport {
            for size_bytes in &self.sizes {
                for copies in
                    self.copies.iter().filter(|copies| **copies == 0 || *size_bytes >= MIN_COPIED_BYTES)
                {
                    let what = format!("{} {}", transport.name(), format_size(*size_bytes as u64));
                    let title = format!("{what}, {}", format_count(*copies, "copy", "copies"));
                    let comparison = Comparison::new(&title, *size_bytes as u64, &slices.sides)
                        .with_parameter("size_bytes", *size_bytes as f64)
                        .with_parameter("copies", *copies as f64);
                    let arguments = echo::arguments(*transport, *size_bytes, *copies);
                    comparisons
                        .push(measure_same_side(launcher, &slices, comparison, progress, &arguments, None));
                }
            }
        }
        comparisons
    }

    /// Measures a case with its clients; leaves the case out, with a note, if its programs are not installed.
    fn application(
        &self,
        case: &Case,
        launcher: &Launcher,
        progress: &mut Progress,
        versions: &mut Vec<(&'static str, String)>,
        clients: ClientSide,
    ) -> Vec<Comparison> {
        let (effort, rivals) =
            if self.common.quick { (Effort::Quick, &[][..]) } else { (Effort::Full, &RIVALS[..]) };
        let slices = self.slicing.slices(&[&SIDES[..], rivals].concat());
        let found = Programs::find(case.packages);
        if let Ok(programs) = &found {
            versions.extend(programs.versions.iter().cloned());
        }
        let measure = |point: Point| {
            let mut comparison = point.comparison(&slices.sides);
            let programs = match &found {
                Ok(programs) => programs,
                Err(missing) => {
                    comparison.skip(missing.to_string());
                    return comparison;
                }
            };
            if clients == ClientSide::Plain {
                return measure_with_backends(launcher, &slices, comparison, progress, (programs, &point));
            }
            let arguments = app::arguments(case, &point.title);
            let environment = Environment::new(launcher, Wrapper::Side(Side::Plain), programs);
            let refuses_root = case.packages.iter().any(|need| need.program == SETPRIV.program);
            let user = refuses_root.then(|| Unprivileged::new(&environment)).transpose();
            match user {
                Ok(user) => {
                    measure_same_side(launcher, &slices, comparison, progress, &arguments, user.as_ref())
                }
                Err(failure) => {
                    comparison.skip(failure.to_string());
                    comparison
                }
            }
        };
        (case.points)(effort).into_iter().map(measure).collect()
    }
}

/// Side under which an application's clients run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientSide {
    /// The same side as the application.
    Same,
    /// Plain, whatever the application's side.
    Plain,
}

/// Measures a point whose server and backends run under each side. The processor time is the server's.
fn measure_with_backends(
    launcher: &Launcher,
    slices: &Slices,
    mut comparison: Comparison,
    progress: &mut Progress,
    (programs, point): (&Programs, &Point),
) -> Comparison {
    let environment =
        |side: Side| Environment::new(launcher, Wrapper::Side(side), programs).with_helpers_under(side);
    let environments: Vec<(Side, Environment<'_>)> =
        slices.sides.iter().map(|side| (*side, environment(*side))).collect();
    slices.run(launcher, &mut comparison, false, progress, |side| {
        let environment =
            environments.iter().find(|(known, _)| *known == side).map(|(_, environment)| environment);
        point.work.start(environment.ok_or_else(|| Failure::new("the side is not measured"))?)
    });
    comparison
}

/// Measures the processes started by `uncopy-bench` with `arguments`, run by `user` if their server refuses root.
fn measure_same_side(
    launcher: &Launcher,
    slices: &Slices,
    mut comparison: Comparison,
    progress: &mut Progress,
    arguments: &[String],
    user: Option<&Unprivileged<'_>>,
) -> Comparison {
    const TITLE: &str = "the clients";
    slices.run(launcher, &mut comparison, false, progress, |side| {
        let command: Command = launcher.bench_command(side, arguments);
        let (command, directory) = match user {
            Some(user) => user.with_directory(command, TITLE)?,
            None => (command, TemporaryDirectory::make()?),
        };
        let remote = RemoteServer::start(command, TITLE, directory)?;
        Ok(Box::new(remote) as Box<dyn RunningServer>)
    });
    comparison
}

fn render(comparisons: &[Comparison]) -> String {
    let (gains, table) = (gains_table(comparisons), figures::table(comparisons, &[]));
    format!(
        "{gains}{table}{}\n\
         {LEGEND}lanes: large parts of messages pass by reference between the programs\n\
         CPU is the sum over all programs; with clients outside, over the server's processes alone\n\
         the best: the allocator with the least CPU of plain, heap only, tuned glibc, mimalloc and jemalloc\n",
        figures::counts_table(comparisons)
    )
}

fn gains_table(comparisons: &[Comparison]) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("lanes", Left),
        ("rate over plain", Right),
        ("CPU over plain", Right),
        ("rate over uncopy", Right),
        ("CPU over uncopy", Right),
        ("rate over the best", Right),
        ("CPU over the best", Right),
        ("the best", Left),
    ]);
    for comparison in comparisons {
        let over = |other, metric| figures::ratio_cell(comparison.ratio_of(Side::Lanes, other, metric));
        let best = |metric| comparison.ratio_to_best(Side::Lanes, metric);
        let over_best = |metric| figures::ratio_cell(best(metric).map(|(ratio, _)| ratio));
        table.row(vec![
            comparison.title().to_owned(),
            over(Side::Plain, RATE),
            over(Side::Plain, CPU),
            over(Side::Uncopy, RATE),
            over(Side::Uncopy, CPU),
            over_best(RATE),
            over_best(CPU),
            best(CPU).map_or_else(String::new, |(_, side)| side.name().to_owned()),
        ]);
    }
    table.render() + "\n"
}

/// Plots processor time relative to plain.
fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::over_plain("Programs on one host", "CPU over plain", comparisons, CPU)
}

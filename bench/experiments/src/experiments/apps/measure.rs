//! Measurement of all points of the cases, and the run under the profiler.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use uncopy_testbed::nobody::SETPRIV;

use crate::apps::environment::{Environment, Unprivileged, Wrapper};
use crate::apps::programs::Programs;
use crate::apps::{Case, Effort, Point, Scheme};
use crate::kit::processes::descendants;
use crate::kit::slices::stop_server;
use crate::kit::{
    Comparison, Failure, Launcher, Plot, Progress, Report, Result, Rounds, RunningServer, Sample, Side,
    Slices, While, figures,
};
use crate::servers::net::start_behind_service;

/// Time of load in a run with a server of its own.
const RUN_TIME: Duration = Duration::from_secs(1);

/// Measures `cases`: one comparison for each point. A case whose programs are not installed is skipped, with a note.
#[must_use]
pub fn measure(
    launcher: &Launcher,
    cases: &[&Case],
    effort: Effort,
    slices: &Slices,
    progress: &mut Progress,
) -> Report {
    let (mut comparisons, mut versions) = (Vec::new(), Vec::new());
    let mut about = Vec::new();
    for case in cases {
        let points = (case.points)(effort);
        let measured = match Programs::find(case.packages) {
            Err(missing) => {
                let mut left_out: Vec<Comparison> =
                    points.iter().map(|point| point.comparison(&slices.sides)).collect();
                left_out.iter_mut().for_each(|comparison| comparison.skip(missing.to_string()));
                left_out
            }
            Ok(programs) => {
                let measured = measure_points(launcher, &programs, &points, case.scheme, slices, progress);
                for version in programs.versions {
                    if !versions.contains(&version) {
                        versions.push(version);
                    }
                }
                measured
            }
        };
        about.push(json!({
            "case": case.name,
            "about": case.description,
            "paper": case.paper,
            "remark": case.remark,
            "experiments": points.iter().map(|point| &point.title).collect::<Vec<_>>(),
        }));
        comparisons.extend(measured);
    }
    let (text, plot) = (render(cases, &comparisons), plot(&comparisons));
    let findings = vec![("cases", Value::from(about))];
    Report { findings, versions, ..Report::new(comparisons, text, plot) }
}

/// Measures `points`: one comparison for each.
#[must_use]
pub fn measure_points(
    launcher: &Launcher,
    programs: &Programs,
    points: &[Point],
    scheme: Scheme,
    slices: &Slices,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let mut sides = slices.sides.clone();
    if scheme == Scheme::Runs {
        // A run takes up to 15 seconds, and other sides than uncopy's do not matter here.
        sides.retain(|side| *side == Side::Plain || side.is_under_uncopy());
    }
    let measure = |point: &Point| {
        let mut comparison = point.comparison(&sides);
        match scheme {
            Scheme::Slices => {
                slices.run(launcher, &mut comparison, point.elision_expected, progress, |side| {
                    start(launcher, side, programs, point)
                });
            }
            Scheme::Runs => {
                Rounds::exactly(slices.processes).run_one(&mut comparison, progress, |side, _| {
                    measure_once(launcher, side, programs, point)
                })
            }
        }
        comparison
    };
    points.iter().map(measure).collect()
}

/// Starts a server for `point` under `side`.
///
/// # Errors
/// [`Failure`] when a process cannot be started or does not answer in time.
pub fn start<'a>(
    launcher: &Launcher,
    side: Side,
    programs: &Programs,
    point: &'a Point,
) -> Result<Box<dyn RunningServer + 'a>> {
    let outside = Environment::new(launcher, Wrapper::Side(side), programs);
    let refuses_root = programs.path(SETPRIV.program).is_ok();
    let user = refuses_root.then(|| Unprivileged::new(&outside)).transpose()?;
    let by = |command, directory: &_| match &user {
        Some(user) => user.service(command, directory),
        None => Ok(command),
    };
    start_behind_service(launcher, side, by, |launcher, stack| {
        point.work.start(&Environment::new(launcher, Wrapper::Side(side), programs).with_stack(stack))
    })
}

/// Starts a server for `point` alone under `side`, and loads it once.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn measure_once(launcher: &Launcher, side: Side, programs: &Programs, point: &Point) -> Result<Sample> {
    let mut running = start(launcher, side, programs, point)?;
    let mut measured = || {
        let prepared_bytes = running.warm_up(RUN_TIME)?;
        let (own_before_ns, services_before_ns) = cpu_ns(running.as_mut())?;
        let load = running.load(RUN_TIME)?;
        let (own_ns, services_ns) = cpu_ns(running.as_mut())?;
        let each_us = |ns: u64| ns as f64 / 1e3 / load.exchanges as f64;
        let services_us = (!running.service_pids().is_empty())
            .then(|| each_us(services_ns.saturating_sub(services_before_ns)));
        let resident_bytes = running.server().process().resident_bytes()?;
        let verified_bytes = prepared_bytes + load.verified_bytes + running.verify()?;
        Ok(Sample {
            operations_per_s: Some(load.exchanges as f64 / load.elapsed.as_secs_f64()),
            cpu_us: Some(each_us(own_ns.saturating_sub(own_before_ns)) + services_us.unwrap_or(0.0)),
            service_cpu_us: services_us,
            resident_bytes: Some(resident_bytes as f64),
            verified_bytes: (verified_bytes > 0).then_some(verified_bytes),
            ..Sample::default()
        })
    };
    let mut sample = match measured() {
        Ok(sample) => sample,
        Err(failure) => return Err(running.server().process().explain(&failure)),
    };
    let (pid, stderr) = (running.server().pid(), running.server().stderr_text());
    sample.notes = launcher.notes(side, pid, &stderr, point.elision_expected);
    sample.notes.extend(running.notes());
    sample.defect = stop_server(running.as_mut()).err().map(|failure| failure.to_string());
    Ok(sample)
}

/// Returns the processor time of all processes of the server, and of its helpers, ns.
fn cpu_ns(running: &mut (dyn RunningServer + '_)) -> Result<(u64, u64)> {
    let doing = "reading the server's processor time";
    let services_ns =
        running.service_pids().into_iter().map(descendants::cpu_ns).sum::<std::io::Result<u64>>();
    Ok((descendants::cpu_ns(running.server().pid()).doing(doing)?, services_ns.doing(doing)?))
}

/// Loads each case's last point once for `duration` under `uncopy profile`, which writes `directory/CASE.json`.
///
/// # Errors
/// [`Failure`] when the directory cannot be made, or a case that has its programs could not be profiled.
pub fn profile(
    launcher: &Launcher,
    cases: &[&Case],
    directory: &Path,
    duration: Duration,
    progress: &mut Progress,
) -> Result<String> {
    std::fs::create_dir_all(directory).doing(format_args!("making {}", directory.display()))?;
    let directory = directory.canonicalize().doing(format_args!("finding {}", directory.display()))?;
    let mut lines = String::new();
    for (number, case) in cases.iter().enumerate() {
        progress.report_round(case.name, number, cases.len(), "profile");
        let file = directory.join(format!("{}.json", case.name));
        let programs = match Programs::find(case.packages) {
            Ok(programs) => programs,
            Err(missing) => {
                lines += &format!("{}: skipped: {missing}\n", case.name);
                continue;
            }
        };
        let points = (case.points)(Effort::Full);
        let point = points.last().ok_or_else(|| Failure::new(format!("{} has no points", case.name)))?;
        let environment = Environment::new(launcher, Wrapper::Profile(&file), &programs);
        let named = |failure: Failure| Failure::new(format!("{}: {failure}", case.name));
        let mut running = point.work.start(&environment).map_err(named)?;
        let loaded = running.load(duration).and_then(|load| Ok(load.verified_bytes + running.verify()?));
        let verified_bytes = loaded.map_err(|failure| named(running.server().process().explain(&failure)))?;
        stop_server(running.as_mut()).map_err(named)?;
        if !file.is_file() {
            return Err(named(Failure::new(format!("uncopy profile did not write {}", file.display()))));
        }
        lines += &format!(
            "{}: {}, {} verified: {}\n",
            case.name,
            point.title,
            crate::kit::table::format_amount(verified_bytes),
            file.display()
        );
    }
    Ok(lines)
}

/// Lists the cases with their descriptions.
#[must_use]
pub fn list_cases(cases: &[&Case]) -> String {
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for case in cases {
        let state = match Programs::find(case.packages) {
            Ok(_) => String::new(),
            Err(missing) => format!("{:width$}  {missing}\n", ""),
        };
        text += &format!(
            "{:width$}  {}\n{:width$}  paper: {}\n{state}",
            case.name, case.description, "", case.paper
        );
    }
    text
}

/// Renders the figures and the papers' results.
#[must_use]
fn render(cases: &[&Case], comparisons: &[Comparison]) -> String {
    let mut text = tables(comparisons);
    for case in cases {
        text += &format!("{}: paper: {}\n", case.name, case.paper);
        if !case.remark.is_empty() {
            text += &format!("{}: {}\n", case.name, case.remark);
        }
    }
    text
}

/// Renders the gains by uncopy, the figures of each side, and the counters.
#[must_use]
pub fn tables(comparisons: &[Comparison]) -> String {
    let (best_table, table) = (figures::best_allocator_table(comparisons), figures::table(comparisons, &[]));
    format!(
        "{best_table}{table}{}\n\
         {}CPU is the sum over all processes of the server.\n\
         the best: the allocator with the least CPU of plain, heap only, tuned glibc, mimalloc and jemalloc\n\
         heap only: uncopy's block heap without elision\n",
        figures::counts_table(comparisons),
        figures::LEGEND
    )
}

/// Plots the server's processor time per operation relative to plain, for each point.
#[must_use]
pub fn plot(comparisons: &[Comparison]) -> Plot {
    Plot::over_plain("Packaged applications", "server CPU over plain", comparisons, figures::CPU)
}

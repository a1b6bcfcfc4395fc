//! Conversion of an experiment's figures to a part of the results.

use crate::kit::figures::{CPU, RATE};
use crate::kit::report::notes;
use crate::kit::{Comparison, Metric, Sample, Side, experiment};
use crate::results::model::{Case, ExperimentResult, Figures, Quantity, Ratio};

/// Compared quantities, with the sample's figure for each.
const METRICS: [(Quantity, Metric); 6] = [
    (Quantity::Cpu, CPU),
    (Quantity::Rate, RATE),
    (Quantity::Memory, |sample| sample.resident_bytes),
    (Quantity::Load, Sample::sending_percent),
    (Quantity::Time, |sample| sample.elapsed_s),
    (Quantity::Time, |sample| sample.latency_p50_us),
];

/// Converts `measured_report` to the results of the entry `id`.
#[must_use]
pub fn convert(id: &str, measured_report: experiment::MeasuredReport) -> ExperimentResult {
    let report = measured_report.report;
    let lines = notes(&report.comparisons);
    // This fact is not known before the experiment.
    let how = measured_report.machine.facts().iter().filter(|(key, _)| *key == "processors");
    let versions = report.versions.iter().chain(how);
    ExperimentResult {
        id: id.to_owned(),
        warning: measured_report.machine.warning().map(str::to_owned),
        versions: versions.map(|(key, text)| ((*key).to_owned(), text.clone())).collect(),
        cases: report.comparisons.iter().map(convert_case).collect(),
        findings: report.findings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        notes: lines.lines().map(|line| line.strip_prefix("note: ").unwrap_or(line).to_owned()).collect(),
        text: report.text,
        ..ExperimentResult::default()
    }
}

fn convert_case(comparison: &Comparison) -> Case {
    let sides = comparison.sides();
    let parameters = comparison.parameters().iter().filter(|(_, value)| value.is_finite());
    Case {
        title: comparison.title().to_owned(),
        operation_bytes: comparison.operation_bytes(),
        parameters: parameters.map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        obstacle: comparison.obstacle(),
        rounds: comparison.round_count(),
        dropped: comparison.dropped_count(),
        processes: comparison.process_count(),
        distance_ns: comparison.distance(),
        verified_bytes: sides.iter().map(|side| comparison.verified_bytes(*side)).min().unwrap_or(0),
        sides: sides.iter().map(|side| convert_side(comparison, *side)).collect(),
        samples: comparison.to_json()["samples"].take(),
    }
}

fn convert_side(comparison: &Comparison, side: Side) -> Figures {
    let others = || comparison.sides().iter().copied().filter(|other| *other != side && is_reference(*other));
    let ratio = |of, metric, other: Side| {
        let interval = comparison.ratio_of(side, other, metric).filter(|ratio| ratio.median > 0.0)?;
        let processes = comparison.ratio_by_process(side, other, metric);
        Some(Ratio { of, over: other.name().to_owned(), interval, processes })
    };
    let ratios = METRICS
        .into_iter()
        .flat_map(|(of, metric)| others().filter_map(move |other| ratio(of, metric, other)));
    let mut ratios: Vec<Ratio> = ratios.collect();
    if ratios.iter().any(|ratio| ratio.of == Quantity::Rate) {
        ratios.retain(|ratio| !matches!(ratio.of, Quantity::Time | Quantity::Load));
    }
    Figures {
        side: side.name().to_owned(),
        rate: comparison.figure(side, RATE),
        cpu_us: comparison.figure(side, CPU),
        ratios,
    }
}

fn is_reference(side: Side) -> bool {
    side.is_rival() || side == Side::Limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::arguments::CommonOptions;
    use crate::kit::host::Machine;
    use crate::kit::plot::{Plot, Scale};
    use crate::kit::report::Report;

    fn measured_report(sample: impl Fn(Side) -> Sample) -> experiment::MeasuredReport {
        let mut comparison = Comparison::new("echo", 1024, &[Side::Plain, Side::Uncopy, Side::HeapOnly])
            .with_parameter("copies", 3.0);
        for _ in 0..5 {
            comparison.run_round(|side| Ok(Sample { verified_bytes: Some(7), ..sample(side) }));
        }
        let x = ("x".to_owned(), Scale::Linear);
        let plot = Plot { title: String::new(), x, y: String::new(), series: Vec::new() };
        let report = Report::new(vec![comparison], "the table\n".to_owned(), plot);
        experiment::MeasuredReport { report, machine: Machine::describe(), common: CommonOptions::default() }
    }

    fn cost(side: Side) -> f64 {
        match side {
            Side::Plain => 4.0,
            Side::Uncopy => 3.0,
            _ => 2.0,
        }
    }

    #[test]
    fn each_side_has_its_ratios_over_every_rival() {
        let measured = convert(
            "copies",
            measured_report(|side| Sample {
                operations_per_s: Some(10.0),
                cpu_us: Some(cost(side)),
                elapsed_s: Some(1.0),
                ..Sample::default()
            }),
        );
        let case = &measured.cases[0];
        assert_eq!((case.rounds, case.processes, case.verified_bytes), (5, 5, 35));
        let median = |over: &str| {
            let ratio = case.side("uncopy")?.ratio(Quantity::Cpu, over)?;
            Some((ratio.interval.median * 100.0).round())
        };
        assert_eq!((median("plain"), median("heap only"), median("uncopy")), (Some(75.0), Some(150.0), None));
        assert_eq!(case.side("uncopy").and_then(|side| side.ratio(Quantity::Time, "plain")), None);
        assert_eq!(case.parameters.get("copies"), Some(&3.0));
    }

    #[test]
    fn times_are_compared_where_there_is_no_rate() {
        let measured = convert(
            "lab",
            measured_report(|side| Sample { elapsed_s: Some(cost(side)), ..Sample::default() }),
        );
        let time = measured.cases[0].side("uncopy").and_then(|side| side.ratio(Quantity::Time, "plain"));
        assert!(time.is_some_and(|time| (time.interval.median - 0.75).abs() < 1e-9), "{time:?}");
    }
}

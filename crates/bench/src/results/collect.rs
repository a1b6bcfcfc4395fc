//! From the figures of an experiment to rows of the results.

use crate::kit::experiment::Measured as Figures;
use crate::kit::figures::{CPU, RATE};
use crate::kit::report::notes;
use crate::kit::{Comparison, Interval, Metric, Sample, Side};
use crate::results::model::{Measured, Row, TimeRatio};

const RESIDENT: Metric = |sample| sample.resident_bytes;
/// What is compared where there is no rate: the first of these that was measured.
const TIMES: [(&str, Metric); 3] = [
    ("load", Sample::sending_percent),
    ("time", |sample| sample.elapsed_s),
    ("time", |sample| sample.latency_p50_us),
];

/// What `figures` say, as `id`.
#[must_use]
pub fn measured(id: &str, figures: Figures) -> Measured {
    let report = figures.report;
    let text = |text: &String| text.clone();
    let comparisons = &report.comparisons;
    let told = notes(comparisons);
    Measured {
        id: id.to_owned(),
        warning: figures.machine.warning().map(str::to_owned),
        versions: report.versions.iter().map(|(key, version)| ((*key).to_owned(), text(version))).collect(),
        rows: comparisons.iter().flat_map(rows).collect(),
        findings: report.findings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        notes: told.lines().map(|line| line.strip_prefix("note: ").unwrap_or(line).to_owned()).collect(),
        text: report.text,
        plot: Some(report.plot).filter(|plot| plot.series.iter().any(|series| !series.points.is_empty())),
        ..Measured::default()
    }
}

fn rows(comparison: &Comparison) -> impl Iterator<Item = Row> + '_ {
    comparison.sides().iter().map(move |side| {
        let is_told = |ratio: &Interval| *side != Side::Plain && ratio.median > 0.0;
        let ratio = |metric| comparison.ratio(*side, metric).filter(is_told);
        let noise = |metric: Metric| ratio(metric).map(|ratio| ratio.half_width());
        Row {
            case: comparison.title().to_owned(),
            side: side.name().to_owned(),
            operation_bytes: comparison.operation_bytes(),
            parameters: comparison
                .parameters()
                .iter()
                .filter(|(_, value)| value.is_finite())
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            obstacle: comparison.obstacle(),
            verified_bytes: comparison.verified_bytes(*side),
            rate: comparison.figure(*side, RATE),
            cpu_us: comparison.figure(*side, CPU),
            ratio: ratio(RATE),
            time_ratio: TIMES.iter().filter(|_| ratio(RATE).is_none()).find_map(|(of, metric)| {
                let difference_of_runs = noise(*metric);
                Some(TimeRatio { of: (*of).to_owned(), ratio: ratio(*metric)?, difference_of_runs })
            }),
            cpu_ratio: ratio(CPU),
            resident_ratio: ratio(RESIDENT),
            of_limit: comparison.ratio_to_limit(*side, RATE),
            difference_of_runs: noise(RATE),
            cpu_difference_of_runs: noise(CPU),
            second_ratio: None,
        }
    })
}

/// Notes in `first` what the ratios of `second`, the same experiment again, were.
pub fn repeat(first: &mut Measured, second: &Measured) {
    first.repeated = true;
    first.seconds += second.seconds;
    for row in &mut first.rows {
        let same = |other: &&Row| other.case == row.case && other.side == row.side;
        let again = second.rows.iter().find(same).and_then(Row::main_ratio);
        row.second_ratio = again.map(|(ratio, _)| ratio.median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::arguments::Form;
    use crate::kit::host::Machine;
    use crate::kit::plot::{Plot, Scale};
    use crate::kit::report::Report;

    fn figures(gain: f64) -> Figures {
        let sides = [Side::Plain, Side::Uncopy];
        let mut comparison = Comparison::new("echo", 1024, &sides).with("copies", 3.0);
        for _ in 0..5 {
            comparison.round(|side| {
                let operations_per_s = if side == Side::Plain { 100.0 } else { 100.0 * gain };
                Ok(Sample {
                    operations_per_s: Some(operations_per_s),
                    cpu_us: Some(2.0),
                    verified_bytes: Some(7),
                    ..Sample::default()
                })
            });
        }
        let x = ("x".to_owned(), Scale::Linear);
        let plot = Plot { title: String::new(), x, y: String::new(), series: Vec::new() };
        let report = Report::new(vec![comparison], "the table\n".to_owned(), plot);
        Figures { report, machine: Machine::describe(), form: Form::default() }
    }

    #[test]
    fn each_side_of_each_case_has_a_row() {
        let measured = measured("copies", figures(1.5));
        assert_eq!(measured.rows.len(), 2);
        let (plain, uncopy) = (&measured.rows[0], &measured.rows[1]);
        assert_eq!((plain.side.as_str(), plain.ratio, plain.verified_bytes), ("plain", None, 35));
        assert!(uncopy.ratio.is_some_and(|ratio| (ratio.median - 1.5).abs() < 1e-9));
        assert_eq!(uncopy.difference_of_runs, Some(0.0));
        assert_eq!(uncopy.parameters.get("copies"), Some(&3.0));
        assert_eq!((uncopy.resident_ratio, &measured.plot), (None, &None));
    }

    #[test]
    fn times_are_compared_where_there_is_no_rate() {
        let mut figures = figures(1.0);
        let mut comparison = Comparison::new("lab", 1, &[Side::Plain, Side::Uncopy]);
        comparison.round(|side| {
            let elapsed_s = if side == Side::Plain { 4.0 } else { 3.0 };
            Ok(Sample { elapsed_s: Some(elapsed_s), verified_bytes: Some(1), ..Sample::default() })
        });
        figures.report.comparisons = vec![comparison];
        let measured = measured("lab", figures);
        let time = measured.rows[1].time_ratio.as_ref().expect("a time");
        assert_eq!((time.of.as_str(), time.ratio.median.to_bits()), ("time", 0.75f64.to_bits()));
        assert_eq!(measured.rows[0].time_ratio, None);
    }

    #[test]
    fn a_second_run_is_noted_beside_the_first() {
        let mut first = measured("copies", figures(1.5));
        repeat(&mut first, &measured("copies", figures(1.2)));
        assert!(first.repeated);
        assert!(first.rows[1].second_ratio.is_some_and(|ratio| (ratio - 1.2).abs() < 1e-9));
        assert_eq!(first.rows[0].second_ratio, None);
    }
}

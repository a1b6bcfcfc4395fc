//! The table, findings and plot of any sweep. Columns and findings follow from the parameters that are varied.

use serde_json::{Value, json};

use super::break_even;
use super::groups::{Group, groups, ratio_to_sibling};
use super::sweeps::Sweep;
use crate::kit::figures::{self, CPU, ExtraColumn, LEGEND, RATE, median};
use crate::kit::{Comparison, Interval, Plot, Scale, Side, format_number};

/// A column, which is shown if it has a cell in any row.
struct Column {
    heading: &'static str,
    legend: &'static str,
    /// Returns the cell of a side of one of all comparisons.
    cell: fn(&[Comparison], &Comparison, Side) -> Option<String>,
}

const COLUMNS: [Column; 7] = [
    Column {
        heading: "read/copied",
        legend: "read/copied: bytes read over bytes copied; break-even: where the median ratio first falls below 1\n",
        cell: |_, comparison, _| {
            let (share, copies) = (comparison.parameter("read_percent")?, comparison.parameter("copies")?);
            (copies > 0.0).then(|| format!("{:.1} %", share / copies))
        },
    },
    Column {
        heading: "of limit",
        legend: "of limit: rate over that of the same server with 0 copies, without uncopy, in the same \
                 round\n",
        cell: |_, comparison, side| ratio_cell(comparison.ratio_to_limit(side, RATE)),
    },
    Column {
        heading: "of own 0",
        legend: "of own 0: rate over that of the same side with 0 copies\n",
        cell: |all, comparison, side| ratio_cell(ratio_to_sibling(all, comparison, ("copies", 0.0), side)),
    },
    Column {
        heading: "scaling",
        legend: "scaling: rate over that of the same side with one thread, process by process\n",
        cell: |all, comparison, side| ratio_cell(ratio_to_sibling(all, comparison, ONE_THREAD, side)),
    },
    Column {
        heading: "faults/op",
        legend: "faults/op: page faults that uncopy resolved, per message\n",
        cell: |_, comparison, side| {
            comparison.parameter("pages")?;
            median(comparison, side, |sample| sample.counts.served_faults).map(format_number)
        },
    },
    Column {
        heading: "ns/page",
        legend: "ns/page: time to touch a page, by the server's clock; the excess over plain is the cost of \
                 page faults\n",
        cell: |_, comparison, side| median(comparison, side, |sample| sample.touch_ns).map(format_number),
    },
    Column {
        heading: "ns/event",
        legend: "ns/event: processor time that recording adds to heap only, per recorded input, copy or \
                 output\n",
        cell: |_, comparison, side| {
            let without_us = median(comparison, Side::HeapOnly, CPU).filter(|_| side == Side::Recording)?;
            let added_us = median(comparison, side, CPU)? - without_us;
            Some(format!("{:.0}", added_us * 1e3 / (comparison.parameter("copies")? + 2.0)))
        },
    },
];

fn ratio_cell(ratio: Option<Interval>) -> Option<String> {
    ratio.map(|ratio| format!("{:.2}", ratio.median))
}

const ONE_THREAD: (&str, f64) = ("threads", 1.0);

/// Renders the table, the break-evens and the legend.
pub fn render(comparisons: &[Comparison]) -> String {
    let has_cells = |column: &&Column| {
        let cell = |comparison, side: &Side| (column.cell)(comparisons, comparison, *side).is_some();
        comparisons.iter().any(|comparison| comparison.sides().iter().any(|side| cell(comparison, side)))
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(has_cells).collect();
    let extra = |column: &&'static Column| -> ExtraColumn<'_> {
        let cell = column.cell;
        (
            column.heading,
            Box::new(move |comparison, side| cell(comparisons, comparison, side).unwrap_or_default()),
        )
    };
    let extras: Vec<ExtraColumn<'_>> = columns.iter().map(extra).collect();
    let legends: String = columns.iter().map(|column| column.legend).collect();
    let is_cyclic = comparisons.iter().any(|comparison| comparison.parameter("phase_s").is_some());
    let cycle = "ratios are those of the means over a whole cycle: forwarding the messages, then reading \
                 them\n";
    format!(
        "{}\n{}{LEGEND}{legends}{}",
        figures::table(comparisons, &extras),
        break_even::render(comparisons),
        if is_cyclic { cycle } else { "" }
    )
}

/// Returns the scaling of each side, and the break-evens, as JSON.
pub fn findings(comparisons: &[Comparison]) -> Vec<(&'static str, Value)> {
    let scaling = |comparison: &Comparison, side: Side| {
        let scaling = ratio_to_sibling(comparisons, comparison, ONE_THREAD, side)?;
        let (title, threads) = (comparison.title(), comparison.parameter("threads"));
        Some(json!({ "experiment": title, "threads": threads, "side": side.key(), "scaling": scaling }))
    };
    let sides = comparisons.iter().flat_map(|one| one.sides().iter().map(move |side| (one, *side)));
    let scaling: Vec<Value> = sides.filter_map(|(comparison, side)| scaling(comparison, side)).collect();
    let has = |parameter: &str| comparisons.iter().any(|one| one.parameter(parameter).is_some());
    let scaling = has("threads").then(|| ("scaling", scaling.into()));
    let break_even = has("read_percent").then(|| ("break_even", break_even::findings(comparisons).into()));
    scaling.into_iter().chain(break_even).collect()
}

/// Plots the sweep's quantity over its parameter: a line for each side and group.
pub fn plot(comparisons: &[Comparison], sweep: &Sweep) -> Plot {
    let ((x, label), (y, figure)) = sweep.axes;
    let groups = groups(comparisons, x);
    // With several groups, only the sides under uncopy: there would be too many lines.
    let is_drawn = |side: &&Side| groups.len() == 1 || side.is_under_uncopy();
    let of_group = |Group { name, members }: &Group<'_>| -> Vec<_> {
        let mut points = Vec::new();
        for (value, comparison) in members {
            for side in comparison.sides().iter().filter(is_drawn) {
                let side_name = side.name().to_owned();
                let name = if groups.len() == 1 { side_name } else { format!("{side_name}, {name}") };
                points.extend(figure(comparison, *side).map(|figure| (name, *value, figure)));
            }
        }
        points
    };
    let scale = if x == "size_bytes" { Scale::Doubling } else { Scale::Linear };
    Plot::of(sweep.entry.title, (label, scale), y, groups.iter().flat_map(of_group))
}

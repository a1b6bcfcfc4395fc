//! The experiment of zIO §5.1.3 (Figure 9): an echo server that touches pages of every message, one
//! byte in each, in several orders; and what a page costs it, by its own clock.

use clap::Args;

use crate::experiments::echo::point::{self, Point};
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, RATE, median, of_limit};
use crate::kit::{
    Comparison, Entry, Experiment, Form, Outcome, Plot, Report, Result, Scale, Series, Side, Slicing, claim,
    copies_parser, count_parser, counted, entry, figure, size, size_parser,
};
use crate::servers::echo::server::{Order, Work};

/// What is compared with plain.
const SIDES: [Side; 2] = [Side::Uncopy, Side::Always];

/// Echo server that touches pages of each message; the cost of a fault (zIO, Figure 9)
#[derive(Debug, Args)]
pub struct Faults {
    /// Numbers of pages of each message that the server touches
    #[arg(
        long,
        value_name = "PAGES,...",
        default_value = "0,1,2,4,8,32",
        default_value_if("quick", "true", "0,4"),
        value_delimiter = ','
    )]
    pub pages: Vec<usize>,
    /// Which pages
    #[arg(
        long,
        value_name = "ORDER,...",
        default_value = "sequential,random",
        value_delimiter = ',',
        value_enum
    )]
    pub orders: Vec<Order>,
    /// Numbers of the server's threads; as many connections
    #[arg(long, value_name = "N,N,...", default_value = "1,2", default_value_if("quick", "true", "1"), value_delimiter = ',', value_parser = count_parser())]
    pub threads: Vec<usize>,
    /// Length of a message, in bytes
    #[arg(long, value_name = "SIZE", default_value = "524288", value_parser = size_parser())]
    pub size: usize,
    /// Copies of each message
    #[arg(long, value_name = "N", default_value = "1", value_parser = copies_parser())]
    pub copies: usize,
    #[command(flatten)]
    pub slicing: Slicing,
    #[command(flatten)]
    pub form: Form,
}

impl Experiment for Faults {
    const ENTRIES: &'static [Entry] = &[entry(
        "faults",
        "Echo server, pages touched",
        &[claim(
            "zIO, Figure 9 (§5.1.3)",
            "Up to 2 page faults for each message of 512 KiB throughput still scales well; more of them limit it (TLB shootdowns).",
        )],
        "faults --threads 1 --processes 3 --seconds 10",
        "faults --quick --orders random",
    )];
    const PLACE: u8 = 40;

    fn run(&self) -> Result<Outcome> {
        point::run(&self.form, &self.points(), &self.slicing.slices(&SIDES), |comparisons| {
            Report::of(comparisons, render, |comparisons| plot(comparisons, &self.orders))
        })
    }
}

const fn name(order: Order) -> &'static str {
    match order {
        Order::Spread => "spread",
        Order::Sequential => "sequential",
        Order::Random => "random",
    }
}

impl Faults {
    /// One point for each number of threads, order and number of pages.
    #[expect(clippy::cast_precision_loss, reason = "few pages")]
    fn points(&self) -> Vec<Point> {
        let (size_bytes, copies) = (self.size, self.copies);
        let mut points = Vec::new();
        for threads in &self.threads {
            for order in &self.orders {
                for pages in &self.pages {
                    let work =
                        Work { size_bytes, copies, touched_pages: *pages, order: *order, ..Work::default() };
                    let title = format!(
                        "echo {}, {}, {}, {} {}",
                        size(size_bytes as u64),
                        counted(copies, "copy", "copies"),
                        counted(*threads, "thread", "threads"),
                        counted(*pages, "page", "pages"),
                        name(*order)
                    );
                    let order = self.orders.iter().position(|known| known == order).unwrap_or(0);
                    let point = Point { threads: *threads, ..Point::new(title, work) }
                        .with("threads", *threads as f64)
                        .with("order", order as f64)
                        .with("pages", *pages as f64);
                    points.push(point);
                }
            }
        }
        points
    }
}

/// The figures, with faults and the cost of a page.
fn render(comparisons: &[Comparison]) -> String {
    let faults: figures::Extra<'_> = (
        "faults/op",
        Box::new(|comparison, side| figure(median(comparison, side, |sample| sample.counts.served_faults))),
    );
    let touch: figures::Extra<'_> =
        ("ns/page", Box::new(|comparison, side| figure(median(comparison, side, |sample| sample.touch_ns))));
    let table = figures::table(comparisons, &[of_limit(), faults, touch]);
    format!(
        "{table}\n{LEGEND}{LIMIT_LEGEND}faults/op: faults that uncopy served, for each message\n\
         ns/page: what touching a page took the server, by its own clock; above plain's, it is the price of faults\n"
    )
}

/// Throughput over the number of pages: a line for each number of threads, order and side.
#[must_use]
fn plot(comparisons: &[Comparison], orders: &[Order]) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for comparison in comparisons {
        let order = orders
            .iter()
            .enumerate()
            .find(|(index, _)| comparison.parameter("order") == u32::try_from(*index).ok().map(f64::from));
        let (Some(threads), Some(pages), Some((_, order))) =
            (comparison.parameter("threads"), comparison.parameter("pages"), order)
        else {
            continue;
        };
        for side in SIDES {
            let Some(rate) = comparison.figure(side, RATE) else { continue };
            let name = format!("{}, {}, threads: {threads}", side.name(), name(*order));
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((pages, rate)),
                None => series.push(Series { name, points: vec![(pages, rate)] }),
            }
        }
    }
    Plot {
        title: "Echo server: touched pages".to_owned(),
        x: ("pages touched in each message".to_owned(), Scale::Linear),
        y: "messages per second".to_owned(),
        series,
    }
}

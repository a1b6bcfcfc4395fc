//! The experiment of zIO §5.1.3 (Figure 9): an echo server that touches pages of every message, one
//! byte in each, in several orders; and what a page costs it, by its own clock.

use crate::experiments::echo::point::{Point, counted};
use crate::kit::comparison::Comparison;
use crate::kit::figures::{self, LEGEND, LIMIT_LEGEND, RATE, of_limit};
use crate::kit::plot::{Plot, Scale, Series};
use crate::kit::side::Side;
use crate::kit::table::{number, size};
use crate::servers::echo::{Order, Work};

/// What is asked of the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of a message, bytes.
    pub size_bytes: usize,
    /// Copies of each message.
    pub copies: usize,
    /// Numbers of pages that are touched.
    pub pages: Vec<usize>,
    /// In which orders.
    pub orders: Vec<Order>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
}

const fn name(order: Order) -> &'static str {
    match order {
        Order::Spread => "spread",
        Order::Sequential => "sequential",
        Order::Random => "random",
    }
}

/// One point for each number of threads, order and number of pages.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "few pages")]
pub fn points(settings: &Settings) -> Vec<Point> {
    let (size_bytes, copies) = (settings.size_bytes, settings.copies);
    let mut points = Vec::new();
    for threads in &settings.threads {
        for order in &settings.orders {
            for pages in &settings.pages {
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
                let order = settings.orders.iter().position(|known| known == order).unwrap_or(0);
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

/// The figures, with faults and the cost of a page.
#[must_use]
pub fn render(comparisons: &[Comparison]) -> String {
    let measured = |value: f64| if value > 0.0 { number(value) } else { String::new() };
    let faults: figures::Extra<'_> = (
        "faults/op",
        Box::new(move |comparison, side| measured(figures::median(comparison, side, |sample| sample.faults))),
    );
    let touch: figures::Extra<'_> = (
        "ns/page",
        Box::new(move |comparison, side| {
            measured(figures::median(comparison, side, |sample| sample.touch_ns))
        }),
    );
    let table = figures::table(comparisons, &[of_limit(), faults, touch]);
    format!(
        "{table}\n{LEGEND}{LIMIT_LEGEND}faults/op: faults that uncopy served, for each message\n\
         ns/page: what touching a page took the server, by its own clock; above plain's, it is the price of faults\n"
    )
}

/// Throughput over the number of pages: a line for each number of threads, order and side.
#[must_use]
pub fn plot(comparisons: &[Comparison], settings: &Settings) -> Plot {
    let mut series: Vec<Series> = Vec::new();
    for comparison in comparisons {
        let order =
            settings.orders.iter().enumerate().find(|(index, _)| {
                comparison.parameter("order") == u32::try_from(*index).ok().map(f64::from)
            });
        let (Some(threads), Some(pages), Some((_, order))) =
            (comparison.parameter("threads"), comparison.parameter("pages"), order)
        else {
            continue;
        };
        for side in [Side::Plain, Side::Uncopy, Side::Always] {
            let Some(rate) = comparison.spread(side, RATE) else { continue };
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

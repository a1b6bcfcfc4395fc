//! One point of the grid: its title, its parameters and its measurement.

use std::time::Duration;

use clap::ValueEnum;

use crate::kit::{
    Comparison, Launcher, Progress, Result, RunningServer, Side, Slices, TemporaryDirectory, cli_name,
    format_count, format_size, network::server_address, processors, start_server,
};
use crate::servers::echo::command;
use crate::servers::echo::drain::Drain;
use crate::servers::echo::loaded_echo::LoadedEcho;
use crate::servers::echo::server::{EchoWork, PAGE_BYTES, PageOrder, Reply};

/// A value of each parameter. `None` is the server's default, which appears neither in titles nor in JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Point {
    /// Length of a message, bytes.
    pub size_bytes: usize,
    /// Copies of each message.
    pub copies: usize,
    /// Number of the server's threads, and of connections; one if it is `None`.
    pub threads: Option<usize>,
    /// Pages of the last copy of which one byte each is read.
    pub pages: Option<usize>,
    /// Choice of these pages.
    pub order: Option<PageOrder>,
    /// Share of each message that is read, percent; if it is `None`, all with a phase, and nothing without.
    pub read_percent: Option<u8>,
    /// Length of a phase: the server alternates between passing messages on and reading them.
    pub phase: Option<Duration>,
    /// Answer of the server.
    pub reply: Reply,
}

/// Returns a parameter's value in words.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes and small numbers")]
pub fn parameter_text((key, value): (&str, f64)) -> String {
    let number = value as usize;
    match key {
        "size_bytes" => format_size(number as u64),
        "copies" => format_count(number, "copy", "copies"),
        "threads" => format_count(number, "thread", "threads"),
        "pages" => format_count(number, "page", "pages"),
        "order" => PageOrder::value_variants().get(number).map_or_else(String::new, cli_name),
        "read_percent" => format!("{value} % read"),
        _ => format!("switching every {value} s"),
    }
}

impl Point {
    /// Returns the parameters by their keys in JSON.
    #[expect(clippy::cast_precision_loss, reason = "sizes and small numbers")]
    fn parameters(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("size_bytes", Some(self.size_bytes as f64)),
            ("copies", Some(self.copies as f64)),
            ("threads", self.threads.map(|threads| threads as f64)),
            ("pages", self.pages.map(|pages| pages as f64)),
            ("order", self.order.map(|order| f64::from(order as u8))),
            ("read_percent", self.read_percent.map(f64::from)),
            ("phase_s", self.phase.map(|phase| phase.as_secs_f64())),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?)))
    }

    /// Returns the title of the point in tables.
    #[must_use]
    pub fn title(&self) -> String {
        let mut title = match self.reply {
            Reply::Echo => "echo",
            Reply::Checksum => "store",
            Reply::LastPage => "receive",
        }
        .to_owned();
        for (at, parameter) in self.parameters().enumerate() {
            title += if at == 0 || parameter.0 == "order" { " " } else { ", " };
            title += &parameter_text(parameter);
        }
        title
    }

    /// Returns the point's comparison, without samples. Where nothing is copied, plain is the limit itself.
    pub fn comparison(&self, sides: &[Side]) -> Comparison {
        let sides: Vec<Side> =
            sides.iter().copied().filter(|side| *side != Side::Limit || self.copies > 0).collect();
        let comparison = Comparison::new(self.title(), self.size_bytes as u64, &sides);
        let comparison = if self.phase.is_some() { comparison.cyclic() } else { comparison };
        self.parameters().fold(comparison, |comparison, (key, value)| comparison.with_parameter(key, value))
    }

    /// Returns the server's work under `side`.
    pub fn work(&self, side: Side) -> EchoWork {
        let read_percent = self.read_percent.unwrap_or(if self.phase.is_some() { 100 } else { 0 });
        EchoWork {
            size_bytes: self.size_bytes,
            copies: if side == Side::Limit { 0 } else { self.copies },
            touched_pages: self.pages.unwrap_or(0),
            order: self.order.unwrap_or_default(),
            read_bytes: self.size_bytes * usize::from(read_percent) / 100,
            phase_ms: self.phase.map_or(0, |phase| u64::try_from(phase.as_millis()).unwrap_or(u64::MAX)),
            reply: self.reply,
        }
    }

    /// True if so little is touched that uncopy should elide copies.
    fn expects_elision(&self) -> bool {
        let EchoWork { copies, reply, read_bytes, touched_pages, .. } = self.work(Side::Uncopy);
        let touched_bytes = read_bytes.max(touched_pages * PAGE_BYTES);
        copies > 0 && reply == Reply::Echo && touched_bytes * 10 <= self.size_bytes
    }

    /// Starts a server under `side`, with its clients.
    fn start(&self, launcher: &Launcher, side: Side) -> Result<Box<dyn RunningServer>> {
        let (work, threads) = (self.work(side), self.threads.unwrap_or(1));
        let mut command = launcher.bench_command(side, &command::arguments(server_address(), &work, threads));
        let drain = if side == Side::Recording { Some(Drain::begin(&mut command)?) } else { None };
        processors::bind_command(&mut command, processors::of_server(threads));
        let server = start_server(command, "the echo server", TemporaryDirectory::make()?)?;
        let clients = processors::of_clients(threads);
        let echoing = LoadedEcho::new(server, server_address(), work, threads, clients)?;
        Ok(Box::new(echoing.with_drain(drain)))
    }
}

/// Measures one comparison for each point.
pub fn measure(
    launcher: &Launcher,
    points: &[Point],
    slices: &Slices,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let measure = |point: &Point| {
        let mut comparison = point.comparison(&slices.sides);
        slices.run(launcher, &mut comparison, point.expects_elision(), progress, |side| {
            point.start(launcher, side)
        });
        comparison
    };
    points.iter().map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::SlicingOptions;

    #[test]
    fn the_limit_is_the_same_work_without_its_copies() {
        let point = Point { size_bytes: 70_000, copies: 5, pages: Some(3), ..Point::default() };
        let limit = point.work(Side::Limit);
        assert_eq!((limit.copies, limit.size_bytes, limit.touched_pages), (0, 70_000, 3));
        assert_eq!(point.work(Side::Uncopy).copies, 5);
        let sides = [Side::Plain, Side::Limit];
        assert_eq!(point.comparison(&sides).sides(), sides);
        assert_eq!(point.comparison(&sides).parameter("copies"), Some(5.0));
        let none = Point { copies: 0, ..point };
        assert_eq!(none.comparison(&sides).sides(), [Side::Plain]);
    }

    #[test]
    fn a_server_that_cannot_be_started_is_a_failure_not_a_result() {
        let point = Point { size_bytes: 1024, copies: 1, ..Point::default() };
        let time = Duration::from_millis(1);
        let slicing = SlicingOptions {
            rounds: 7,
            processes: 2,
            seconds: time,
            slice: time,
            warm_up: time,
            keep_disturbed: false,
        };
        let slices = slicing.slices(&[Side::Uncopy]);
        let launcher = Launcher::of("/nonexistent/uncopy");
        let comparisons = measure(&launcher, &[point; 2], &slices, &mut Progress::new());
        assert_eq!(comparisons.len(), 2);
        for comparison in &comparisons {
            assert!(comparison.notes().concat().contains("/nonexistent/uncopy"));
        }
    }
}

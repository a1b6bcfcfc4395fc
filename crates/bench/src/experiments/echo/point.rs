//! The harness of every experiment on the echo server. The experiments only say with what.

use std::time::Duration;

use crate::experiments::echo::drain::Drain;
use crate::kit::traffic::Load;
use crate::kit::{
    Comparison, Form, Launcher, Outcome, Progress, Report, Result, Running, Server, Side, Slices,
    TemporaryDirectory, measured, network::server_address, processors,
};
use crate::servers::echo::command;
use crate::servers::echo::echoing::Echoing;
use crate::servers::echo::server::{PAGE_BYTES, Reply, Work};

/// One point of an experiment: what the server does and how it is loaded.
#[derive(Clone, Debug)]
pub struct Point {
    /// What it is called in tables.
    pub title: String,
    /// What the server does with each message.
    pub work: Work,
    /// The server's threads, and as many connections.
    pub threads: usize,
    /// Parameters for JSON and plots.
    pub parameters: Vec<(&'static str, f64)>,
}

impl Point {
    /// One thread and no parameters.
    #[must_use]
    pub fn new(title: impl Into<String>, work: Work) -> Self {
        Self { title: title.into(), work, threads: 1, parameters: Vec::new() }
    }

    /// The same with a parameter.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.parameters.push((name, value));
        self
    }

    /// The point's comparison, without samples. Where nothing is copied, plain is the limit itself.
    fn comparison(&self, sides: &[Side]) -> Comparison {
        let sides: Vec<Side> =
            sides.iter().copied().filter(|side| *side != Side::Limit || self.work.copies > 0).collect();
        let comparison = Comparison::new(&self.title, self.work.size_bytes as u64, &sides);
        let comparison = if self.work.phase_ms > 0 { comparison.cyclic() } else { comparison };
        self.parameters.iter().fold(comparison, |comparison, (name, value)| comparison.with(name, *value))
    }

    /// What the server does under `side`.
    fn work(&self, side: Side) -> Work {
        let copies = if side == Side::Limit { 0 } else { self.work.copies };
        Work { copies, ..self.work }
    }

    /// Whether so little is touched that elision is to be expected.
    fn expects_elision(&self) -> bool {
        let touched_bytes = self.work.read_bytes.max(self.work.touched_pages * PAGE_BYTES);
        self.work.copies > 0 && self.work.reply == Reply::Echo && touched_bytes * 10 <= self.work.size_bytes
    }
}

/// Runs the experiment: one comparison for each point.
pub fn measure(
    launcher: &Launcher,
    points: &[Point],
    slices: &Slices,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let measure = |point: &Point| {
        let mut comparison = point.comparison(&slices.sides);
        slices.run(launcher, &mut comparison, point.expects_elision(), progress, |side| {
            start(launcher, side, point)
        });
        comparison
    };
    points.iter().map(measure).collect()
}

/// Runs an experiment of `points`, whose comparisons `report` shows.
///
/// # Errors
/// When uncopy is not to be found.
pub fn run(
    form: &Form,
    points: &[Point],
    slices: &Slices,
    report: impl FnOnce(Vec<Comparison>) -> Report,
) -> Result<Outcome> {
    measured(form, |launcher, progress| Ok(report(measure(launcher, points, slices, progress))))
}

/// Starts a server under `side`, with its clients.
fn start(launcher: &Launcher, side: Side, point: &Point) -> Result<Box<dyn Running>> {
    let work = point.work(side);
    let mut command = launcher.bench(side, &command::arguments(server_address(), &work, point.threads));
    let drain = if side == Side::Recording { Some(Drain::begin()?) } else { None };
    if let Some(drain) = &drain {
        drain.record(&mut command);
    }
    processors::bind(&mut command, processors::of_server(point.threads));
    let server = Server::start(command, "the echo server", TemporaryDirectory::make()?)?;
    let clients = processors::of_clients(point.threads);
    let echoing = Echoing::new(server, server_address(), work, point.threads, clients)?;
    Ok(match drain {
        None => Box::new(echoing),
        Some(drain) => Box::new(Recorded { echoing, drain: Some(drain), copies: work.copies }),
    })
}

/// An echo server whose recording is drained.
struct Recorded {
    echoing: Echoing,
    drain: Option<Drain>,
    copies: usize,
}

impl Running for Recorded {
    fn server(&mut self) -> &mut Server {
        self.echoing.server()
    }

    fn load(&mut self, duration: Duration) -> Result<Load> {
        self.echoing.load(duration)
    }

    fn reconnect(&mut self) -> Result<()> {
        self.echoing.reconnect()
    }

    fn notes(&mut self) -> Vec<String> {
        let Some(drained) = self.drain.take().map(Drain::finish) else { return Vec::new() };
        // Each input, copy and output is an event.
        let least = (self.copies as u64 + 2) * self.echoing.exchanges();
        if drained.gaps == 0 && drained.events >= least {
            return Vec::new();
        }
        vec![format!("{} events of {least}, {} gaps", drained.events, drained.gaps)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_same_work_without_its_copies() {
        let work = Work { size_bytes: 70_000, copies: 5, touched_pages: 3, ..Work::default() };
        let point = Point::new("echo", work).with("copies", 5.0);
        let limit = point.work(Side::Limit);
        assert_eq!((limit.copies, limit.size_bytes, limit.touched_pages), (0, 70_000, 3));
        assert_eq!(point.work(Side::Uncopy).copies, 5);
        let sides = [Side::Plain, Side::Limit];
        assert_eq!(point.comparison(&sides).sides(), sides);
        assert_eq!(point.comparison(&sides).parameter("copies"), Some(5.0));
        let none = Point::new("echo", Work { copies: 0, ..work });
        assert_eq!(none.comparison(&sides).sides(), [Side::Plain]);
    }

    #[test]
    fn a_server_that_cannot_be_started_is_a_failure_not_a_result() {
        let work = Work { size_bytes: 1024, copies: 1, ..Work::default() };
        let points = [Point::new("echo 1", work), Point::new("echo 2", work)];
        let sides = vec![Side::Plain, Side::Uncopy];
        let time = Duration::from_millis(1);
        let slices = Slices {
            sides,
            processes: 2,
            rounds: 7,
            time,
            slice: time,
            rest: Duration::ZERO,
            warm_up: time,
            keep_disturbed: false,
            cycle: None,
        };
        let launcher = Launcher::of("/nonexistent/uncopy");
        let comparisons = measure(&launcher, &points, &slices, &mut Progress::new());
        assert_eq!(comparisons.len(), 2);
        for comparison in &comparisons {
            assert!(comparison.notes().concat().contains("/nonexistent/uncopy"));
        }
    }
}

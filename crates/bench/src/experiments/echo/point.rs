//! The harness of every experiment on the echo server: it starts the server under each side, loads
//! it, checks every answer, and stops it. The experiments only say with what.

use std::time::Duration;

use crate::experiments::echo::drain::Drain;
use crate::kit::{
    Comparison, Form, Launcher, Outcome, Progress, Report, Result, Sample, Schedule, Server, Side,
    TemporaryDirectory, measured,
};
use crate::kit::{processors, traffic};
use crate::servers::echo::client::EchoClient;
use crate::servers::echo::command;
use crate::servers::echo::server::{PAGE_BYTES, Reply, Work, touch_ns};

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
    schedule: &Schedule,
    progress: &mut Progress,
) -> Vec<Comparison> {
    let mut comparisons: Vec<Comparison> =
        points.iter().map(|point| point.comparison(&schedule.sides)).collect();
    schedule.rounds.run(&mut comparisons, points, progress, |point, side, round| {
        sample(launcher, side, point, schedule.duration, round as u64)
    });
    comparisons
}

/// Runs an experiment of `points`, whose comparisons `report` shows.
///
/// # Errors
/// When uncopy is not to be found.
pub fn run(
    form: &Form,
    points: &[Point],
    schedule: &Schedule,
    report: impl FnOnce(Vec<Comparison>) -> Report,
) -> Result<Outcome> {
    measured(form, |launcher, progress| Ok(report(measure(launcher, points, schedule, progress))))
}

/// Starts a server under `side`, loads it, and stops it.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn sample(launcher: &Launcher, side: Side, point: &Point, duration: Duration, seed: u64) -> Result<Sample> {
    let work = point.work(side);
    let mut command = launcher.bench(side, &command::arguments(&work, point.threads));
    let drain = if side == Side::Recording { Some(Drain::begin()?) } else { None };
    if let Some(drain) = &drain {
        drain.record(&mut command);
    }
    processors::bind(&mut command, processors::of_server(point.threads));
    let others = processors::of_clients(point.threads);
    let mut server = Server::start(command, "the echo server", TemporaryDirectory::make()?)?;
    let address = command::address(&server.first_line()?)?;
    let connect =
        |number| EchoClient::connect(address, work.size_bytes, work.reply, seed * 1000 + number as u64);
    let clients = (0..point.threads).map(connect).collect::<Result<Vec<_>>>();
    let mut clients = clients.map_err(|failure| server.process().explain(&failure))?;
    let (sample, exchanges) = traffic::sample(&mut server, duration, |duration| {
        traffic::at_once(&mut clients, others, |client| client.run(duration))
    })?;
    let pid = server.process().pid();
    let (mut notes, activity) = launcher.inspect(side, pid, &server.stderr_text(), point.expects_elision());
    let faults = activity.map(|activity| activity.faults as f64 / exchanges as f64);
    if let Some(drained) = drain.map(Drain::finish) {
        let least = (work.copies as u64 + 2) * exchanges;
        if drained.gaps > 0 || drained.events < least {
            notes.push(format!("{} events of {least}, {} gaps", drained.events, drained.gaps));
        }
    }
    let defect = server.process().stop().err().map(|failure| failure.to_string());
    Ok(Sample { faults, touch_ns: touch_ns(&server.rest_of_stdout()), notes, defect, ..sample })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::rounds::Rounds;

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
        let schedule = Schedule { rounds: Rounds::exactly(2), duration: Duration::from_millis(1), sides };
        let launcher = Launcher::of("/nonexistent/uncopy");
        let comparisons = measure(&launcher, &points, &schedule, &mut Progress::new());
        assert_eq!(comparisons.len(), 2);
        for comparison in &comparisons {
            assert!(comparison.notes().concat().contains("/nonexistent/uncopy"));
        }
    }
}

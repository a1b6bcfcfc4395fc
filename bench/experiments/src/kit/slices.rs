//! Measurement by slices: the servers of all sides live at the same time, each loaded for some tens of ms in turn.
//!
//! ```text
//!   process of each side ─ warm-up ─┬ connection ─ settle ─ round ─ round ─ … ┬ connection ─ … ┐ counts, verification,
//!                                   └─────────────────────────────────────────┴────────────────┘ end
//!   round:     plain │ uncopy │ plain again      (random order, one client)
//! ```
//!
//! Disturbances of a machine come and go in less than a second, so the slices of one round meet the same ones. A
//! slice that others disturbed is retaken, and after three attempts its round is dropped; so is a round in which the
//! host moved this machine's processors. Processor time is that of all the server's processes from the begin of the
//! round to its end, so that work after a slice, such as giving memory back, is counted too. Connections are renewed
//! every few rounds and processes several times, because both can be lucky.

use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::kit::checksum;
use crate::kit::comparison::{Comparison, Generation, Round};
use crate::kit::counts::Counts;
use crate::kit::distance;
use crate::kit::disturbance::CpuSnapshot;
use crate::kit::failure::{Failure, Result};
use crate::kit::figures::{CPU, RATE};
use crate::kit::keeper;
use crate::kit::noise;
use crate::kit::processes::cpu_time::process_cpu_ns;
use crate::kit::processes::descendants::{self, Held};
use crate::kit::processors;
use crate::kit::progress::Progress;
use crate::kit::random::Random;
use crate::kit::running_server::RunningServer;
use crate::kit::sample::{RawSlice, Sample};
use crate::kit::side::{Launcher, Side};
use crate::kit::traffic::LoadResult;

/// Rounds over the same connections.
const ROUNDS_PER_CONNECTION: usize = 2;
/// Attempts at a slice; a round with a slice that was disturbed in each of them is dropped.
const MAX_ATTEMPTS: u32 = 3;
/// Divisor of the warm-up for servers that have nothing to learn, relative to one under uncopy.
const WARM_UP_DIVISOR: u32 = 10;
/// Divisor of the slice that gives the unmeasured load over new connections.
const SETTLE_DIVISOR: u32 = 4;
/// Time for which processes of a server may outlive the one that was started.
const LINGER: Duration = Duration::from_secs(2);
/// Time for which a log keeper may outlive the server; it syncs files that may be long.
const KEEPER_LINGER: Duration = Duration::from_secs(20);

/// Parameters of the measurement of a case.
#[derive(Clone, Debug)]
pub struct Slices {
    /// Compared sides, plain first.
    pub sides: Vec<Side>,
    /// Minimum number of generations.
    pub processes: usize,
    /// Minimum number of rounds that count, over all generations.
    pub rounds: usize,
    /// Time budget of a case, over all generations.
    pub time: Duration,
    /// Length of a slice.
    pub slice: Duration,
    /// Pause after each slice, in which servers finish work that would disturb the next slice. Their time in it
    /// counts.
    pub pause: Duration,
    /// Warm-up of a server of [`Side::UNCOPY`], in which its call-site accounts fill and its trials find out which
    /// elisions pay. The cost of this phase is measured by the sweep `echo switching`.
    pub warm_up: Duration,
    /// True if rounds that others disturbed count too.
    pub keep_disturbed: bool,
    /// Lifetime of connections, for work that changes in phases and has to be measured as a whole cycle.
    pub cycle: Option<Duration>,
}

impl Slices {
    /// Measures `comparison`, whose servers `start` starts with their clients connected, until every ratio is known to
    /// 2 % or the time is up. With `expects_elision`, adds a note if uncopy elided nothing.
    pub fn run<'a>(
        &self,
        launcher: &Launcher,
        comparison: &mut Comparison,
        expects_elision: bool,
        progress: &mut Progress,
        mut start: impl FnMut(Side) -> Result<Box<dyn RunningServer + 'a>>,
    ) {
        for side in comparison.sides().to_vec() {
            if let Err(missing) = side.allocator_environment() {
                comparison.skip_side(side, &missing);
            }
        }
        let mut left = self.time;
        let share = self.time / u32::try_from(self.processes).unwrap_or(1).max(1);
        for number in 0.. {
            let is_precise = [RATE, CPU].into_iter().all(|metric| comparison.is_precise(metric));
            let is_done = comparison.round_count() >= self.rounds
                && comparison.process_count() >= self.processes
                && is_precise;
            if number >= self.processes && (is_done || left < share / 2) {
                return;
            }
            let share = share.min(left);
            let mut run =
                GenerationRun { slices: self, launcher, expects_elision, number, comparison, progress };
            match run.measure(share, &mut start) {
                Ok((generation, took)) => {
                    comparison.add(generation);
                    left = left.saturating_sub(took);
                }
                Err(failure) => return comparison.fail(&failure),
            }
        }
    }
}

/// The server of one side.
struct SideServer<'a> {
    side: Side,
    running_server: Box<dyn RunningServer + 'a>,
    /// The server and its descendants, with the last known processor time of each, ns.
    processes: Vec<(Pid, u64)>,
    /// The log's keeper, if there is one.
    keeper: Option<Pid>,
    verified_bytes: u64,
}

/// Processor time of a server's processes.
#[derive(Clone, Copy, Debug)]
struct CpuTime {
    /// All of them, ns.
    all_ns: u64,
    /// Those beside the server, ns; `None` if there are none.
    service_ns: Option<u64>,
    /// The log's keeper, ns; `None` if there is none.
    keeper_ns: Option<u64>,
}

impl CpuTime {
    /// Moves the begin of a measurement, of which the time from `begun` to `ended` does not count.
    fn leave_out(&mut self, begun: Self, ended: Self) {
        self.all_ns += ended.all_ns.saturating_sub(begun.all_ns);
        let later = |begin: Option<u64>, begun, ended| Some(begin? + since(ended, begun).unwrap_or(0));
        self.service_ns = later(self.service_ns, begun.service_ns, ended.service_ns);
        self.keeper_ns = later(self.keeper_ns, begun.keeper_ns, ended.keeper_ns);
    }
}

impl SideServer<'_> {
    fn explain(&mut self, failure: &Failure) -> Failure {
        let failure = self.running_server.server().process().explain(failure);
        Failure::new(format!("{}: {failure}", self.side.name()))
    }

    fn explain_failure<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|failure| self.explain(&failure))
    }

    fn load(&mut self, duration: Duration) -> Result<LoadResult> {
        let load = self.running_server.load(duration);
        let load = self.explain_failure(load)?;
        self.verified_bytes += load.verified_bytes;
        Ok(load)
    }

    fn find_processes(&mut self) -> Vec<Pid> {
        let server = self.running_server.server();
        let mut found = descendants::of(server.process().pid());
        self.keeper = if self.side.has_log() { keeper::find_pid(server.directory().path()) } else { None };
        found.extend(self.keeper);
        found.extend(self.running_server.service_pids());
        found.iter().for_each(|pid| noise::raise_session(*pid));
        self.processes = found.iter().map(|pid| (*pid, 0)).collect();
        found
    }

    /// Returns the processor time of the server's processes.
    fn cpu_time(&mut self) -> Result<CpuTime> {
        let own = self.running_server.server().process().cpu_ns();
        self.explain_failure(own)?;
        for (pid, ns) in &mut self.processes {
            // A process that has ended keeps its last known value.
            *ns = process_cpu_ns(*pid).unwrap_or(*ns);
        }
        Ok(CpuTime {
            all_ns: self.processes.iter().map(|(_, ns)| ns).sum(),
            service_ns: self.cpu_ns_of(&self.running_server.service_pids()),
            keeper_ns: self.cpu_ns_of(self.keeper.as_slice()),
        })
    }

    fn cpu_ns_of(&self, pids: &[Pid]) -> Option<u64> {
        let of = |(pid, ns): &(Pid, u64)| if pids.contains(pid) { *ns } else { 0 };
        (!pids.is_empty()).then(|| self.processes.iter().map(of).sum())
    }
}

/// Stops a server with all its descendants and its log keeper.
///
/// # Errors
/// [`Failure`] when one of the processes had to be killed.
pub fn stop_server(running_server: &mut (dyn RunningServer + '_)) -> Result<()> {
    let server = running_server.server();
    let below = Held::below(server.process().pid());
    let keeper = Held::all(keeper::find_pid(server.directory().path()));
    let stopped = running_server.stop();
    let left = below.end(LINGER) + keeper.end(KEEPER_LINGER);
    stopped?;
    if left == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("{left} of its processes did not exit and were killed")))
}

/// One generation of a comparison.
struct GenerationRun<'s> {
    slices: &'s Slices,
    launcher: &'s Launcher,
    expects_elision: bool,
    number: usize,
    comparison: &'s Comparison,
    progress: &'s mut Progress,
}

impl GenerationRun<'_> {
    /// Measures rounds of fresh processes for `time` or until they are enough; also returns the time taken.
    fn measure<'a>(
        &mut self,
        time: Duration,
        start: &mut impl FnMut(Side) -> Result<Box<dyn RunningServer + 'a>>,
    ) -> Result<(Generation, Duration)> {
        let mut random = Random::new(checksum::of(self.comparison.title().as_bytes()) ^ self.number as u64);
        let mut subjects = self.start_servers(&mut random, start)?;
        let (begin, mut generation) = (Instant::now(), Generation::default());
        while generation.rounds.is_empty() || begin.elapsed() < time && !self.is_precise_enough(&generation) {
            // Before the first round too: a server may have closed connections that idled while others warmed up.
            for at in random_order(subjects.len(), &mut random) {
                let subject = &mut subjects[at];
                let reconnected = subject.running_server.reconnect();
                subject.explain_failure(reconnected)?;
                subject.load(self.slices.slice / SETTLE_DIVISOR)?;
            }
            for subject in &mut subjects {
                subject.find_processes();
            }
            let own = descendants::of(rustix::process::getpid());
            let (connected, before) = (Instant::now(), generation.rounds.len());
            let mut is_over = false;
            while !is_over {
                generation.rounds.push(self.measure_round(&mut subjects, &mut random, before, &own)?);
                self.report_progress(&generation);
                is_over = match self.slices.cycle {
                    Some(cycle) => connected.elapsed() >= cycle,
                    None => {
                        generation.rounds.len() - before >= ROUNDS_PER_CONNECTION || begin.elapsed() >= time
                    }
                };
            }
        }
        let took = begin.elapsed();
        for subject in &mut subjects {
            generation.process_samples.push(self.final_sample(subject)?);
        }
        for (subject, end) in subjects.iter_mut().zip(&mut generation.process_samples) {
            end.defect =
                stop_server(subject.running_server.as_mut()).err().map(|failure| failure.to_string());
            subject.running_server.add_final_figures(end);
        }
        Ok((generation, took))
    }

    /// Starts and warms up the server of each side, in random order.
    fn start_servers<'a>(
        &mut self,
        random: &mut Random,
        start: &mut impl FnMut(Side) -> Result<Box<dyn RunningServer + 'a>>,
    ) -> Result<Vec<SideServer<'a>>> {
        let sides = self.comparison.sides();
        let mut subjects = Vec::new();
        for at in random_order(sides.len(), random) {
            let side = sides[at];
            self.progress.step(format_args!(
                "{}, process {}: {}",
                self.comparison.title(),
                self.number + 1,
                side.name()
            ));
            let running_server =
                start(side).map_err(|failure| Failure::new(format!("{}: {failure}", side.name())))?;
            let mut subject =
                SideServer { side, running_server, processes: Vec::new(), keeper: None, verified_bytes: 0 };
            let part = if Side::UNCOPY.contains(&side) { 1 } else { WARM_UP_DIVISOR };
            let prepared = subject.running_server.warm_up(self.slices.warm_up / part);
            subject.verified_bytes = subject.explain_failure(prepared)?;
            subjects.push((at, subject));
        }
        subjects.sort_by_key(|(at, _)| *at);
        Ok(subjects.into_iter().map(|(_, subject)| subject).collect())
    }

    /// Measures a slice of every side; `own` are this program and all its descendants, including helpers of clients.
    fn measure_round(
        &self,
        subjects: &mut [SideServer<'_>],
        random: &mut Random,
        connection: usize,
        own: &[Pid],
    ) -> Result<Round> {
        let processors = processors::available().len();
        // A round with pauses takes long enough for the processors to change their distance.
        let measures_distance = !self.slices.keep_disturbed && self.slices.pause.is_zero();
        let distance = measures_distance.then(distance::measure_now).flatten();
        let mut before = subjects.iter_mut().map(SideServer::cpu_time).collect::<Result<Vec<_>>>()?;
        let mut loads = vec![None; subjects.len()];
        let (mut drop_reason, mut retries, mut begin) = (None, 0, CpuSnapshot::now(own));
        for at in random_order(subjects.len(), random) {
            let mut attempts = MAX_ATTEMPTS;
            while drop_reason.is_none() && loads[at].is_none() {
                let begun = subjects[at].cpu_time()?;
                let clients_ns = subjects[at].running_server.clients_cpu_ns();
                let load = subjects[at].load(self.slices.slice)?;
                let clients_ns = since(subjects[at].running_server.clients_cpu_ns(), clients_ns);
                let end = CpuSnapshot::now(own);
                let disturbance = begin.disturbance_until(&end, processors);
                begin = end;
                if !self.slices.pause.is_zero() {
                    std::thread::sleep(self.slices.pause);
                    begin = CpuSnapshot::now(own);
                }
                attempts -= 1;
                match disturbance.filter(|_| !self.slices.keep_disturbed) {
                    None => loads[at] = Some((load, clients_ns)),
                    Some(why) if attempts == 0 => drop_reason = Some(why),
                    Some(_) => {
                        before[at].leave_out(begun, subjects[at].cpu_time()?);
                        retries += 1;
                    }
                }
            }
        }
        let after = measures_distance.then(distance::measure_now).flatten();
        if !distance::is_same(distance, after) {
            drop_reason.get_or_insert_with(|| "the host moved this machine's processors".to_owned());
        }
        let mut samples = Vec::new();
        for ((subject, before), load) in subjects.iter_mut().zip(before).zip(loads) {
            let now = subject.cpu_time()?;
            let cpu_ns = now.all_ns.saturating_sub(before.all_ns);
            let service_ns = since(now.service_ns, before.service_ns);
            let keeper_ns = since(now.keeper_ns, before.keeper_ns);
            samples.push(load.map_or_else(Sample::default, |(load, clients_ns)| Sample {
                service_cpu_us: service_ns.map(|ns| us_per_operation(ns, load.exchanges)),
                keeper_cpu_us: keeper_ns.map(|ns| us_per_operation(ns, load.exchanges)),
                client_cpu_us: clients_ns.map(|ns| us_per_operation(ns, load.exchanges)),
                latency_p50_us: load.latencies.quantile_us(0.5),
                latency_p99_us: load.latencies.quantile_us(0.99),
                latency_p999_us: load.latencies.quantile_us(0.999),
                ..Sample::from(RawSlice {
                    cpu_ns,
                    operations: load.exchanges,
                    elapsed_ns: u64::try_from(load.elapsed.as_nanos()).unwrap_or(u64::MAX),
                })
            }));
        }
        Ok(Round { connection, samples, drop_reason, retries, distance })
    }

    /// Collects the figures of a server as a whole, before it ends.
    #[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
    fn final_sample(&self, subject: &mut SideServer<'_>) -> Result<Sample> {
        let processes = subject.find_processes();
        let directory = subject.running_server.server().directory().path().to_owned();
        let counts = |side| Counts::read(self.launcher, side, &processes, &directory);
        let before = counts(subject.side);
        let load = subject.load(self.slices.slice)?;
        std::thread::sleep(self.slices.pause);
        let after = counts(subject.side);
        let resident = subject.running_server.server().process().resident_bytes();
        let resident_bytes = subject.explain_failure(resident)?;
        let verified = subject.running_server.verify();
        let verified_bytes = subject.verified_bytes + subject.explain_failure(verified)?;
        let (pid, side) = (subject.running_server.server().process().pid(), subject.side);
        let stderr = subject.running_server.server().stderr_text();
        let (mut notes, activity) = self.launcher.inspect(side, pid, &stderr, self.expects_elision);
        notes.extend(subject.running_server.notes());
        Ok(Sample {
            resident_bytes: Some(resident_bytes as f64),
            counts: after.since(&before, load.exchanges),
            verified_bytes: (verified_bytes > 0).then_some(verified_bytes),
            trials: activity.map(|activity| activity.trials),
            notes,
            ..Sample::default()
        })
    }

    /// True if these rounds are as precise as those of one process need to be.
    #[expect(clippy::cast_precision_loss, reason = "few processes")]
    fn is_precise_enough(&self, generation: &Generation) -> bool {
        let mut single = self.comparison.without_samples();
        let verified = Sample { verified_bytes: Some(1), ..Sample::default() };
        let process_samples = vec![verified; self.comparison.sides().len()];
        single.add(Generation { rounds: generation.rounds.clone(), process_samples });
        // The mean over `processes` processes is known more precisely than a single one.
        let precision = Comparison::PRECISION * (self.slices.processes as f64).sqrt();
        single.round_count() >= self.slices.rounds.div_ceil(self.slices.processes)
            && [RATE, CPU].into_iter().all(|metric| single.is_precise_to(precision, metric))
    }

    fn report_progress(&mut self, generation: &Generation) {
        let dropped = generation.rounds.iter().filter(|round| round.drop_reason.is_some()).count();
        let kept = self.comparison.round_count() + generation.rounds.len() - dropped;
        let dropped = self.comparison.dropped_count() + dropped;
        let (title, processes) = (self.comparison.title(), self.slices.processes.max(self.number + 1));
        self.progress.step(format_args!(
            "{title}, process {} of {processes}: {kept} rounds, {dropped} dropped",
            self.number + 1
        ));
    }
}

/// Returns the difference of two readings, ns; `None` if one is missing.
fn since(after: Option<u64>, before: Option<u64>) -> Option<u64> {
    Some(after?.saturating_sub(before?))
}

/// Returns the share of one operation in `ns`, µs.
#[expect(clippy::cast_precision_loss, reason = "figures of a few digits")]
fn us_per_operation(ns: u64, operations: u64) -> f64 {
    ns as f64 / 1e3 / operations.max(1) as f64
}

/// Returns the numbers below `count` in random order (Fisher and Yates).
fn random_order(count: usize, random: &mut Random) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, usize::try_from(random.next() % (at as u64 + 1)).unwrap_or(0));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::processes::process::Server;
    use crate::kit::{TemporaryDirectory, start_server};
    use std::cell::RefCell;
    use std::process::Command;
    use std::rc::Rc;

    /// An event of a side's servers.
    #[derive(Clone, Debug, PartialEq)]
    enum Event {
        Started(Side),
        Loaded(Side),
        Reconnected(Side),
        Stopped(Side),
    }

    /// A server that does nothing, with clients that claim exchanges.
    struct Idle {
        side: Side,
        server: Server,
        events: Rc<RefCell<Vec<Event>>>,
        /// Number of the load that fails, if one does.
        fails: Option<u64>,
    }

    impl RunningServer for Idle {
        fn server(&mut self) -> &mut Server {
            &mut self.server
        }

        fn load(&mut self, duration: Duration) -> Result<LoadResult> {
            self.events.borrow_mut().push(Event::Loaded(self.side));
            if self.fails == Some(self.events.borrow().len() as u64) {
                return Err(Failure::new("wrong answer"));
            }
            Ok(LoadResult { exchanges: 5, verified_bytes: 7, elapsed: duration, ..LoadResult::default() })
        }

        fn reconnect(&mut self) -> Result<()> {
            self.events.borrow_mut().push(Event::Reconnected(self.side));
            Ok(())
        }

        fn stop(&mut self) -> Result<()> {
            self.events.borrow_mut().push(Event::Stopped(self.side));
            Ok(())
        }
    }

    fn run(fails: Option<u64>) -> (Comparison, Vec<Event>) {
        let sides = [Side::Plain, Side::PlainAgain, Side::Limit];
        let time = Duration::from_secs(20);
        let slice = Duration::from_millis(1);
        let slices = Slices {
            sides: sides.to_vec(),
            processes: 3,
            rounds: 12,
            time,
            slice,
            pause: slice,
            warm_up: slice,
            keep_disturbed: true,
            cycle: None,
        };
        let mut comparison = Comparison::new("idle", 1, &sides);
        let events = Rc::new(RefCell::new(Vec::new()));
        let launcher = Launcher::of("/nonexistent/uncopy");
        slices.run(&launcher, &mut comparison, false, &mut Progress::new(), |side| {
            events.borrow_mut().push(Event::Started(side));
            let mut command = Command::new("sleep");
            command.arg("600");
            let server = start_server(command, "sleep", TemporaryDirectory::make()?)?;
            Ok(Box::new(Idle { side, server, events: Rc::clone(&events), fails }) as Box<dyn RunningServer>)
        });
        let events = events.take();
        (comparison, events)
    }

    #[test]
    fn a_slice_that_is_repeated_counts_for_nobody() {
        let at = |all_ns, service_ns, keeper_ns| CpuTime { all_ns, service_ns, keeper_ns: Some(keeper_ns) };
        let mut before = at(100, None, 10);
        before.leave_out(at(110, None, 12), at(150, None, 42));
        assert_eq!((before.all_ns, before.service_ns, before.keeper_ns), (140, None, Some(40)));
        let mut before = at(100, Some(50), 10);
        before.leave_out(at(110, Some(50), 12), at(150, Some(80), 12));
        assert_eq!((before.all_ns, before.service_ns, before.keeper_ns), (140, Some(80), Some(10)));
    }

    #[test]
    fn fresh_servers_of_all_sides_are_loaded_in_turn_over_new_connections() {
        let (comparison, events) = run(None);
        assert!(comparison.is_flawless(), "{:?}", comparison.notes());
        assert!(comparison.process_count() >= 3 && comparison.round_count() >= 12);
        let count = |of: fn(&Event) -> bool| events.iter().filter(|event| of(event)).count();
        assert_eq!(count(|event| matches!(event, Event::Started(_))), 3 * comparison.process_count());
        assert_eq!(count(|event| matches!(event, Event::Stopped(_))), 3 * comparison.process_count());
        assert!(count(|event| matches!(event, Event::Reconnected(_))) > 0);
        // No server starts while one of the previous generation lives.
        let mut alive = 0;
        for event in &events {
            match event {
                Event::Started(_) => alive += 1,
                Event::Stopped(_) => alive -= 1,
                Event::Loaded(_) | Event::Reconnected(_) => assert!((1..=3).contains(&alive)),
            }
        }
        let orders: std::collections::HashSet<String> = events
            .split(|event| !matches!(event, Event::Loaded(_)))
            .flat_map(|loads| loads.chunks_exact(3))
            .map(|round| format!("{round:?}"))
            .collect();
        assert!(orders.len() > 2, "the order is random: {orders:?}");
    }

    #[test]
    fn a_wrong_answer_ends_the_comparison_with_the_name_of_its_side() {
        let (comparison, events) = run(Some(20));
        assert!(!comparison.is_verified());
        let Some(Event::Loaded(side)) = events.last() else { panic!("it ended later: {events:?}") };
        assert_eq!(comparison.notes(), [format!("{}: wrong answer", side.name())]);
    }
}

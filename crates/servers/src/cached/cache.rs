//! What all threads share, and what `stats` tells of it.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::admission::Admission;
use crate::cached::arguments::Settings;
use crate::cached::budget::Budget;
use crate::cached::expiry;
use crate::cached::response::Response;
use crate::cached::statistics::{Counter, Counters, total};
use crate::cached::store::Store;
use crate::command_line;

/// What `version` answers: the version of memcached whose protocol this is, and our own.
pub const VERSION: &str = concat!("1.6.18-uncopy-", env!("CARGO_PKG_VERSION"));

/// The cache.
#[derive(Debug)]
pub struct Cache {
    /// The items.
    pub store: Store,
    /// What the command line asked for.
    pub settings: Settings,
    /// A set for each thread.
    pub counters: Vec<Counters>,
    /// Connections.
    pub admission: Arc<Admission>,
    /// Set with `verbosity`; more than 0 tells of connections that are closed for a reason.
    pub verbosity: AtomicU32,
}

/// One thread serving requests: what it needs besides the request.
#[derive(Debug)]
pub struct Caller<'a> {
    /// The cache.
    pub cache: &'a Cache,
    /// The thread's counters.
    pub counters: &'a Counters,
    /// Where answers go.
    pub response: &'a mut Response,
}

impl Caller<'_> {
    /// One more of `counter`.
    pub fn count(&self, counter: Counter) {
        self.counters.count(counter);
    }

    /// Answers with a line, unless `is_silent`.
    pub fn answer(&mut self, line: &str, is_silent: bool) {
        if !is_silent {
            self.response.line(line.as_bytes());
        }
    }
}

/// User and system time of this process, seconds.
fn processor_time() -> (f64, f64) {
    let ticks = |clock| {
        let time = rustix::time::clock_gettime(clock);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        seconds
    };
    let all = ticks(rustix::time::ClockId::ProcessCPUTime);
    // utime and stime are the 14th and 15th field of the line, the 12th and 13th behind the name.
    let line = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = line.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
    let mut parts = fields.filter_map(|field| field.parse::<f64>().ok());
    match (parts.next(), parts.next()) {
        (Some(user), Some(system)) if user + system > 0.0 => {
            (all * user / (user + system), all * system / (user + system))
        }
        _ => (all, 0.0),
    }
}

impl Cache {
    /// An empty cache.
    pub fn new(settings: Settings) -> Self {
        let [limit_mib, threads, connections] =
            [settings.memory_limit, settings.threads, settings.connections]
                .map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        let budget = Arc::new(Budget::new(limit_mib.saturating_mul(1 << 20)));
        Self {
            store: Store::new(budget, settings.item_limit),
            counters: std::iter::repeat_with(Counters::default).take(threads).collect(),
            admission: Admission::new(connections),
            verbosity: AtomicU32::new(settings.verbose.into()),
            settings,
        }
    }

    /// Answers `stats`.
    pub fn tell_statistics(&self, response: &mut Response) {
        let mut text = String::new();
        let mut tell = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "STAT {name} {value}\r\n");
        };
        let (user, system) = processor_time();
        tell("pid", &std::process::id());
        tell("uptime", &expiry::now().0.saturating_sub(2));
        tell("time", &expiry::unix_s());
        tell("version", &VERSION);
        tell("pointer_size", &usize::BITS);
        tell("rusage_user", &format_args!("{user:.6}"));
        tell("rusage_system", &format_args!("{system:.6}"));
        tell("max_connections", &self.settings.connections);
        tell("curr_connections", &self.admission.open());
        tell("total_connections", &self.admission.accepted());
        tell("rejected_connections", &self.admission.refused());
        for counter in Counter::ALL {
            tell(counter.name(), &total(&self.counters, *counter));
        }
        tell("limit_maxbytes", &self.store.budget().limit_bytes());
        tell("threads", &self.settings.threads);
        tell("bytes", &self.store.budget().used_bytes());
        tell("curr_items", &self.store.len());
        tell("total_items", &self.store.stored());
        tell("evictions", &self.store.evictions());
        tell("refused_for_memory", &self.store.budget().refusals());
        response.push(text.as_bytes());
        response.line(b"END");
    }

    /// Answers `stats settings`.
    pub fn tell_settings(&self, response: &mut Response) {
        let mut text = String::new();
        let mut tell = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, "STAT {name} {value}\r\n");
        };
        let settings = &self.settings;
        tell("maxbytes", &self.store.budget().limit_bytes());
        tell("maxconns", &settings.connections);
        tell("tcpport", &settings.port);
        tell("udpport", &settings.udp_port);
        tell("verbosity", &self.verbosity.load(Relaxed));
        tell("evictions", &"on");
        tell("num_threads", &settings.threads);
        tell("cas_enabled", &"yes");
        tell("flush_enabled", &"yes");
        tell("item_size_max", &self.store.item_limit_bytes());
        tell("idle_timeout", &settings.idle_timeout.as_secs());
        tell("transmit", &command_line::word(settings.transmit));
        response.push(text.as_bytes());
        response.line(b"END");
    }
}

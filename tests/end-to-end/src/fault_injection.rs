//! Injected failures of system calls, one for each run: which ones exist, and which ones are tried.
//!
//! `UNCOPY_TEST_FAULTS=all` tries every call with every error number, once and from there on; `3/8`
//! tries the third of eight shares of that, `Copy` all faults of one kind of call. By default a
//! share is tried, which has faults of every kind of call.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::random::test_size;

/// Number of runs at the same time.
const PARALLEL_RUNS: usize = 2;
/// Maximum number of failed runs, after which the test stops.
const MAX_FAILURES: usize = 5;

/// One run: call `number` fails with `errno`; `mode` as in `INJECT_FAULT`.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Number of the call, from 1 on.
    pub number: usize,
    /// Whether later calls fail too.
    pub mode: &'static str,
    /// Errno of the failing call.
    pub errno: i32,
    /// Name of the call that had this number in a run without a fault.
    pub kind: String,
}

impl Fault {
    /// Returns the value of `INJECT_FAULT` for this fault.
    #[must_use]
    pub fn env_value(&self) -> String {
        format!("{}{}:{}", self.number, self.mode, self.errno)
    }
}

/// Returns every fault for these calls. The same numbers fail in other runs too, where threads take
/// turns differently: what matters is that each kind of call fails at many moments.
#[must_use]
pub fn all_faults(calls: &[String], errors: &[i32]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, kind) in calls.iter().enumerate() {
        if kind == "Close" {
            continue;
        }
        for errno in errors {
            let modes: &[&str] = match kind.as_str() {
                "Copy" | "Move" => &["", "+", "~"],
                _ => &["", "+"],
            };
            for mode in modes {
                faults.push(Fault { number: index + 1, mode, errno: *errno, kind: kind.clone() });
            }
        }
    }
    faults
}

/// Returns an even share of the faults of each kind, `max_per_kind` of each.
fn sample(faults: Vec<Fault>, max_per_kind: usize) -> Vec<Fault> {
    let mut kinds: BTreeMap<String, Vec<Fault>> = BTreeMap::new();
    for fault in faults {
        kinds.entry(fault.kind.clone()).or_default().push(fault);
    }
    kinds
        .into_values()
        .flat_map(|faults| {
            // A step without a common divisor with the numbers of modes and errors meets all of them.
            let step = (faults.len() / max_per_kind).max(1);
            let step = if step > 1 { step / 42 * 42 + 43 } else { 1 };
            let len = faults.len();
            (0..max_per_kind.min(len)).map(move |at| faults[at * step % len].clone())
        })
        .collect()
}

/// Returns the faults that `UNCOPY_TEST_FAULTS` selects; by default at most `max_per_kind` of each kind, or
/// a third of that in tests smaller than those of `make test-all`.
///
/// # Panics
/// When the variable has another form.
#[must_use]
pub fn select_faults(all: Vec<Fault>, max_per_kind: usize) -> Vec<Fault> {
    match std::env::var("UNCOPY_TEST_FAULTS") {
        Ok(which) if which == "all" => all,
        // A share, such as 3/8.
        Ok(which) if which.contains('/') => {
            let (at, of) = which.split_once('/').expect("a slash");
            let (at, of): (usize, usize) = (at.parse().expect("a number"), of.parse().expect("a number"));
            all.into_iter().skip(at - 1).step_by(of).collect()
        }
        Ok(kind) => all.into_iter().filter(|fault| fault.kind == kind).collect(),
        Err(_) => sample(all, if test_size() < 10 { max_per_kind.div_ceil(3) } else { max_per_kind }),
    }
}

/// Returns the names of the kinds of calls in a log, in order.
///
/// # Panics
/// When there is no log.
#[must_use]
pub fn read_call_log(log: &Path) -> Vec<String> {
    let log = std::fs::read(log).expect("the log");
    let records: Vec<[u8; 8]> = log.chunks_exact(8).map(|record| record.try_into().expect("8")).collect();
    let count = usize::try_from(u64::from_ne_bytes(records[0])).expect("a number");
    let name = |record: &[u8; 8]| String::from_utf8_lossy(record).trim_end_matches('\0').to_owned();
    records[1..records.len().min(count + 1)].iter().map(name).collect()
}

/// Tries each fault.
///
/// # Panics
/// With the failures, if there are any.
pub fn try_each(faults: &[Fault], try_one: impl Fn(&Fault) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mut failures = Vec::new();
            while failures.len() < MAX_FAILURES
                && let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed))
            {
                if let Err(failure) = try_one(fault) {
                    // Printed at once, because the whole test takes long.
                    eprintln!("{failure}");
                    failures.push(failure);
                }
            }
            failures
        };
        let workers: Vec<_> = (0..PARALLEL_RUNS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("worker")).collect()
    });
    assert!(failures.is_empty(), "{} runs went wrong:\n{}", failures.len(), failures.join("\n"));
}

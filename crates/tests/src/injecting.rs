//! Faults of calls to the kernel that a test lets fail, one for each run: which there are, and which of them are tried.
//!
//! `UNCOPY_TEST_FAULTS=all` tries every call with every error number, once and from there on; `3/8` the third
//! of eight shares of that, `Copy` all faults of one kind of call. Without it
//! a share of them is tried, in which every kind of call has its part.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs at a time.
const ABREAST: usize = 2;
/// Failing runs of each of those, after which to stop.
const MAX_FAILURES: usize = 5;

/// One run: call `number` fails with `errno`; `mode` as in `INJECT_FAULT`.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Which call, from 1 on.
    pub number: usize,
    /// Whether later ones fail too.
    pub mode: &'static str,
    /// With what.
    pub errno: i32,
    /// What call that was in a run without a fault.
    pub kind: String,
}

impl Fault {
    /// What `INJECT_FAULT` has.
    #[must_use]
    pub fn plan(&self) -> String {
        format!("{}{}:{}", self.number, self.mode, self.errno)
    }
}

/// Every fault there is for these calls. The same numbers fail in other runs too, where threads take turns
/// differently: what matters is that each kind of call fails at many moments.
#[must_use]
pub fn all(calls: &[String], errors: &[i32]) -> Vec<Fault> {
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

/// An even share of the faults of each kind, `most` of each.
fn share(faults: Vec<Fault>, most: usize) -> Vec<Fault> {
    let mut kinds: BTreeMap<String, Vec<Fault>> = BTreeMap::new();
    for fault in faults {
        kinds.entry(fault.kind.clone()).or_default().push(fault);
    }
    kinds
        .into_values()
        .flat_map(|faults| {
            // A step without a common divisor with the numbers of modes and errors meets all of them.
            let step = (faults.len() / most).max(1);
            let step = if step > 1 { step / 42 * 42 + 43 } else { 1 };
            let len = faults.len();
            (0..most.min(len)).map(move |at| faults[at * step % len].clone())
        })
        .collect()
}

/// Those that `UNCOPY_TEST_FAULTS` asks for; without it at most so many of each kind.
///
/// # Panics
/// When it asks for something else.
#[must_use]
pub fn chosen(all: Vec<Fault>, most: usize) -> Vec<Fault> {
    match std::env::var("UNCOPY_TEST_FAULTS") {
        Ok(which) if which == "all" => all,
        // One of so many shares: 3/8.
        Ok(which) if which.contains('/') => {
            let (at, of) = which.split_once('/').expect("a slash");
            let (at, of): (usize, usize) = (at.parse().expect("a number"), of.parse().expect("a number"));
            all.into_iter().skip(at - 1).step_by(of).collect()
        }
        Ok(kind) => all.into_iter().filter(|fault| fault.kind == kind).collect(),
        Err(_) => share(all, most),
    }
}

/// Names of the kinds of calls in a log, in order.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn logged(log: &Path) -> Vec<String> {
    let log = std::fs::read(log).expect("the log");
    let records: Vec<[u8; 8]> = log.chunks_exact(8).map(|record| record.try_into().expect("8")).collect();
    let count = usize::try_from(u64::from_ne_bytes(records[0])).expect("a number");
    let name = |record: &[u8; 8]| String::from_utf8_lossy(record).trim_end_matches('\0').to_owned();
    records[1..records.len().min(count + 1)].iter().map(name).collect()
}

/// Tries each fault.
///
/// # Panics
/// With what went wrong, if something did.
pub fn try_each(chosen: &[Fault], try_one: impl Fn(&Fault) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mut failures = Vec::new();
            while failures.len() < MAX_FAILURES
                && let Some(fault) = chosen.get(next.fetch_add(1, Ordering::Relaxed))
            {
                if let Err(failure) = try_one(fault) {
                    // At once: the whole takes long.
                    eprintln!("{failure}");
                    failures.push(failure);
                }
            }
            failures
        };
        let workers: Vec<_> = (0..ABREAST).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("worker")).collect()
    });
    assert!(failures.is_empty(), "{} runs went wrong:\n{}", failures.len(), failures.join("\n"));
}

//! The Nth call of the library to the kernel fails, and the program prints what it prints without uncopy.
//!
//! `UNCOPY_TEST_FAULTS=all` tries every call with every error number, once and from there on; `3/8` the third
//! of eight shares of that, `Copy` all faults of one kind of call. Without it
//! a share of them is tried, in which every kind of call has its part.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use uncopy_core::stats::Counter;
use uncopy_tests::artifacts::injecting_library;
use uncopy_tests::{Mode, Program, Scratch};

const EPERM: i32 = 1;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;
const EVERY: [i32; 7] = [ENOMEM, EAGAIN, ENOSPC, EEXIST, EBUSY, EPERM, EINTR];

/// Longest run of the workload, which takes some tens of milliseconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Runs at a time.
const ABREAST: usize = 2;
/// Runs in the share that is always tried, for each kind of call.
const SHARE: usize = 24;

/// One run: call `number` fails with `errno`; `mode` as in `INJECT_FAULT`.
#[derive(Clone, Debug)]
struct Fault {
    number: usize,
    mode: &'static str,
    errno: i32,
    kind: String,
}

impl Fault {
    fn plan(&self) -> String {
        format!("{}{}:{}", self.number, self.mode, self.errno)
    }
}

fn workload(mode: Mode) -> Program {
    let program = Program::new(env!("CARGO_BIN_EXE_faults")).args(["workload"]).mode(mode).limit(LIMIT);
    if mode == Mode::Plain { program } else { program.library(injecting_library()) }
}

/// The kinds of the calls that a run of the workload makes, in order.
fn calls(scratch: &Scratch, mode: Mode, wanted: &[u8]) -> Vec<String> {
    let log = scratch.join("calls");
    let done = workload(mode).env("INJECT_FAULT_LOG", &log).run(scratch, "counted").expect_success();
    assert_eq!(String::from_utf8_lossy(&done.output), String::from_utf8_lossy(wanted), "without a fault");
    if mode == Mode::Always {
        let _ = done.expect_counters(&[
            Counter::ElidedBytes,
            Counter::InputBytes,
            Counter::OutputBytes,
            Counter::Faults,
            Counter::LentBytes,
            Counter::DroppedBytes,
        ]);
    }
    let calls = logged(&log);
    assert!(calls.len() > 100 && calls.len() < 60_000, "{} calls", calls.len());
    calls
}

/// Every fault there is for these calls. The same numbers fail in other runs too, where threads take turns
/// differently: what matters is that each kind of call fails at many moments.
fn faults(calls: &[String]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, kind) in calls.iter().enumerate() {
        if kind == "Close" {
            continue;
        }
        for errno in EVERY {
            let modes: &[&str] = match kind.as_str() {
                "Copy" | "Move" => &["", "+", "~"],
                _ => &["", "+"],
            };
            for mode in modes {
                faults.push(Fault { number: index + 1, mode, errno, kind: kind.clone() });
            }
        }
    }
    faults
}

/// An even share of the faults of each kind.
fn share(faults: Vec<Fault>) -> Vec<Fault> {
    let mut kinds: BTreeMap<String, Vec<Fault>> = BTreeMap::new();
    for fault in faults {
        kinds.entry(fault.kind.clone()).or_default().push(fault);
    }
    kinds
        .into_values()
        .flat_map(|faults| {
            // A step without a common divisor with the numbers of modes and errors meets all of them.
            let step = (faults.len() / SHARE).max(1);
            let step = if step > 1 { step / 42 * 42 + 43 } else { 1 };
            let len = faults.len();
            (0..SHARE.min(len)).map(move |at| faults[at * step % len].clone())
        })
        .collect()
}

/// Names of the kinds of calls in a log, in order.
fn logged(log: &Path) -> Vec<String> {
    let log = std::fs::read(log).expect("the log");
    let records: Vec<[u8; 8]> = log.chunks_exact(8).map(|record| record.try_into().expect("8")).collect();
    let count = usize::try_from(u64::from_ne_bytes(records[0])).expect("a number");
    let name = |record: &[u8; 8]| String::from_utf8_lossy(record).trim_end_matches('\0').to_owned();
    records[1..records.len().min(count + 1)].iter().map(name).collect()
}

fn try_one(scratch: &Scratch, mode: Mode, fault: &Fault, wanted: &[u8]) -> Result<(), String> {
    let name = format!("fault-{}{}-{}", fault.number, fault.mode, fault.errno);
    let log = scratch.join(&format!("{name}.log"));
    let program = workload(mode).env("INJECT_FAULT", fault.plan()).env("INJECT_FAULT_LOG", &log);
    let done = catch_unwind(AssertUnwindSafe(|| program.run(scratch, &name)));
    // Threads take turns as they like: what call N is differs.
    let kind = logged(&log).into_iter().nth(fault.number - 1).unwrap_or_default();
    let what = format!("INJECT_FAULT={} ({kind})", fault.plan());
    for ending in ["out", "err", "stats", "log"] {
        // Everything was read.
        let _ = std::fs::remove_file(scratch.join(&format!("{name}.{ending}")));
    }
    let done =
        done.map_err(|hang| format!("{what}: {}", hang.downcast_ref::<String>().map_or("", |hang| hang)))?;
    let said = done.errors.lines().count();
    let is_ours = done.errors.lines().all(|line| line.starts_with("uncopy: "));
    if done.status.success() && done.output == wanted && said <= 1 && is_ours {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&done.output);
    let differs = if done.output == wanted { "" } else { output.as_ref() };
    Err(format!("{what}: {}\n{}{differs}", done.status, done.errors))
}

fn every_call_may_fail(mode: Mode, title: &str) {
    let scratch = Scratch::new(title);
    let wanted = workload(Mode::Plain).run(&scratch, "plain").expect_success().output;
    let calls = calls(&scratch, mode, &wanted);
    let all = faults(&calls);
    let total = all.len();
    let chosen = match std::env::var("UNCOPY_TEST_FAULTS") {
        Ok(which) if which == "all" => all,
        // One of so many shares: 3/8.
        Ok(which) if which.contains('/') => {
            let (at, of) = which.split_once('/').expect("a slash");
            let (at, of): (usize, usize) = (at.parse().expect("a number"), of.parse().expect("a number"));
            all.into_iter().skip(at - 1).step_by(of).collect()
        }
        Ok(kind) => all.into_iter().filter(|fault| fault.kind == kind).collect(),
        Err(_) => share(all),
    };
    let next = AtomicUsize::new(0);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mut failures = Vec::new();
            while failures.len() < 5
                && let Some(fault) = chosen.get(next.fetch_add(1, Ordering::Relaxed))
            {
                if let Err(failure) = try_one(&scratch, mode, fault, &wanted) {
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
    eprintln!("{title}: {} of {total} faults in {} calls tried", chosen.len(), calls.len());
    assert!(failures.is_empty(), "{} runs went wrong:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_call_may_fail_where_everything_is_elided() {
    every_call_may_fail(Mode::Always, "faults-always");
}

#[test]
fn every_call_may_fail_under_the_default_policy() {
    every_call_may_fail(Mode::Auto, "faults-auto");
}

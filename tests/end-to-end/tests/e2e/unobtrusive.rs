//! A program that moves no large data runs as without the library: its own allocator serves
//! everything, and the library sets nothing up.

use std::process::Command;

use uncopy_tests::artifacts::plain_only;
use uncopy_tests::resources::{Loaded, Usage, system_calls, usage};
use uncopy_tests::scratch::Scratch;

/// Maximum increase of peak resident memory over plain, in KiB.
const MAX_PEAK_KIB: i64 = 2048;
/// Maximum increase of page faults, beyond those of loading the library: plain's faults / 100.
const FAULTS_SHARE: i64 = 100;
/// Calls that create threads, mappings, or descriptors that serve faults.
const CALLS: &str = "trace=mmap,munmap,mremap,madvise,clone,clone3,userfaultfd,memfd_create,execve";
/// Number of runs per program: page faults vary, for example with address randomization.
const RUNS: usize = 5;

/// A program, as a shell command with a directory of its own.
struct Case {
    name: &'static str,
    /// Shell command that prepares the directory.
    prepare: &'static str,
    command: &'static str,
    /// Whether the number of threads depends on timing. Then only peak memory is compared, and that
    /// neither threads nor a userfaultfd are added.
    is_concurrent: bool,
}

const CASES: &[Case] = &[
    Case {
        name: "compiler",
        prepare: "(echo 'const unsigned char bytes[] = {'; seq -s, 0 255 | sed 's/$/,/' >line; for i in $(seq 600); do cat line; \
                  done; echo '};') >large.c",
        command: "gcc -O1 -c large.c -o large.o",
        is_concurrent: false,
    },
    Case {
        name: "numpy",
        prepare: "true",
        command: "/usr/bin/python3 -c \"import numpy as np; a = np.zeros(1000000)\nfor k in range(60): a = a * 1.5 + k; \
                  b = a.copy()\nprint(a[0])\"",
        is_concurrent: false,
    },
    Case {
        name: "sort",
        prepare: "seq -f '%015.0f line of a file that is larger than what eliding waits for' 1 1400000 | tac >lines",
        command: "sort --parallel=1 -S 200M -o sorted lines",
        is_concurrent: false,
    },
    Case {
        name: "java",
        prepare: "echo 'public class Heap { public static void main(String[] a) { long s = 0; for (int i = 0; i < 2000; i++) \
                  { byte[] b = new byte[262144]; b[i] = 1; byte[] c = b.clone(); s += c[i]; } System.out.println(s); } }' \
                  >Heap.java; javac Heap.java",
        command: "java -XX:+UseSerialGC -Xint -Xshare:auto -Xms32m -Xmx32m -cp . Heap",
        is_concurrent: true,
    },
    Case {
        name: "git gc",
        prepare: "git init -q . && for i in 1 2 3 4 5 6; do seq $((i * 100000)) $((i * 100000 + 400000)) >file$i; done && \
                  git add . && git -c user.name=n -c user.email=e commit -qm first && git config gc.auto 0 && \
                  git config pack.threads 1",
        command: "git gc -q --no-prune",
        is_concurrent: false,
    },
    Case {
        name: "compressor",
        prepare: "seq 1 900000 >numbers",
        command: "xz -T1 -1 -k -f numbers",
        is_concurrent: false,
    },
];

fn prepare(script: &str, scratch: &Scratch) {
    let status = Command::new("/bin/sh").args(["-e", "-c", script]).current_dir(scratch.path()).status();
    assert!(status.expect("a shell").success(), "{script}");
}

fn runs(command: &str, loaded: Loaded, scratch: &Scratch) -> Vec<Usage> {
    (0..RUNS).map(|_| usage(command, loaded, scratch)).collect()
}

/// Returns the minimum over several runs: the usage without disturbances.
fn minimum(runs: &[Usage]) -> Usage {
    let faults = runs.iter().map(|run| run.faults).min();
    let peak_kib = runs.iter().map(|run| run.peak_kib).min();
    Usage { faults: faults.expect("runs"), peak_kib: peak_kib.expect("runs") }
}

/// Returns the calls that the program makes more often under the library than plain.
fn call_counts(command: &str, scratch: &Scratch) -> std::collections::BTreeMap<String, (usize, usize)> {
    let plain = system_calls(command, CALLS, Loaded::No, scratch);
    let mut calls: std::collections::BTreeMap<_, _> =
        plain.into_iter().map(|(name, count)| (name, (count, 0))).collect();
    for (name, count) in system_calls(command, CALLS, Loaded::Yes, scratch) {
        calls.entry(name).or_insert((0, 0)).1 = count;
    }
    calls
}

#[test]
fn programs_without_large_transfers_run_as_plain() {
    if plain_only() {
        return;
    }
    let loading = Scratch::new("loading");
    let [plain, with] = [Loaded::No, Loaded::Yes].map(|loaded| minimum(&runs("true", loaded, &loading)));
    let loading_faults = with.faults - plain.faults;
    let loading_calls = call_counts("true", &loading);
    for case in CASES {
        if case.name == "java" && Command::new("javac").arg("-version").output().is_err() {
            eprintln!("skipped: programs_without_large_transfers_run_as_plain: no java");
            continue;
        }
        let scratch = Scratch::new("unobtrusive");
        prepare(case.prepare, &scratch);
        let name = case.name;
        let calls = call_counts(case.command, &scratch);
        // Each executed program loads the library.
        let execs = calls.get("execve").map_or(1, |(_, count)| *count);
        for (call, (plain, with)) in &calls {
            let (loaded_plain, loaded_with) = loading_calls.get(call).copied().unwrap_or_default();
            let allowed = if case.is_concurrent && !call.starts_with("clone") && call != "userfaultfd" {
                usize::MAX
            } else {
                plain + execs * (loaded_with - loaded_plain.min(loaded_with))
            };
            assert!(
                *with <= allowed,
                "{name}: {with} calls of {call}, plain {plain}, with loading {allowed}"
            );
        }
        let [plain_runs, runs] = [Loaded::No, Loaded::Yes].map(|loaded| runs(case.command, loaded, &scratch));
        let (plain, with) = (minimum(&plain_runs), minimum(&runs));
        eprintln!("{name}: plain {plain:?}, with the library {with:?}, {execs} programs");
        // Plain's own runs differ: a JVM's by 1 MiB, as its threads' timing decides how much is in use at once.
        let plain_peak_kib = plain_runs.iter().map(|run| run.peak_kib).max().expect("runs");
        assert!(with.peak_kib <= plain_peak_kib + MAX_PEAK_KIB, "{name}: plain {plain_runs:?}, now {runs:?}");
        let allowed = plain.faults + execs as i64 * loading_faults + plain.faults / FAULTS_SHARE;
        assert!(
            case.is_concurrent || with.faults <= allowed,
            "{name}: plain {plain:?}, now {with:?}, of which loading takes {loading_faults} a program"
        );
    }
}

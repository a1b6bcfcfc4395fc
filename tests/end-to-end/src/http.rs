//! Packaged clients of HTTP: curl, whose bytes are compared; ab and wrk, which ask many times.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::artifacts::packaged;
use crate::launch::{Mode, Program};
use crate::scratch::Scratch;

/// Runs curl; returns the body.
///
/// # Panics
/// When curl fails, uncopy prints anything, or the time is over.
#[must_use]
pub fn curl(mode: Mode, scratch: &Scratch, arguments: &[&str]) -> Vec<u8> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("curl{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let output = scratch.join(&format!("{name}.bin"));
    let done = Program::new(packaged("/usr/bin/curl", "curl"))
        .args(["-sS", "--fail", "--max-time", "40", "-o", output.to_str().expect("UTF-8")])
        .args(arguments)
        .mode(mode)
        .run(scratch, &name)
        .expect_success();
    drop(done);
    let bytes = std::fs::read(&output).unwrap_or_default();
    // An answer without a body leaves no file.
    let _ = std::fs::remove_file(&output);
    bytes
}

/// Fails unless the bytes are the same; names the first difference.
///
/// # Panics
/// When the bytes differ.
pub fn expect_same(found: &[u8], expected: &[u8], what: &str) {
    if found != expected {
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        panic!("{what}: byte {wrong:?} is wrong, {} bytes of {}", found.len(), expected.len());
    }
}

/// Has ab send `requests` requests for `url`; every response must have `len_bytes`.
///
/// # Panics
/// When a request failed or a response had another length.
pub fn ab(mode: Mode, scratch: &Scratch, url: &str, len_bytes: usize, requests: usize, connections: usize) {
    let done = Program::new(packaged("/usr/bin/ab", "apache2-utils"))
        .args(["-q", "-k", "-s", "30", "-n", &requests.to_string(), "-c", &connections.to_string(), url])
        .mode(mode)
        .run(scratch, "ab")
        .expect_success();
    let report = String::from_utf8_lossy(&done.output);
    let value = |name: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("ab {url} said nothing of {name}\n{report}"));
        line.split_whitespace().next().and_then(|word| word.parse::<usize>().ok()).unwrap_or(usize::MAX)
    };
    assert_eq!(value("Complete requests:"), requests, "ab {url}\n{report}");
    assert_eq!(value("Failed requests:"), 0, "ab {url}\n{report}");
    assert_eq!(value("Document Length:"), len_bytes, "ab {url}\n{report}");
    assert_eq!(value("HTML transferred:"), len_bytes * requests, "ab {url}\n{report}");
    assert!(!report.contains("Non-2xx"), "ab {url}\n{report}");
}

/// Has wrk request each of `paths` in turn for `seconds`; a script compares every response with the
/// file of that path. Returns the number of responses. If none came, because the machine stood
/// still, wrk runs for longer, three times at most.
///
/// # Panics
/// When a response differs, or none came.
pub fn wrk(mode: Mode, scratch: &Scratch, server: &str, paths: &[(&str, &Path)], seconds: u32) -> usize {
    let mut script = String::from("local bodies, paths = {}, {}\nlocal last = 0\n");
    for (path, file) in paths {
        // A body does not say which request it answers: its length does, for these.
        let _ = write!(
            script,
            "do local file = assert(io.open({file:?}, 'rb')); local body = file:read('*a'); file:close()\n\
             bodies[#body] = body; paths[#paths + 1] = {path:?} end\n"
        );
    }
    script += "answers, wrong = 0, 0\n\
               local threads = {}\n\
               function setup(thread) table.insert(threads, thread) end\n\
               function request() last = last % #paths + 1; return wrk.format('GET', paths[last]) end\n\
               function response(status, headers, body)\n\
                 answers = answers + 1\n\
                 if status ~= 200 or bodies[#body] ~= body then wrong = wrong + 1 end\n\
               end\n\
               function done(summary)\n\
                 local a, w = 0, 0\n\
                 for _, thread in ipairs(threads) do a = a + thread:get('answers'); w = w + thread:get('wrong') end\n\
                 local e = summary.errors\n\
                 print('compared', a, w, e.connect + e.read + e.write + e.status)\n\
               end\n";
    let script = scratch.write("wrk.lua", script);
    let mut answers = 0;
    for seconds in [seconds, 4 * seconds, 16 * seconds] {
        answers = run_wrk(mode, scratch, server, &script, seconds);
        if answers > 0 {
            break;
        }
    }
    assert!(answers > 0, "wrk {server} had no answer in {} seconds", 16 * seconds);
    answers
}

/// Runs wrk once; returns the number of responses.
fn run_wrk(mode: Mode, scratch: &Scratch, server: &str, script: &Path, seconds: u32) -> usize {
    let done = Program::new(packaged("/usr/bin/wrk", "wrk"))
        .args(["-t", "2", "-c", "8", "-d", &format!("{seconds}s"), "--timeout", "20s", "-s"])
        .args([script.to_str().expect("UTF-8"), server])
        .mode(mode)
        .run(scratch, "wrk")
        .expect_success();
    let report = done.text();
    let counts: Vec<usize> = report
        .lines()
        .find_map(|line| line.strip_prefix("compared"))
        .unwrap_or_else(|| panic!("wrk compared nothing\n{report}"))
        .split_whitespace()
        .map(|word| word.parse().expect("number"))
        .collect();
    assert!(counts[1..] == [0, 0], "answers, wrong ones, errors: {counts:?}\n{report}");
    counts[0]
}

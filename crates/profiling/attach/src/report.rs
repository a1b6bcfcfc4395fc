//! The report: on a terminal, as JSON, and as folded stacks.

use crate::classes::Class;
use crate::resolve::{NamedStack, ProcessProfile, Profile};
use crate::summary::Summary;
use crate::verdict::{Verdict, verdict};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use uncopy_profile::format::{bytes, percent};
use uncopy_profile::pprof::{Encoder, Frame};

/// Share of a class below which the terminal's report leaves it out.
const MIN_SHARE: f64 = 0.005;
/// Share of the machine's samples below which a process is summed up as "others".
const MIN_PROCESS_SHARE: f64 = 0.005;
/// Maximum rows of the table of processes.
const MAX_PROCESSES: usize = 30;
/// Maximum letters of a function's name.
const MAX_NAME: usize = 60;

/// A profile with its sums and verdicts.
pub struct Report<'a> {
    profile: &'a Profile,
    total: Summary,
    verdict: Verdict,
}

impl<'a> Report<'a> {
    /// Sums a profile and judges it.
    #[must_use]
    pub fn new(profile: &'a Profile) -> Self {
        let total = Summary::of(&profile.processes);
        let verdict = verdict(&total, profile.processes.first(), profile.has_kernel_time);
        Self { profile, total, verdict }
    }

    /// Number of samples of all processes.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.total.samples
    }

    fn cpu_seconds(&self, samples: u64) -> f64 {
        samples as f64 / f64::from(self.profile.frequency.max(1))
    }

    /// Returns notes on what the numbers leave out.
    fn notes(&self) -> Vec<String> {
        let (profile, losses) = (self.profile, &self.profile.losses);
        let mut notes = Vec::new();
        if !profile.has_kernel_time {
            notes.push(
                "shares are of the time outside of the kernel: kernel.perf_event_paranoid leaves the rest to root and \
                 CAP_PERFMON"
                    .to_owned(),
            );
        } else if !profile.has_kernel_symbols && self.total.share(&[Class::Kernel]) > 0.0 {
            notes.push(
                "the kernel hides its symbols (kernel.kptr_restrict): its copies are part of the system calls' time"
                    .to_owned(),
            );
        }
        if losses.lost > 0 {
            notes.push(format!("{} records were lost: the machine was too busy to read them", losses.lost));
        }
        if losses.throttled > 0 {
            notes.push(format!("the kernel sampled less often than asked, {} times", losses.throttled));
        }
        if losses.cut > 0 {
            notes.push(format!("{} stacks have only their innermost function", losses.cut));
        }
        notes
    }

    /// Returns the report on the selected processes.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let names: Vec<String> = self.profile.processes.iter().map(|process| process.name.clone()).collect();
        let mut distinct = names.clone();
        distinct.sort();
        distinct.dedup();
        let count = names.len();
        let processes = if count == 1 { String::new() } else { format!(" ({count} processes)") };
        let _ = writeln!(
            text,
            "{}{processes}: {:.2} s of processor time in {:.1} s, {} samples",
            if distinct.is_empty() { "no process".to_owned() } else { distinct.join(", ") },
            self.cpu_seconds(self.total.samples),
            self.profile.seconds,
            self.total.samples
        );
        for note in self.notes() {
            let _ = writeln!(text, "Note: {note}.");
        }
        if self.total.samples > 0 {
            text.push('\n');
            self.classes(&mut text);
            self.callers(&mut text);
            self.system_calls(&mut text);
        }
        let _ = writeln!(text, "\nverdict: {}; next: {}", self.verdict.sentence, self.verdict.next);
        text
    }

    fn classes(&self, text: &mut String) {
        let _ = writeln!(text, "{:>6}  processor time on", "share");
        for class in Class::ALL {
            let share = self.total.share(&[class]);
            if share >= MIN_SHARE {
                let _ = writeln!(text, "{:>6}  {}", percent(share), class.description());
            }
        }
    }

    fn callers(&self, text: &mut String) {
        let share = |samples: u64| self.total.fraction(samples as f64);
        let shown = self.total.callers.iter().filter(|caller| share(caller.samples) >= MIN_SHARE);
        let shown: Vec<_> = shown.collect();
        if shown.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{:>6}  {:>6}  copies called by", "share", "size");
        for caller in shown {
            let size = caller.median_bytes.map_or_else(|| "?".to_owned(), bytes);
            let name: String = caller.function.chars().take(MAX_NAME).collect();
            let file = if caller.file.is_empty() { String::new() } else { format!(" ({})", caller.file) };
            let _ = writeln!(text, "{:>6}  {size:>6}  {name}{file}", percent(share(caller.samples)));
        }
    }

    fn system_calls(&self, text: &mut String) {
        let share = |samples: u64| self.total.fraction(samples as f64);
        let shown = self.total.system_calls.iter().filter(|call| share(call.samples) >= MIN_SHARE);
        let shown: Vec<_> = shown.collect();
        if shown.is_empty() {
            return;
        }
        let _ = writeln!(text, "\n{:>6}  {:>6}  system call", "share", "copies");
        for call in shown {
            let copies =
                if self.profile.has_kernel_symbols { percent(share(call.copying)) } else { "?".to_owned() };
            let _ = writeln!(text, "{:>6}  {copies:>6}  {}", percent(share(call.samples)), call.name);
        }
    }

    /// Returns the table of all processes of the machine, and its sum.
    #[must_use]
    pub fn table(&self) -> String {
        let head =
            ["PID", "CPU", "COPIES", "KERNEL COPIES", "MEMORY", "TOUCHING", "SYSTEM", "COMMAND", "VERDICT"];
        let mut rows = vec![head.map(str::to_owned)];
        let is_shown =
            |process: &&ProcessProfile| self.total.fraction(process.samples as f64) >= MIN_PROCESS_SHARE;
        let processes = &self.profile.processes;
        let shown: Vec<_> = processes.iter().take_while(is_shown).take(MAX_PROCESSES).collect();
        for process in &shown {
            let summary = Summary::of([*process]);
            let verdict = verdict(&summary, Some(process), self.profile.has_kernel_time);
            rows.push(self.row(&process.pid.to_string(), &summary, &process.name, verdict.kind.name()));
        }
        if let Some(others) = processes.get(shown.len()..).filter(|others| !others.is_empty()) {
            let name = format!("({} others)", others.len());
            rows.push(self.row("", &Summary::of(others), &name, ""));
        }
        rows.push(self.row("", &self.total, "all", ""));
        let widths: Vec<usize> = (0..head.len())
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
                7 | 8 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        for note in self.notes() {
            let _ = writeln!(text, "Note: {note}.");
        }
        let _ = writeln!(
            text,
            "\n{} of the processor time of this machine is spent on copies: {} in programs, {} in the kernel",
            percent(self.total.copy_share()),
            percent(self.total.share(&[Class::Copy])),
            percent(self.total.share(&[Class::KernelCopyIn, Class::KernelCopyOut]))
        );
        let _ =
            writeln!(text, "next: uncopy profile --pid PID, for what a process copies, and why a verdict");
        text
    }

    fn row(&self, pid: &str, summary: &Summary, name: &str, verdict: &str) -> [String; 9] {
        let share = |classes: &[Class]| percent(summary.share(classes));
        let cpu = self.cpu_seconds(summary.samples) / self.profile.seconds.max(f64::MIN_POSITIVE);
        [
            pid.to_owned(),
            percent(cpu),
            share(&[Class::Copy]),
            share(&[Class::KernelCopyIn, Class::KernelCopyOut]),
            share(&[Class::Zeroing, Class::PageFault, Class::Allocator]),
            share(&[Class::Tls, Class::Checksum, Class::Compression]),
            share(&[Class::Kernel]),
            name.to_owned(),
            verdict.to_owned(),
        ]
    }

    /// Returns one JSON object; `schema` is its version.
    #[must_use]
    pub fn to_json(&self, schema: u32) -> Value {
        let profile = self.profile;
        let processes = profile.processes.iter().map(|process| {
            let summary = Summary::of([process]);
            let verdict = verdict(&summary, Some(process), profile.has_kernel_time);
            let mut object = self.summary_json(&summary, &verdict);
            object["pid"] = json!(process.pid);
            object["name"] = json!(process.name);
            object["command"] = json!(process.command);
            object
        });
        json!({
            "schema": schema,
            "seconds": profile.seconds,
            "frequency_hz": profile.frequency,
            "kernel_time": profile.has_kernel_time,
            "kernel_symbols": profile.has_kernel_symbols,
            "lost_records": profile.losses.lost,
            "throttled": profile.losses.throttled,
            "cut_stacks": profile.losses.cut,
            "notes": self.notes(),
            "total": self.summary_json(&self.total, &self.verdict),
            "processes": processes.collect::<Vec<_>>(),
        })
    }

    fn summary_json(&self, summary: &Summary, verdict: &Verdict) -> Value {
        let share = |samples: u64| summary.fraction(samples as f64);
        let shares: serde_json::Map<String, Value> = Class::ALL
            .into_iter()
            .map(|class| (class.name().to_owned(), json!(summary.share(&[class]))))
            .collect();
        let callers = summary.callers.iter().map(|caller| {
            json!({
                "function": caller.function,
                "file": caller.file,
                "share": share(caller.samples),
                "median_bytes": caller.median_bytes,
            })
        });
        let calls = summary.system_calls.iter().map(|call| {
            let copying = self.profile.has_kernel_symbols.then(|| share(call.copying));
            json!({ "name": call.name, "share": share(call.samples), "copy_share": copying })
        });
        json!({
            "samples": summary.samples,
            "cpu_seconds": self.cpu_seconds(summary.samples),
            "copy_share": summary.copy_share(),
            "shares": shares,
            "copies": {
                "median_bytes": summary.median_bytes,
                "reachable": share(summary.reachable),
                "large_reachable": summary.fraction(summary.large_reachable),
                "overlapping": summary.fraction(summary.overlapping),
                "callers": callers.collect::<Vec<_>>(),
            },
            "system_calls": calls.collect::<Vec<_>>(),
            "verdict": verdict.kind.name(),
            "sentence": verdict.sentence,
            "next": verdict.next,
        })
    }

    /// Returns the stacks in pprof's format: samples and processor time, labelled with their classes.
    #[must_use]
    pub fn pprof(&self) -> Vec<u8> {
        const NS_PER_SECOND: u64 = 1_000_000_000;
        let period_ns = NS_PER_SECOND / u64::from(self.profile.frequency.max(1));
        let mut encoder = Encoder::new(&[("samples", "count"), ("cpu", "nanoseconds")], 1);
        encoder.set_period(("cpu", "nanoseconds"), period_ns);
        let seconds = std::time::Duration::try_from_secs_f64(self.profile.seconds).unwrap_or_default();
        encoder.set_time(0, u64::try_from(seconds.as_nanos()).unwrap_or(u64::MAX));
        for process in &self.profile.processes {
            let pid = process.pid.to_string();
            for stack in &process.stacks {
                let labels: Vec<String> = stack.frames.iter().map(|frame| frame.label()).collect();
                let frames = labels.iter().map(|label| Frame { function: label, ..Frame::default() });
                let samples = i64::try_from(stack.samples).unwrap_or(i64::MAX);
                let time_ns = samples.saturating_mul(i64::try_from(period_ns).unwrap_or(i64::MAX));
                let labels = [("class", stack.class.name()), ("process", &process.name), ("pid", &pid)];
                encoder.add(frames, &[samples, time_ns], &labels);
            }
        }
        encoder.finish()
    }

    /// Returns the stacks in the folded format of flame graph tools: `outermost;…;innermost SAMPLES`.
    #[must_use]
    pub fn folded(&self) -> String {
        let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
        for process in &self.profile.processes {
            for stack in &process.stacks {
                *stacks.entry(folded_stack(&process.name, stack)).or_default() += stack.samples;
            }
        }
        stacks.into_iter().map(|(stack, samples)| format!("{stack} {samples}\n")).collect()
    }
}

fn folded_stack(process: &str, stack: &NamedStack) -> String {
    // These characters separate names and lines.
    let clean = |name: &str| name.replace(';', ":").replace('\n', " ");
    let mut text = clean(process);
    for frame in stack.frames.iter().rev() {
        text.push(';');
        text.push_str(&clean(&frame.label()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::CopyInProgress;
    use crate::samples::{copies, process, stack};
    use crate::session::Losses;

    fn sample() -> Profile {
        let copy = CopyInProgress { len_bytes: 65536, distance: 1 << 30 };
        let mut read = stack(Class::KernelCopyIn, 200, &["rep_movs_alternative", "read", "main"]);
        (read.system_call, read.kernel_frames) = (Some("read".to_owned()), 1);
        let busy = process(vec![
            copies(300, &["memmove", "store;all", "main"], copy),
            read,
            stack(Class::Other, 500, &["work", "main"]),
        ]);
        let mut other = process(vec![stack(Class::Other, 1000, &["work", "main"])]);
        (other.pid, other.name) = (8, "idle\u{1b}".replace('\u{1b}', "?"));
        Profile {
            processes: vec![busy, other],
            seconds: 4.0,
            frequency: 1000,
            has_kernel_time: true,
            has_kernel_symbols: true,
            losses: Losses { lost: 3, ..Losses::default() },
        }
    }

    #[test]
    fn text_and_json_say_the_same() {
        let mut profile = sample();
        profile.processes.truncate(1);
        let report = Report::new(&profile);
        let (text, json) = (report.text(), report.to_json(1));
        for line in [
            "server: 1.00 s of processor time in 4.0 s, 1000 samples",
            "Note: 3 records were lost: the machine was too busy to read them.",
            "  30 %  copies in the program (memcpy, memmove)",
            "  30 %     64K  store;all (program)",
            "  20 %    20 %  read",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
        }
        let sentence = json["total"]["sentence"].as_str().expect("a sentence");
        assert!(text.contains(&format!("verdict: {sentence}; next: uncopy run -- server -p 1\n")), "{text}");
        assert_eq!(json["total"], {
            let mut only = json["processes"][0].clone();
            let object = only.as_object_mut().expect("an object");
            for own in ["pid", "name", "command"] {
                object.remove(own).expect("a field of processes");
            }
            only
        });
        assert_eq!(json["total"]["shares"]["kernel_copy_in"], 0.2);
        assert_eq!(json["total"]["copy_share"], 0.5);
    }

    #[test]
    fn the_table_has_a_row_for_each_process_and_the_sum() {
        let text = Report::new(&sample()).table();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..7], ["7", "25", "%", "30", "%", "20", "%"], "{text}");
        assert!(text.lines().nth(1).expect("a row").ends_with("worth trying"), "{text}");
        assert_eq!(rows[3][..6], ["50", "%", "15", "%", "10", "%"], "{text}");
        assert!(text.contains("25 % of the processor time of this machine is spent on copies"), "{text}");
    }

    #[test]
    fn folded_stacks_are_outermost_first() {
        let text = Report::new(&sample()).folded();
        assert!(text.lines().any(|line| line == "server;main;store:all;memmove 300"), "{text}");
        let sum: u64 =
            text.lines().map(|line| line.rsplit_once(' ').expect("two").1.parse::<u64>().expect("n")).sum();
        assert_eq!(sum, 2000);
    }

    #[test]
    fn an_empty_profile_is_a_report() {
        let profile = Profile::default();
        let report = Report::new(&profile);
        assert!(report.text().contains("no process") && report.table().contains("all"));
        assert_eq!(report.to_json(1)["total"]["samples"], 0);
        assert!(report.folded().is_empty() && !report.pprof().is_empty());
    }
}

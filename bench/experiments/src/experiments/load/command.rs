//! `uncopy-bench load -- COMMAND`: the share of the machine that a command takes while it runs, next to its
//! getrusage(2). The difference is what getrusage misses: work in interrupts and kernel threads, servers that
//! the command uses, and slowdown of others by evicting their cache lines.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use serde_json::{Value, json};

use crate::experiments::load::soaker::{Calibration, SoakerWork, Soakers, load_fraction};
use crate::kit::load::rusage_times;
use crate::kit::{Failure, Launcher, Machine, Process, Result};

/// Number of parts of each calibration before and after the command: their spread shows other load.
const CALIBRATION_PARTS: u32 = 4;
/// Time limit of the command: a year, because this program must not end it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(366 * 24 * 3600);

/// Resources that a command used.
#[derive(Debug)]
pub struct CommandCost {
    command: String,
    /// Exit status of the command.
    pub status: ExitStatus,
    soaked: SoakerWork,
    /// Share of the machine, 0 to 1.
    load_fraction: f64,
    /// Processor time of the command and its awaited children by getrusage(2): in user mode and in the kernel.
    rusage: [Duration; 2],
    processors: usize,
    calibration: Calibration,
}

/// Runs `words` to their end while soakers dirty `lines_per_s` lines per second, with calibrations before and
/// after.
///
/// # Errors
/// [`Failure`] when the command or the soakers cannot be started.
pub fn measure(
    launcher: &Launcher,
    words: &[OsString],
    lines_per_s: u64,
    duration: Duration,
) -> Result<CommandCost> {
    let [program, arguments @ ..] = words else { return Err(Failure::new("no command was given")) };
    let mut soakers = Soakers::start(launcher, lines_per_s)?;
    std::thread::sleep(duration / CALIBRATION_PARTS);
    let mut references = Vec::new();
    for _ in 0..CALIBRATION_PARTS {
        references.push(soakers.calibrate(duration / CALIBRATION_PARTS)?);
    }
    let mut command = Command::new(program);
    command.args(arguments);
    let used_before = rusage_times(libc::RUSAGE_CHILDREN).unwrap_or_default();
    let begin = soakers.snapshot()?;
    let mut process = Process::start_with_input(command, &program.to_string_lossy())?;
    let status =
        process.wait(COMMAND_TIMEOUT)?.ok_or_else(|| Failure::new("the command did not end in time"))?;
    let soaked = soakers.since(&begin)?;
    let used_after = rusage_times(libc::RUSAGE_CHILDREN).unwrap_or_default();
    for _ in 0..CALIBRATION_PARTS {
        references.push(soakers.calibrate(duration / CALIBRATION_PARTS)?);
    }
    let calibration = soakers.calibration().ok_or_else(|| Failure::new("the soakers did no work"))?;
    Ok(CommandCost {
        command: command_line_text(words),
        status,
        load_fraction: load_fraction(
            soaked.work_per_s,
            references.iter().sum::<f64>() / f64::from(2 * CALIBRATION_PARTS),
        ),
        soaked,
        rusage: [0, 1].map(|kind| used_after[kind].saturating_sub(used_before[kind])),
        processors: soakers.count(),
        calibration,
    })
}

/// Returns the command line as one line, with spaces for control characters.
fn command_line_text(words: &[OsString]) -> String {
    let line = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl CommandCost {
    /// Returns the exit status to end with: the command's, or 128 plus the signal that ended it.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).and_then(|status| u8::try_from(status).ok()).unwrap_or(1)
    }

    /// Returns processor time in seconds: taken from the soakers; used by others, in tasks; reported by
    /// getrusage(2) in user mode and in the kernel.
    #[expect(clippy::cast_precision_loss, reason = "a few processors")]
    fn seconds(&self) -> (f64, f64, [f64; 2]) {
        let all_processors_s = self.soaked.elapsed.as_secs_f64() * self.processors as f64;
        (
            self.load_fraction * all_processors_s,
            self.soaked.others * all_processors_s,
            self.rusage.map(|time| time.as_secs_f64()),
        )
    }

    /// Renders the result as a few lines of text.
    #[must_use]
    pub fn render(&self, machine: &Machine) -> String {
        let (load_s, others, [user, system]) = self.seconds();
        let seen = user + system;
        let calibration = self.calibration.render(self.processors);
        if self.calibration.is_invalid() {
            return format!(
                "{}\n\
                 {}: {:.3} s, exit status {}\n\
                 getrusage: {seen:.3} s ({user:.3} s user, {system:.3} s system); the load is unknown\n\
                 {calibration}",
                machine.render(),
                self.command,
                self.soaked.elapsed.as_secs_f64(),
                self.exit_status(),
            );
        }
        let part = |seconds: f64| if load_s > 0.0 { seconds / load_s * 100.0 } else { f64::NAN };
        format!(
            "{}\n\
             {}: {:.3} s, exit status {}\n\
             load: {:.2} % of the machine, {load_s:.3} s of the time of {} processors\n\
             getrusage: {seen:.3} s ({user:.3} s user, {system:.3} s system), {:.0} % of the load\n\
             not in getrusage: {:.3} s, of which {:.3} s are kernel threads and other programs, {:.3} s \
             interrupts and cache misses\n\
             {}",
            machine.render(),
            self.command,
            self.soaked.elapsed.as_secs_f64(),
            self.exit_status(),
            self.load_fraction * 100.0,
            self.processors,
            part(seen),
            load_s - seen,
            others - seen,
            load_s - others,
            calibration,
        )
    }

    /// Returns the result as JSON.
    #[must_use]
    pub fn to_json(&self, machine: &Machine) -> Value {
        let (load_s, others, [user, system]) = self.seconds();
        let shown = |figure: f64| Some(figure).filter(|_| !self.calibration.is_invalid());
        json!({
            "schema": uncopy_core::schema::BENCH,
            "machine": machine.to_json(),
            "command": self.command,
            "exit_status": self.exit_status(),
            "elapsed_s": self.soaked.elapsed.as_secs_f64(),
            "machine_load_percent": shown(self.load_fraction * 100.0),
            "machine_s": shown(load_s),
            "getrusage_user_s": user,
            "getrusage_system_s": system,
            "other_tasks_s": shown(others - user - system),
            "interrupts_s": shown(load_s - others),
            "calibration": self.calibration.to_json(self.processors),
        })
    }
}

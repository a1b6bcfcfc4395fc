//! A machine that is as quiet as this program can make it: processors that never halt, and a raised priority.
//!
//! A virtual machine's processor that goes idle between two messages has to wait for its host at every wake-up; on a loaded
//! host an echo of 512 KiB falls from 3,300 to 130 a second for minutes at a time. A loop of the lowest class on each
//! processor keeps them awake and costs the others nothing: any other thread takes its place at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::thread::CpuSet;

use crate::kit::processors;

/// Priority of servers and clients, where this program may raise it.
const NICE: i32 = -10;

static IS_WANTED: AtomicBool = AtomicBool::new(true);

/// Says whether [`Quiet::begin`] is to start idle loops.
pub fn want_idle_loops(wanted: bool) {
    IS_WANTED.store(wanted, Ordering::Relaxed);
}

/// A loop on each processor, until it is dropped.
#[derive(Debug)]
pub struct Quiet {
    ending: Arc<AtomicBool>,
    loops: Vec<JoinHandle<()>>,
    refused: Vec<String>,
}

impl Quiet {
    /// Starts the loops and raises the priority of this thread and all that comes of it, as far as that is permitted.
    #[must_use]
    pub fn begin() -> Self {
        let (ending, mut refused, mut loops) = (Arc::new(AtomicBool::new(false)), Vec::new(), Vec::new());
        if IS_WANTED.load(Ordering::Relaxed) {
            for processor in processors::each() {
                let ended = Arc::clone(&ending);
                let thread = std::thread::Builder::new().name("idle loop".to_owned());
                match thread.spawn(move || spin(processor, &ended)) {
                    Ok(thread) => loops.push(thread),
                    Err(error) => refused.push(format!("an idle loop: {error}")),
                }
            }
        } else {
            refused.push("idle loops: switched off".to_owned());
        }
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            refused.push(format!("priority {NICE}: {error}"));
        }
        Self { ending, loops, refused }
    }

    /// What could not be had, for the machine's description.
    #[must_use]
    pub fn describe(&self) -> String {
        let idle_loops = format!("{} idle loops, priority {NICE}", self.loops.len());
        if self.refused.is_empty() { idle_loops } else { format!("without {}", self.refused.join(", ")) }
    }
}

/// Whether loops take all the time that nobody else has, so that what is missing is somebody else's.
#[must_use]
pub fn has_idle_loops() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

impl Drop for Quiet {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        for thread in self.loops.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Loops on `processor` in the class of the least right to it.
fn spin(processor: CpuSet, ended: &AtomicBool) {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is valid during the call, and 0 is the calling thread.
    let lowered = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) };
    // At a higher class it would be in everybody's way.
    if lowered != 0 || processors::bind_to(Some(processor)).is_err() {
        return;
    }
    while !ended.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_of_the_lowest_class_run_until_they_are_dropped() {
        let spinning = || {
            let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten();
            let is_loop = |name: String| name.trim() == "idle loop";
            tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(is_loop)).count()
        };
        let quiet = Quiet::begin();
        assert_eq!(quiet.loops.len(), processors::each().len());
        assert!(spinning() > 0);
        drop(quiet);
        assert_eq!(spinning(), 0);
    }
}

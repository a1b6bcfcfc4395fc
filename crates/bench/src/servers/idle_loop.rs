//! The loop that keeps a processor awake, as a process of its own: [`crate::kit::quiet`] says why.

use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::kit::quiet::SESSION;
use crate::kit::{Experiment, Failure, Outcome, Result, While, processors};

/// Priority of an idle loop's session.
const NICE: i32 = 19;

/// Keep a processor awake
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct IdleLoop {
    /// Number of the processor
    #[arg(long, value_name = "N")]
    pub processor: usize,
}

impl Experiment for IdleLoop {
    const IS_SERVER: bool = true;

    /// Loops until the program that started it ends.
    fn run(&self) -> Result<Outcome> {
        let what = "becoming an idle loop";
        let parent = getppid();
        set_parent_process_death_signal(Some(Signal::KILL)).doing(what)?;
        if getppid() != parent {
            return Err(Failure::new("the program that wanted an idle loop has ended"));
        }
        // In the session of whoever started it, it would count as much as all the others there.
        setsid().doing(what)?;
        let _ = std::fs::write(SESSION, NICE.to_string());
        let parameter = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameter is valid during the call, and 0 is the calling thread.
        if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) } != 0 {
            return Err(Failure::while_doing(what, &std::io::Error::last_os_error()));
        }
        processors::bind_to(Some(processors::only(self.processor)))?;
        loop {
            std::hint::spin_loop();
        }
    }
}

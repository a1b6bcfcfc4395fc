//! The loop that keeps a processor awake, as a process of its own; for the reason see [`crate::kit::noise`].

use clap::Args;
use rustix::process::{Signal, getppid, set_parent_process_death_signal, setsid};

use crate::kit::noise::AUTOGROUP_FILE;
use crate::kit::{Experiment, Failure, Outcome, Result, While, processors};

/// Nice value of an idle loop's session.
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

    /// Loops until the program that started this process ends.
    fn run(&self) -> Result<Outcome> {
        let what = "becoming an idle loop";
        let parent = getppid();
        set_parent_process_death_signal(Some(Signal::KILL)).doing(what)?;
        if getppid() != parent {
            return Err(Failure::new("the program that started the idle loop has ended"));
        }
        // In its parent's session, the loop would get as much time as all other programs there.
        setsid().doing(what)?;
        let _ = std::fs::write(AUTOGROUP_FILE, NICE.to_string());
        processors::set_idle_priority().doing(what)?;
        processors::bind_thread(Some(processors::single(self.processor)))?;
        loop {
            std::hint::spin_loop();
        }
    }
}

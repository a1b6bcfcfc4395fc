//! Made-up profiles for tests.

use crate::classes::Class;
use crate::copies::CopyInProgress;
use crate::names::NamedFrame;
use crate::resolve::{NamedStack, ProcessProfile};
use std::rc::Rc;

/// Samples of a stack whose functions, innermost first, are in the file `program`.
pub fn stack(class: Class, samples: u64, functions: &[&str]) -> NamedStack {
    let frame = |name: &&str| {
        let (function, file) = (Some((*name).to_owned()), "program".to_owned());
        Rc::new(NamedFrame { function, start: None, file })
    };
    NamedStack {
        frames: functions.iter().map(frame).collect(),
        kernel_frames: 0,
        class,
        system_call: None,
        samples,
        copies: Vec::new(),
        is_reachable: false,
    }
}

/// Samples of copies that uncopy can reach.
pub fn copies(samples: u64, functions: &[&str], copy: CopyInProgress) -> NamedStack {
    NamedStack { copies: vec![copy], is_reachable: true, ..stack(Class::Copy, samples, functions) }
}

/// Process 7, `server -p 1`.
pub fn process(stacks: Vec<NamedStack>) -> ProcessProfile {
    ProcessProfile {
        pid: 7,
        name: "server".to_owned(),
        command: ["server", "-p", "1"].map(str::to_owned).to_vec(),
        samples: stacks.iter().map(|stack| stack.samples).sum(),
        stacks,
        files: vec!["libc.so.6".to_owned()],
    }
}

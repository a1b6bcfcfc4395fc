//! Turns counted stacks into names and classes, after the session.

use crate::classes::{self, Class};
use crate::copies::{CopyInProgress, copy_in_progress};
use crate::event::KernelTime;
use crate::images::{Frame, ImageId};
use crate::imports::{StringInstruction, string_instruction};
use crate::names::{NamedFrame, Names};
use crate::session::{Ended, Losses, Process, Samples, StackSamples};
use std::rc::Rc;

/// Result of a session, with names.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Processes, the one with the most samples first.
    pub processes: Vec<ProcessProfile>,
    /// Duration of the session.
    pub seconds: f64,
    /// Samples per second of processor time.
    pub frequency: u32,
    /// Whether time in the kernel was sampled.
    pub has_kernel_time: bool,
    /// Whether the kernel's functions have names.
    pub has_kernel_symbols: bool,
    /// Samples that were not counted.
    pub losses: Losses,
}

/// A process with samples.
#[derive(Clone, Debug, Default)]
pub struct ProcessProfile {
    pub pid: u32,
    pub name: String,
    /// Words of the command line; empty if they could not be read.
    pub command: Vec<String>,
    /// Samples in all stacks.
    pub samples: u64,
    pub stacks: Vec<NamedStack>,
    /// Names of the files that it executes, without directories.
    pub files: Vec<String>,
}

/// Samples of one stack.
#[derive(Clone, Debug)]
pub struct NamedStack {
    /// Frames of the stack, innermost first.
    pub frames: Vec<Rc<NamedFrame>>,
    /// Number of the leading frames that are in the kernel.
    pub kernel_frames: usize,
    pub class: Class,
    /// System call, for time in the kernel.
    pub system_call: Option<String>,
    pub samples: u64,
    /// Copies that some of the samples interrupted.
    pub copies: Vec<CopyInProgress>,
    /// Whether uncopy could elide the copy: the program calls a function of the GNU C library.
    pub is_reachable: bool,
}

impl NamedStack {
    /// Returns the function in the program that made the copy or the system call.
    pub fn caller(&self) -> Option<&NamedFrame> {
        // The copy's own function; in the kernel, the wrapper in the C library.
        self.frames.get(self.kernel_frames + 1).map(|frame| &**frame)
    }
}

/// Looks up the names of a session's samples.
#[must_use]
pub fn resolve(mut ended: Ended, frequency: u32) -> Profile {
    let names = Names::look_up(&mut ended.samples);
    let samples = &ended.samples;
    let mut processes: Vec<ProcessProfile> = samples
        .processes
        .iter()
        .filter(|(_, process)| process.samples > 0)
        .map(|(pid, process)| named_process(*pid, process, samples, &names))
        .collect();
    processes.sort_by(|one, other| other.samples.cmp(&one.samples).then(one.pid.cmp(&other.pid)));
    Profile {
        processes,
        seconds: ended.seconds,
        frequency,
        has_kernel_time: ended.kernel_time == KernelTime::Sampled,
        has_kernel_symbols: names.has_kernel_symbols(),
        losses: samples.losses,
    }
}

fn named_process(pid: u32, process: &Process, samples: &Samples, names: &Names) -> ProcessProfile {
    let mut stacks: Vec<NamedStack> = process
        .stacks
        .iter()
        .map(|(frames, counted)| named_stack(pid, frames, counted, samples, names))
        .collect();
    // The order of hash tables differs from run to run.
    stacks.sort_by(|one, other| {
        let key =
            |stack: &NamedStack| stack.frames.iter().map(|frame| frame.function.clone()).collect::<Vec<_>>();
        other.samples.cmp(&one.samples).then_with(|| key(one).cmp(&key(other)))
    });
    let space = process.space();
    let mut files: Vec<String> = space
        .iter()
        .flat_map(|space| space.mappings())
        .filter(|mapping| mapping.name.starts_with(b"/"))
        .map(|mapping| crate::target::clean_name(crate::target::base_name(&mapping.name)))
        .collect();
    files.sort();
    files.dedup();
    ProcessProfile {
        pid,
        name: process.name.clone(),
        command: process.command.clone(),
        samples: process.samples,
        stacks,
        files,
    }
}

fn named_stack(
    pid: u32,
    frames: &[Frame],
    counted: &StackSamples,
    samples: &Samples,
    names: &Names,
) -> NamedStack {
    let named: Vec<Rc<NamedFrame>> = frames.iter().map(|frame| names.frame(pid, *frame)).collect();
    let kernel_frames = frames.iter().take_while(|frame| frame.image == ImageId::KERNEL).count();
    let mut stack = NamedStack {
        frames: named,
        kernel_frames,
        class: Class::Other,
        system_call: None,
        samples: counted.count,
        copies: Vec::new(),
        is_reachable: false,
    };
    if kernel_frames > 0 {
        classify_kernel(&mut stack);
        return stack;
    }
    let Some((innermost, frame)) = stack.frames.first().zip(frames.first()) else { return stack };
    let instruction = samples
        .images
        .get(frame.image)
        .and_then(|image| string_instruction(image.file.as_ref()?, &image.tables, frame.address));
    let by_name = classes::of_function(innermost.plain_name(), &innermost.file);
    let class = by_name.unwrap_or(match instruction {
        Some(StringInstruction::Copy) => Class::Copy,
        Some(StringInstruction::Fill) => Class::Zeroing,
        None => Class::Other,
    });
    if class == Class::Copy && is_glibc(&innermost.file) {
        let copies =
            counted.registers.iter().filter_map(|registers| copy_in_progress(registers, instruction));
        let copies = copies.collect();
        let is_reachable = stack.frames.get(1).is_some_and(|caller| !is_glibc(&caller.file));
        stack = NamedStack { copies, is_reachable, ..stack };
    }
    stack.class = class;
    stack
}

/// Sets class and system call of a stack that begins in the kernel.
fn classify_kernel(stack: &mut NamedStack) {
    let names: Vec<&str> =
        stack.frames[..stack.kernel_frames].iter().filter_map(|frame| frame.function.as_deref()).collect();
    let wrapper = stack.frames.get(stack.kernel_frames).and_then(|frame| frame.function.as_deref());
    // A program's own function of this name may also be interrupted by faults.
    let is_hidden = names.is_empty();
    let by_wrapper = || wrapper.filter(|_| is_hidden).and_then(classes::system_call_of_wrapper);
    let system_call = classes::system_call(&names).or_else(by_wrapper);
    let class = classes::of_kernel_stack(&names, system_call);
    stack.system_call = system_call.map(ToOwned::to_owned);
    stack.class = class;
}

/// Whether a file is the GNU C library, by its name.
pub fn is_glibc(file: &str) -> bool {
    file == "libc.so.6" || file.starts_with("libc-2.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::stack;

    /// A stack with this many frames in the kernel; functions named `?` have no names.
    fn kernel_stack(functions: &[&str], kernel_frames: usize) -> NamedStack {
        let mut stack = stack(Class::Other, 1, functions);
        stack.kernel_frames = kernel_frames;
        for frame in &mut stack.frames {
            let frame = Rc::make_mut(frame);
            frame.function = frame.function.take().filter(|name| name != "?");
        }
        classify_kernel(&mut stack);
        stack
    }

    #[test]
    fn copies_of_a_kernel_with_symbols_are_told_by_direction() {
        let read = kernel_stack(&["_copy_to_iter", "vfs_read", "__x64_sys_read", "read", "main"], 3);
        assert_eq!((read.class, read.system_call.as_deref()), (Class::KernelCopyIn, Some("read")));
        assert_eq!(read.caller().expect("a caller").plain_name(), "main");
        let send = kernel_stack(&["_copy_from_iter", "tcp_sendmsg", "__x64_sys_sendto", "send", "main"], 3);
        assert_eq!((send.class, send.system_call.as_deref()), (Class::KernelCopyOut, Some("sendto")));
    }

    #[test]
    fn a_kernel_without_symbols_is_told_by_the_function_that_calls_it() {
        let read = kernel_stack(&["?", "?", "__libc_read", "main"], 2);
        assert_eq!((read.class, read.system_call.as_deref()), (Class::Kernel, Some("read")));
        let unmap = kernel_stack(&["?", "__munmap", "free"], 1);
        assert_eq!((unmap.class, unmap.system_call.as_deref()), (Class::Allocator, Some("munmap")));
        let fault = kernel_stack(&["?", "store", "main"], 1);
        assert_eq!((fault.class, fault.system_call), (Class::Kernel, None));
    }

    #[test]
    fn the_c_library_is_known_by_its_file() {
        assert!(is_glibc("libc.so.6") && is_glibc("libc-2.31.so"));
        assert!(!is_glibc("libc.so") && !is_glibc("libcrypto.so.3") && !is_glibc("ld-musl-x86_64.so.1"));
    }
}

//! Forked children, and buffers that change their worker.

use super::{GENERAL_SLOTS, SLOTS, Verdict, Worker};
use crate::buffer::Origin;
use crate::link::Link;
use crate::room::set_alarm;
use std::sync::mpsc::channel;
use uncopy_tests::plain::errno;

/// Deepest fork in a fork.
const MAX_DEPTH: usize = 3;
/// Most children that run beside their parent.
const MAX_CHILDREN: usize = 3;

impl Worker<'_> {
    pub(super) fn fork(&mut self, place: usize, count: usize, wait: usize) -> Verdict {
        if self.depth >= MAX_DEPTH {
            return Ok(());
        }
        while self.children.len() >= MAX_CHILDREN {
            self.wait_for_child()?;
        }
        // SAFETY: the child works on its own copy; what it shares with the parent is replaced first.
        match unsafe { libc::fork() } {
            -1 => Err(format!("fork: errno {}", errno())),
            0 => {
                self.go_on_in_child();
                self.run(place + 1, count);
                self.finish();
                // SAFETY: nothing of the parent's is to be done at exit.
                unsafe { libc::_exit(0) }
            }
            child => {
                self.children.push(child);
                if wait.is_multiple_of(2) { self.wait_for_child() } else { Ok(()) }
            }
        }
    }

    /// Replaces what the child would share with its parent.
    fn go_on_in_child(&mut self) {
        self.depth += 1;
        self.children.clear();
        // Another worker may have been in the middle of a hand-over, and will never end it here: not even
        // looked at, or this would wait for it.
        core::mem::forget(core::mem::take(&mut self.peers));
        core::mem::forget(core::mem::replace(&mut self.inbox, channel().1));
        for slot in 0..SLOTS {
            if self.slots[slot].as_ref().is_some_and(|buffer| buffer.origin() == Origin::Shared) {
                self.empty(slot);
            }
        }
        self.links = Link::all();
        self.disk.part_with_parent();
        self.room.part_with_parent();
        // The kernel gives a child no timer.
        set_alarm(self.program.alarm_us);
    }

    /// Waits for the child that was forked first.
    pub(super) fn wait_for_child(&mut self) -> Verdict {
        let child = self.children.remove(0);
        let mut status = 0;
        loop {
            // SAFETY: the status lives through the call.
            let got = unsafe { libc::waitpid(child, &raw mut status, 0) };
            if got == child {
                break;
            }
            if errno() != libc::EINTR {
                return Err(format!("waitpid: errno {}", errno()));
            }
        }
        if status == 0 { Ok(()) } else { Err(format!("a forked child ended with status {status:#x}")) }
    }

    /// Hands a buffer to another worker. A forked child has none.
    pub(super) fn give(&mut self, slot: usize, to: usize) {
        if self.peers.is_empty() {
            return;
        }
        if let Some(buffer) = self.slots[slot % GENERAL_SLOTS].take()
            && let Err(refused) = self.peers[to % self.peers.len()].send(buffer)
        {
            // The other has ended.
            self.slots[slot % GENERAL_SLOTS] = Some(refused.0);
        }
    }

    /// Takes a buffer that was handed over.
    pub(super) fn take(&mut self, slot: usize) -> Verdict {
        if let Ok(buffer) = self.inbox.try_recv() {
            let slot = slot % GENERAL_SLOTS;
            self.check_start(slot)?;
            self.empty(slot);
            self.slots[slot] = Some(buffer);
        }
        Ok(())
    }
}

//! Forked children, and hand-over of buffers between workers.

use super::{GENERAL_SLOTS, SLOTS, Verdict, Worker};
use crate::buffer::Origin;
use crate::channel::Channel;
use crate::handler_buffers::set_alarm;
use std::sync::mpsc::channel;
use uncopy_tests::oracle::errno;

/// Maximum depth of forks within forks.
const MAX_DEPTH: usize = 3;
/// Maximum number of children that run beside their parent.
const MAX_CHILDREN: usize = 3;

impl Worker<'_> {
    pub(super) fn fork(&mut self, index: usize, count: usize, wait: usize) -> Verdict {
        if self.depth >= MAX_DEPTH {
            return Ok(());
        }
        while self.children.len() >= MAX_CHILDREN {
            self.wait_for_child()?;
        }
        // SAFETY: the child has a copy of this thread only; `unshare_from_parent` replaces what the
        // child shares with its parent or with other threads.
        match unsafe { libc::fork() } {
            -1 => Err(format!("fork: errno {}", errno())),
            0 => {
                self.unshare_from_parent();
                self.run(index + 1, count);
                self.finish();
                // SAFETY: `_exit` takes an integer only, and skips the parent's exit handlers.
                unsafe { libc::_exit(0) }
            }
            child => {
                self.children.push(child);
                if wait.is_multiple_of(2) { self.wait_for_child() } else { Ok(()) }
            }
        }
    }

    /// Replaces everything that the child shares with its parent.
    fn unshare_from_parent(&mut self) {
        self.depth += 1;
        self.children.clear();
        // Another thread may have been inside a hand-over, which it cannot end in the child.
        // Dropping the channels could wait for it.
        core::mem::forget(core::mem::take(&mut self.peers));
        core::mem::forget(core::mem::replace(&mut self.inbox, channel().1));
        for slot in 0..SLOTS {
            if self.slots[slot].as_ref().is_some_and(|buffer| buffer.origin() == Origin::Shared) {
                self.free_slot(slot);
            }
        }
        self.channels = Channel::all();
        self.file.unshare_from_parent();
        self.handler_buffers.unshare_from_parent();
        // A child does not inherit interval timers: fork(2).
        set_alarm(self.program.alarm_us);
    }

    /// Waits for the oldest child.
    pub(super) fn wait_for_child(&mut self) -> Verdict {
        let child = self.children.remove(0);
        let mut status = 0;
        loop {
            // SAFETY: `status` is writable and lives through the call.
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

    /// Hands a buffer to another worker, which a forked child does not have.
    pub(super) fn give(&mut self, slot: usize, to: usize) {
        if self.peers.is_empty() {
            return;
        }
        if let Some(buffer) = self.slots[slot % GENERAL_SLOTS].take()
            && let Err(refused) = self.peers[to % self.peers.len()].send(buffer)
        {
            // The other worker has ended.
            self.slots[slot % GENERAL_SLOTS] = Some(refused.0);
        }
    }

    /// Takes over a buffer from another worker, if one is waiting.
    pub(super) fn take(&mut self, slot: usize) -> Verdict {
        if let Ok(buffer) = self.inbox.try_recv() {
            let slot = slot % GENERAL_SLOTS;
            self.check_start(slot)?;
            self.free_slot(slot);
            self.slots[slot] = Some(buffer);
        }
        Ok(())
    }
}

//! Reads words of the stack being unwound, but only where memory is known to be readable.
//!
//! Known readable are the calling thread's own stack, for the life of the thread, and on other stacks (of
//! coroutines and signals) each page that the kernel has confirmed during this capture; such a stack may be
//! unmapped before the next capture. A correct frame only refers to mapped memory, so these checks guard
//! against wrong frames.

use crate::trace::Trace;
use core::ops::Range;
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::readable::is_readable;

const WORD: usize = size_of::<usize>();

/// The readable part of the stack being unwound.
pub struct StackMemory<'a> {
    known: Range<usize>,
    may_ask: bool,
    /// Trace in which reads are recorded.
    pub trace: Option<&'a mut Trace>,
}

impl<'a> StackMemory<'a> {
    /// Returns the memory around a stack pointer that is in use. If `may_ask` is false, the kernel is not
    /// asked for the bounds of the thread's own stack.
    #[inline]
    pub fn around(sp: usize, may_ask: bool, trace: Option<&'a mut Trace>) -> Self {
        Self { known: own_stack(sp, may_ask).unwrap_or(sp..next_page(sp)), may_ask, trace }
    }

    /// Reads and traces the word at `address`. Returns `None` if it is unreadable or unaligned.
    #[inline]
    pub fn word(&mut self, address: usize) -> Option<usize> {
        let value = self.peek(address)?;
        if let Some(trace) = &mut self.trace {
            trace.record_read(address, value);
        }
        Some(value)
    }

    #[inline]
    fn peek(&mut self, address: usize) -> Option<usize> {
        if !address.is_multiple_of(WORD) {
            return None;
        }
        // An aligned word never crosses a page boundary.
        if !self.known.contains(&address) && !self.extend_to(address) {
            return None;
        }
        // SAFETY: the address is aligned and lies in memory that was just found to be readable, or on the
        // thread's own stack. Other threads may write the word concurrently, so it is read as volatile.
        Some(unsafe { (address as *const usize).read_volatile() })
    }

    /// Reads the saved `rbp` at `address`. Traced only if used, as most functions keep other data in `rbp`.
    #[inline]
    pub fn bp(&mut self, address: usize) -> Option<usize> {
        let value = self.peek(address)?;
        if let Some(trace) = &mut self.trace {
            trace.record_bp_load(address);
        }
        Some(value)
    }

    /// Traces that unwinding depends on `bp`, and returns `bp`.
    #[inline]
    pub fn record_bp_use(&mut self, bp: usize) -> usize {
        if let Some(trace) = &mut self.trace {
            trace.record_bp_use(bp);
        }
        bp
    }

    #[cold]
    fn extend_to(&mut self, address: usize) -> bool {
        if let Some(own_stack) = own_stack(address, self.may_ask) {
            self.known = own_stack;
            return true;
        }
        let readable = is_readable(address, WORD);
        if readable && address / PAGE_BYTES * PAGE_BYTES == self.known.end {
            self.known.end = next_page(address);
        } else if readable {
            self.known = address..next_page(address);
        }
        readable
    }
}

const fn next_page(address: usize) -> usize {
    (address / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES)
}

#[inline]
fn own_stack(sp: usize, may_ask: bool) -> Option<Range<usize>> {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    return uncopy_sys::stack::mapped_range(sp, may_ask);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    {
        let _ = (sp, may_ask);
        None
    }
}

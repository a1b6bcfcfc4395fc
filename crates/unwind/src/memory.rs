//! The words of the stack that is unwound: read where they are known to be readable, and nowhere else.
//!
//! Known are the calling thread's own stack, which stays as long as the thread does, and, anywhere else (a coroutine's
//! stack, a signal's), page by page what the kernel says in the course of this one capture: such a stack may be gone the
//! next time. A frame that is right only refers to memory that is in use; all this is for those that are wrong.

use crate::trace::Trace;
use core::ops::Range;
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::readable::is_readable;

const WORD: usize = size_of::<usize>();

/// What may be read of a stack.
pub struct Memory<'a> {
    known: Range<usize>,
    may_ask: bool,
    /// What is read is noted there.
    pub trace: Option<&'a mut Trace>,
}

impl<'a> Memory<'a> {
    /// What is known around a stack pointer that is in use. Without `may_ask` the kernel is not asked for the thread's
    /// own stack.
    #[inline]
    pub fn around(sp: usize, may_ask: bool, trace: Option<&'a mut Trace>) -> Self {
        Self { known: own(sp, may_ask).unwrap_or(sp..next_page(sp)), may_ask, trace }
    }

    /// The word at an address, if it can be read and the address is a multiple of a word's length.
    #[inline]
    pub fn word(&mut self, address: usize) -> Option<usize> {
        let value = self.peek(address)?;
        if let Some(trace) = &mut self.trace {
            trace.note(address, value);
        }
        Some(value)
    }

    #[inline]
    fn peek(&mut self, address: usize) -> Option<usize> {
        if !address.is_multiple_of(WORD) {
            return None;
        }
        // A word never reaches into the next page.
        if !self.known.contains(&address) && !self.learns(address) {
            return None;
        }
        // SAFETY: a word that lies in memory that was just found to be readable, or is the thread's own stack. Another
        // thread may write it meanwhile: hence a volatile read of whatever is there.
        Some(unsafe { (address as *const usize).read_volatile() })
    }

    /// The word where a frame's `rbp` was saved. Most functions keep anything there: what it is matters if it is used.
    #[inline]
    pub fn bp(&mut self, address: usize) -> Option<usize> {
        let value = self.peek(address)?;
        if let Some(trace) = &mut self.trace {
            trace.bp_from(address);
        }
        Some(value)
    }

    /// The stack goes on from this `rbp`, which is returned.
    #[inline]
    pub fn uses_bp(&mut self, bp: usize) -> usize {
        if let Some(trace) = &mut self.trace {
            trace.uses_bp(bp);
        }
        bp
    }

    #[cold]
    fn learns(&mut self, address: usize) -> bool {
        if let Some(own) = own(address, self.may_ask) {
            self.known = own;
            return true;
        }
        let is_there = is_readable(address, WORD);
        if is_there && address / PAGE_BYTES * PAGE_BYTES == self.known.end {
            self.known.end = next_page(address);
        } else if is_there {
            self.known = address..next_page(address);
        }
        is_there
    }
}

const fn next_page(address: usize) -> usize {
    (address / PAGE_BYTES + 1).saturating_mul(PAGE_BYTES)
}

#[inline]
fn own(sp: usize, may_ask: bool) -> Option<Range<usize>> {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    return uncopy_sys::stack::around(sp, may_ask);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    {
        let _ = (sp, may_ask);
        None
    }
}

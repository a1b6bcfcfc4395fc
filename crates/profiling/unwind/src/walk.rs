//! Unwinds from frame to frame.

use crate::cache::Cache;
use crate::memory::StackMemory;
use crate::objects::{self, BUFFER_BYTES, Search};
use crate::registers::Registers;
use crate::rule::{Base, BpLocation, Rule};
use crate::tables::{self, Context, sigframe};
use crate::trace::{Trace, generation};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::mem;

static RULES: Cache = Cache::new();
static CONFINED: AtomicBool = AtomicBool::new(false);
/// Start and length of the code whose frames are hidden.
static EXCLUDED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Maximum frames visited, including hidden ones.
const MAX_VISITED: usize = crate::trace::MAX_FRAMES + 24;
/// Bits of a user-space address, plus one.
const ADDRESS_BITS: u32 = 48;

pub fn exclude_range(start: usize, end: usize) {
    EXCLUDED.0.store(start, Relaxed);
    EXCLUDED.1.store(end.saturating_sub(start), Relaxed);
}

pub fn stop_system_calls() {
    CONFINED.store(true, Relaxed);
}

#[inline]
pub fn capture(start: Registers, frames: &mut [usize]) -> usize {
    walk(start, frames, None)
}

pub fn capture_traced(start: Registers, frames: &mut [usize], trace: &mut Trace) -> usize {
    trace.begin(start);
    walk(start, frames, Some(trace))
}

#[inline]
fn walk(start: Registers, frames: &mut [usize], trace: Option<&mut Trace>) -> usize {
    let may_ask = !CONFINED.load(Relaxed);
    let generation = generation() << (ADDRESS_BITS + 1);
    let (hidden, hidden_len) = (EXCLUDED.0.load(Relaxed), EXCLUDED.1.load(Relaxed));
    let max_frames = frames.len().min(crate::trace::MAX_FRAMES);
    let mut memory = StackMemory::around(start.sp, may_ask, trace);
    let mut scratch = Scratch(None);
    let mut at = start;
    // True if `ip` is the next instruction to execute, false if it is a return address, whose rule is that of
    // the call before it.
    let mut is_exact = true;
    let mut count = 0;
    for _ in 0..MAX_VISITED {
        if count == max_frames || at.ip == 0 || at.ip >> (ADDRESS_BITS - 1) != 0 {
            break;
        }
        let key = (((at.ip as u64) << 1) | u64::from(is_exact)) ^ generation;
        let rule = match RULES.get(key) {
            Some(rule) => rule,
            None if may_ask => match read_rule(at.ip, is_exact, &mut scratch) {
                Some(rule) => {
                    RULES.put(key, rule.pack());
                    rule.pack()
                }
                None => {
                    mark_unrepeatable(&mut memory);
                    break;
                }
            },
            None => {
                mark_unrepeatable(&mut memory);
                break;
            }
        };
        let rule = Rule::unpack(rule);
        let Some(caller) = step(at, rule, &mut memory) else {
            if !matches!(rule, Rule::End) {
                mark_unrepeatable(&mut memory);
            }
            break;
        };
        (at, is_exact) = caller;
        if at.ip.wrapping_sub(hidden) >= hidden_len && at.ip != 0 {
            frames[count] = at.ip;
            count += 1;
        }
    }
    count
}

/// Marks the trace as not repeatable: the condition that ended the unwind may be transient.
#[cold]
fn mark_unrepeatable(memory: &mut StackMemory<'_>) {
    if let Some(trace) = &mut memory.trace {
        trace.mark_unrepeatable();
    }
}

/// Returns the caller's registers, and whether the caller's `ip` is exact.
#[inline]
fn step(at: Registers, rule: Rule, memory: &mut StackMemory<'_>) -> Option<(Registers, bool)> {
    const WORD: usize = size_of::<usize>();
    match rule {
        Rule::End => None,
        Rule::Frame { base, is_stored, offset, bp } => {
            let from = match base {
                Base::Sp => at.sp,
                Base::Bp => memory.record_bp_use(at.bp),
            };
            let mut cfa = from.wrapping_add_signed(offset as isize);
            if is_stored {
                cfa = memory.word(cfa)?;
            }
            // The stack grows downwards, so a caller's frame is above.
            if cfa <= at.sp {
                return None;
            }
            let ip = memory.word(cfa.wrapping_sub(WORD))?;
            let bp = match bp {
                BpLocation::Same => at.bp,
                BpLocation::AtCfa(saved) => memory.bp(cfa.wrapping_add_signed(saved as isize))?,
                BpLocation::AtBp(saved) => {
                    let from = memory.record_bp_use(at.bp);
                    memory.bp(from.wrapping_add_signed(saved as isize))?
                }
            };
            Some((Registers { ip, sp: cfa, bp }, false))
        }
        Rule::Signal => {
            let mut saved = |offset| memory.word(at.sp.wrapping_add(offset));
            let interrupted =
                Registers { ip: saved(sigframe::IP)?, sp: saved(sigframe::SP)?, bp: saved(sigframe::BP)? };
            Some((interrupted, true))
        }
    }
}

/// Memory for reading tables, mapped on demand and unmapped afterwards. Stacks of coroutines and signals are
/// too small for it, static memory would be shared with other threads and signal handlers, and a forked child
/// would inherit it half-written.
struct Scratch(Option<usize>);

/// Bytes of the buffer that the context takes.
const CONTEXT_BYTES: usize = size_of::<Context>().next_multiple_of(PAGE_BYTES);

impl Scratch {
    fn get(&mut self) -> Option<(&mut Context, &mut [u8])> {
        let start = match self.0 {
            Some(start) => start,
            // SAFETY: without an address hint the kernel chooses an unused range, which affects no other
            // mapping.
            None => *self.0.insert(unsafe { mem::map_private(CONTEXT_BYTES + BUFFER_BYTES, None) }.ok()?),
        };
        // SAFETY: the mapping has CONTEXT_BYTES + BUFFER_BYTES bytes, is page-aligned and only accessed through
        // `self`, which stays borrowed. The context is written before a reference to it is made, the rest is
        // initialised (zeroes or bytes written earlier), and both references are to disjoint parts. `Context`
        // owns no resources, so overwriting an earlier one leaks nothing.
        unsafe {
            let context = start as *mut Context;
            context.write(Context::new_in());
            let bytes = core::slice::from_raw_parts_mut((start + CONTEXT_BYTES) as *mut u8, BUFFER_BYTES);
            Some((&mut *context, bytes))
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(start) = self.0 {
            let _errno = uncopy_sys::errno::SavedErrno::new();
            // SAFETY: the mapping was made by `get` with this length, and its borrows have ended. If
            // munmap(2) fails, the mapping is leaked.
            let _ = unsafe { mem::unmap(start, CONTEXT_BYTES + BUFFER_BYTES) };
        }
    }
}

/// Reads the rule of an address from the tables. Returns `None` if the tables were unreadable at this time.
#[cold]
#[inline(never)]
fn read_rule(ip: usize, is_exact: bool, scratch: &mut Scratch) -> Option<Rule> {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    // A call may be its function's last instruction, so the return address may belong to the next function.
    let at = if is_exact { ip } else { ip - 1 };
    let object = objects::object_at(at)?;
    let (context, bytes) = scratch.get()?;
    match objects::entry(&object, at, bytes) {
        Search::Entry(entry) => Some(tables::rule(&entry, ip, at, context)),
        Search::Missing => Some(Rule::End),
        Search::Unreadable => None,
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules() -> impl Strategy<Value = Rule> {
        let offsets = || prop_oneof![-256..256i32, (-32..32i32).prop_map(|words| words * 8), any::<i32>()];
        let saved = prop_oneof![
            Just(BpLocation::Same),
            offsets().prop_map(BpLocation::AtCfa),
            offsets().prop_map(BpLocation::AtBp)
        ];
        let base = prop_oneof![Just(Base::Sp), Just(Base::Bp)];
        prop_oneof![
            8 => (base, any::<bool>(), offsets(), saved)
                .prop_map(|(base, is_stored, offset, bp)| Rule::Frame { base, is_stored, offset, bp }),
            1 => Just(Rule::Signal),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Wrong tables may give any registers and rules; unmapped memory must never be read.
        #[test]
        fn wrong_rules_end_somewhere(
            rules in prop::collection::vec(rules(), 1..80),
            bp in prop_oneof![any::<usize>(), (0..4096usize).prop_map(|words| words * 8)],
            is_near in any::<bool>(),
        ) {
            let mut at = Registers::here();
            at.bp = if is_near { at.sp.wrapping_add(bp) } else { bp };
            let mut memory = StackMemory::around(at.sp, true, None);
            for rule in rules {
                let Some((caller, _)) = step(at, Rule::unpack(rule.pack()), &mut memory) else { break };
                at = caller;
            }
        }
    }

    #[test]
    fn nothing_above_a_stack_that_ends_is_read() {
        let page = mem::page_size();
        // SAFETY: the two pages were just mapped, and nothing refers to the second when it is unmapped.
        let start = unsafe {
            let start = mem::map_private(2 * page, None).expect("memory");
            mem::unmap(start + page, page).expect("ours");
            start
        };
        let sp = start + page - 64;
        let mut memory = StackMemory::around(sp, true, None);
        let rule = |offset| Rule::Frame { base: Base::Sp, is_stored: false, offset, bp: BpLocation::Same };
        let at = Registers { ip: 1, sp, bp: 0 };
        assert_eq!(step(at, rule(64), &mut memory), Some((Registers { ip: 0, sp: sp + 64, bp: 0 }, false)));
        assert_eq!(step(at, rule(72), &mut memory), None);
        assert_eq!(step(at, rule(60), &mut memory), None);
        // SAFETY: the first page was mapped above and no reference to it remains.
        unsafe { mem::unmap(start, page).expect("ours") };
    }
}

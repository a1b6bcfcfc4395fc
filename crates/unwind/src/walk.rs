//! From frame to frame.

use crate::cache::Cache;
use crate::memory::Memory;
use crate::objects::{self, ROOM_BYTES, Search};
use crate::registers::Registers;
use crate::rule::{Base, Rule, Saved};
use crate::tables::{self, Context, frame};
use crate::trace::{Trace, generation};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use uncopy_sys::PAGE_BYTES;
use uncopy_sys::mem;

static RULES: Cache = Cache::new();
static CONFINED: AtomicBool = AtomicBool::new(false);
/// Frames that are left out: first address, and how many.
static SKIPPED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));

/// Frames that are looked at, those that are left out as well.
const LOOKED_AT: usize = crate::trace::FRAMES + 24;
/// Bits of an address of user space, and one.
const ADDRESS_BITS: u32 = 48;

/// See [`crate::hide`].
pub fn hide(start: usize, end: usize) {
    SKIPPED.0.store(start, Relaxed);
    SKIPPED.1.store(end.saturating_sub(start), Relaxed);
}

/// See [`crate::confine`].
pub fn confine() {
    CONFINED.store(true, Relaxed);
}

/// See [`crate::capture`].
#[inline]
pub fn capture(start: Registers, frames: &mut [usize]) -> usize {
    walk(start, frames, None)
}

/// See [`crate::capture_traced`].
pub fn capture_traced(start: Registers, frames: &mut [usize], trace: &mut Trace) -> usize {
    trace.begin(start);
    walk(start, frames, Some(trace))
}

#[inline]
fn walk(start: Registers, frames: &mut [usize], trace: Option<&mut Trace>) -> usize {
    let is_free = !CONFINED.load(Relaxed);
    let generation = generation() << (ADDRESS_BITS + 1);
    let (hidden, hidden_len) = (SKIPPED.0.load(Relaxed), SKIPPED.1.load(Relaxed));
    let most = frames.len().min(crate::trace::FRAMES);
    let mut memory = Memory::around(start.sp, is_free, trace);
    let mut room = Room(None);
    let mut at = start;
    // Whether the instruction at `ip` is the one that is to be looked up, and not the call before it.
    let mut is_exact = true;
    let mut count = 0;
    for _ in 0..LOOKED_AT {
        if count == most || at.ip == 0 || at.ip >> (ADDRESS_BITS - 1) != 0 {
            break;
        }
        let key = (((at.ip as u64) << 1) | u64::from(is_exact)) ^ generation;
        let rule = match RULES.get(key) {
            Some(rule) => rule,
            None if is_free => match learn(at.ip, is_exact, &mut room) {
                Some(rule) => {
                    RULES.put(key, rule.pack());
                    rule.pack()
                }
                None => {
                    spoil(&mut memory);
                    break;
                }
            },
            None => {
                spoil(&mut memory);
                break;
            }
        };
        let rule = Rule::unpack(rule);
        let Some(caller) = step(at, rule, &mut memory) else {
            if !matches!(rule, Rule::End) {
                spoil(&mut memory);
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

/// What the walk ended for may be gone the next time.
#[cold]
fn spoil(memory: &mut Memory<'_>) {
    if let Some(trace) = &mut memory.trace {
        trace.spoil();
    }
}

/// The caller's registers, and whether its `ip` is exact.
#[inline]
fn step(at: Registers, rule: Rule, memory: &mut Memory<'_>) -> Option<(Registers, bool)> {
    const WORD: usize = size_of::<usize>();
    match rule {
        Rule::End => None,
        Rule::Frame { base, is_stored, offset, bp } => {
            let from = match base {
                Base::Sp => at.sp,
                Base::Bp => memory.uses_bp(at.bp),
            };
            let mut cfa = from.wrapping_add_signed(offset as isize);
            if is_stored {
                cfa = memory.word(cfa)?;
            }
            // Stacks grow downwards: callers' frames are above.
            if cfa <= at.sp {
                return None;
            }
            let ip = memory.word(cfa.wrapping_sub(WORD))?;
            let bp = match bp {
                Saved::Same => at.bp,
                Saved::AtCfa(saved) => memory.bp(cfa.wrapping_add_signed(saved as isize))?,
                Saved::AtBp(saved) => {
                    let from = memory.uses_bp(at.bp);
                    memory.bp(from.wrapping_add_signed(saved as isize))?
                }
            };
            Some((Registers { ip, sp: cfa, bp }, false))
        }
        Rule::Signal => {
            let mut saved = |offset| memory.word(at.sp.wrapping_add(offset));
            let interrupted =
                Registers { ip: saved(frame::IP)?, sp: saved(frame::SP)?, bp: saved(frame::BP)? };
            Some((interrupted, true))
        }
    }
}

/// Memory for reading tables, of the kernel's and given back to it: stacks of coroutines and signals are small, no other
/// thread or handler may come in between, and a forked child inherits nothing half done.
struct Room(Option<usize>);

/// Bytes of the room that the rows take.
const CONTEXT_BYTES: usize = size_of::<Context>().next_multiple_of(PAGE_BYTES);

impl Room {
    fn get(&mut self) -> Option<(&mut Context, &mut [u8])> {
        let start = match self.0 {
            Some(start) => start,
            // SAFETY: new memory, at an address of the kernel's choice.
            None => *self.0.insert(unsafe { mem::map_private(CONTEXT_BYTES + ROOM_BYTES, None) }.ok()?),
        };
        // SAFETY: the memory is as long as both together, zeroes or bytes that were written, and borrowed from this room
        // alone; the context is written before it is used, and owns nothing.
        unsafe {
            let context = start as *mut Context;
            context.write(Context::new_in());
            let bytes = core::slice::from_raw_parts_mut((start + CONTEXT_BYTES) as *mut u8, ROOM_BYTES);
            Some((&mut *context, bytes))
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(start) = self.0 {
            let _errno = uncopy_sys::errno::Keep::new();
            // SAFETY: of this length, and nobody refers to it any more. If the kernel refuses, it stays.
            let _ = unsafe { mem::unmap(start, CONTEXT_BYTES + ROOM_BYTES) };
        }
    }
}

/// Reads the rule of an address from the tables. `None`: there is none that will be there the next time.
#[cold]
#[inline(never)]
fn learn(ip: usize, is_exact: bool, room: &mut Room) -> Option<Rule> {
    let _errno = uncopy_sys::errno::Keep::new();
    // A call may be the last instruction of its function: it returns to what is behind that.
    let at = if is_exact { ip } else { ip - 1 };
    let object = objects::find(at)?;
    let (context, bytes) = room.get()?;
    match objects::entry(&object, at, bytes) {
        Search::Entry(entry) => Some(tables::rule(&entry, ip, at, context)),
        Search::Nothing => Some(Rule::End),
        Search::Unread => None,
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules() -> impl Strategy<Value = Rule> {
        let offsets = || prop_oneof![-256..256i32, (-32..32i32).prop_map(|words| words * 8), any::<i32>()];
        let saved =
            prop_oneof![Just(Saved::Same), offsets().prop_map(Saved::AtCfa), offsets().prop_map(Saved::AtBp)];
        let base = prop_oneof![Just(Base::Sp), Just(Base::Bp)];
        prop_oneof![
            8 => (base, any::<bool>(), offsets(), saved)
                .prop_map(|(base, is_stored, offset, bp)| Rule::Frame { base, is_stored, offset, bp }),
            1 => Just(Rule::Signal),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Tables may say anything: whatever registers and rules come of it, nothing is read that is not there.
        #[test]
        fn wrong_rules_end_somewhere(
            rules in prop::collection::vec(rules(), 1..80),
            bp in prop_oneof![any::<usize>(), (0..4096usize).prop_map(|words| words * 8)],
            is_near in any::<bool>(),
        ) {
            let mut at = Registers::here();
            at.bp = if is_near { at.sp.wrapping_add(bp) } else { bp };
            let mut memory = Memory::around(at.sp, true, None);
            for rule in rules {
                let Some((caller, _)) = step(at, Rule::unpack(rule.pack()), &mut memory) else { break };
                at = caller;
            }
        }
    }

    #[test]
    fn nothing_above_a_stack_that_ends_is_read() {
        let page = mem::page_size();
        // SAFETY: new memory; its second page goes again.
        let start = unsafe {
            let start = mem::map_private(2 * page, None).expect("memory");
            mem::unmap(start + page, page).expect("ours");
            start
        };
        let sp = start + page - 64;
        let mut memory = Memory::around(sp, true, None);
        let rule = |offset| Rule::Frame { base: Base::Sp, is_stored: false, offset, bp: Saved::Same };
        let at = Registers { ip: 1, sp, bp: 0 };
        assert_eq!(step(at, rule(64), &mut memory), Some((Registers { ip: 0, sp: sp + 64, bp: 0 }, false)));
        assert_eq!(step(at, rule(72), &mut memory), None);
        assert_eq!(step(at, rule(60), &mut memory), None);
        // SAFETY: the page that is left, to which nothing refers any more.
        unsafe { mem::unmap(start, page).expect("ours") };
    }
}

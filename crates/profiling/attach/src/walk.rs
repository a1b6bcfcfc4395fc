//! Unwinds the stack of a sample: from its registers through the copied top of the stack.

use crate::event::register;
use crate::image::Found;
use crate::images::{Frame, Images};
use crate::maps::AddressSpace;
use linux_perf_event_reader::{RawData, Regs};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use uncopy_unwind::rule::{Base, BpLocation, Rule};
use uncopy_unwind::tables::{Context, sigframe};

/// Maximum frames of a stack.
pub const MAX_FRAMES: usize = 127;
/// Maximum rules that are remembered, after which they are forgotten.
const MAX_RULES: usize = 1 << 18;
const WORD: u64 = 8;

/// Rule of a function that keeps frame pointers.
const FRAME_POINTER: Rule =
    Rule::Frame { base: Base::Bp, is_stored: false, offset: 16, bp: BpLocation::AtCfa(-16) };
/// Rule at a function's start and throughout functions that do not use the stack.
const NO_FRAME: Rule = Rule::Frame { base: Base::Sp, is_stored: false, offset: 8, bp: BpLocation::Same };

/// Registers of the interrupted user code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub ax: u64,
    pub cx: u64,
    pub dx: u64,
    pub si: u64,
    pub di: u64,
    pub bp: u64,
    pub sp: u64,
    pub ip: u64,
}

impl Registers {
    /// Reads the registers of a sample; `None` if it has none, as samples of kernel threads.
    pub fn read(from: &Regs<'_>) -> Option<Self> {
        Some(Self {
            ax: from.get(register::AX)?,
            cx: from.get(register::CX)?,
            dx: from.get(register::DX)?,
            si: from.get(register::SI)?,
            di: from.get(register::DI)?,
            bp: from.get(register::BP)?,
            sp: from.get(register::SP)?,
            ip: from.get(register::IP)?,
        })
    }
}

/// Copied top of a stack.
pub struct Stack<'a> {
    start: u64,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Stack<'a> {
    /// The stack of a sample, of which `len_bytes` were readable.
    pub fn new(start: u64, data: RawData<'a>, len_bytes: u64) -> Self {
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX).min(data.len());
        let data = data.get(0..len).unwrap_or(RawData::Single(&[]));
        Self { start, bytes: data.as_slice() }
    }

    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let word = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

/// Position in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    ip: u64,
    sp: u64,
    bp: u64,
}

/// Unwinder with the rules of all addresses that it met.
pub struct Unwinder {
    rules: FxHashMap<(Frame, bool), u64>,
    context: Box<Context>,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self { rules: FxHashMap::default(), context: Box::new(Context::new_in()) }
    }
}

impl Unwinder {
    /// Appends the frames of a stack to `frames`, the innermost first.
    pub fn walk(
        &mut self,
        registers: &Registers,
        stack: &Stack<'_>,
        space: &AddressSpace,
        images: &mut Images,
        frames: &mut Vec<Frame>,
    ) {
        let mut at = Position { ip: registers.ip, sp: registers.sp, bp: registers.bp };
        // True if `ip` is the next instruction, false if it is a return address.
        let mut is_exact = true;
        for depth in 0..MAX_FRAMES {
            let lookup = if is_exact { at.ip } else { at.ip.wrapping_sub(1) };
            let Some(mapping) = space.find(lookup) else { break };
            let image = images.of(mapping);
            let frame = images.frame(image, mapping, lookup);
            frames.push(frame);
            let rule = match self.rule(frame, is_exact, images) {
                Found::Rule(rule) => rule,
                Found::Nothing if depth == 0 => {
                    let caller = stack.word(at.sp).unwrap_or(0);
                    if space.find(caller.wrapping_sub(1)).is_some() { NO_FRAME } else { FRAME_POINTER }
                }
                Found::Nothing => FRAME_POINTER,
            };
            let Some(caller) = step(at, rule, stack) else { break };
            (at, is_exact) = caller;
        }
    }

    fn rule(&mut self, frame: Frame, is_exact: bool, images: &mut Images) -> Found {
        /// Stands for [`Found::Nothing`]: no packed rule is zero.
        const NOTHING: u64 = 0;
        if let Some(packed) = self.rules.get(&(frame, is_exact)) {
            return if *packed == NOTHING { Found::Nothing } else { Found::Rule(Rule::unpack(*packed)) };
        }
        let ip = if is_exact { frame.address } else { frame.address.wrapping_add(1) };
        let found = images.rule(frame.image, ip, is_exact, &mut self.context);
        if self.rules.len() >= MAX_RULES {
            self.rules.clear();
        }
        let packed = if let Found::Rule(rule) = found { rule.pack() } else { NOTHING };
        self.rules.insert((frame, is_exact), packed);
        found
    }
}

/// Returns the caller's position, and whether its `ip` is exact.
fn step(at: Position, rule: Rule, stack: &Stack<'_>) -> Option<(Position, bool)> {
    match rule {
        Rule::End => None,
        Rule::Frame { base, is_stored, offset, bp } => {
            let from = if base == Base::Sp { at.sp } else { at.bp };
            let mut cfa = from.wrapping_add_signed(offset.into());
            if is_stored {
                cfa = stack.word(cfa)?;
            }
            // The stack grows downwards, so a caller's frame is above.
            if cfa <= at.sp {
                return None;
            }
            let ip = stack.word(cfa.wrapping_sub(WORD))?;
            let bp = match bp {
                BpLocation::Same => at.bp,
                BpLocation::AtCfa(saved) => stack.word(cfa.wrapping_add_signed(saved.into()))?,
                BpLocation::AtBp(saved) => stack.word(at.bp.wrapping_add_signed(saved.into()))?,
            };
            Some((Position { ip, sp: cfa, bp }, false))
        }
        Rule::Signal => {
            let saved = |offset: usize| stack.word(at.sp.wrapping_add(offset as u64));
            let interrupted =
                Position { ip: saved(sigframe::IP)?, sp: saved(sigframe::SP)?, bp: saved(sigframe::BP)? };
            // A handler on the same stack; frames on another are not in the sample.
            (interrupted.sp > at.sp).then_some((interrupted, true))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stack(start: u64, words: &[u64]) -> Vec<u8> {
        debug_assert!(start.is_multiple_of(8));
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn frame_pointers_lead_to_the_callers() {
        let bytes = stack(0x1000, &[7, 0x1020, 0xAAAA, 9, 0, 0xBBBB]);
        let stack = Stack::new(0x1000, RawData::Single(&bytes), bytes.len() as u64);
        let at = Position { ip: 1, sp: 0x1000, bp: 0x1008 };
        let (caller, is_exact) = step(at, FRAME_POINTER, &stack).expect("a caller");
        assert_eq!(caller, Position { ip: 0xAAAA, sp: 0x1018, bp: 0x1020 });
        assert!(!is_exact);
        let (caller, _) = step(caller, FRAME_POINTER, &stack).expect("a caller");
        assert_eq!(caller, Position { ip: 0xBBBB, sp: 0x1030, bp: 0 });
        assert_eq!(step(caller, FRAME_POINTER, &stack), None);
    }

    #[test]
    fn only_the_readable_part_of_a_stack_is_used() {
        let bytes = stack(0x1000, &[1, 2, 3]);
        let split = Stack::new(0x1000, RawData::Split(&bytes[..12], &bytes[12..]), 16);
        assert_eq!(split.word(0x1008), Some(2));
        assert_eq!(split.word(0x1010), None);
        assert_eq!(split.word(0xFF8), None);
        assert_eq!(split.word(u64::MAX), None);
    }

    proptest! {
        /// The stack pointer grows with every step, so that each walk ends.
        #[test]
        fn every_step_goes_up(
            words in prop::collection::vec(prop_oneof![0x1000u64..0x1100, any::<u64>()], 0..40),
            sp in 0x1000u64..0x1100,
            bp in prop_oneof![0x1000u64..0x1100, any::<u64>()],
            packed in any::<u64>(),
        ) {
            let bytes = stack(0x1000, &words);
            let stack = Stack::new(0x1000, RawData::Single(&bytes), bytes.len() as u64);
            let at = Position { ip: 1, sp, bp };
            for rule in [Rule::unpack(packed), FRAME_POINTER, NO_FRAME, Rule::Signal] {
                if let Some((caller, _)) = step(at, rule, &stack) {
                    prop_assert!(caller.sp > sp);
                }
            }
        }
    }
}

//! Converts entries of an object's `.eh_frame` to rules, using gimli. Pure: accepts arbitrary bytes.
//!
//! The formats are specified in DWARF 5 (§6.4) and the Linux Standard Base (core generic, §10.6).

use crate::rule::{Base, BpLocation, Rule};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, Encoding, EndianSlice, LittleEndian, Operation, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Maximum register rules per row; signal frames have the most.
const MAX_RULES: usize = 24;
/// Maximum depth of remembered rows (DW_CFA_remember_state).
const MAX_ROWS: usize = 4;

/// In-place storage for gimli's unwind context, which needs no allocation.
pub struct Storage;

impl UnwindContextStorage<usize> for Storage {
    type Rules = [(Register, RegisterRule<usize>); MAX_RULES];
    type Stack = [UnwindTableRow<usize, Self>; MAX_ROWS];
}

/// Workspace for evaluating one row; 4 KiB, too large for a small stack.
pub type Context = UnwindContext<usize, Storage>;

/// A frame description entry (FDE) with its common information entry (CIE), copied from memory.
pub struct Entry<'a> {
    /// The CIE and, at [`Entry::fde_offset`], the FDE, whose pointer to the CIE has been adjusted.
    pub bytes: &'a [u8],
    /// Offset of the FDE in `bytes`, a multiple of 4.
    pub fde_offset: usize,
    /// Address at which the FDE lies in the process.
    pub fde_address: usize,
}

/// Returns the rule for code at `ip`, from the row for address `at`: `ip` itself, or `ip - 1` if `ip` is a
/// return address.
#[must_use]
pub fn rule(entry: &Entry<'_>, ip: usize, at: usize, context: &mut Context) -> Rule {
    find_rule(entry, ip, at, context).unwrap_or(Rule::End)
}

fn find_rule(entry: &Entry<'_>, ip: usize, at: usize, context: &mut Context) -> Option<Rule> {
    let mut section: EhFrame<Bytes<'_>> = EhFrame::new(entry.bytes, LittleEndian);
    section.set_address_size(8);
    // Only the FDE is at its true address; none of the addresses in the CIE is used.
    let base = (entry.fde_address as u64).wrapping_sub(entry.fde_offset as u64);
    let bases = BaseAddresses::default().set_eh_frame(base);
    let fde = section.fde_from_offset(&bases, entry.fde_offset.into(), EhFrame::cie_from_offset).ok()?;
    let row = fde.unwind_info_for_address(&section, &bases, context, at as u64).ok()?;
    let evaluator = Evaluator { section: &section, encoding: fde.cie().encoding(), ip: ip as i64 };
    let return_register = fde.cie().return_address_register();
    if return_register != X86_64::RA {
        return None;
    }
    if fde.is_signal_trampoline() {
        return evaluator.is_signal_frame(row).then_some(Rule::Signal);
    }
    // Every frame but the outermost has a rule for the return address, which is undefined in the outermost.
    if row.register(X86_64::RA) != Some(RegisterRule::Offset(-8)) {
        return None;
    }
    let (base, is_stored, offset) = match evaluator.cfa(row)? {
        Value::Register(base, offset) => (base, false, offset),
        Value::Stored(base, offset) => (base, true, offset),
        Value::Constant(_) => return None,
    };
    let bp = match row.register(X86_64::RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => BpLocation::Same,
        Some(RegisterRule::Offset(at)) => BpLocation::AtCfa(i32::try_from(at).ok()?),
        Some(RegisterRule::Expression(expression)) => match evaluator.value(&expression)? {
            Value::Register(Base::Bp, at) => BpLocation::AtBp(i32::try_from(at).ok()?),
            _ => return None,
        },
        Some(_) => return None,
    };
    Some(Rule::Frame { base, is_stored, offset: i32::try_from(offset).ok()?, bp })
}

/// Symbolic value of an expression, without the registers' contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Constant(i64),
    /// The value of a register plus an offset.
    Register(Base, i64),
    /// The word stored at a register plus an offset.
    Stored(Base, i64),
}

/// Context in which expressions are evaluated.
struct Evaluator<'a> {
    section: &'a EhFrame<Bytes<'a>>,
    encoding: Encoding,
    ip: i64,
}

/// Offsets in the kernel's `struct rt_sigframe` after the return address (arch/x86/include/asm/sigframe.h):
/// `struct ucontext`, in it `struct sigcontext`, in it bp, sp, ip.
pub mod sigframe {
    /// Offset of the saved registers, after uc_flags, uc_link and uc_stack.
    const CONTEXT: usize = 8 + 8 + 24;
    /// rbp, after r8 to r15, di and si.
    pub const BP: usize = CONTEXT + 10 * 8;
    /// rsp, after bx, dx, ax and cx.
    pub const SP: usize = CONTEXT + 15 * 8;
    /// rip, which follows rsp.
    pub const IP: usize = CONTEXT + 16 * 8;
}

impl Evaluator<'_> {
    fn cfa(&self, row: &UnwindTableRow<usize, Storage>) -> Option<Value> {
        match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Some(Value::Register(base(*register)?, *offset))
            }
            CfaRule::Expression(expression) => self.value(expression),
        }
    }

    /// True if a trampoline's frame has the kernel's layout; a coroutine library's may differ.
    fn is_signal_frame(&self, row: &UnwindTableRow<usize, Storage>) -> bool {
        let is_at = |register, offset: usize| match row.register(register) {
            Some(RegisterRule::Expression(expression)) => {
                self.value(&expression) == Some(Value::Register(Base::Sp, offset as i64))
            }
            _ => false,
        };
        self.cfa(row) == Some(Value::Stored(Base::Sp, sigframe::SP as i64))
            && is_at(X86_64::RA, sigframe::IP)
            && is_at(X86_64::RBP, sigframe::BP)
    }

    /// Evaluates an expression with the operations that compilers and procedure linkage tables use.
    fn value(&self, expression: &UnwindExpression<usize>) -> Option<Value> {
        const DEPTH: usize = 8;
        let mut stack = [Value::Constant(0); DEPTH];
        let mut depth = 0;
        let mut operations = expression.get(self.section).ok()?.operations(self.encoding);
        while let Some(operation) = operations.next().ok()? {
            let mut pop = || {
                depth = usize::checked_sub(depth, 1)?;
                Some(stack[depth])
            };
            let value = match operation {
                Operation::RegisterOffset { register, offset, .. } if register == X86_64::RA => {
                    Value::Constant(self.ip.wrapping_add(offset))
                }
                Operation::RegisterOffset { register, offset, .. } => {
                    Value::Register(base(register)?, offset)
                }
                Operation::UnsignedConstant { value } => Value::Constant(value.cast_signed()),
                Operation::SignedConstant { value } => Value::Constant(value),
                Operation::PlusConstant { value } => sum(pop()?, Value::Constant(value.cast_signed()))?,
                Operation::Plus => sum(pop()?, pop()?)?,
                Operation::Deref { size: 8, space: false, .. } => match pop()? {
                    Value::Register(base, offset) => Value::Stored(base, offset),
                    _ => return None,
                },
                Operation::And => map_constants(pop()?, pop()?, |right, left| left & right)?,
                Operation::Ge => map_constants(pop()?, pop()?, |right, left| i64::from(left >= right))?,
                Operation::Shl => map_constants(pop()?, pop()?, |right, left| {
                    u32::try_from(right).ok().and_then(|by| left.checked_shl(by)).unwrap_or(0)
                })?,
                Operation::Nop => continue,
                _ => return None,
            };
            *stack.get_mut(depth)? = value;
            depth += 1;
        }
        depth.checked_sub(1).map(|top| stack[top])
    }
}

fn base(register: Register) -> Option<Base> {
    match register {
        X86_64::RSP => Some(Base::Sp),
        X86_64::RBP => Some(Base::Bp),
        _ => None,
    }
}

fn sum(left: Value, right: Value) -> Option<Value> {
    match (left, right) {
        (Value::Constant(left), Value::Constant(right)) => Some(Value::Constant(left.wrapping_add(right))),
        (Value::Register(base, offset), Value::Constant(known))
        | (Value::Constant(known), Value::Register(base, offset)) => {
            Some(Value::Register(base, offset.wrapping_add(known)))
        }
        _ => None,
    }
}

fn map_constants(first: Value, second: Value, operation: impl Fn(i64, i64) -> i64) -> Option<Value> {
    match (first, second) {
        (Value::Constant(first), Value::Constant(second)) => Some(Value::Constant(operation(first, second))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pretended address of the test entry, and of the code that it describes.
    const ADDRESS: usize = 0x7F12_3456_7000;
    const CODE: usize = ADDRESS + 0x1000;

    /// Builds an entry as compilers do, with these instructions, for 256 bytes of code.
    fn entry(augmentation: &[u8], instructions: &[u8]) -> (Vec<u8>, usize) {
        let padded = |mut bytes: Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(8) + 4, 0);
            let len = u32::try_from(bytes.len() - 4).expect("short");
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            bytes
        };
        // Length, CIE id, version, augmentation; code alignment 1, data alignment -8, return register 16;
        // encoding 0x1B; CFA = rsp + 8, return address at CFA - 8.
        let mut common = vec![0; 8];
        common.push(1);
        common.extend_from_slice(augmentation);
        common.extend_from_slice(&[0, 1, 0x78, 16, 1, 0x1B, 0x0C, 7, 8, 0x90, 1]);
        let common = padded(common);
        let offset = common.len();
        let mut own = vec![0; 4];
        own.extend_from_slice(&u32::try_from(offset + 4).expect("short").to_le_bytes());
        let relative = CODE.wrapping_sub(ADDRESS + 8);
        own.extend_from_slice(&relative.to_le_bytes()[..4]);
        own.extend_from_slice(&256u32.to_le_bytes());
        own.push(0);
        own.extend_from_slice(instructions);
        (common.into_iter().chain(padded(own)).collect(), offset)
    }

    fn rule_of(bytes: &[u8], fde_offset: usize, ip: usize) -> Rule {
        let entry = Entry { bytes, fde_offset, fde_address: ADDRESS };
        rule(&entry, ip, ip, &mut Context::new_in())
    }

    fn frame(base: Base, offset: i32, bp: BpLocation) -> Rule {
        Rule::Frame { base, is_stored: false, offset, bp }
    }

    #[test]
    fn a_prologue_with_a_frame_pointer() {
        // push rbp (1 byte): CFA = rsp + 16, rbp at CFA - 16; mov rbp, rsp (3 bytes): CFA = rbp + 16.
        let (bytes, at) = entry(b"zR", &[0x41, 0x0E, 16, 0x86, 2, 0x43, 0x0D, 6]);
        assert_eq!(rule_of(&bytes, at, CODE), frame(Base::Sp, 8, BpLocation::Same));
        assert_eq!(rule_of(&bytes, at, CODE + 1), frame(Base::Sp, 16, BpLocation::AtCfa(-16)));
        assert_eq!(rule_of(&bytes, at, CODE + 255), frame(Base::Bp, 16, BpLocation::AtCfa(-16)));
        assert_eq!(rule_of(&bytes, at, CODE + 256), Rule::End);
        assert_eq!(rule_of(&bytes, at, CODE - 1), Rule::End);
    }

    #[test]
    fn a_procedure_linkage_table() {
        // DW_CFA_def_cfa_expression: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus.
        let expression = [0x0F, 11, 0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22];
        let (bytes, at) = entry(b"zR", &expression);
        assert_eq!(rule_of(&bytes, at, CODE + 10), frame(Base::Sp, 8, BpLocation::Same));
        assert_eq!(rule_of(&bytes, at, CODE + 11), frame(Base::Sp, 16, BpLocation::Same));
    }

    #[test]
    fn a_function_that_aligns_its_stack() {
        // CFA = *(rbp - 8), rbp at rbp + 0.
        let (bytes, at) = entry(b"zR", &[0x0F, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0]);
        let expected = Rule::Frame { base: Base::Bp, is_stored: true, offset: -8, bp: BpLocation::AtBp(0) };
        assert_eq!(rule_of(&bytes, at, CODE), expected);
    }

    #[test]
    fn outermost_frames_and_foreign_trampolines_end_the_stack() {
        // The return address is undefined, as in _start and clone.
        let (bytes, at) = entry(b"zR", &[0x07, 16]);
        assert_eq!(rule_of(&bytes, at, CODE), Rule::End);
        // A trampoline whose frame has an ordinary layout.
        let (bytes, at) = entry(b"zRS", &[]);
        assert_eq!(rule_of(&bytes, at, CODE), Rule::End);
        // CFA = r10, which is valid only in the middle of a prologue.
        let (bytes, at) = entry(b"zR", &[0x0C, 10, 0]);
        assert_eq!(rule_of(&bytes, at, CODE), Rule::End);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_instructions_make_a_rule_or_none(instructions in prop::collection::vec(any::<u8>(), 0..80)) {
            let (bytes, at) = entry(b"zR", &instructions);
            for ip in [CODE, CODE + 7, CODE + 255] {
                let rule = rule_of(&bytes, at, ip);
                prop_assert_eq!(Rule::unpack(rule.pack()).pack(), rule.pack());
            }
        }

        #[test]
        fn any_bytes_are_an_entry_or_none(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6),
            at in 0usize..300,
        ) {
            rule_of(&bytes, at, CODE);
            let (mut bytes, at) = entry(b"zRS", &[0x41, 0x0E, 16, 0x0F, 3, 0x76, 0x78, 0x06, 0x10, 6, 2, 0x76, 0]);
            for (place, byte) in changes {
                let len = bytes.len();
                bytes[place % len] = byte;
            }
            rule_of(&bytes, at, CODE + 1);
        }
    }
}

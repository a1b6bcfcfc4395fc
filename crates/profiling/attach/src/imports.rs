//! Names of functions that have no symbol, from the places that call them.
//!
//! A stripped C library has no symbols for the variants of memcpy that its resolvers choose (IFUNC). But each
//! caller's file says which slot of its global offset table stands for `memcpy`:
//!
//! ```text
//! caller:      call memcpy@plt          return address of the second frame
//! memcpy@plt:  jmp *slot                slot: relocation against the symbol memcpy
//! slot:        address of the variant   in the process's memory
//! ```
//!
//! Both ends are used: the word in the slot is a function's start, and a call through the slot from which a
//! sample came names the function of the sample.

use crate::bounded::Bounded;
use crate::image::{self, Elf, Tables};
use object::read::ReadCache;
use object::{
    Object as _, ObjectSymbol as _, ObjectSymbolTable as _, RelocationFlags, RelocationTarget, elf,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Maximum relocations of a file that are read.
const MAX_RELOCATIONS: usize = 1 << 22;

/// Maximum slots that are kept of a file; compilers make a few for each name.
const MAX_SLOTS: usize = 1024;

/// Functions that a stripped library may hide.
const NAMES: [&str; 12] = [
    "memcpy",
    "memmove",
    "mempcpy",
    "__memcpy_chk",
    "__memmove_chk",
    "__mempcpy_chk",
    "bcopy",
    "memset",
    "__memset_chk",
    "wmemset",
    "wmemcpy",
    "wmemmove",
];

/// Slots of a file's global offset table that stand for one of [`NAMES`], by address.
#[derive(Debug, Default)]
pub struct Imports {
    slots: BTreeMap<u64, &'static str>,
}

impl Imports {
    /// Reads the relocations of a file.
    pub fn read(file: &File) -> Self {
        let Ok(copy) = file.try_clone() else { return Self::default() };
        let cache = ReadCache::new(Bounded::new(copy));
        image::parse(&cache).and_then(|elf| Self::from_elf(&elf)).unwrap_or_default()
    }

    fn from_elf(elf: &Elf<'_>) -> Option<Self> {
        let symbols = elf.dynamic_symbol_table()?;
        let known = |name: &[u8]| NAMES.into_iter().find(|known| known.as_bytes() == name);
        // Resolvers that the file defines, for its own calls.
        let resolvers: BTreeMap<u64, &'static str> = symbols
            .symbols()
            .filter(|symbol| !symbol.is_undefined() && symbol.elf_symbol().st_type() == elf::STT_GNU_IFUNC)
            .filter_map(|symbol| Some((symbol.address(), known(symbol.name_bytes().ok()?)?)))
            .collect();
        let mut slots = BTreeMap::new();
        for (slot, relocation) in elf.dynamic_relocations()?.take(MAX_RELOCATIONS) {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let name = match (r_type, relocation.target()) {
                (elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT, RelocationTarget::Symbol(index)) => {
                    symbols.symbol_by_index(index).ok().and_then(|symbol| known(symbol.name_bytes().ok()?))
                }
                (elf::R_X86_64_IRELATIVE, _) => resolvers.get(&relocation.addend().cast_unsigned()).copied(),
                _ => None,
            };
            if let Some(name) = name
                && slots.len() < MAX_SLOTS
            {
                slots.insert(slot, name);
            }
        }
        Some(Self { slots })
    }

    /// Returns the slots: addresses in the file's address space, and names.
    pub fn slots(&self) -> impl Iterator<Item = (u64, &'static str)> {
        self.slots.iter().map(|(slot, name)| (*slot, *name))
    }

    /// Returns the function that the call before `return_address` calls, if it goes through a slot.
    pub fn callee(&self, file: &File, tables: &Tables, return_address: u64) -> Option<&'static str> {
        const CALL_BYTES: u64 = 6;
        if self.slots.is_empty() {
            return None;
        }
        let code: [u8; 6] = read_code(file, tables, return_address.checked_sub(CALL_BYTES)?)?;
        let displacement = |bytes: [u8; 4]| i64::from(i32::from_le_bytes(bytes));
        // call *slot(%rip), as with -fno-plt.
        if let [0xFF, 0x15, rest @ ..] = code {
            return self.slot(return_address.checked_add_signed(displacement(rest))?);
        }
        // A call of the stub in the procedure linkage table.
        let [_, 0xE8, rest @ ..] = code else { return None };
        let entry = return_address.checked_add_signed(displacement(rest))?;
        let stub: [u8; 16] = read_code(file, tables, entry)?;
        // Of the bytes in front of the jump: endbr64, and the prefix bnd.
        let skip = if stub.starts_with(&[0xF3, 0x0F, 0x1E, 0xFA]) { 4 } else { 0 };
        let skip = skip + usize::from(stub[skip] == 0xF2);
        let [0xFF, 0x25, a, b, c, d, ..] = stub[skip..] else { return None };
        let next = entry.checked_add(skip as u64 + 6)?;
        self.slot(next.checked_add_signed(displacement([a, b, c, d]))?)
    }

    fn slot(&self, address: u64) -> Option<&'static str> {
        self.slots.get(&address).copied()
    }
}

/// Reads code of a file at an address in its address space.
pub fn read_code<const LEN: usize>(file: &File, tables: &Tables, address: u64) -> Option<[u8; LEN]> {
    let mut code = [0; LEN];
    file.read_exact_at(&mut code, tables.file_offset(address)?).ok()?;
    Some(code)
}

/// String instruction at the place of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringInstruction {
    /// `rep movs`, which copies.
    Copy,
    /// `rep stos`, which fills memory.
    Fill,
}

/// Returns the string instruction at an address: the processor stays on it until all bytes are moved.
pub fn string_instruction(file: &File, tables: &Tables, address: u64) -> Option<StringInstruction> {
    match read_code(file, tables, address)? {
        [0xF3, 0xA4 | 0xA5, _] | [0xF3, 0x48, 0xA5] => Some(StringInstruction::Copy),
        [0xF3, 0xAA | 0xAB, _] | [0xF3, 0x48, 0xAB] => Some(StringInstruction::Fill),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn libc_file() -> File {
        let space = crate::maps::AddressSpace::parse(
            &crate::target::read_maps(std::process::id()).expect("own maps"),
        );
        let libc =
            space.mappings().iter().find(|mapping| mapping.name.windows(5).any(|part| part == b"libc."));
        crate::target::open_mapped(std::process::id(), libc.expect("this program uses libc")).expect("opened")
    }

    #[test]
    fn this_program_imports_memcpy_and_libc_resolves_its_own() {
        let program = Imports::read(&File::open("/proc/self/exe").expect("a program"));
        let names: Vec<_> = program.slots().map(|(_, name)| name).collect();
        assert!(names.contains(&"memcpy") || names.contains(&"memmove"), "{names:?}");
        let libc = Imports::read(&libc_file());
        assert!(libc.slots().any(|(_, name)| name == "memcpy"), "{libc:?}");
    }

    #[test]
    fn slots_of_this_program_lead_to_functions_of_libc() {
        let memory = crate::target::Memory::open(std::process::id()).expect("own memory");
        let space = crate::maps::AddressSpace::parse(
            &crate::target::read_maps(std::process::id()).expect("own maps"),
        );
        let here = libc_file as fn() -> File as usize as u64;
        let mapping = space.find(here).expect("mapped");
        let program = File::open("/proc/self/exe").expect("a program");
        let tables = Tables::read(program.try_clone().expect("a copy"));
        let bias = tables.bias(mapping).expect("loaded");
        let leads_to_libc = |slot: u64| {
            let target = memory.word(slot + bias).and_then(|target| space.find(target));
            target.is_some_and(|target| target.name.windows(5).any(|part| part == b"libc."))
        };
        // Other slots may not be resolved yet.
        assert!(Imports::read(&program).slots().any(|(slot, _)| leads_to_libc(slot)));
    }

    #[test]
    fn files_without_relocations_have_no_slots() {
        let file = crate::oracles::file_of(&[0x7F; 100]);
        let imports = Imports::read(&file);
        assert_eq!(imports.slots().count(), 0);
        assert_eq!(imports.callee(&file, &Tables::default(), 40), None);
        assert_eq!(string_instruction(&file, &Tables::default(), 40), None);
    }
}

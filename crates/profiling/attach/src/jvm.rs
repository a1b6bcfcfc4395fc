//! Copy stubs of the Java virtual machine, which it generates at its start into memory without a file.
//!
//! HotSpot describes itself to debuggers (`vmStructs.hpp`): libjvm.so exports `gHotSpotVMStructs`, a table of
//! fields of its classes. The stubs' addresses are static fields of `StubRoutines`, whose values are read from the
//! process's memory, which needs nothing of the process.

use crate::bounded::Bounded;
use crate::image;
use crate::maps::AddressSpace;
use crate::target::Memory;
use object::read::ReadCache;
use object::{Object as _, ObjectSymbol as _};
use std::fs::File;

/// Tables of fields: for debuggers, and for compilers in Java, which need the stubs.
const TABLES: [&[u8]; 2] = [b"gHotSpotVMStructs", b"jvmciHotSpotVMStructs"];
/// Maximum entries of a table.
const MAX_ENTRIES: u64 = 16_384;
/// Maximum bytes of a name.
const MAX_NAME_BYTES: usize = 96;
/// Maximum bytes of a stub, for the last one.
pub const MAX_STUB_BYTES: u64 = 4096;

/// Offsets in `VMStructEntry`: names of type and field, type of the field, whether it is static, offset, address.
mod entry {
    pub const TYPE: u64 = 0;
    pub const FIELD: u64 = 8;
    pub const ADDRESS: u64 = 40;
    pub const LEN_BYTES: u64 = 48;
}

/// Returns the stubs of a process that has libjvm.so: addresses and names.
pub fn stubs(libjvm: &File, bias: u64, memory: &Memory, space: &AddressSpace) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    for variable in table_variables(libjvm) {
        let Some(table) = variable.checked_add(bias).and_then(|variable| memory.word(variable)) else {
            continue;
        };
        for number in 0..MAX_ENTRIES {
            let Some(at) = table.checked_add(number * entry::LEN_BYTES) else { break };
            let word = |offset| memory.word(at.checked_add(offset)?);
            let Some(kind) = word(entry::TYPE).filter(|kind| *kind != 0) else { break };
            let stub = || {
                if name_at(memory, kind)? != "StubRoutines" {
                    return None;
                }
                let name = name_at(memory, word(entry::FIELD)?)?;
                let start = memory.word(word(entry::ADDRESS)?)?;
                // Not every field is the address of code.
                space.find(start).filter(|mapping| mapping.file.inode == 0)?;
                Some((start, name.trim_start_matches('_').to_owned()))
            };
            found.extend(stub());
        }
    }
    found
}

/// Returns the addresses of the variables that point to the tables.
fn table_variables(libjvm: &File) -> Vec<u64> {
    let Ok(copy) = libjvm.try_clone() else { return Vec::new() };
    let cache = ReadCache::new(Bounded::new(copy));
    let Some(elf) = image::parse(&cache) else { return Vec::new() };
    let is_table = |name: &[u8]| TABLES.contains(&name);
    elf.dynamic_symbols()
        .filter(|symbol| symbol.name_bytes().is_ok_and(is_table))
        .map(|symbol| symbol.address())
        .collect()
}

fn name_at(memory: &Memory, address: u64) -> Option<String> {
    let mut name = Vec::new();
    // Word by word, because the name may end just before memory that is not mapped.
    while name.len() < MAX_NAME_BYTES {
        let word = memory.word(address.checked_add(name.len() as u64)?)?.to_le_bytes();
        let len = word.iter().position(|byte| *byte == 0).unwrap_or(word.len());
        name.extend_from_slice(&word[..len]);
        if len < word.len() {
            return String::from_utf8(name).ok().filter(|name| name.is_ascii());
        }
    }
    None
}

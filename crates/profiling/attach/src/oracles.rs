//! Hostile files of sampled processes; called by fuzzing (`fuzz/`) and by random tests.

use std::fs::File;
use std::io::Write as _;

use uncopy_unwind::tables::Context;

use crate::image::{Tables, own_vdso};
use crate::imports::{Imports, read_code, string_instruction};
use crate::maps::AddressSpace;
use crate::symbols::{CompiledCode, functions_of_file};

/// Number of addresses that are looked up.
const ADDRESSES: u64 = 256;
/// Distance of these, bytes: together they cover a vDSO.
const STEP: u64 = 32;

/// Returns a file in memory with these contents.
///
/// # Panics
/// Without memory.
pub fn file_of(bytes: &[u8]) -> File {
    let fd = rustix::fs::memfd_create(c"image", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let mut file = File::from(fd);
    file.write_all(bytes).expect("written");
    file
}

/// Looks up functions, unwinding rules and symbols in a file with these contents, which may be anything.
///
/// # Panics
/// If the lookups give another number of results than asked for, or without memory.
pub fn image(bytes: &[u8]) {
    let file = file_of(bytes);
    let tables = Tables::read(file.try_clone().expect("a descriptor"));
    let imports = Imports::read(&file);
    let mut context = Context::new_in();
    let addresses: Vec<u64> =
        (0..ADDRESSES).map(|number| number * STEP).chain([1 << 63, u64::MAX - 1, u64::MAX]).collect();
    for address in &addresses {
        let _ = (tables.function(*address), tables.address(*address), tables.file_offset(*address));
        let _ = (tables.rule(*address, true, &mut context), tables.rule(*address, false, &mut context));
        let _ = (imports.callee(&file, &tables, *address), string_instruction(&file, &tables, *address));
        let _ = read_code::<16>(&file, &tables, *address);
    }
    assert_eq!(functions_of_file(&file, &addresses).len(), addresses.len());
}

/// Does the same with a vDSO in which bytes were changed: groups of two bytes of an offset and a new byte.
///
/// # Panics
/// See [`image`].
pub fn changed_image(changes: &[u8]) {
    let Some(mut bytes) = own_vdso().filter(|bytes| !bytes.is_empty()) else { return };
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] = change[2];
    }
    image(&bytes);
}

/// Parses texts that a process can name: `/proc/PID/maps`, and a map of compiled code.
///
/// # Panics
/// If a mapping is found at an address that it does not cover.
pub fn texts(text: &[u8]) {
    let space = AddressSpace::parse(text);
    let code = CompiledCode::parse(text);
    for mapping in space.mappings() {
        let found = space.find(mapping.start).expect("a mapping covers its start");
        assert!(found.start <= mapping.start && mapping.start < found.end);
        let _ = code.function(mapping.start);
    }
}

//! Symbol tables of loaded objects: functions defined and imported, and their replacement.
//!
//! A function of ours cannot interpose on a library's by its name alone if the program may test whether that
//! library is loaded (a weak symbol as in `if (mallocx)`, or `dlsym`): the name must exist exactly where it
//! did. So the addresses that objects have already resolved are replaced where they are stored, and the
//! library's own symbol table gives the new address to every later lookup.
//!
//! The loader's lock is held meanwhile ([`for_each`]). Meant for the time when the library is loaded.

use crate::PAGE_BYTES;
use crate::call::{kernel, syscall};
use crate::errno::{Errno, check};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use libc::{Elf64_Phdr, Elf64_Rela, Elf64_Sym};

/// Tags of `PT_DYNAMIC` (gABI, "Dynamic Section").
const DT_NULL: usize = 0;
const DT_PLTRELSZ: usize = 2;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_RELA: usize = 7;
const DT_RELASZ: usize = 8;
const DT_JMPREL: usize = 23;
const DT_GNU_HASH: usize = 0x6FFF_FEF5;

/// Relocations that store the address of a function (processor supplements of the psABI).
#[cfg(target_arch = "x86_64")]
const OF_ADDRESSES: [u64; 3] = [1, 6, 7]; // R_X86_64_64, R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT
#[cfg(not(target_arch = "x86_64"))]
const OF_ADDRESSES: [u64; 3] = [257, 1025, 1026]; // R_AARCH64_ABS64, R_AARCH64_GLOB_DAT, R_AARCH64_JUMP_SLOT

const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const STB_LOCAL: u8 = 0;

/// An entry of a dynamic section (`Elf64_Dyn`).
#[repr(C)]
struct Entry {
    tag: usize,
    value: usize,
}

/// A loaded object. Valid while the loader's lock is held.
pub struct Object<'a> {
    bias: usize,
    headers: &'a [Elf64_Phdr],
    name: &'a CStr,
    /// The first symbol, and the hash tables, at least one of which tells the number of symbols. Read
    /// only if needed, because nothing else may have touched their pages.
    symbols: *const Elf64_Sym,
    hash: Option<*const u32>,
    gnu_hash: Option<*const u32>,
    names: *const c_char,
    relocations: [&'a [Elf64_Rela]; 2],
}

/// A function that an object exports.
#[derive(Clone, Copy)]
pub struct Function<'a> {
    /// Name of the symbol.
    pub name: &'a CStr,
    /// Address of the function; `None` if code of the object chooses it (STT_GNU_IFUNC).
    pub address: Option<usize>,
    entry: &'a Elf64_Sym,
}

/// Calls `each` with every loaded object that has symbols, in lookup order, until it returns false.
pub fn for_each(each: &mut dyn FnMut(&Object<'_>) -> bool) {
    let mut each = each;
    // SAFETY: `visit` has the type of the callback, and gets the pointer to `each`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut each).cast()) };
}

unsafe extern "C" fn visit(found: *mut libc::dl_phdr_info, _size: usize, each: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description of an object, which stays loaded while the
    // loader's lock is held, until this returns. `each` is the pointer that `for_each` passed.
    unsafe {
        let each = &mut *each.cast::<&mut dyn FnMut(&Object<'_>) -> bool>();
        match Object::new(&*found) {
            Some(object) if !each(&object) => 1,
            _ => 0,
        }
    }
}

impl<'a> Object<'a> {
    /// # Safety
    /// The object must be loaded and relocated, and stay loaded for `'a`.
    unsafe fn new(found: &'a libc::dl_phdr_info) -> Option<Self> {
        if found.dlpi_phdr.is_null() || found.dlpi_name.is_null() {
            return None;
        }
        let bias = found.dlpi_addr as usize;
        // SAFETY: the description is the loader's own. The dynamic section ends with DT_NULL, and the tables
        // have the lengths given there or in the hash tables, which the loader itself has used.
        unsafe {
            let headers = slice::from_raw_parts(found.dlpi_phdr, usize::from(found.dlpi_phnum));
            let section = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
            let mut entry = (bias + section.p_vaddr as usize) as *const Entry;
            let mut values = [0usize; DT_JMPREL + 1];
            let mut gnu_hash = 0;
            while (*entry).tag != DT_NULL {
                match (*entry).tag {
                    DT_GNU_HASH => gnu_hash = (*entry).value,
                    tag if tag < values.len() => values[tag] = (*entry).value,
                    _ => {}
                }
                entry = entry.add(1);
            }
            // glibc adds the bias to these addresses if the section is writable.
            let address = |value: usize| if value < bias { value + bias } else { value };
            let table = |tag: usize, len_bytes: usize| match values[tag] {
                0 => &[][..],
                at => slice::from_raw_parts(
                    address(at) as *const Elf64_Rela,
                    len_bytes / size_of::<Elf64_Rela>(),
                ),
            };
            let hash_table = |at: usize| (at != 0).then(|| address(at) as *const u32);
            let (hash, gnu_hash) = (hash_table(values[DT_HASH]), hash_table(gnu_hash));
            if hash.or(gnu_hash).is_none() || values[DT_SYMTAB] == 0 || values[DT_STRTAB] == 0 {
                return None;
            }
            Some(Self {
                bias,
                headers,
                name: CStr::from_ptr(found.dlpi_name),
                symbols: address(values[DT_SYMTAB]) as *const Elf64_Sym,
                hash,
                gnu_hash,
                names: address(values[DT_STRTAB]) as *const c_char,
                relocations: [table(DT_RELA, values[DT_RELASZ]), table(DT_JMPREL, values[DT_PLTRELSZ])],
            })
        }
    }

    fn symbols(&self) -> &'a [Elf64_Sym] {
        // SAFETY: the loader has used the same hash and symbol tables of the object.
        unsafe {
            let count = match (self.hash, self.gnu_hash) {
                // The second word of DT_HASH is the number of chains, which equals that of symbols.
                (Some(table), _) => *table.add(1) as usize,
                (None, Some(table)) => count_of(table),
                (None, None) => 0,
            };
            slice::from_raw_parts(self.symbols, count)
        }
    }

    /// Path of the object's file; empty for the program itself.
    #[must_use]
    pub const fn name(&self) -> &'a CStr {
        self.name
    }

    /// Whether an address is in the memory of the object.
    #[must_use]
    pub fn contains(&self, address: usize) -> bool {
        self.segments().any(|(segment, _)| segment.contains(&address))
    }

    /// Returns the loaded segments of the object with their protection flags.
    fn segments(&self) -> impl Iterator<Item = (Range<usize>, u32)> {
        let loaded = self.headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        loaded.map(|header| (self.range(header), header.p_flags))
    }

    fn range(&self, header: &Elf64_Phdr) -> Range<usize> {
        let start = self.bias + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    }

    fn name_of(&self, symbol: &Elf64_Sym) -> &'a CStr {
        // SAFETY: `st_name` is an offset in the object's string table, whose strings are NUL-terminated.
        unsafe { CStr::from_ptr(self.names.add(symbol.st_name as usize)) }
    }

    /// Returns the functions that the object exports.
    pub fn defined(&self) -> impl Iterator<Item = Function<'a>> {
        self.symbols().iter().filter_map(|entry| self.function(entry))
    }

    /// Returns the exported function of this name. Reads few pages if there is a GNU hash table.
    #[must_use]
    pub fn definition(&self, name: &CStr) -> Option<Function<'a>> {
        let Some(table) = self.gnu_hash else { return self.defined().find(|function| function.name == name) };
        // SAFETY: the table belongs to a loaded object, so that its entries refer to existing symbols.
        unsafe { named(table, hash(name)) }.find_map(|index| {
            // SAFETY: `index` comes from the hash table of the same object, so that the symbol exists.
            let function = self.function(unsafe { &*self.symbols.add(index) })?;
            (function.name == name).then_some(function)
        })
    }

    /// Returns a symbol as a function if the object exports it as one.
    fn function(&self, entry: &'a Elf64_Sym) -> Option<Function<'a>> {
        let (kind, binding) = (entry.st_info & 15, entry.st_info >> 4);
        let is_defined =
            entry.st_shndx != 0 && binding != STB_LOCAL && matches!(kind, STT_FUNC | STT_GNU_IFUNC);
        is_defined.then(|| Function {
            name: self.name_of(entry),
            address: (kind == STT_FUNC).then(|| self.bias.wrapping_add(entry.st_value as usize)),
            entry,
        })
    }

    /// Returns the names of the functions and variables that the object imports.
    pub fn imported(&self) -> impl Iterator<Item = &'a CStr> {
        self.symbols()
            .iter()
            .filter(|symbol| symbol.st_shndx == 0 && symbol.st_name != 0)
            .map(|symbol| self.name_of(symbol))
    }

    /// Changes the address that later lookups of a function of this object find.
    ///
    /// # Errors
    /// Errors of mprotect(2).
    ///
    /// # Safety
    /// `function` must be of this object, and `address` that of a function with the same contract, for good.
    pub unsafe fn redefine(&self, function: Function<'_>, address: usize) -> Result<(), Errno> {
        let word_address = &raw const function.entry.st_value as usize;
        // The loader adds the bias.
        // SAFETY: the word is part of the object's symbol table, which only the loader reads.
        unsafe { self.write(word_address, address.wrapping_sub(self.bias)) }
    }

    /// Replaces the addresses of functions that this object has resolved, or will resolve at their
    /// first call. `choose` gets the function's name and the stored address, which before the first
    /// call is one in the object itself.
    ///
    /// # Errors
    /// Errors of mprotect(2).
    ///
    /// # Safety
    /// `choose` must return functions with the contract of the function of that name, for good.
    pub unsafe fn rebind(&self, choose: &mut dyn FnMut(&CStr, usize) -> Option<usize>) -> Result<(), Errno> {
        for relocation in self.relocations.into_iter().flatten() {
            let (kind, index) = (relocation.r_info & 0xFFFF_FFFF, (relocation.r_info >> 32) as usize);
            if !OF_ADDRESSES.contains(&kind) || relocation.r_addend != 0 {
                continue;
            }
            // SAFETY: a relocation of a loaded object refers to an existing symbol.
            let symbol = unsafe { &*self.symbols.add(index) };
            let word_address = self.bias.wrapping_add(relocation.r_offset as usize);
            // SAFETY: the loader has stored an address at the relocation's offset, so the word is
            // mapped and aligned.
            let kept = unsafe { (*(word_address as *const AtomicUsize)).load(Relaxed) };
            if let Some(address) = choose(self.name_of(symbol), kept) {
                // SAFETY: the word holds the address of a function, and the caller vouches that the
                // new one has the same contract.
                unsafe { self.write(word_address, address)? };
            }
        }
        Ok(())
    }

    /// Writes a word of the object, even if its segment is read-only.
    ///
    /// # Safety
    /// The object's code must accept this value of the word.
    unsafe fn write(&self, word_address: usize, value: usize) -> Result<(), Errno> {
        let Some((_, flags)) = self.segments().find(|(segment, _)| segment.contains(&word_address)) else {
            return Err(Errno::EFAULT);
        };
        let is_relro = |header: &&Elf64_Phdr| {
            let range = self.range(header);
            header.p_type == libc::PT_GNU_RELRO
                && (range.start / PAGE_BYTES * PAGE_BYTES..range.end).contains(&word_address)
        };
        let relro = self.headers.iter().find(is_relro).map(|header| self.range(header));
        let mut kept = 0;
        for (flag, protection) in
            [(libc::PF_R, libc::PROT_READ), (libc::PF_W, libc::PROT_WRITE), (libc::PF_X, libc::PROT_EXEC)]
        {
            kept |= if flags & flag != 0 { protection } else { 0 };
        }
        let page = word_address / PAGE_BYTES * PAGE_BYTES;
        if relro.as_ref().is_some_and(|relro| page + PAGE_BYTES <= relro.end) {
            kept = libc::PROT_READ;
        }
        let is_changed = kept & libc::PROT_WRITE == 0;
        // SAFETY: the page is part of the object, stays readable, and is writable for the write only. The
        // word is naturally aligned, as all such words are, so readers find the old value or the new one.
        unsafe {
            if is_changed {
                protect(page, kept | libc::PROT_WRITE)?;
            }
            (*(word_address as *const AtomicUsize)).store(value, Relaxed);
            if is_changed {
                protect(page, kept)?;
            }
        }
        Ok(())
    }
}

/// # Safety
/// Nothing may depend on another protection of the page.
unsafe fn protect(page: usize, protection: c_int) -> Result<(), Errno> {
    // SAFETY: the caller vouches that the page may have this protection.
    check(unsafe { kernel!(Protect, syscall!(libc::SYS_mprotect, page, PAGE_BYTES, protection)) }).map(drop)
}

/// Returns the parts of a GNU hash table: the buckets, each the first symbol of its chain or 0; the
/// first symbol that has an entry; and the entries from that symbol on, which are hashes whose
/// lowest bit marks the end of a chain.
///
/// # Safety
/// `table` must be the GNU hash table of a loaded object: number of buckets, first symbol, number
/// of filter words, shift; then filter, buckets and entries.
unsafe fn parts_of<'a>(table: *const u32) -> (&'a [u32], usize, *const u32) {
    // SAFETY: the caller vouches for the table, whose first three words give the lengths of its parts.
    unsafe {
        let (buckets, first, filter) = (*table as usize, *table.add(1) as usize, *table.add(2) as usize);
        let buckets_at = table.add(4 + filter * size_of::<usize>() / size_of::<u32>());
        (slice::from_raw_parts(buckets_at, buckets), first, buckets_at.add(buckets))
    }
}

/// Returns the number of symbols of an object that has only a GNU hash table: one more than the last in it.
///
/// # Safety
/// See [`parts_of`].
unsafe fn count_of(table: *const u32) -> usize {
    // SAFETY: the caller vouches for the table; each chain ends with an odd entry, at which the loop stops.
    unsafe {
        let (buckets, first, entries) = parts_of(table);
        let last = buckets.iter().copied().max().unwrap_or(0) as usize;
        if last < first {
            return first;
        }
        let mut index = last;
        while *entries.add(index - first) & 1 == 0 {
            index += 1;
        }
        index + 1
    }
}

/// Returns the indices of the symbols with this hash.
///
/// # Safety
/// See [`parts_of`].
unsafe fn named(table: *const u32, hash: u32) -> impl Iterator<Item = usize> {
    // SAFETY: the caller vouches for the table.
    let (buckets, first, entries) = unsafe { parts_of(table) };
    let begin = buckets
        .get((hash as usize).checked_rem(buckets.len()).unwrap_or(0))
        .map_or(0, |begin| *begin as usize);
    let mut next = (begin >= first && begin != 0).then_some(begin);
    core::iter::from_fn(move || {
        let index = next?;
        // SAFETY: `index` is in a chain of the table, so it has an entry.
        let entry = unsafe { *entries.add(index - first) };
        next = (entry & 1 == 0).then_some(index + 1);
        Some((index, entry))
    })
    .filter(move |(_, entry)| entry | 1 == hash | 1)
    .map(|(index, _)| index)
}

/// The hash function of GNU hash tables.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_where_the_loader_finds_them() {
        let (mut found, mut takes_it) = (None, false);
        for_each(&mut |object| {
            let is = |name: &CStr| name == c"getppid";
            if let Some(function) = object.defined().find(|function| is(function.name)) {
                found = function.address.filter(|address| object.contains(*address));
                assert!(!object.name().is_empty(), "libc is not the program");
                assert_eq!(object.definition(c"getppid").and_then(|function| function.address), found);
                assert!(object.definition(c"nobody_has_this").is_none());
            }
            takes_it |= object.name().is_empty() && object.imported().any(is);
            true
        });
        assert_eq!(found, Some(libc::getppid as *const () as usize));
        assert!(takes_it, "this program does: sys::ids");
    }

    extern "C" fn answer() -> libc::c_int {
        42
    }

    #[test]
    fn another_function_takes_the_place_of_one_for_calls_and_lookups() {
        // No other code of this program calls getpgrp.
        let plain = libc::getpgrp as *const () as usize;
        assert_ne!(answer as *const () as usize, plain);
        for_each(&mut |object| {
            // SAFETY: `answer` has the signature of getpgrp, takes no arguments and returns a number.
            unsafe {
                let mut choose =
                    |name: &CStr, _kept| (name == c"getpgrp").then_some(answer as *const () as usize);
                object.rebind(&mut choose).expect("of our own process");
                if let Some(function) = object.defined().find(|function| function.name == c"getpgrp") {
                    object.redefine(function, answer as *const () as usize).expect("of our own process");
                }
            }
            true
        });
        // SAFETY: getpgrp takes no arguments; dlsym(3) reads a NUL-terminated name.
        unsafe {
            assert_eq!(libc::getpgrp(), 42);
            let found = libc::dlsym(libc::RTLD_DEFAULT, c"getpgrp".as_ptr());
            assert_eq!(found as usize, answer as *const () as usize);
        }
    }
}

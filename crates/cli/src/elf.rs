//! Reads the parts of an ELF file that decide whether a library can be preloaded into a program:
//! class, machine, loader, needed libraries, Go build information, and symbols. The `object` crate
//! parses the format.
//!
//! Files are hostile: every offset, size and count comes from the file. At most [`MAX_READ_BYTES`]
//! are read, and a damaged part reads as absent. Beyond the header only 64-bit files of this
//! machine's byte order are read, because no others can be accelerated.

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, NativeEndian, ReadCache, ReadRef, StringTable, pod};
use std::cell::Cell;
use std::io::{Read, Seek};
use std::ops::Range;

/// Bytes read at first: the ELF header, or the first line of a script.
const HEAD_BYTES: u64 = 4096;
/// Maximum number of bytes read from a file.
const MAX_READ_BYTES: u64 = 32 << 20;
/// Maximum length of the loader's path, bytes.
const MAX_NAME_BYTES: usize = 4096;
/// Maximum number of bytes that the cache reads to find the end of a name.
const MAX_UNTIL_BYTES: u64 = 4096;
/// Type of the note that the Go linker writes, with the name `Go`.
const NT_GO_BUILD_ID: u32 = 4;

type Header = FileHeader64<NativeEndian>;

/// `e_machine` of the machine that this was built for; `None` if unknown.
pub const THIS_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(elf::EM_X86_64)
} else if cfg!(target_arch = "aarch64") {
    Some(elf::EM_AARCH64)
} else {
    None
};

/// Kind of an executable file.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// ELF file that this machine's kernel may load.
    Native,
    /// ELF file with 32-bit addresses.
    Bits32,
    /// ELF file for another machine, with its `e_machine` in its own byte order.
    OtherMachine(u16),
    /// Script with its interpreter and one argument, if there is one.
    Script {
        /// Path that follows `#!`.
        interpreter: Vec<u8>,
        /// Rest of the line.
        argument: Option<Vec<u8>>,
    },
    Other,
}

/// Requested symbols that a file's symbol table contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Symbols that the file defines for others.
    pub defined: Vec<&'static str>,
    /// Symbols that the file imports.
    pub imported: Vec<&'static str>,
}

/// Names of the functions in a file's symbol table.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Functions {
    /// Functions that the file defines for others.
    pub defined: Vec<Vec<u8>>,
    /// Symbols that the file imports.
    pub imported: Vec<Vec<u8>>,
}

/// Executable file whose first page has been read.
pub struct Image<R: Read + Seek> {
    head: Vec<u8>,
    cache: ReadCache<R>,
    /// Bytes that may still be read.
    left_bytes: Cell<u64>,
}

impl<'a, R: Read + Seek> ReadRef<'a> for &'a Image<R> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, len_bytes: u64) -> Result<&'a [u8], ()> {
        self.left_bytes.set(self.left_bytes.get().checked_sub(len_bytes).ok_or(())?);
        self.cache.read_bytes_at(offset, len_bytes)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        // Charges all that the cache may read for this call, whether or not the delimiter is found.
        let most_bytes = range.end.saturating_sub(range.start).min(MAX_UNTIL_BYTES);
        self.left_bytes.set(self.left_bytes.get().checked_sub(most_bytes).ok_or(())?);
        self.cache.read_bytes_at_until(range, delimiter)
    }
}

/// Returns the bytes before the first zero.
fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(&[])
}

/// Splits the first line of a script as the kernel does (`fs/binfmt_script.c`).
fn script(line: &[u8]) -> Kind {
    let line = until_zero(line.split(|byte| *byte == b'\n').next().unwrap_or(&[])).trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let (interpreter, rest) = line.split_at(end);
    if interpreter.is_empty() {
        return Kind::Other;
    }
    let rest = rest.trim_ascii();
    Kind::Script { interpreter: interpreter.to_vec(), argument: (!rest.is_empty()).then(|| rest.to_vec()) }
}

impl<R: Read + Seek> Image<R> {
    /// Reads the first page of a file.
    pub fn read(mut source: R) -> Self {
        let mut head = Vec::new();
        // An unreadable file reads as empty.
        let _ = source.rewind().and_then(|()| source.by_ref().take(HEAD_BYTES).read_to_end(&mut head));
        // Zeroes follow the end of the file, as in the kernel.
        head.resize(head.len().max(size_of::<Header>()), 0);
        Self { head, cache: ReadCache::new(source), left_bytes: Cell::new(MAX_READ_BYTES) }
    }

    /// Returns the kind of the file.
    pub fn kind(&self) -> Kind {
        if let Some(line) = self.head.strip_prefix(b"#!") {
            return script(line);
        }
        let Ok((header, _)) = pod::from_bytes::<FileHeader64<Endianness>>(&self.head) else {
            return Kind::Other;
        };
        if header.e_ident.magic != elf::ELFMAG {
            return Kind::Other;
        }
        let order = if header.is_little_endian() { Endianness::Little } else { Endianness::Big };
        let machine = header.e_machine.get(order);
        match header.e_ident.class {
            elf::ELFCLASS32 => Kind::Bits32,
            elf::ELFCLASS64
                if order != Endianness::default() || THIS_MACHINE.is_some_and(|this| this != machine) =>
            {
                Kind::OtherMachine(machine)
            }
            elf::ELFCLASS64 => Kind::Native,
            _ => Kind::Other,
        }
    }

    fn header(&self) -> Option<&Header> {
        pod::from_bytes(&self.head).ok().map(|(header, _)| header).filter(|_| self.kind() == Kind::Native)
    }

    fn program_headers(&self) -> &[ProgramHeader64<NativeEndian>] {
        let read = |header: &Header| header.program_headers(NativeEndian, self).ok();
        self.header().and_then(read).unwrap_or_default()
    }

    /// Returns the loader that the kernel starts (`PT_INTERP`); `None` for a static program.
    pub fn loader(&self) -> Option<Vec<u8>> {
        let mut headers = self.program_headers().iter();
        let header = headers.find(|header| header.p_type(NativeEndian) == elf::PT_INTERP)?;
        let name = header.interpreter(NativeEndian, self).ok()??;
        (name.len() <= MAX_NAME_BYTES).then(|| name.to_vec())
    }

    /// Returns the libraries that the file itself names (`DT_NEEDED`).
    pub fn needed(&self) -> Vec<Vec<u8>> {
        self.read_needed().unwrap_or_default()
    }

    fn read_needed(&self) -> Option<Vec<Vec<u8>>> {
        let headers = self.program_headers();
        let entries = headers.iter().find_map(|header| header.dynamic(NativeEndian, self).ok().flatten())?;
        let end = entries.iter().position(|entry| entry.tag32(NativeEndian) == Some(elf::DT_NULL));
        let with = |tag| {
            let entries = entries[..end.unwrap_or(entries.len())].iter();
            entries.filter(move |entry| entry.tag32(NativeEndian) == Some(tag))
        };
        let address = with(elf::DT_STRTAB).next()?.d_val(NativeEndian);
        let len_bytes = with(elf::DT_STRSZ).next()?.d_val(NativeEndian);
        let offset = headers.iter().find_map(|header| {
            let (offset, file_bytes) = header.file_range(NativeEndian);
            let into = address.checked_sub(header.p_vaddr(NativeEndian))?;
            let is_loaded = header.p_type(NativeEndian) == elf::PT_LOAD && into < file_bytes;
            offset.checked_add(into).filter(|_| is_loaded)
        })?;
        let names = StringTable::new(self, offset, offset.checked_add(len_bytes)?);
        let needed = with(elf::DT_NEEDED).filter_map(|entry| entry.string(NativeEndian, names).ok());
        Some(needed.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Whether the Go linker made the file: a `.go.buildinfo` section or the Go build-id note.
    pub fn is_go(&self) -> bool {
        let has_section = self
            .header()
            .and_then(|header| header.sections(NativeEndian, self).ok())
            .is_some_and(|sections| sections.section_by_name(NativeEndian, b".go.buildinfo").is_some());
        has_section
            || self
                .program_headers()
                .iter()
                .filter_map(|header| header.notes(NativeEndian, self).ok()?)
                .flat_map(|notes| notes.map_while(Result::ok))
                .any(|note| note.n_type(NativeEndian) == NT_GO_BUILD_ID && note.name() == b"Go")
    }

    /// Returns the functions that the file defines for others and the symbols that it imports;
    /// empty if they cannot be read.
    pub fn functions(&self) -> Functions {
        self.read_functions().unwrap_or_default()
    }

    fn read_functions(&self) -> Option<Functions> {
        let sections = self.header()?.sections(NativeEndian, self).ok()?;
        let symbols = sections.symbols(NativeEndian, self, elf::SHT_DYNSYM).ok()?;
        let names = sections.section(symbols.string_section()).ok()?;
        let names = names.data(NativeEndian, self).ok()?;
        let names = StringTable::new(names, 0, names.len() as u64);
        let mut found = Functions::default();
        for symbol in symbols.iter() {
            let Ok(name) = symbol.name(NativeEndian, names) else { continue };
            if symbol.is_undefined(NativeEndian) {
                found.imported.push(name.to_vec());
            } else if matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC) && !symbol.is_local() {
                found.defined.push(name.to_vec());
            }
        }
        Some(found)
    }

    /// Returns which of `wanted` the file defines for others or imports (`.dynsym`); `None` if that
    /// cannot be read.
    pub fn symbols(&self, wanted: &[&'static str]) -> Option<Symbols> {
        let sections = self.header()?.sections(NativeEndian, self).ok()?;
        let symbols = sections.symbols(NativeEndian, self, elf::SHT_DYNSYM).ok()?;
        // All names at once: reading each would take a system call.
        let names = sections.section(symbols.string_section()).ok()?;
        let names = names.data(NativeEndian, self).ok()?;
        let names = StringTable::new(names, 0, names.len() as u64);
        let mut found = Symbols::default();
        for symbol in symbols.iter() {
            let Ok(name) = symbol.name(NativeEndian, names) else { continue };
            let is_undefined = symbol.is_undefined(NativeEndian);
            let list = if is_undefined { &mut found.imported } else { &mut found.defined };
            list.extend(wanted.iter().filter(|wanted| wanted.as_bytes() == name));
        }
        Some(found)
    }
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;

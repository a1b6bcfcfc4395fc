//! Reads what decides whether a program can be reached by preloading: an ELF file's class and
//! machine, its loader, the libraries it needs, its Go build information and the symbols it
//! defines.
//!
//! Files are hostile here: every offset, size and count comes from the file. Nothing is indexed
//! without a check, nothing larger than a fixed bound is read, and a damaged part reads as absent.
//! Only 64-bit files of this machine's byte order are read further than the header, because no
//! other can be accelerated.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The header and usually all program headers are in the first page.
const HEAD_BYTES: usize = 4096;
/// Longest program header table; the kernel's own bound (`fs/binfmt_elf.c`, `load_elf_phdrs`).
const PROGRAM_HEADERS_LIMIT_BYTES: usize = 65536;
/// Longest section header table, dynamic section or name table that is read.
const TABLE_LIMIT_BYTES: usize = 8 << 20;
/// Longest name that is read: a path.
const NAME_LIMIT_BYTES: usize = 4096;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const SHT_DYNSYM: u32 = 11;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_STRSZ: u64 = 10;
/// Type of the note that the Go linker writes, with the name `Go\0\0`.
const NT_GO_BUILD_ID: u32 = 4;

const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;

/// `e_machine` of the machine this was built for; `None` if the command does not know it.
pub const THIS_MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

/// Where bytes come from: a file, or a test's array.
pub trait Source {
    /// Reads at `offset` as many bytes as there are, up to the buffer's length.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize;
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or(&[]);
        let len_bytes = rest.len().min(buffer.len());
        buffer[..len_bytes].copy_from_slice(&rest[..len_bytes]);
        len_bytes
    }
}

impl Source for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let Some(position) = offset.checked_add(done as u64) else { break };
            match FileExt::read_at(self, &mut buffer[done..], position) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }
}

/// What a file begins with.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// An ELF file that this machine's kernel may load.
    Native,
    /// An ELF file with 32-bit addresses.
    Bits32,
    /// An ELF file for another machine, with its `e_machine` in its own byte order.
    OtherMachine(u16),
    /// A script: the interpreter and its one argument, if there is one.
    Script {
        /// Path after `#!`.
        interpreter: Vec<u8>,
        /// The rest of the line.
        argument: Option<Vec<u8>>,
    },
    /// Anything else.
    Other,
}

#[derive(Clone, Copy)]
struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

#[derive(Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    offset: u64,
    file_bytes: u64,
    link: u32,
}

/// An executable file, its first page read.
pub struct Image<'a, S: Source + ?Sized> {
    source: &'a S,
    head: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// The bytes up to the first zero.
fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(&[])
}

/// The zero-terminated name at `offset` of a name table.
fn name_at(names: &[u8], offset: u32) -> &[u8] {
    until_zero(usize::try_from(offset).ok().and_then(|offset| names.get(offset..)).unwrap_or(&[]))
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

impl<'a, S: Source + ?Sized> Image<'a, S> {
    /// Reads the first page.
    pub fn read(source: &'a S) -> Self {
        let mut head = vec![0; HEAD_BYTES];
        let read = source.read_at(0, &mut head);
        head.truncate(read);
        Self { source, head }
    }

    /// What the file is.
    pub fn kind(&self) -> Kind {
        if let Some(line) = self.head.strip_prefix(b"#!") {
            return script(line);
        }
        if !self.head.starts_with(b"\x7fELF") {
            return Kind::Other;
        }
        let (Some(class), Some(order), Some(machine)) =
            (self.head.get(4), self.head.get(5), u16_at(&self.head, 18))
        else {
            return Kind::Other;
        };
        let native_order = if cfg!(target_endian = "little") { 1 } else { 2 };
        let machine = if *order == native_order { machine } else { machine.swap_bytes() };
        match class {
            1 => Kind::Bits32,
            2 if *order != native_order || THIS_MACHINE.is_some_and(|this| this != machine) => {
                Kind::OtherMachine(machine)
            }
            2 => Kind::Native,
            _ => Kind::Other,
        }
    }

    /// Reads `len_bytes` at `offset`, or nothing if that is more than `limit_bytes` or than there is.
    fn bytes(&self, offset: u64, len_bytes: u64, limit_bytes: usize) -> Option<Vec<u8>> {
        let len_bytes = usize::try_from(len_bytes).ok().filter(|len| *len <= limit_bytes)?;
        let start = usize::try_from(offset).ok()?;
        if let Some(held) = self.head.get(start..start.checked_add(len_bytes)?) {
            return Some(held.to_vec());
        }
        let mut bytes = Vec::new();
        // A damaged file may claim more than it has; take memory only as bytes really arrive.
        while bytes.len() < len_bytes {
            let done = bytes.len();
            bytes.resize(len_bytes.min(done + 65536), 0);
            let wanted = bytes.len() - done;
            if self.source.read_at(offset.checked_add(done as u64)?, &mut bytes[done..]) < wanted {
                return None;
            }
        }
        Some(bytes)
    }

    fn program_headers(&self) -> Vec<ProgramHeader> {
        let read = || {
            let offset = u64_at(&self.head, 32)?;
            let entry_bytes = usize::from(u16_at(&self.head, 54)?);
            let count = usize::from(u16_at(&self.head, 56)?);
            if entry_bytes != PROGRAM_HEADER_BYTES {
                return None;
            }
            self.bytes(offset, (entry_bytes * count) as u64, PROGRAM_HEADERS_LIMIT_BYTES)
        };
        let table = read().unwrap_or_default();
        let parse = |entry: &[u8]| {
            Some(ProgramHeader {
                kind: u32_at(entry, 0)?,
                offset: u64_at(entry, 8)?,
                address: u64_at(entry, 16)?,
                file_bytes: u64_at(entry, 32)?,
            })
        };
        table.chunks_exact(PROGRAM_HEADER_BYTES).filter_map(parse).collect()
    }

    /// The loader that the kernel starts (`PT_INTERP`); `None` for a static program.
    pub fn loader(&self) -> Option<Vec<u8>> {
        let header = self.program_headers().into_iter().find(|header| header.kind == PT_INTERP)?;
        let name = self.bytes(header.offset, header.file_bytes, NAME_LIMIT_BYTES)?;
        Some(until_zero(&name).to_vec())
    }

    /// The libraries that the file names itself (`DT_NEEDED`).
    pub fn needed(&self) -> Vec<Vec<u8>> {
        self.read_needed().unwrap_or_default()
    }

    fn read_needed(&self) -> Option<Vec<Vec<u8>>> {
        let headers = self.program_headers();
        let dynamic = headers.iter().find(|header| header.kind == PT_DYNAMIC)?;
        let entries = self.bytes(dynamic.offset, dynamic.file_bytes, TABLE_LIMIT_BYTES)?;
        let entries: Vec<(u64, u64)> = entries
            .chunks_exact(16)
            .filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let address = value(DT_STRTAB)?;
        let segment = headers.iter().find(|header| {
            header.kind == PT_LOAD
                && address.checked_sub(header.address).is_some_and(|into| into < header.file_bytes)
        })?;
        let offset = segment.offset.checked_add(address - segment.address)?;
        let names = self.bytes(offset, value(DT_STRSZ)?, TABLE_LIMIT_BYTES)?;
        let needed = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
        Some(
            needed
                .filter_map(|(_, offset)| u32::try_from(*offset).ok())
                .map(|offset| name_at(&names, offset).to_vec())
                .filter(|name| !name.is_empty() && name.len() <= NAME_LIMIT_BYTES)
                .collect(),
        )
    }

    /// Whether the Go linker made the file: a `.go.buildinfo` section or the Go build-id note.
    pub fn is_go(&self) -> bool {
        let sections = self.sections();
        self.section_names(&sections).is_some_and(|names| {
            sections.iter().any(|section| name_at(&names, section.name) == b".go.buildinfo")
        }) || self.program_headers().iter().any(|header| {
            header.kind == PT_NOTE
                && self
                    .bytes(header.offset, header.file_bytes.min(65536), 65536)
                    .is_some_and(|notes| holds_go_note(&notes))
        })
    }

    /// Which of `wanted` the file defines itself, for others to use (in `.dynsym`).
    pub fn defines(&self, wanted: &[&'static str]) -> Vec<&'static str> {
        self.read_defines(wanted).unwrap_or_default()
    }

    fn read_defines(&self, wanted: &[&'static str]) -> Option<Vec<&'static str>> {
        let sections = self.sections();
        let table = sections.iter().find(|section| section.kind == SHT_DYNSYM)?;
        let names = sections.get(usize::try_from(table.link).ok()?)?;
        let names = self.bytes(names.offset, names.file_bytes, TABLE_LIMIT_BYTES)?;
        let symbols = self.bytes(table.offset, table.file_bytes, TABLE_LIMIT_BYTES)?;
        let mut found = Vec::new();
        for symbol in symbols.chunks_exact(SYMBOL_BYTES) {
            // Section 0 means that the symbol is needed, not defined.
            if u16_at(symbol, 6)? == 0 {
                continue;
            }
            let name = name_at(&names, u32_at(symbol, 0)?);
            found.extend(wanted.iter().filter(|wanted| wanted.as_bytes() == name));
        }
        Some(found)
    }

    fn sections(&self) -> Vec<Section> {
        let read = || {
            let offset = u64_at(&self.head, 40)?;
            let entry_bytes = usize::from(u16_at(&self.head, 58)?);
            let count = usize::from(u16_at(&self.head, 60)?);
            if entry_bytes != SECTION_HEADER_BYTES {
                return None;
            }
            self.bytes(offset, (entry_bytes * count) as u64, TABLE_LIMIT_BYTES)
        };
        let table = read().unwrap_or_default();
        let parse = |entry: &[u8]| {
            Some(Section {
                name: u32_at(entry, 0)?,
                kind: u32_at(entry, 4)?,
                offset: u64_at(entry, 24)?,
                file_bytes: u64_at(entry, 32)?,
                link: u32_at(entry, 40)?,
            })
        };
        table.chunks_exact(SECTION_HEADER_BYTES).filter_map(parse).collect()
    }

    fn section_names(&self, sections: &[Section]) -> Option<Vec<u8>> {
        let names = sections.get(usize::from(u16_at(&self.head, 62)?))?;
        self.bytes(names.offset, names.file_bytes, TABLE_LIMIT_BYTES)
    }
}

/// Whether a note segment holds the Go linker's note.
fn holds_go_note(notes: &[u8]) -> bool {
    let mut rest = notes;
    let aligned = |bytes: u32| usize::try_from(bytes).ok()?.checked_next_multiple_of(4);
    while let (Some(name_bytes), Some(content_bytes), Some(kind)) =
        (u32_at(rest, 0), u32_at(rest, 4), u32_at(rest, 8))
    {
        if kind == NT_GO_BUILD_ID && name_bytes == 4 && rest.get(12..16) == Some(b"Go\0\0") {
            return true;
        }
        let note_bytes = aligned(name_bytes)
            .zip(aligned(content_bytes))
            .and_then(|(name, content)| name.checked_add(content)?.checked_add(12));
        match note_bytes.and_then(|note_bytes| rest.get(note_bytes..)) {
            Some(next) => rest = next,
            None => break,
        }
    }
    false
}

#[cfg(test)]
#[path = "elf_tests.rs"]
mod tests;

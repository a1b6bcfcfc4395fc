//! ELF files of sampled processes: segments, unwind tables, and the functions that the tables delimit.
//!
//! The files are hostile input. What is read of each is bounded, every offset is checked, and a file that makes
//! no sense has no functions and no unwind tables.

use crate::bounded::Bounded;
use crate::maps::Mapping;
use crate::target;
use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, FrameDescriptionEntry, LittleEndian,
    ParsedEhFrameHdr, Pointer, UnwindSection as _,
};
use object::read::elf::{ElfFile64, FileHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{Object as _, ObjectSection as _, ObjectSegment as _, SegmentFlags, elf};
use std::fs::File;
use uncopy_unwind::rule::Rule;
use uncopy_unwind::tables::{self, Context, Entry};

/// Maximum bytes of an unwind table; larger ones are not used.
const MAX_TABLE_BYTES: u64 = 128 << 20;
/// Maximum bytes of an entry: its instructions are executed up to the address in question.
const MAX_ENTRY_BYTES: usize = 64 << 10;
/// Maximum entries of an index that is built here, for files without one.
const MAX_ENTRIES: usize = 1 << 20;
/// Maximum number of segments of a file.
const MAX_SEGMENTS: usize = 256;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// File in which the parser finds what it reads; each part is read once.
pub type Elf<'a> = ElfFile64<'a, object::LittleEndian, &'a ReadCache<Bounded>>;

/// A part of a file that is loaded at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    address: u64,
    offset: u64,
    len_bytes: u64,
    is_executable: bool,
}

/// A section and its address in the file's own address space.
#[derive(Debug, Default)]
struct Section {
    address: u64,
    data: Vec<u8>,
}

/// Address range of a function in the file's own address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FunctionRange {
    pub start: u64,
    pub end: u64,
}

/// Contents of an ELF file that unwinding needs.
#[derive(Debug, Default)]
pub struct Tables {
    segments: Vec<Segment>,
    eh_frame: Section,
    /// Sorted index of `eh_frame`, if the file has one.
    header: Option<Section>,
    /// Start and offset of each entry of `eh_frame`, sorted; in place of `header`.
    index: Vec<(u64, usize)>,
}

/// Result of looking up an address in an unwind table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No entry covers the address.
    Nothing,
    Rule(Rule),
}

/// Parses the file's headers; accepts programs and libraries for x86-64.
pub fn parse(cache: &ReadCache<Bounded>) -> Option<Elf<'_>> {
    let header = elf::FileHeader64::<object::LittleEndian>::parse(cache).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != elf::EM_X86_64 {
        return None;
    }
    Elf::parse(cache).ok()
}

impl Tables {
    /// Reads a file. The result is empty for a file that is not an ELF file for x86-64.
    pub fn read(file: File) -> Self {
        let cache = ReadCache::new(Bounded::new(file));
        parse(&cache).map(|file| Self::from_elf(&file)).unwrap_or_default()
    }

    /// Reads the vDSO, the library that the kernel maps into every process.
    pub fn read_vdso() -> Self {
        let bytes = own_vdso().unwrap_or_default();
        match ElfFile64::<object::LittleEndian, &[u8]>::parse(bytes.as_slice()) {
            Ok(file) => Self::from_elf(&file),
            Err(_) => Self::default(),
        }
    }

    fn from_elf<'a, R: ReadRef<'a>>(file: &ElfFile64<'a, object::LittleEndian, R>) -> Self {
        let segments = file.segments().take(MAX_SEGMENTS).map(|segment| {
            let (offset, len_bytes) = segment.file_range();
            let is_executable =
                matches!(segment.flags(), SegmentFlags::Elf { p_flags } if p_flags & elf::PF_X != 0);
            Segment { address: segment.address(), offset, len_bytes, is_executable }
        });
        let read = |name| {
            let section = file.section_by_name(name)?;
            let is_small = section.file_range().is_some_and(|(_, len_bytes)| len_bytes <= MAX_TABLE_BYTES);
            let data = if is_small { section.data().ok()?.to_vec() } else { Vec::new() };
            Some(Section { address: section.address(), data })
        };
        let mut tables = Self {
            segments: segments.collect(),
            eh_frame: read(".eh_frame").unwrap_or_default(),
            header: read(".eh_frame_hdr"),
            index: Vec::new(),
        };
        if tables.parsed_header().is_none_or(|header| header.table().is_none()) {
            tables.header = None;
            tables.index = tables.build_index();
        }
        tables
    }

    /// Converts a file offset to an address in the file's own address space.
    pub fn address(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let skip = file_offset.checked_sub(segment.offset)?;
            (skip < segment.len_bytes).then(|| segment.address.checked_add(skip))?
        })
    }

    /// Returns the difference between a process's addresses and those of the file, from an executable mapping of
    /// the file. The mapping begins at a page, maybe before its segment and in bytes of another.
    pub fn bias(&self, mapping: &Mapping) -> Option<u64> {
        let end = mapping.offset.checked_add(mapping.end - mapping.start)?;
        let segment = self.segments.iter().find(|segment| {
            let segment_end = segment.offset.saturating_add(segment.len_bytes);
            segment.is_executable && segment.offset < end && segment_end > mapping.offset
        })?;
        let start_in_file = segment.address.wrapping_sub(segment.offset).wrapping_add(mapping.offset);
        Some(mapping.start.wrapping_sub(start_in_file))
    }

    /// Converts an address to a file offset.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let skip = address.checked_sub(segment.address)?;
            (skip < segment.len_bytes).then(|| segment.offset.checked_add(skip))?
        })
    }

    fn bases(&self) -> BaseAddresses {
        let bases = BaseAddresses::default().set_eh_frame(self.eh_frame.address);
        match &self.header {
            Some(header) => bases.set_eh_frame_hdr(header.address),
            None => bases,
        }
    }

    fn entries(&self) -> EhFrame<Slice<'_>> {
        let mut section = EhFrame::new(&self.eh_frame.data, LittleEndian);
        section.set_address_size(8);
        section
    }

    fn parsed_header(&self) -> Option<ParsedEhFrameHdr<Slice<'_>>> {
        let header = self.header.as_ref()?;
        EhFrameHdr::new(&header.data, LittleEndian).parse(&self.bases(), 8).ok()
    }

    fn build_index(&self) -> Vec<(u64, usize)> {
        let (section, bases) = (self.entries(), self.bases());
        let mut index = Vec::new();
        let mut entries = section.entries(&bases);
        let mut visited = 0;
        while visited < MAX_ENTRIES
            && let Ok(Some(entry)) = entries.next()
        {
            visited += 1;
            if let CieOrFde::Fde(partial) = entry
                && let Ok(entry) = partial.parse(EhFrame::cie_from_offset)
            {
                index.push((entry.initial_address(), entry.offset()));
            }
        }
        index.sort_unstable();
        index
    }

    /// Returns the entry that covers `address`.
    fn entry(&self, address: u64) -> Option<FrameDescriptionEntry<Slice<'_>>> {
        let (section, bases) = (self.entries(), self.bases());
        let offset = match self.parsed_header() {
            Some(header) => match header.table()?.lookup(address, &bases).ok()? {
                Pointer::Direct(at) => usize::try_from(at.checked_sub(self.eh_frame.address)?).ok()?,
                Pointer::Indirect(_) => return None,
            },
            None => {
                let after = self.index.partition_point(|(start, _)| *start <= address);
                self.index[..after].last()?.1
            }
        };
        let entry = section.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
        let is_small = entry.entry_len() <= MAX_ENTRY_BYTES && entry.cie().entry_len() <= MAX_ENTRY_BYTES;
        (is_small && entry.contains(address)).then_some(entry)
    }

    /// Returns the range of the function that contains `address`, according to the unwind table.
    pub fn function(&self, address: u64) -> Option<FunctionRange> {
        let entry = self.entry(address)?;
        let start = entry.initial_address();
        Some(FunctionRange { start, end: start.checked_add(entry.len())? })
    }

    /// Returns the rule for code at `ip`, an exact address or a return address.
    pub fn rule(&self, ip: u64, is_exact: bool, context: &mut Context) -> Found {
        let address = if is_exact { ip } else { ip.wrapping_sub(1) };
        let Some(entry) = self.entry(address) else { return Found::Nothing };
        let fde_offset = entry.offset();
        let fde_address = self.eh_frame.address.wrapping_add(fde_offset as u64);
        let to_size = |value: u64| usize::try_from(value).unwrap_or(0);
        let entry = Entry { bytes: &self.eh_frame.data, fde_offset, fde_address: to_size(fde_address) };
        Found::Rule(tables::rule(&entry, to_size(ip), to_size(address), context))
    }
}

/// Returns the bytes of this process's vDSO; the kernel maps the same into every process.
pub fn own_vdso() -> Option<Vec<u8>> {
    /// Maximum size of a vDSO, bytes; it is 8 KiB in Linux 6.
    const MAX_BYTES: u64 = 1 << 20;
    let pid = std::process::id();
    let space = crate::maps::AddressSpace::parse(&target::read_maps(pid).ok()?);
    let mapping = space.mappings().iter().find(|mapping| &*mapping.name == b"[vdso]")?;
    let len_bytes = usize::try_from((mapping.end - mapping.start).min(MAX_BYTES)).ok()?;
    let mut bytes = vec![0; len_bytes];
    target::Memory::open(pid).ok()?.read(mapping.start, &mut bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracles::{self, file_of};
    use proptest::prelude::*;
    use uncopy_unwind::rule::Base;

    fn own_program() -> File {
        File::open("/proc/self/exe").expect("a program")
    }

    #[test]
    fn functions_of_this_program_are_delimited() {
        let tables = Tables::read(own_program());
        let space = crate::maps::AddressSpace::parse(&target::read_maps(std::process::id()).expect("maps"));
        let here = functions_of_this_program_are_delimited as fn() as usize as u64;
        let mapping = space.find(here).expect("mapped");
        let offset = here - mapping.start + mapping.offset;
        let address = tables.address(offset).expect("loaded");
        assert_eq!(tables.file_offset(address), Some(offset));
        let function = tables.function(address + 1).expect("an entry");
        assert_eq!(function.start, address);
        // At a function's start, the caller's frame begins after the return address.
        let rule = tables.rule(address, true, &mut Context::new_in());
        let Found::Rule(Rule::Frame { base: Base::Sp, offset: 8, .. }) = rule else { panic!("{rule:?}") };
        let without_header = Tables { index: tables.build_index(), header: None, ..tables };
        assert_eq!(without_header.function(address + 1), Some(function));
    }

    #[test]
    fn the_vdso_has_functions() {
        let tables = Tables::read_vdso();
        assert!(!tables.eh_frame.data.is_empty());
        assert_eq!(tables.segments.len(), 1, "{:?}", tables.segments);
    }

    #[test]
    fn other_files_are_empty() {
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f; 4096]] {
            let tables = Tables::read(file_of(bytes));
            assert!(tables.function(0).is_none() && tables.address(0).is_none());
            assert_eq!(tables.rule(0, false, &mut Context::new_in()), Found::Nothing);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(656))]

        /// Damaged files give wrong answers, or none, within bounded time.
        #[test]
        fn damaged_files_do_no_harm(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
            cut in prop::option::of(any::<prop::sample::Index>()),
            is_in_front in any::<bool>(),
        ) {
            let mut bytes = own_vdso().expect("a vDSO");
            // The headers are few bytes and decide the most.
            let len = if is_in_front { 1024 } else { bytes.len() };
            for (place, byte) in changes {
                let place = place.index(len);
                bytes[place] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            oracles::image(&bytes);
        }
    }
}

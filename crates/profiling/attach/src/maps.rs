//! Executable mappings of a process, from `/proc/PID/maps` (proc_pid_maps(5)) and from records of mappings.
//!
//! The names are those that the sampled process chose: any bytes.

use std::rc::Rc;

/// Maximum number of executable mappings of a process; further ones are unknown.
const MAX_MAPPINGS: usize = 65_536;
/// Maximum bytes of `/proc/PID/maps` that are read.
pub const MAX_MAPS_BYTES: u64 = 16 << 20;

/// A file, as the kernel identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    pub major: u32,
    pub minor: u32,
    /// Inode; 0 if no file is mapped.
    pub inode: u64,
}

/// An executable mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// Offset in the file of the mapping's first byte.
    pub offset: u64,
    pub file: FileId,
    /// Path of the file as the process sees it, or a name such as `[vdso]`; empty if anonymous.
    pub name: Rc<[u8]>,
}

/// Executable mappings of one address space, sorted by address and disjoint.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
}

impl AddressSpace {
    /// Parses the text of `/proc/PID/maps`. Lines that are not mappings are skipped.
    pub fn parse(text: &[u8]) -> Self {
        let mut space = Self::default();
        for line in text.split(|byte| *byte == b'\n') {
            if let Some(mapping) = parse_line(line) {
                space.insert(mapping);
            }
        }
        space
    }

    /// Adds a mapping, which replaces what it overlaps.
    pub fn insert(&mut self, new: Mapping) {
        if new.start >= new.end {
            return;
        }
        let first = self.mappings.partition_point(|mapping| mapping.end <= new.start);
        let last = self.mappings.partition_point(|mapping| mapping.start < new.end).max(first);
        let mut replacement = Vec::with_capacity(3);
        if let Some(before) = self.mappings[first..last].first().filter(|before| before.start < new.start) {
            replacement.push(Mapping { end: new.start, ..before.clone() });
        }
        let after = self.mappings[first..last].last().filter(|after| after.end > new.end);
        let after = after.map(|after| Mapping {
            start: new.end,
            offset: after.offset.wrapping_add(new.end - after.start),
            ..after.clone()
        });
        replacement.push(new);
        replacement.extend(after);
        self.mappings.splice(first..last, replacement);
        self.mappings.truncate(MAX_MAPPINGS);
    }

    /// Returns the mapping that contains `address`.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.start <= address);
        self.mappings[..after].last().filter(|mapping| address < mapping.end)
    }

    /// Returns all mappings, sorted.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }
}

/// Parses a line `start-end rights offset major:minor inode   name`. Returns `None` if the mapping is not
/// executable.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (field, after) = rest.split_at(end);
        rest = after.strip_prefix(b" ").unwrap_or(after);
        std::str::from_utf8(field).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let rights = field()?;
    let offset = field()?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?;
    if rights.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let name = rest.trim_ascii_start();
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        file: FileId {
            major: u32::from_str_radix(major, 16).ok()?,
            minor: u32::from_str_radix(minor, 16).ok()?,
            inode: inode.parse().ok()?,
        },
        name: unescaped(name).into(),
    })
}

/// Undoes the kernel's escape of newlines in paths.
fn unescaped(name: &[u8]) -> Vec<u8> {
    const NEWLINE: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(NEWLINE) {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(*byte);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(start: u64, end: u64, offset: u64) -> Mapping {
        Mapping { start, end, offset, file: FileId::default(), name: Rc::from(&b""[..]) }
    }

    #[test]
    fn lines_give_executable_mappings_only() {
        let text = b"1000-2000 r-xp 0000a000 fd:01 1234                       /a b\\012c (deleted)\n\
            2000-3000 rw-p 00000000 00:00 0                          [heap]\n\
            nonsense\n5000-4000 r-xp 00000000 00:00 0 \n\
            7ffe0000-7fff0000 r-xp 00000000 00:00 0                          [vdso]\n9000-a000 --xp 0 0:0 0";
        let space = AddressSpace::parse(text);
        assert_eq!(space.mappings().len(), 3);
        let found = space.find(0x1fff).expect("mapped");
        assert_eq!((&*found.name, found.offset), (&b"/a b\nc (deleted)"[..], 0xa000));
        assert_eq!(found.file, FileId { major: 0xfd, minor: 1, inode: 1234 });
        assert!(space.find(0x2000).is_none() && space.find(0xfff).is_none());
        assert_eq!(&*space.find(0x7ffe_0001).expect("mapped").name, b"[vdso]");
    }

    proptest! {
        /// The mapping inserted last wins, as in an array of pages.
        #[test]
        fn later_mappings_replace_earlier_ones(ranges in prop::collection::vec((0u64..64, 1u64..16), 1..40)) {
            let mut space = AddressSpace::default();
            let mut pages = [None; 96];
            for (number, (start, len)) in (0u64..).zip(ranges) {
                space.insert(mapping(start, start + len, 1000 * number));
                for page in start..start + len {
                    pages[page as usize] = Some(1000 * number + page - start);
                }
            }
            for (page, expected) in (0u64..).zip(pages) {
                let found = space.find(page).map(|found| found.offset + page - found.start);
                prop_assert_eq!(found, expected);
            }
            let sorted = space.mappings().windows(2).all(|pair| pair[0].end <= pair[1].start);
            prop_assert!(sorted);
        }

        #[test]
        fn any_text_is_read(text in prop::collection::vec(any::<u8>(), 0..400)) {
            AddressSpace::parse(&text);
        }
    }
}

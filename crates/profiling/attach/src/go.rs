//! Names of Go's functions, from the table that Go's run time needs itself (`.gopclntab`): also stripped programs
//! have it.
//!
//! The layout is that of Go 1.18 and later (cmd/link/internal/ld/pcln.go):
//!
//! ```text
//! header: magic u32, 0, 0, quantum u8, pointer size u8, functions, files, text start, offsets of
//!         names, units, files, line tables, functions                      (words)
//! functions: (start, offset of entry) u32 each, relative to the text and to the functions
//! entry: start u32, offset of the name i32, …
//! ```

use crate::function::{Function, clean};
use crate::image::Elf;
use object::{Object as _, ObjectSection as _};

/// Magic numbers of Go 1.18 and of Go 1.20 and later.
const MAGICS: [u32; 2] = [0xFFFF_FFF0, 0xFFFF_FFF1];
/// Maximum bytes of the table.
const MAX_TABLE_BYTES: u64 = 512 << 20;
/// Maximum bytes of a name.
const MAX_NAME_BYTES: usize = 512;

/// Functions of a Go program.
pub struct GoFunctions<'a> {
    table: &'a [u8],
    /// Address that the functions' starts are relative to.
    text: u64,
    names: usize,
    functions: usize,
    count: usize,
}

impl<'a> GoFunctions<'a> {
    /// Finds the table of a file.
    pub fn find(elf: &Elf<'a>) -> Option<Self> {
        let section =
            elf.section_by_name(".gopclntab").or_else(|| elf.section_by_name(".data.rel.ro.gopclntab"))?;
        if section.file_range()?.1 > MAX_TABLE_BYTES {
            return None;
        }
        Self::parse(section.data().ok()?, elf.section_by_name(".text")?.address())
    }

    fn parse(table: &'a [u8], text_section: u64) -> Option<Self> {
        const POINTER_BYTES: u8 = 8;
        let word = |number: usize| {
            let at = 8 + 8 * number;
            Some(u64::from_le_bytes(table.get(at..at + 8)?.try_into().ok()?))
        };
        let offset = |number| usize::try_from(word(number)?).ok().filter(|offset| *offset <= table.len());
        if !MAGICS.contains(&read_u32(table, 0)?) || table.get(7) != Some(&POINTER_BYTES) {
            return None;
        }
        // Go 1.26 no longer writes the start of the text.
        let text = Some(word(2)?).filter(|start| *start != 0).unwrap_or(text_section);
        let (count, names, functions) = (usize::try_from(word(0)?).ok()?, offset(3)?, offset(7)?);
        let len_bytes = count.checked_mul(8)?.checked_add(functions)?;
        (len_bytes <= table.len()).then_some(Self { table, text, names, functions, count })
    }

    fn start(&self, number: usize) -> Option<u32> {
        read_u32(self.table, self.functions + 8 * number)
    }

    /// Returns the function that contains `address`.
    pub fn function(&self, address: u64) -> Option<Function> {
        let relative = u32::try_from(address.checked_sub(self.text)?).ok()?;
        // The first function that starts after the address.
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.start(middle)? <= relative { low = middle + 1 } else { high = middle }
        }
        let number = low.checked_sub(1)?;
        // The last start is the end of the text.
        if low == self.count && self.count > 0 && relative >= self.end()? {
            return None;
        }
        let entry = self
            .functions
            .checked_add(usize::try_from(read_u32(self.table, self.functions + 8 * number + 4)?).ok()?)?;
        let name = usize::try_from(read_u32(self.table, entry.checked_add(4)?)?).ok()?;
        let name = self.table.get(self.names.checked_add(name)?..)?;
        let name = &name[..name.len().min(MAX_NAME_BYTES)];
        let len = name.iter().position(|byte| *byte == 0)?;
        let start = self.text.checked_add(self.start(number)?.into())?;
        (len > 0).then(|| Function { name: clean(&name[..len]), start })
    }

    /// Returns the end of the text, which follows the last function.
    fn end(&self) -> Option<u32> {
        read_u32(self.table, self.functions + 8 * self.count)
    }
}

fn read_u32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table of functions at these starts, and the end of the text.
    fn table(functions: &[(u32, &str)], end: u32) -> Vec<u8> {
        const HEADER_BYTES: usize = 8 + 8 * 8;
        let mut names = vec![0];
        let mut entries = Vec::new();
        let mut index = Vec::new();
        let index_bytes = 8 * functions.len() + 4;
        for (start, name) in functions {
            index.extend_from_slice(&start.to_le_bytes());
            index.extend_from_slice(&((index_bytes + entries.len()) as u32).to_le_bytes());
            entries.extend_from_slice(&start.to_le_bytes());
            entries.extend_from_slice(&(names.len() as u32).to_le_bytes());
            names.extend_from_slice(name.as_bytes());
            names.push(0);
        }
        index.extend_from_slice(&end.to_le_bytes());
        let mut table = MAGICS[1].to_le_bytes().to_vec();
        table.extend_from_slice(&[0, 0, 1, 8]);
        let functions_at = (HEADER_BYTES + names.len()) as u64;
        for word in [functions.len() as u64, 0, 0, HEADER_BYTES as u64, 0, 0, 0, functions_at] {
            table.extend_from_slice(&word.to_le_bytes());
        }
        table.extend(names.into_iter().chain(index).chain(entries));
        table
    }

    #[test]
    fn functions_are_found_by_address() {
        let bytes = table(&[(0, "runtime.memmove"), (0x40, "main.main")], 0x80);
        let found = GoFunctions::parse(&bytes, 0x40_1000).expect("a table");
        let name = |address| found.function(address).map(|function| function.name);
        assert_eq!(name(0x40_1000).as_deref(), Some("runtime.memmove"));
        assert_eq!(name(0x40_103F).as_deref(), Some("runtime.memmove"));
        assert_eq!(
            found.function(0x40_107F),
            Some(Function { name: "main.main".to_owned(), start: 0x40_1040 })
        );
        assert_eq!((name(0x40_1080), name(0x40_0FFF), name(u64::MAX)), (None, None, None));
        assert!(GoFunctions::parse(&table(&[], 0), 0).is_some_and(|none| none.function(0).is_none()));
    }

    proptest! {
        #[test]
        fn damaged_tables_do_no_harm(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
            cut in any::<prop::sample::Index>(),
            address in prop_oneof![0u64..0x100, any::<u64>()],
        ) {
            let mut bytes = table(&[(0, "a"), (0x40, "b")], 0x80);
            for (place, byte) in changes {
                let at = place.index(bytes.len());
                bytes[at] = byte;
            }
            let len = if cut.index(3) == 0 { cut.index(bytes.len()) } else { bytes.len() };
            if let Some(found) = GoFunctions::parse(&bytes[..len], 0) {
                found.function(address);
            }
        }
    }
}

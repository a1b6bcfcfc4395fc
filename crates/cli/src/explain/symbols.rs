//! Names of places in programs and libraries: the function, and the line where debug information tells.
//!
//! Reads the files as they are when the run is over. Whatever they hold, nothing here fails: a place without a
//! name is shown by its file and offset.

use addr2line::gimli::{Dwarf, EndianSlice, RunTimeEndian, SectionId};
use object::{
    CompressionFormat, Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Larger files are not looked into, bytes.
const FILE_MOST_BYTES: u64 = 512 << 20;

/// A place in a program, named as far as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The function, demangled; `~` in front: the nearest one that the file names.
    pub function: Option<String>,
    /// The source file's name and line.
    pub line: Option<String>,
}

struct Function {
    address: u64,
    len_bytes: u64,
    name: String,
}

/// One file's names.
struct Names {
    /// Address and file range of each loaded part.
    segments: Vec<(u64, u64, u64)>,
    /// In order of address.
    functions: Vec<Function>,
    /// The file, kept for what is looked up in it.
    data: Vec<u8>,
}

/// The places whose return addresses lie at these offsets of a file, in their order.
pub fn places(path: &[u8], file_offsets: &[u64]) -> Vec<Place> {
    let unknown = || vec![Place::default(); file_offsets.len()];
    Names::read(path).map_or_else(unknown, |names| names.places(file_offsets))
}

impl Names {
    fn read(path: &[u8]) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        // Never a pipe or a device that has come to bear the name.
        if !fs::metadata(path).ok()?.is_file() {
            return None;
        }
        let mut data = Vec::new();
        File::open(path).ok()?.take(FILE_MOST_BYTES).read_to_end(&mut data).ok()?;
        let file = object::File::parse(&*data).ok()?;
        let segments = file
            .segments()
            .map(|segment| (segment.address(), segment.file_range().0, segment.file_range().1));
        let segments = segments.collect();
        let mut functions: Vec<Function> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
            .filter_map(|symbol| {
                let name = symbol.name().ok().filter(|name| !name.is_empty())?;
                Some(Function { address: symbol.address(), len_bytes: symbol.size(), name: name.to_owned() })
            })
            .collect();
        functions.sort_by_key(|function| (function.address, function.len_bytes));
        Some(Self { segments, functions, data })
    }

    fn places(&self, file_offsets: &[u64]) -> Vec<Place> {
        let file = object::File::parse(&*self.data).ok();
        let lines = file.as_ref().and_then(lines);
        let place = |file_offset: &u64| {
            // A return address follows the call: what is named is the call.
            let Some(address) = self.address(file_offset.saturating_sub(1)) else { return Place::default() };
            let line = lines.as_ref().and_then(|lines| line(lines, address));
            Place { function: self.function(address), line }
        };
        file_offsets.iter().map(place).collect()
    }

    /// The address that the file itself gives to what lies at an offset of it.
    fn address(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(address, start, len_bytes)| {
            let skip = file_offset.checked_sub(*start).filter(|skip| skip < len_bytes)?;
            address.checked_add(skip)
        })
    }

    fn function(&self, address: u64) -> Option<String> {
        let after = self.functions.partition_point(|function| function.address <= address);
        let nearest = self.functions[..after].last()?;
        let name = demangled(&nearest.name);
        let is_inside = address - nearest.address < nearest.len_bytes;
        Some(if is_inside { name } else { format!("~{name}+{:#x}", address - nearest.address) })
    }
}

type Lines<'data> = addr2line::Context<EndianSlice<'data, RunTimeEndian>>;

/// The debug information of a file, if it has some that is not compressed.
fn lines<'data>(file: &object::File<'data>) -> Option<Lines<'data>> {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let is_plain = |section: &object::Section<'data, '_>| {
        section.compressed_file_range().is_ok_and(|range| range.format == CompressionFormat::None)
    };
    let section = |id: SectionId| -> Result<_, addr2line::gimli::Error> {
        let data = file.section_by_name(id.name()).filter(is_plain).and_then(|section| section.data().ok());
        Ok(EndianSlice::new(data.unwrap_or_default(), endian))
    };
    addr2line::Context::from_dwarf(Dwarf::load(section).ok()?).ok()
}

fn line(lines: &Lines<'_>, address: u64) -> Option<String> {
    let location = lines.find_location(address).ok()??;
    let name = Path::new(location.file?).file_name()?.to_string_lossy().into_owned();
    Some(format!("{name}:{}", location.line?))
}

/// A C++ or Rust name as it was written; any other as it is.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    match cpp_demangle::Symbol::new(name) {
        Ok(symbol) if name.starts_with("_Z") => {
            let options = cpp_demangle::DemangleOptions::default().no_return_type();
            symbol.demangle_with_options(&options).unwrap_or_else(|_| name.to_owned())
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_were_written() {
        assert_eq!(demangled("memcpy"), "memcpy");
        assert_eq!(demangled("_ZN4core3ptr4read17h0123456789abcdefE"), "core::ptr::read");
        assert_eq!(
            demangled("_ZNSt6vectorIiSaIiEE4sizeEv"),
            "std::vector<int, std::allocator<int> >::size()"
        );
        assert_eq!(demangled("_Znonsense"), "_Znonsense");
    }

    #[test]
    fn code_of_this_program_is_found_by_its_offset() {
        let path = std::env::current_exe().expect("a path");
        let data = std::fs::read(&path).expect("readable");
        let file = object::File::parse(&*data).expect("a program");
        let own =
            file.symbols().find(|symbol| demangled(symbol.name().unwrap_or("")).ends_with("::demangled"));
        let own = own.expect("a test is not stripped");
        let text = file.section_by_index(own.section_index().expect("defined")).expect("a section");
        let offset = own.address() - text.address() + text.file_range().expect("in the file").0;
        let found = places(path.as_os_str().as_bytes(), &[offset + 1, u64::MAX]);
        assert_eq!(found[0].function.as_deref(), Some(demangled(own.name().expect("named"))).as_deref());
        assert_eq!(found[1], Place::default());
    }

    #[test]
    fn what_is_not_a_program_has_no_names() {
        for path in ["/nonexistent", "/dev/zero", "/etc/passwd", "/proc/self/maps"] {
            assert_eq!(places(path.as_bytes(), &[100, 0]), [Place::default(), Place::default()], "{path}");
        }
    }
}

//! Symbolises code addresses: function names, and source lines if there is debug information.
//!
//! Names come, in order of preference, from debug information (in the file or separate, see [`separate`]),
//! from symbol tables, and from unwind tables, which at least give the start of a function. Files are read
//! after the run. Symbolising never fails: without a name, a location is shown as file and address.

mod demangle;
mod lines;
mod separate;

pub use demangle::demangled;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindSection as _};
use lines::Lines;
use object::{Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const MAX_FILE_BYTES: u64 = 512 << 20;
/// Maximum functions per file taken from unwind tables.
const MAX_STARTS: usize = 1 << 20;

/// A code location, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeLocation {
    /// Name of the function, demangled.
    pub function: Option<String>,
    /// Source file name, without directories.
    pub file: Option<String>,
    /// Line number in the source file.
    pub line: Option<u32>,
    /// True if the function was inlined into that of the next location.
    pub is_inlined: bool,
}

impl CodeLocation {
    /// Returns `FILE:LINE` if both are known.
    #[must_use]
    pub fn file_and_line(&self) -> Option<String> {
        Some(format!("{}:{}", self.file.as_ref()?, self.line?))
    }
}

struct Function {
    address: u64,
    len_bytes: u64,
    name: String,
}

struct FileSymbols {
    /// Address, file offset and file size of each loaded segment.
    segments: Vec<(u64, u64, u64)>,
    /// Functions sorted by address.
    functions: Vec<Function>,
    /// Start and length of all functions, named or not, sorted by address.
    starts: Vec<(u64, u64)>,
    lines: Option<Lines>,
}

/// Symbols of files, read on first use.
#[derive(Default)]
pub struct Symbols {
    files: HashMap<Vec<u8>, Option<FileSymbols>>,
}

impl Symbols {
    /// Creates an empty cache of symbols.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn names(&mut self, path: &[u8]) -> Option<&FileSymbols> {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_vec(), FileSymbols::read(path));
        }
        self.files.get(path)?.as_ref()
    }

    /// Returns the locations of the instruction at `address` in the file's own address space: inlined
    /// functions first, then the function that contains the code. There is at least one. The last one is
    /// named `NAME+0xSTART`, where NAME is `name`, if only the start of the function is known.
    pub fn at_address(&mut self, path: &[u8], address: u64, name: &str) -> Vec<CodeLocation> {
        match self.names(path) {
            Some(names) => names.locations(address, name),
            None => vec![CodeLocation::default()],
        }
    }

    /// Returns the location of the call before the return address at `file_offset`.
    pub fn at_file_offset(&mut self, path: &[u8], file_offset: u64) -> CodeLocation {
        let file = file_name(path);
        let Some(names) = self.names(path) else { return CodeLocation::default() };
        let Some(address) = names.address(file_offset.saturating_sub(1)) else {
            return CodeLocation::default();
        };
        let mut places = names.locations(address, &file);
        // The innermost location has the line of the call; the outermost has the function that the file
        // contains.
        let line = places.first().and_then(|place| Some((place.file.clone()?, place.line?)));
        let outermost = places.pop().unwrap_or_default();
        let (file, line) = line.map_or((None, None), |(file, line)| (Some(file), Some(line)));
        CodeLocation { function: outermost.function, file, line, is_inlined: false }
    }
}

/// Returns the last component of a path.
#[must_use]
pub fn file_name(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// Reads a file. Returns `None` if it is unreadable, too large, or not a regular file.
fn read(path: &Path) -> Option<Vec<u8>> {
    // O_NONBLOCK, because the path may since have become a pipe or a device.
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > MAX_FILE_BYTES {
        return None;
    }
    let mut data = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut data).ok()?;
    Some(data)
}

impl FileSymbols {
    fn read(path: &[u8]) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        let data = read(path)?;
        let file = object::File::parse(&*data).ok()?;
        let segments = file
            .segments()
            .map(|segment| (segment.address(), segment.file_range().0, segment.file_range().1));
        let segments = segments.collect();
        let mut functions = functions(&file);
        let separate = separate::find(path, &file);
        let separate = separate.as_deref().and_then(|data| object::File::parse(data).ok());
        functions.extend(separate.iter().flat_map(functions_of));
        functions.sort_by_key(|function| (function.address, function.len_bytes));
        let lines = separate.as_ref().and_then(Lines::read).or_else(|| Lines::read(&file));
        Some(Self { segments, functions, starts: starts(&file), lines })
    }

    /// Converts a file offset to an address in the file's own address space.
    fn address(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(address, start, len_bytes)| {
            let skip = file_offset.checked_sub(*start).filter(|skip| skip < len_bytes)?;
            address.checked_add(skip)
        })
    }

    fn locations(&self, address: u64, file: &str) -> Vec<CodeLocation> {
        let mut places = self.lines.as_ref().map(|lines| lines.locations(address)).unwrap_or_default();
        match places.last_mut() {
            Some(last) if last.function.is_some() => {}
            Some(last) => last.function = self.function(address, file),
            None => places
                .push(CodeLocation { function: self.function(address, file), ..CodeLocation::default() }),
        }
        places
    }

    /// Returns the function that contains `address`: its name, else `FILE+0xSTART`, else `~NAME+0xDISTANCE`
    /// from the nearest named function before.
    fn function(&self, address: u64, file: &str) -> Option<String> {
        let after = self.functions.partition_point(|function| function.address <= address);
        // Of several names at one address, the one with the greatest length comes last.
        let nearest = self.functions[..after].last();
        if let Some(nearest) = nearest.filter(|nearest| address - nearest.address < nearest.len_bytes) {
            return Some(demangled(&nearest.name));
        }
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        if let Some((start, _)) = self.starts[..after].last().filter(|(start, len)| address - start < *len) {
            let named = nearest.filter(|nearest| nearest.address == *start);
            return Some(named.map_or_else(|| format!("{file}+{start:#x}"), |named| demangled(&named.name)));
        }
        let nearest = nearest?;
        Some(format!("~{}+{:#x}", demangled(&nearest.name), address - nearest.address))
    }
}

fn functions(file: &object::File<'_>) -> Vec<Function> {
    functions_of(file).collect()
}

fn functions_of<'a>(file: &'a object::File<'_>) -> impl Iterator<Item = Function> + 'a {
    file.symbols()
        .chain(file.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| !name.is_empty())?;
            Some(Function { address: symbol.address(), len_bytes: symbol.size(), name: name.to_owned() })
        })
}

/// Returns start and length of functions according to the unwind tables (`.eh_frame`).
fn starts(file: &object::File<'_>) -> Vec<(u64, u64)> {
    let mut starts = Vec::new();
    let section = |name| file.section_by_name(name);
    let Some(frames) = section(".eh_frame") else { return starts };
    let Ok(data) = frames.data() else { return starts };
    let text = section(".text").map_or(0, |text| text.address());
    let bases = BaseAddresses::default().set_eh_frame(frames.address()).set_text(text);
    // All files that can be loaded on x86-64 are little-endian.
    let eh_frame = EhFrame::from(EndianSlice::new(data, LittleEndian));
    let mut entries = eh_frame.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        if starts.len() == MAX_STARTS {
            break;
        }
        if let CieOrFde::Fde(partial) = entry
            && let Ok(entry) = partial.parse(EhFrame::cie_from_offset)
        {
            starts.push((entry.initial_address(), entry.len()));
        }
    }
    starts.sort_unstable();
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns address, size and file offset of one of this test program's own functions.
    fn own_function(path: &Path) -> (u64, u64, u64) {
        let data = std::fs::read(path).expect("readable");
        let file = object::File::parse(&*data).expect("a program");
        let own_function = file
            .symbols()
            .find(|symbol| demangled(symbol.name().unwrap_or("")).ends_with("symbols::file_name"))
            .expect("a test is not stripped");
        let text = file.section_by_index(own_function.section_index().expect("defined")).expect("a section");
        let offset = own_function.address() - text.address() + text.file_range().expect("in the file").0;
        (own_function.address(), own_function.size(), offset)
    }

    #[test]
    fn code_of_this_program_is_found_by_address_and_by_offset() {
        let path = std::env::current_exe().expect("a path");
        let (address, _, offset) = own_function(&path);
        let name = path.as_os_str().as_bytes();
        let mut symbols = Symbols::new();
        let found = symbols.at_file_offset(name, offset + 1);
        assert_eq!(found.function.as_deref(), Some("uncopy_profile::symbols::file_name"));
        assert!(found.file_and_line().is_some_and(|line| line.starts_with("mod.rs:")), "{found:?}");
        let places = symbols.at_address(name, address, "x");
        let last = places.last().expect("one at least");
        assert_eq!(last.function.as_deref(), Some("uncopy_profile::symbols::file_name"));
        assert!(!last.is_inlined && places[..places.len() - 1].iter().all(|place| place.is_inlined));
        assert_eq!(symbols.at_file_offset(name, u64::MAX), CodeLocation::default());
    }

    #[test]
    fn a_function_without_a_name_is_known_by_its_start() {
        let path = std::env::current_exe().expect("a path");
        let (address, len_bytes, _) = own_function(&path);
        let mut names = FileSymbols::read(path.as_os_str().as_bytes()).expect("a program");
        names.functions.clear();
        names.lines = None;
        let expected = Some(format!("x+{address:#x}"));
        assert_eq!(names.function(address, "x"), expected);
        assert_eq!(names.function(address + len_bytes - 1, "x"), expected);
        names.starts.clear();
        assert_eq!(names.function(address, "x"), None);
    }

    #[test]
    fn other_files_have_no_symbols() {
        let mut symbols = Symbols::new();
        for path in ["/nonexistent", "/dev/zero", "/etc/passwd", "/proc/self/maps"] {
            assert_eq!(symbols.at_file_offset(path.as_bytes(), 100), CodeLocation::default(), "{path}");
            assert_eq!(symbols.at_address(path.as_bytes(), 100, "x"), [CodeLocation::default()], "{path}");
        }
    }
}

//! Names of places in programs and libraries: the function, and the line where debug information tells.
//!
//! Names come, best first, from debug information (in the file, or separate: see [`separate`]), from symbol tables,
//! and from the tables for unwinding, which at least say where a function begins. The files are read as they are when
//! the run is over. Whatever they hold, nothing here fails: a place without a name is shown by its file and address.

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

/// Larger files are not looked into, bytes.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// Functions of a file by their unwinding tables at most.
const MAX_STARTS: usize = 1 << 20;

/// A place in a program, named as far as possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The function, demangled.
    pub function: Option<String>,
    /// The source file's name, without its directory.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// Whether the function was inlined into the next place's.
    pub is_inlined: bool,
}

impl Place {
    /// `FILE:LINE`, if both are known.
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

/// One file's names.
struct Names {
    /// Address and file range of each loaded part.
    segments: Vec<(u64, u64, u64)>,
    /// In order of address.
    functions: Vec<Function>,
    /// Start and length of functions, named or not, in order of address.
    starts: Vec<(u64, u64)>,
    lines: Option<Lines>,
}

/// Reads the names of files as they are asked for.
#[derive(Default)]
pub struct Symbols {
    files: HashMap<Vec<u8>, Option<Names>>,
}

impl Symbols {
    /// No file read yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn names(&mut self, path: &[u8]) -> Option<&Names> {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_vec(), Names::read(path));
        }
        self.files.get(path)?.as_ref()
    }

    /// The place of an instruction by its address in the file's own tables: what was inlined first, then the function
    /// whose code it is. At least one; the last is named `NAME+0xSTART`, NAME being the file's, if only its start is known.
    pub fn at_address(&mut self, path: &[u8], address: u64, name: &str) -> Vec<Place> {
        match self.names(path) {
            Some(names) => names.places(address, name),
            None => vec![Place::default()],
        }
    }

    /// The function and line of a return address by its offset in the file: what is named is the call.
    pub fn at_file_offset(&mut self, path: &[u8], file_offset: u64) -> Place {
        let file = file_name(path);
        let Some(names) = self.names(path) else { return Place::default() };
        let Some(address) = names.address(file_offset.saturating_sub(1)) else { return Place::default() };
        let mut places = names.places(address, &file);
        // The line is that of the call itself, which the innermost has; the function is the one that the file has.
        let line = places.first().and_then(|place| Some((place.file.clone()?, place.line?)));
        let outermost = places.pop().unwrap_or_default();
        let (file, line) = line.map_or((None, None), |(file, line)| (Some(file), Some(line)));
        Place { function: outermost.function, file, line, is_inlined: false }
    }
}

/// The last part of a path.
#[must_use]
pub fn file_name(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// A file's bytes, unless it is none, is not to be had, or is too large.
fn read(path: &Path) -> Option<Vec<u8>> {
    // Never a pipe or a device that has come to bear the name, also if that happens now.
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

impl Names {
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

    /// The address that the file itself gives to what lies at an offset of it.
    fn address(&self, file_offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|(address, start, len_bytes)| {
            let skip = file_offset.checked_sub(*start).filter(|skip| skip < len_bytes)?;
            address.checked_add(skip)
        })
    }

    fn places(&self, address: u64, file: &str) -> Vec<Place> {
        let mut places = self.lines.as_ref().map(|lines| lines.places(address)).unwrap_or_default();
        match places.last_mut() {
            Some(last) if last.function.is_some() => {}
            Some(last) => last.function = self.function(address, file),
            None => places.push(Place { function: self.function(address, file), ..Place::default() }),
        }
        places
    }

    /// The function that an address lies in: its name, else `FILE+0xSTART`, else `~NAME+0xDISTANCE` from the nearest
    /// one that has a name.
    fn function(&self, address: u64, file: &str) -> Option<String> {
        let after = self.functions.partition_point(|function| function.address <= address);
        // Several names may begin at one address, and the longest ends last.
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

/// Where functions begin and how long they are, by the tables for unwinding (`.eh_frame`).
fn starts(file: &object::File<'_>) -> Vec<(u64, u64)> {
    let mut starts = Vec::new();
    let section = |name| file.section_by_name(name);
    let Some(frames) = section(".eh_frame") else { return starts };
    let Ok(data) = frames.data() else { return starts };
    let text = section(".text").map_or(0, |text| text.address());
    let bases = BaseAddresses::default().set_eh_frame(frames.address()).set_text(text);
    // Every file that can be loaded here is little-endian.
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

    /// The address of one of this program's own functions, in the program's tables.
    fn own(path: &Path) -> (u64, u64, u64) {
        let data = std::fs::read(path).expect("readable");
        let file = object::File::parse(&*data).expect("a program");
        let own = file
            .symbols()
            .find(|symbol| demangled(symbol.name().unwrap_or("")).ends_with("symbols::file_name"))
            .expect("a test is not stripped");
        let text = file.section_by_index(own.section_index().expect("defined")).expect("a section");
        let offset = own.address() - text.address() + text.file_range().expect("in the file").0;
        (own.address(), own.size(), offset)
    }

    #[test]
    fn code_of_this_program_is_found_by_address_and_by_offset() {
        let path = std::env::current_exe().expect("a path");
        let (address, _, offset) = own(&path);
        let name = path.as_os_str().as_bytes();
        let mut symbols = Symbols::new();
        let found = symbols.at_file_offset(name, offset + 1);
        assert_eq!(found.function.as_deref(), Some("uncopy_profile::symbols::file_name"));
        assert!(found.file_and_line().is_some_and(|line| line.starts_with("mod.rs:")), "{found:?}");
        let places = symbols.at_address(name, address, "x");
        let last = places.last().expect("one at least");
        assert_eq!(last.function.as_deref(), Some("uncopy_profile::symbols::file_name"));
        assert!(!last.is_inlined && places[..places.len() - 1].iter().all(|place| place.is_inlined));
        assert_eq!(symbols.at_file_offset(name, u64::MAX), Place::default());
    }

    #[test]
    fn a_function_without_a_name_is_known_by_its_start() {
        let path = std::env::current_exe().expect("a path");
        let (address, len_bytes, _) = own(&path);
        let mut names = Names::read(path.as_os_str().as_bytes()).expect("a program");
        names.functions.clear();
        names.lines = None;
        let expected = Some(format!("x+{address:#x}"));
        assert_eq!(names.function(address, "x"), expected);
        assert_eq!(names.function(address + len_bytes - 1, "x"), expected);
        names.starts.clear();
        assert_eq!(names.function(address, "x"), None);
    }

    #[test]
    fn what_is_not_a_program_has_no_names() {
        let mut symbols = Symbols::new();
        for path in ["/nonexistent", "/dev/zero", "/etc/passwd", "/proc/self/maps"] {
            assert_eq!(symbols.at_file_offset(path.as_bytes(), 100), Place::default(), "{path}");
            assert_eq!(symbols.at_address(path.as_bytes(), 100, "x"), [Place::default()], "{path}");
        }
    }
}

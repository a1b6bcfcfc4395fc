//! Debug information: functions, inlined functions and source lines.

use super::{CodeLocation, demangled, separate};
use addr2line::Context;
use gimli::{Dwarf, EndianRcSlice, Error, RunTimeEndian, SectionId};
use object::{CompressionFormat, Object as _, ObjectSection as _};
use std::path::Path;
use std::rc::Rc;

/// Maximum size of a decompressed section in bytes.
const MAX_SECTION_BYTES: u64 = 1 << 30;
const MAX_PLACES: usize = 32;

type Slice = EndianRcSlice<RunTimeEndian>;

/// Debug information of one file.
pub struct Lines(Context<Slice>);

impl Lines {
    /// Reads the file's debug information, if present.
    pub fn read(file: &object::File<'_>) -> Option<Self> {
        file.section_by_name(".debug_info")?;
        let load = |id: SectionId| -> Result<Slice, Error> { Ok(section(file, id.name())) };
        let mut dwarf = Dwarf::load(load).ok()?;
        // Names shared by several files (dwz).
        if let Some(data) = separate::supplementary(file)
            && let Ok(supplementary) = object::File::parse(&*data)
        {
            dwarf
                .load_sup(|id: SectionId| -> Result<Slice, Error> { Ok(section(&supplementary, id.name())) })
                .ok()?;
        }
        Context::from_dwarf(dwarf).ok().map(Self)
    }

    /// Returns the locations of an address, inlined functions first; empty if unknown.
    pub fn locations(&self, address: u64) -> Vec<CodeLocation> {
        let mut places = Vec::new();
        if let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() {
            while places.len() < MAX_PLACES
                && let Ok(Some(frame)) = frames.next()
            {
                let name = frame.function.as_ref().and_then(|function| function.raw_name().ok());
                let (file, line) =
                    frame.location.map_or((None, None), |location| (location.file, location.line));
                places.push(CodeLocation {
                    function: name.map(|name| demangled(&name)),
                    file: file.and_then(base_name),
                    line,
                    is_inlined: true,
                });
            }
        }
        if places.is_empty()
            && let Ok(Some(location)) = self.0.find_location(address)
        {
            let file = location.file.and_then(base_name);
            places.push(CodeLocation { function: None, file, line: location.line, is_inlined: true });
        }
        // The last location is the function that the others were inlined into.
        if let Some(last) = places.last_mut() {
            last.is_inlined = false;
        }
        places
    }
}

fn base_name(path: &str) -> Option<String> {
    Some(Path::new(path).file_name()?.to_string_lossy().into_owned())
}

/// Returns a section's contents, decompressed; empty if the section is missing or cannot be decompressed.
fn section(file: &object::File<'_>, name: &str) -> Slice {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let data = file.section_by_name(name).and_then(|section| {
        let packed = section.compressed_data().ok()?;
        match packed.format {
            CompressionFormat::None => Some(Rc::from(packed.data)),
            CompressionFormat::Zlib if packed.uncompressed_size <= MAX_SECTION_BYTES => {
                let max_bytes = usize::try_from(packed.uncompressed_size).ok()?;
                miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(packed.data, max_bytes)
                    .ok()
                    .map(Rc::from)
            }
            _ => None,
        }
    });
    Slice::new(data.unwrap_or_default(), endian)
}

//! Identifies the object of a frame, so that functions can be symbolised after the program has ended.

use crate::link_map::{read_i32, read_usize};
use crate::objects;
use uncopy_sys::peek::{peek, word};
use uncopy_sys::procmap;

/// Maximum bytes kept of a build ID.
pub const BUILD_ID_BYTES: usize = 32;

/// An object loaded into this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// Address of the object's first byte.
    pub start: usize,
    /// Address after the object's last byte.
    pub end: usize,
    /// Load bias: an address in this process minus the bias is an address in the object's own tables.
    pub bias: usize,
    /// Leading bytes of the build ID, zero-padded.
    pub build_id: [u8; BUILD_ID_BYTES],
    /// Length of the build ID in `build_id`; 0 if the object has none.
    pub build_id_len_bytes: usize,
}

/// Returns the object that contains `address`, and the number of bytes of the object's path written to
/// `path`, truncated to fit; 0 if no file is mapped there. Returns `None` for generated code and for
/// addresses outside any object.
///
/// Takes no loader lock and preserves `errno`. Costs 20 µs and uses 5 KiB of stack, so this is meant for the
/// first sight of an address.
#[must_use]
pub fn module_at(address: usize, path: &mut [u8]) -> Option<(Module, usize)> {
    let _errno = uncopy_sys::errno::SavedErrno::new();
    let object = objects::object_at(address)?;
    let (build_id, build_id_len_bytes) = build_id(object.start, object.bias).unwrap_or_default();
    let path_len_bytes = match procmap::file_at(address, path) {
        Ok(mapping) => mapping.map_or(0, |mapping| mapping.path_len_bytes),
        Err(_) => name(object.link_map, path),
    };
    let module =
        Module { start: object.start, end: object.end, bias: object.bias, build_id, build_id_len_bytes };
    Some((module, path_len_bytes))
}

/// Copies the loader's name of an object to `path`, and returns its length; 0 for the main program.
fn name(link_map: usize, path: &mut [u8]) -> usize {
    const NAME: usize = size_of::<usize>();
    let Some(address) = word(link_map.wrapping_add(NAME)) else { return 0 };
    let read = peek(address, path).unwrap_or(0);
    path[..read].iter().position(|byte| *byte == 0).unwrap_or(read)
}

/// Reads the GNU build ID of the object whose ELF header is at `start`.
fn build_id(start: usize, bias: usize) -> Option<([u8; BUILD_ID_BYTES], usize)> {
    const HEADER_BYTES: usize = 64;
    const SEGMENT_BYTES: usize = 56;
    const MAX_SEGMENTS: usize = 32;
    const NOTE: i32 = 4;
    const NT_GNU_BUILD_ID: i32 = 3;
    let mut header = [0; HEADER_BYTES];
    if peek(start, &mut header) != Ok(HEADER_BYTES) || header[..4] != *b"\x7FELF" {
        return None;
    }
    let segments = usize::from(u16::from_le_bytes([header[56], header[57]])).min(MAX_SEGMENTS);
    for index in 0..segments {
        let mut segment = [0; SEGMENT_BYTES];
        let at = start.wrapping_add(read_usize(&header[32..])).wrapping_add(index * SEGMENT_BYTES);
        if peek(at, &mut segment) != Ok(SEGMENT_BYTES) || read_i32(&segment) != NOTE {
            continue;
        }
        let mut notes = [0; 256];
        let len = notes.len().min(read_usize(&segment[32..]));
        let read = peek(bias.wrapping_add(read_usize(&segment[16..])), &mut notes[..len]).unwrap_or(0);
        let mut rest = &notes[..read];
        while let Some(head) = rest.first_chunk::<12>() {
            let [name, description] =
                [read_i32(head), read_i32(&head[4..])].map(|len| len.cast_unsigned() as usize);
            let from = 12 + name.next_multiple_of(4);
            let Some(bytes) = rest.get(from..).and_then(|rest| rest.get(..description)) else { break };
            if read_i32(&head[8..]) == NT_GNU_BUILD_ID && rest.get(12..16) == Some(b"GNU\0") {
                let mut id = [0; BUILD_ID_BYTES];
                let len = bytes.len().min(BUILD_ID_BYTES);
                id[..len].copy_from_slice(&bytes[..len]);
                return Some((id, len));
            }
            rest = rest.get(from + description.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_libc_are_found_by_their_paths() {
        crate::init();
        let mut path = [0; 512];
        let (module, len) = module_at(module_at as *const () as usize, &mut path).expect("an object");
        let own = std::env::current_exe().expect("a path");
        assert_eq!(&path[..len], own.as_os_str().as_encoded_bytes());
        assert!(module.start <= module_at as *const () as usize && module.bias != 0);
        let (libc, len) = module_at(libc::qsort as *const () as usize, &mut path).expect("an object");
        assert!(path[..len].windows(4).any(|part| part == b"libc"));
        // Debian's libc has a build ID of 20 bytes.
        assert!(libc.build_id_len_bytes == 0 || libc.build_id[..libc.build_id_len_bytes] != [0; 20]);
        assert_eq!(module_at(&raw const path as usize, &mut [0; 16]), None);
    }
}

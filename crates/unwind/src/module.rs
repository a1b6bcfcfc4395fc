//! What a frame's object is called, so that the names of its functions can be looked up once the program has ended.

use crate::list::{long, number};
use crate::objects;
use uncopy_sys::peek::{peek, word};
use uncopy_sys::procmap;

/// Bytes of a build ID that are kept.
pub const BUILD_ID_BYTES: usize = 32;

/// A loaded object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// First address.
    pub start: usize,
    /// One past its last address.
    pub end: usize,
    /// An address in this process, less this, is one of the object's own tables.
    pub bias: usize,
    /// The first bytes of its build ID, then zeroes.
    pub build_id: [u8; BUILD_ID_BYTES],
    /// How many of them count; 0: it has none.
    pub build_id_len_bytes: usize,
}

/// The object that `address` lies in, and how many bytes of its path, cut to what fits, were put into `path`; 0 of them
/// for what no file was mapped to. `None`: generated code, or no code at all.
///
/// Takes no lock of the loader's. Some 20 µs: for the first time that an address appears. Uses 5 KiB of stack. `errno` is kept.
#[must_use]
pub fn module_at(address: usize, path: &mut [u8]) -> Option<(Module, usize)> {
    let _errno = uncopy_sys::errno::Keep::new();
    let object = objects::find(address)?;
    let (build_id, build_id_len_bytes) = build_id(object.start, object.bias).unwrap_or_default();
    let path_len_bytes = match procmap::file_at(address, path) {
        Ok(place) => place.map_or(0, |place| place.path_len_bytes),
        Err(_) => name(object.link_map, path),
    };
    let module =
        Module { start: object.start, end: object.end, bias: object.bias, build_id, build_id_len_bytes };
    Some((module, path_len_bytes))
}

/// The name by which the loader knows an object; the program itself has none there.
fn name(link_map: usize, path: &mut [u8]) -> usize {
    const NAME: usize = size_of::<usize>();
    let Some(address) = word(link_map.wrapping_add(NAME)) else { return 0 };
    let read = peek(address, path).unwrap_or(0);
    path[..read].iter().position(|byte| *byte == 0).unwrap_or(read)
}

/// Reads the notes of the object whose first segment begins with its ELF header.
fn build_id(start: usize, bias: usize) -> Option<([u8; BUILD_ID_BYTES], usize)> {
    const HEADER_BYTES: usize = 64;
    const SEGMENT_BYTES: usize = 56;
    const SEGMENTS: usize = 32;
    const NOTE: i32 = 4;
    const NT_GNU_BUILD_ID: i32 = 3;
    let mut header = [0; HEADER_BYTES];
    if peek(start, &mut header) != Ok(HEADER_BYTES) || header[..4] != *b"\x7FELF" {
        return None;
    }
    let segments = usize::from(u16::from_le_bytes([header[56], header[57]])).min(SEGMENTS);
    for index in 0..segments {
        let mut segment = [0; SEGMENT_BYTES];
        let at = start.wrapping_add(long(&header[32..])).wrapping_add(index * SEGMENT_BYTES);
        if peek(at, &mut segment) != Ok(SEGMENT_BYTES) || number(&segment) != NOTE {
            continue;
        }
        let mut notes = [0; 256];
        let len = notes.len().min(long(&segment[32..]));
        let read = peek(bias.wrapping_add(long(&segment[16..])), &mut notes[..len]).unwrap_or(0);
        let mut rest = &notes[..read];
        while let Some(head) = rest.first_chunk::<12>() {
            let [name, description] =
                [number(head), number(&head[4..])].map(|len| len.cast_unsigned() as usize);
            let from = 12 + name.next_multiple_of(4);
            let Some(bytes) = rest.get(from..).and_then(|rest| rest.get(..description)) else { break };
            if number(&head[8..]) == NT_GNU_BUILD_ID && rest.get(12..16) == Some(b"GNU\0") {
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
        crate::begin();
        let mut path = [0; 512];
        let (module, len) = module_at(module_at as *const () as usize, &mut path).expect("an object");
        let own = std::env::current_exe().expect("a path");
        assert_eq!(&path[..len], own.as_os_str().as_encoded_bytes());
        assert!(module.start <= module_at as *const () as usize && module.bias != 0);
        let (libc, len) = module_at(libc::qsort as *const () as usize, &mut path).expect("an object");
        assert!(path[..len].windows(4).any(|part| part == b"libc"));
        // Debian's has one, of 20 bytes.
        assert!(libc.build_id_len_bytes == 0 || libc.build_id[..libc.build_id_len_bytes] != [0; 20]);
        assert_eq!(module_at(&raw const path as usize, &mut [0; 16]), None);
    }
}

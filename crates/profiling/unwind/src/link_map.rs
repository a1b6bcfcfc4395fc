//! Finds objects in the debugger's list (`struct r_debug` and `struct link_map` of glibc's link.h) without
//! the loader's locks, for glibc before 2.35. Entries may be stale or incomplete. All reads go through the
//! kernel, and an entry is used only if the object's own ELF headers confirm it.

use uncopy_sys::PAGE_BYTES;
use uncopy_sys::peek::{peek, word};

const MAX_OBJECTS: usize = 4096;
const NEXT: usize = 3 * size_of::<usize>();
/// Sizes of an ELF header and of a program header in bytes.
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const MAX_SEGMENTS: usize = 32;
const LOAD: i32 = 1;
const EH_FRAME: i32 = 0x6474_E550;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub start: usize,
    pub end: usize,
    pub bias: usize,
    /// Address of the object's `.eh_frame_hdr`; 0 if it has none.
    pub eh_frame_header: usize,
    /// Address of the loader's `struct link_map` for this object.
    pub link_map: usize,
}

/// Returns the object of the base namespace that contains `address`; those that dlmopen(3) loads elsewhere are in
/// other lists. `debug` is the address of the loader's `struct r_debug`.
pub fn object_in_debug_list(debug: usize, address: usize) -> Option<Object> {
    if debug == 0 {
        return None;
    }
    let mut link_map = word(debug.wrapping_add(size_of::<usize>()))?;
    for index in 0..MAX_OBJECTS {
        if link_map == 0 {
            return None;
        }
        let bias = word(link_map)?;
        let object =
            if index == 0 { main_program(bias, link_map) } else { read_object(bias, bias, link_map) };
        if let Some(object) = object.filter(|object| object.start <= address && address < object.end) {
            return Some(object);
        }
        link_map = word(link_map.wrapping_add(NEXT))?;
    }
    None
}

/// Returns the main program, whose ELF header precedes the program headers at AT_PHDR.
fn main_program(bias: usize, link_map: usize) -> Option<Object> {
    // SAFETY: getauxval(3) has no preconditions; it searches the vector that the kernel wrote at exec.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    let start = usize::try_from(headers).ok()?.wrapping_sub(HEADER_BYTES);
    read_object(start, bias, link_map)
}

/// Returns the object whose ELF header is at `start`.
fn read_object(start: usize, bias: usize, link_map: usize) -> Option<Object> {
    let mut header = [0; HEADER_BYTES];
    if peek(start, &mut header) != Ok(HEADER_BYTES) || header[..4] != *b"\x7FELF" {
        return None;
    }
    let count = usize::from(u16::from_le_bytes([header[56], header[57]])).min(MAX_SEGMENTS);
    let mut segments = [0; MAX_SEGMENTS * SEGMENT_BYTES];
    let segments = &mut segments[..count * SEGMENT_BYTES];
    if peek(start.wrapping_add(read_usize(&header[32..])), segments) != Ok(segments.len()) {
        return None;
    }
    let (mut low, mut high, mut eh_frame_header) = (usize::MAX, 0, 0);
    for segment in segments.chunks_exact(SEGMENT_BYTES) {
        let at = bias.wrapping_add(read_usize(&segment[16..]));
        match read_i32(segment) {
            LOAD => {
                low = low.min(at / PAGE_BYTES * PAGE_BYTES);
                high = high.max(at.wrapping_add(read_usize(&segment[40..])));
            }
            EH_FRAME => eh_frame_header = at,
            _ => {}
        }
    }
    (low < high).then_some(Object { start: low, end: high, bias, eh_frame_header, link_map })
}

/// Returns the little-endian 32-bit number at the start of `bytes`; 0 if `bytes` is too short.
pub fn read_i32(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(0, |four| i32::from_le_bytes(*four))
}

/// Returns the little-endian 64-bit number at the start of `bytes`; 0 if `bytes` is too short.
pub fn read_usize(bytes: &[u8]) -> usize {
    bytes.first_chunk().map_or(0, |eight| usize::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    static HERE: u8 = 7;

    #[test]
    fn list_agrees_with_the_loader() {
        crate::objects::init();
        // SAFETY: dlsym(3) needs a valid handle, as RTLD_DEFAULT is, and a NUL-terminated name, as literals
        // are.
        let debug = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) } as usize;
        let addresses = [
            object_in_debug_list as *const () as usize,
            libc::qsort as *const () as usize,
            libc::dlsym as *const () as usize,
        ];
        for address in addresses {
            let listed = object_in_debug_list(debug, address).expect("in an object");
            assert!(listed.start <= address && address < listed.end);
            let found = crate::objects::object_at(address).expect("in an object");
            assert_eq!(
                (listed.bias, listed.eh_frame_header, listed.link_map),
                (found.bias, found.eh_frame_header, found.link_map)
            );
        }
        assert_eq!(object_in_debug_list(debug, &raw const *Box::new(0) as usize), None);
        assert_eq!(object_in_debug_list(debug, &raw const debug as usize), None);
        // Addresses that are not those of a `struct r_debug`.
        assert_eq!(object_in_debug_list(&raw const HERE as usize, addresses[0]), None);
        assert_eq!(object_in_debug_list(8, addresses[0]), None);
    }
}

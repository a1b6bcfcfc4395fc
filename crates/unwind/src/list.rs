//! The debugger's list of loaded objects (`struct r_debug`, `struct link_map` of glibc's link.h), walked from outside the
//! loader's locks: for glibc before 2.35. Whatever is found may be gone or half made; the kernel reads it, and nothing is
//! believed that is not also said by the object's own headers.

use uncopy_sys::PAGE_BYTES;
use uncopy_sys::peek::{peek, word};

/// Objects that are looked at.
const OBJECTS: usize = 4096;
const NEXT: usize = 3 * size_of::<usize>();
/// Bytes of an ELF header, of a program header.
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Program headers that are looked at.
const SEGMENTS: usize = 32;
const LOAD: i32 = 1;
const EH_FRAME: i32 = 0x6474_E550;

/// An object that is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub start: usize,
    pub end: usize,
    pub bias: usize,
    /// Address of its `.eh_frame_hdr`; 0: it has none.
    pub eh_frame_header: usize,
    /// The loader's `struct link_map`.
    pub link_map: usize,
}

/// The object that an address lies in.
pub fn find(debug: usize, address: usize) -> Option<Object> {
    if debug == 0 {
        return None;
    }
    let mut link_map = word(debug.wrapping_add(size_of::<usize>()))?;
    for index in 0..OBJECTS {
        if link_map == 0 {
            return None;
        }
        let bias = word(link_map)?;
        let object = if index == 0 { program(bias, link_map) } else { loaded(bias, bias, link_map) };
        if let Some(object) = object.filter(|object| object.start <= address && address < object.end) {
            return Some(object);
        }
        link_map = word(link_map.wrapping_add(NEXT))?;
    }
    None
}

/// The program itself: the kernel says where its program headers are, which lie in its first segment.
fn program(bias: usize, link_map: usize) -> Option<Object> {
    // SAFETY: reads what the kernel passed at the start.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    let start = usize::try_from(headers).ok()?.wrapping_sub(HEADER_BYTES);
    loaded(start, bias, link_map)
}

/// The object whose ELF header is at `start`.
fn loaded(start: usize, bias: usize, link_map: usize) -> Option<Object> {
    let mut header = [0; HEADER_BYTES];
    if peek(start, &mut header) != Ok(HEADER_BYTES) || header[..4] != *b"\x7FELF" {
        return None;
    }
    let count = usize::from(u16::from_le_bytes([header[56], header[57]])).min(SEGMENTS);
    let mut segments = [0; SEGMENTS * SEGMENT_BYTES];
    let segments = &mut segments[..count * SEGMENT_BYTES];
    if peek(start.wrapping_add(long(&header[32..])), segments) != Ok(segments.len()) {
        return None;
    }
    let (mut low, mut high, mut eh_frame_header) = (usize::MAX, 0, 0);
    for segment in segments.chunks_exact(SEGMENT_BYTES) {
        let at = bias.wrapping_add(long(&segment[16..]));
        match number(segment) {
            LOAD => {
                low = low.min(at / PAGE_BYTES * PAGE_BYTES);
                high = high.max(at.wrapping_add(long(&segment[40..])));
            }
            EH_FRAME => eh_frame_header = at,
            _ => {}
        }
    }
    (low < high).then_some(Object { start: low, end: high, bias, eh_frame_header, link_map })
}

/// The number that bytes begin with.
pub fn number(bytes: &[u8]) -> i32 {
    bytes.first_chunk().map_or(0, |four| i32::from_le_bytes(*four))
}

/// The address that bytes begin with.
pub fn long(bytes: &[u8]) -> usize {
    bytes.first_chunk().map_or(0, |eight| usize::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    static HERE: u8 = 7;

    #[test]
    fn the_list_says_what_the_loader_says() {
        crate::objects::begin();
        // SAFETY: the symbol is terminated.
        let debug = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) } as usize;
        let addresses = [
            find as *const () as usize,
            libc::qsort as *const () as usize,
            libc::dlsym as *const () as usize,
        ];
        for address in addresses {
            let listed = find(debug, address).expect("in an object");
            assert!(listed.start <= address && address < listed.end);
            let found = crate::objects::find(address).expect("in an object");
            assert_eq!(
                (listed.bias, listed.eh_frame_header, listed.link_map),
                (found.bias, found.eh_frame_header, found.link_map)
            );
        }
        assert_eq!(find(debug, &raw const *Box::new(0) as usize), None);
        assert_eq!(find(debug, &raw const debug as usize), None);
        // Something else than the loader's list.
        assert_eq!(find(&raw const HERE as usize, addresses[0]), None);
        assert_eq!(find(8, addresses[0]), None);
    }
}

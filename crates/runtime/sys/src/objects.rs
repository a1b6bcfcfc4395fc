//! The read-only memory of loaded ELF objects.

use core::ffi::{c_int, c_void};

/// Calls `each` with the segments of every loaded object that are neither writable nor executable
/// (`PT_LOAD` with `PF_R` alone: constants): address and length in the file, bytes.
///
/// Takes the loader's lock. Meant for the time when the library is loaded, before other threads exist.
pub fn for_each_read_only_segment(each: &mut dyn FnMut(usize, usize)) {
    let mut each = each;
    // SAFETY: `object` has the type of the callback, and gets the pointer to `each`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut each).cast()) };
}

unsafe extern "C" fn object(found: *mut libc::dl_phdr_info, _size: usize, each: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid description of a loaded object; `each` is the pointer that
    // was passed to dl_iterate_phdr(3).
    let (base, headers, each) = unsafe {
        let found = &*found;
        let headers = if found.dlpi_phdr.is_null() {
            &[][..]
        } else {
            core::slice::from_raw_parts(found.dlpi_phdr, usize::from(found.dlpi_phnum))
        };
        (found.dlpi_addr as usize, headers, &mut *each.cast::<&mut dyn FnMut(usize, usize)>())
    };
    let constants =
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags == libc::PF_R);
    for header in constants {
        each(base + header.p_vaddr as usize, header.p_filesz as usize);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    static CONSTANT: [u8; 100] = [7; 100];

    #[test]
    fn constants_are_found_and_variables_are_not() {
        let variable = std::hint::black_box(Box::new(7));
        let (mut constant, mut other) = (false, false);
        for_each_read_only_segment(&mut |start, len_bytes| {
            let holds = |address: usize| address.wrapping_sub(start) < len_bytes;
            constant |= holds(std::hint::black_box(&CONSTANT).as_ptr() as usize);
            other |= holds((&raw const *variable) as usize) || holds(object as *const () as usize);
        });
        assert!(constant && !other);
    }
}

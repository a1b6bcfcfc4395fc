//! The ELF objects that are loaded: which of their memory is only read.

use core::ffi::{c_int, c_void};

/// Calls `each` for the memory of every loaded object that the object itself declares neither writable nor executable
/// (a `PT_LOAD` with `PF_R` alone: its constants): first address and bytes from the file.
///
/// Takes the loader's lock. For when the library is loaded, before any other thread exists.
pub fn for_each_constant(each: &mut dyn FnMut(usize, usize)) {
    let mut each = each;
    // SAFETY: the callback is of the right type and gets the closure, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut each).cast()) };
}

unsafe extern "C" fn object(found: *mut libc::dl_phdr_info, _size: usize, each: *mut c_void) -> c_int {
    // SAFETY: the loader passes an object that is loaded and its program headers; `each` is what the caller gave.
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
        for_each_constant(&mut |start, len_bytes| {
            let holds = |address: usize| address.wrapping_sub(start) < len_bytes;
            constant |= holds(std::hint::black_box(&CONSTANT).as_ptr() as usize);
            other |= holds((&raw const *variable) as usize) || holds(object as *const () as usize);
        });
        assert!(constant && !other);
    }
}

//! Finds the loaded object that contains an address, and the unwind table entry for the address.
//!
//! A hook must not wait for a lock of the loader, which may be held by a thread that waits for this one, or
//! may have been held when this process was forked. Nor may a hook touch tables that another thread unmaps in
//! `dlclose`. So objects come from `_dl_find_object` (glibc 2.35), which is lock-free and async-signal-safe,
//! or on older glibc from the debugger's list of objects. Tables are read through the kernel
//! ([`uncopy_sys::peek`]), which returns an error for memory that is unmapped.

use crate::link_map::{self, Object, read_i32};
use crate::tables::Entry;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_sys::peek::{peek, word};

/// `struct dl_find_object` of glibc's dlfcn.h on 64-bit machines where it has neither `dlfo_eh_dbase` nor
/// `dlfo_eh_count`, such as x86-64.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link_map: usize,
    eh_frame_header: usize,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(*mut c_void, *mut Found) -> c_int;

static FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);
/// Address of the loader's `struct r_debug`.
static DEBUG: AtomicUsize = AtomicUsize::new(0);

/// Resolves the loader symbols that [`object_at`] uses. Takes the loader's locks.
pub fn init() {
    // SAFETY: dlsym(3) needs a valid handle, as RTLD_DEFAULT is, and NUL-terminated names, as C literals are.
    unsafe {
        let find_object = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        FIND_OBJECT.store(find_object as usize, Relaxed);
        DEBUG.store(libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) as usize, Relaxed);
    }
}

/// Returns the loaded object that contains `address`. Takes no locks.
pub fn object_at(address: usize) -> Option<Object> {
    let function = FIND_OBJECT.load(Relaxed);
    if function == 0 {
        return link_map::object_in_debug_list(DEBUG.load(Relaxed), address);
    }
    // SAFETY: the nonzero address comes from dlsym("_dl_find_object"), so it is glibc's function of this
    // type.
    let function = unsafe { transmute::<usize, FindObject>(function) };
    let mut found = Found { flags: 0, start: 0, end: 0, link_map: 0, eh_frame_header: 0, reserved: [0; 7] };
    // SAFETY: `_dl_find_object` accepts any address and writes only to `found`, which has glibc's layout. The
    // function is async-signal-safe and takes no locks (glibc manual, "Dynamic Linker Introspection").
    if unsafe { function(address as *mut c_void, &raw mut found) } != 0 {
        return None;
    }
    // The first word of `struct link_map` is the load bias (glibc's link.h).
    let bias = word(found.link_map)?;
    let Found { start, end, link_map, eh_frame_header, .. } = found;
    Some(Object { start, end, bias, eh_frame_header, link_map })
}

/// Maximum bytes of a frame description entry. Longer ones belong to functions of several hundred KiB.
const MAX_FDE_BYTES: usize = 60 << 10;
/// Maximum length of a common information entry in bytes.
const MAX_CIE_BYTES: usize = 4 << 10;
/// Size in bytes of the buffer that [`entry`] needs.
pub const BUFFER_BYTES: usize = MAX_FDE_BYTES + MAX_CIE_BYTES;

/// Version and encodings that all linkers write: a 4-byte PC-relative frame pointer, a 4-byte count, and a
/// sorted table of 4-byte pairs relative to the header (Linux Standard Base, core generic, §10.6.2).
const VERSION_AND_ENCODINGS: [u8; 4] = [1, 0x1B, 0x03, 0x3B];
const TABLE_OFFSET: usize = 12;
const PAIR_BYTES: usize = 8;
/// Table pairs read at once.
const PAIRS: usize = 64;

pub enum Search<'a> {
    /// The entry at or before the address. Its range may end before the address.
    Entry(Entry<'a>),
    /// The object has no such entry, or its tables have an unsupported form.
    Missing,
    /// The tables could not be read at this time.
    Unreadable,
}

/// Returns the object's entry that begins at or before `address`. `buffer` must have [`BUFFER_BYTES`] bytes.
pub fn entry<'a>(object: &Object, address: usize, buffer: &'a mut [u8]) -> Search<'a> {
    let header = object.eh_frame_header;
    if header == 0 {
        return Search::Missing;
    }
    let mut head = [0; TABLE_OFFSET];
    if !read_exact(header, &mut head) {
        return Search::Unreadable;
    }
    if head[..4] != VERSION_AND_ENCODINGS {
        return Search::Missing;
    }
    let count = read_i32(&head[8..]).cast_unsigned() as usize;
    let Ok(wanted) = i32::try_from(address.wrapping_sub(header).cast_signed()) else {
        return Search::Missing;
    };
    match search_table(header, count, wanted) {
        Ok(Some(offset)) => read_entry(header.wrapping_add_signed(offset as isize), buffer),
        Ok(None) => Search::Missing,
        Err(()) => Search::Unreadable,
    }
}

/// Returns the second number of the table's last pair whose first number is at most `wanted`.
fn search_table(header: usize, count: usize, wanted: i32) -> Result<Option<i32>, ()> {
    let (mut low, mut high) = (0, count);
    let at = |index: usize| header.wrapping_add(TABLE_OFFSET + index * PAIR_BYTES);
    // Invariant: the first pair above `wanted` is in low..=high.
    while high - low > PAIRS {
        let middle = low + (high - low) / 2;
        let mut pair = [0; PAIR_BYTES];
        if !read_exact(at(middle), &mut pair) {
            return Err(());
        }
        if read_i32(&pair) <= wanted { low = middle + 1 } else { high = middle }
    }
    // The pair before `low` may be the last one at or below `wanted`.
    let first = low.saturating_sub(1);
    let mut pairs = [0; (PAIRS + 1) * PAIR_BYTES];
    let pairs = &mut pairs[..(high - first) * PAIR_BYTES];
    if !read_exact(at(first), pairs) {
        return Err(());
    }
    let mut found = None;
    for pair in pairs.chunks_exact(PAIR_BYTES) {
        if read_i32(pair) <= wanted {
            found = Some(read_i32(&pair[4..]));
        }
    }
    Ok(found)
}

/// Reads the frame description entry at `fde_address` and its common information entry.
fn read_entry(fde_address: usize, buffer: &mut [u8]) -> Search<'_> {
    let (cie, fde) = buffer.split_at_mut(MAX_CIE_BYTES);
    let fde_len = match entry_length(fde_address) {
        Some(len) if len <= MAX_FDE_BYTES => len,
        Some(_) => return Search::Missing,
        None => return Search::Unreadable,
    };
    let fde = &mut fde[..fde_len];
    if fde_len < 8 {
        return Search::Missing;
    }
    if !read_exact(fde_address, fde) {
        return Search::Unreadable;
    }
    // The second field of the entry is the distance from itself back to the common entry.
    let back = read_i32(&fde[4..]).cast_unsigned() as usize;
    let cie_address = (fde_address + 4).wrapping_sub(back);
    let cie_len = match entry_length(cie_address) {
        Some(len) if back != 0 && len <= MAX_CIE_BYTES => len,
        Some(_) => return Search::Missing,
        None => return Search::Unreadable,
    };
    if !read_exact(cie_address, &mut cie[..cie_len]) {
        return Search::Unreadable;
    }
    // In `buffer` the common entry is at offset 0, so the distance is adjusted.
    fde[4..8].copy_from_slice(&(MAX_CIE_BYTES + 4).to_le_bytes()[..4]);
    let bytes = &buffer[..MAX_CIE_BYTES + fde_len];
    Search::Entry(Entry { bytes, fde_offset: MAX_CIE_BYTES, fde_address })
}

/// Returns the length of the entry at an address, including the length field; `None` if unreadable.
fn entry_length(address: usize) -> Option<usize> {
    let mut field = [0; 4];
    // The escape value 0xFFFFFFFF, which announces a 64-bit length, exceeds all limits here.
    read_exact(address, &mut field).then(|| read_i32(&field).cast_unsigned() as usize + field.len())
}

fn read_exact(address: usize, bytes: &mut [u8]) -> bool {
    peek(address, bytes) == Ok(bytes.len())
}

//! The loaded object that an address lies in, and the entry of its tables that describes the address.
//!
//! Two things must not happen in a hook: waiting for a lock of the loader's, which may be held by a thread that waits for
//! us (or was held when this process was forked), and reading tables that another thread unmaps by `dlclose`. So the
//! object comes from `_dl_find_object` (glibc 2.35), which is lock-free and made for signal handlers, or, before that,
//! from a walk along the debugger's list of objects; and every byte of tables is read by the kernel on our behalf
//! ([`uncopy_sys::peek`]), which finds memory that is gone to be an error.

use crate::list::{self, Object, number};
use crate::tables::Entry;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use uncopy_sys::peek::{peek, word};

/// `struct dl_find_object` (glibc's dlfcn.h, x86-64).
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
/// The loader's `struct r_debug`.
static DEBUG: AtomicUsize = AtomicUsize::new(0);

/// Looks up what [`find`] needs. Takes the loader's locks.
pub fn begin() {
    // SAFETY: the symbols are terminated.
    unsafe {
        let find_object = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        FIND_OBJECT.store(find_object as usize, Relaxed);
        DEBUG.store(libc::dlsym(libc::RTLD_DEFAULT, c"_r_debug".as_ptr()) as usize, Relaxed);
    }
}

/// The object that an address lies in.
pub fn find(address: usize) -> Option<Object> {
    let function = FIND_OBJECT.load(Relaxed);
    if function == 0 {
        return list::find(DEBUG.load(Relaxed), address);
    }
    // SAFETY: glibc's function of that name.
    let function = unsafe { transmute::<usize, FindObject>(function) };
    let mut found = Found { flags: 0, start: 0, end: 0, link_map: 0, eh_frame_header: 0, reserved: [0; 7] };
    // SAFETY: takes any address, fills the structure in; safe in signal handlers and without locks (glibc's manual,
    // "Dynamic Linker Introspection").
    if unsafe { function(address as *mut c_void, &raw mut found) } != 0 {
        return None;
    }
    // Its first word is what addresses are off by (glibc's link.h).
    let bias = word(found.link_map)?;
    let Found { start, end, link_map, eh_frame_header, .. } = found;
    Some(Object { start, end, bias, eh_frame_header, link_map })
}

/// Bytes of an entry at most. Larger ones are of functions of several hundred KiB.
const MAX_ENTRY: usize = 60 << 10;
/// Bytes of the entry that others share.
const MAX_COMMON: usize = 4 << 10;
/// Bytes that are needed for reading entries.
pub const ROOM_BYTES: usize = MAX_ENTRY + MAX_COMMON;

/// The encodings that every linker writes: relative to the field, four bytes each; a table of pairs relative to the header,
/// sorted (Linux Standard Base, core generic, §10.6.2).
const VERSION_AND_ENCODINGS: [u8; 4] = [1, 0x1B, 0x03, 0x3B];
const TABLE_OFFSET: usize = 12;
const PAIR_BYTES: usize = 8;
/// Pairs that are read at once.
const PAIRS: usize = 64;

/// What reading of tables may find.
pub enum Search<'a> {
    /// The entry that describes the address, if its range reaches so far.
    Entry(Entry<'a>),
    /// The object has none, or not in this form.
    Nothing,
    /// The tables could not be read just now.
    Unread,
}

/// The entry of an object that begins at or before `address`. `room` is of [`ROOM_BYTES`].
pub fn entry<'a>(object: &Object, address: usize, room: &'a mut [u8]) -> Search<'a> {
    let header = object.eh_frame_header;
    if header == 0 {
        return Search::Nothing;
    }
    let mut head = [0; TABLE_OFFSET];
    if !fill(header, &mut head) {
        return Search::Unread;
    }
    if head[..4] != VERSION_AND_ENCODINGS {
        return Search::Nothing;
    }
    let count = number(&head[8..]).cast_unsigned() as usize;
    let Ok(wanted) = i32::try_from(address.wrapping_sub(header).cast_signed()) else {
        return Search::Nothing;
    };
    match in_table(header, count, wanted) {
        Ok(Some(offset)) => read(header.wrapping_add_signed(offset as isize), room),
        Ok(None) => Search::Nothing,
        Err(()) => Search::Unread,
    }
}

/// What belongs to the last pair of the table whose first number is not above `wanted`.
fn in_table(header: usize, count: usize, wanted: i32) -> Result<Option<i32>, ()> {
    let (mut low, mut high) = (0, count);
    let at = |index: usize| header.wrapping_add(TABLE_OFFSET + index * PAIR_BYTES);
    // In low..high is the first pair above `wanted`, or it is the one at `high`.
    while high - low > PAIRS {
        let middle = low + (high - low) / 2;
        let mut pair = [0; PAIR_BYTES];
        if !fill(at(middle), &mut pair) {
            return Err(());
        }
        if number(&pair) <= wanted { low = middle + 1 } else { high = middle }
    }
    // The pair before may be the one that is looked for.
    let first = low.saturating_sub(1);
    let mut pairs = [0; (PAIRS + 1) * PAIR_BYTES];
    let pairs = &mut pairs[..(high - first) * PAIR_BYTES];
    if !fill(at(first), pairs) {
        return Err(());
    }
    let mut found = None;
    for pair in pairs.chunks_exact(PAIR_BYTES) {
        if number(pair) <= wanted {
            found = Some(number(&pair[4..]));
        }
    }
    Ok(found)
}

/// Reads the frame description entry at an address, and its common information entry.
fn read(fde_address: usize, room: &mut [u8]) -> Search<'_> {
    let (common, own) = room.split_at_mut(MAX_COMMON);
    let fde_len = match length(fde_address) {
        Some(len) if len <= MAX_ENTRY => len,
        Some(_) => return Search::Nothing,
        None => return Search::Unread,
    };
    let own = &mut own[..fde_len];
    if fde_len < 8 {
        return Search::Nothing;
    }
    if !fill(fde_address, own) {
        return Search::Unread;
    }
    // The field says how far before itself the common entry begins.
    let back = number(&own[4..]).cast_unsigned() as usize;
    let common_address = (fde_address + 4).wrapping_sub(back);
    let common_len = match length(common_address) {
        Some(len) if back != 0 && len <= MAX_COMMON => len,
        Some(_) => return Search::Nothing,
        None => return Search::Unread,
    };
    if !fill(common_address, &mut common[..common_len]) {
        return Search::Unread;
    }
    // Here it begins at the room's beginning.
    own[4..8].copy_from_slice(&(MAX_COMMON + 4).to_le_bytes()[..4]);
    let bytes = &room[..MAX_COMMON + fde_len];
    Search::Entry(Entry { bytes, fde_offset: MAX_COMMON, fde_address })
}

/// The length of the entry at an address with the field that says so; `None` if it cannot be read.
fn length(address: usize) -> Option<usize> {
    let mut field = [0; 4];
    // 0xFFFFFFFF, which says that a longer field follows, is beyond every limit here.
    fill(address, &mut field).then(|| number(&field).cast_unsigned() as usize + field.len())
}

fn fill(address: usize, bytes: &mut [u8]) -> bool {
    peek(address, bytes) == Ok(bytes.len())
}

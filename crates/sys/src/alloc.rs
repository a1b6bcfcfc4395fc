//! The allocator for uncopy's own data: never the program's heap, never its locks.
//!
//! Rust's containers end the process when they get no memory, which must not happen to a program
//! because of us. So this allocator keeps a reserve, part of the library's own image: when the kernel
//! refuses memory, what is asked for comes from there and [`is_low`] says so from then on. The engine
//! then makes no new views and turns those that exist back into plain memory, for which the reserve is
//! large enough: that takes views and segments away and adds a few extents and handles.

use crate::call::{kernel, syscall};
use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// dlmalloc's mark of memory that is not its own.
const EXTERNAL: u32 = 1;
const RESERVE_BYTES: usize = 1 << 20;

/// Pages of the library's own image that are never touched, and so take no memory, unless they are needed.
#[repr(C, align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE_BYTES]>,
    used_bytes: AtomicUsize,
}

// SAFETY: each byte is handed out once, to the heap, which is only touched under its lock.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; RESERVE_BYTES]), used_bytes: AtomicUsize::new(0) }
    }

    fn contains(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.bytes.get() as usize) < RESERVE_BYTES
    }

    /// Zeroed bytes; null if there are not so many.
    fn take(&self, len_bytes: usize) -> *mut u8 {
        let taken = self.used_bytes.fetch_update(Relaxed, Relaxed, |used| {
            used.checked_add(len_bytes).filter(|used| *used <= RESERVE_BYTES)
        });
        taken.map_or(core::ptr::null_mut(), |used| self.bytes.get().cast::<u8>().wrapping_add(used))
    }
}

/// For when the kernel refuses memory.
static RESERVE: Reserve = Reserve::new();
/// What a forked child begins with. The kernel's choice for a new mapping would be the highest gap, which may be where the program has
/// kept memory from its children (MADV_DONTFORK) and maps something there itself.
static OF_CHILDREN: Reserve = Reserve::new();
/// The process that has made the first mapping, not one that was forked from it.
static FIRST_PROCESS: AtomicU32 = AtomicU32::new(0);
static LOW: AtomicBool = AtomicBool::new(false);

/// Whether the kernel has refused memory for uncopy's own data.
#[inline]
#[must_use]
pub fn is_low() -> bool {
    LOW.load(Relaxed)
}

/// Where the heap gets its pages from.
struct Pages;

impl Pages {
    fn in_image(pointer: *mut u8) -> bool {
        RESERVE.contains(pointer) || OF_CHILDREN.contains(pointer)
    }

    /// Whether this process was forked from the one that began to allocate.
    fn is_in_child() -> bool {
        let process = std::process::id();
        let first = FIRST_PROCESS.compare_exchange(0, process, Relaxed, Relaxed);
        first.is_err_and(|first| first != process)
    }
}

// SAFETY: what is returned is mapped, zero, page-aligned and nobody else's until it is given back.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let _errno = crate::errno::Keep::new();
        let whole = size.next_multiple_of(self.page_size());
        if Self::is_in_child() {
            let taken = OF_CHILDREN.take(whole);
            if !taken.is_null() {
                return (taken, size, EXTERNAL);
            }
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let mapped =
            unsafe { kernel!(Map, libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0)) };
        if mapped == libc::MAP_FAILED {
            // Not to be given back, and not to be joined with a mapping that happens to lie next to it.
            LOW.store(true, Relaxed);
            (RESERVE.take(whole), size, EXTERNAL)
        } else {
            (mapped.cast(), size, 0)
        }
    }

    fn remap(&self, pointer: *mut u8, old_size: usize, new_size: usize, can_move: bool) -> *mut u8 {
        if Self::in_image(pointer) {
            return core::ptr::null_mut();
        }
        let _errno = crate::errno::Keep::new();
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: a mapping that `alloc` made; the system call itself, because the library interposes on
        // libc's function.
        let moved = unsafe { kernel!(Remap, syscall!(libc::SYS_mremap, pointer, old_size, new_size, flags)) };
        if moved == -1 { core::ptr::null_mut() } else { moved as *mut u8 }
    }

    fn free_part(&self, pointer: *mut u8, old_size: usize, new_size: usize) -> bool {
        self.free(pointer.wrapping_add(new_size), old_size - new_size)
    }

    fn free(&self, pointer: *mut u8, size: usize) -> bool {
        let _errno = crate::errno::Keep::new();
        // SAFETY: a mapping that `alloc` made, or the end of one, of which nothing is in use.
        !Self::in_image(pointer) && unsafe { kernel!(Unmap, syscall!(libc::SYS_munmap, pointer, size)) } == 0
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        crate::PAGE_BYTES
    }
}

/// Blocks up to here are kept by threads, bytes.
const SMALL_BYTES: usize = 256;
/// Small blocks have a multiple of this length, bytes.
const STEP_BYTES: usize = 32;
const SIZES: usize = SMALL_BYTES / STEP_BYTES;
/// Free blocks of one size that a lane keeps at most.
const MAX_KEPT: usize = 8;
const LANES: usize = 16;

/// Free blocks of one size.
struct Kept {
    count: usize,
    blocks: [*mut u8; MAX_KEPT],
}

/// Small free blocks of a few threads, mostly one.
#[repr(align(128))]
struct Lane {
    /// Only ever tried: whoever finds it taken goes to the heap, also in a forked child whose parent had it.
    lock: Lock,
    kept: UnsafeCell<[Kept; SIZES]>,
}

impl Lane {
    const fn new() -> Self {
        let kept = [const { Kept { count: 0, blocks: [core::ptr::null_mut(); MAX_KEPT] } }; SIZES];
        Self { lock: Lock::new(), kept: UnsafeCell::new(kept) }
    }

    /// What `section` makes of the free blocks of a size; `None` if another thread is at it.
    fn with<T>(&self, size: usize, section: impl FnOnce(&mut Kept) -> T) -> Option<T> {
        if !self.lock.try_lock() {
            return None;
        }
        // SAFETY: under the lock, so this is the only reference.
        let result = section(unsafe { &mut (*self.kept.get())[size] });
        self.lock.unlock();
        Some(result)
    }
}

/// Index of the size of small blocks that serves a layout.
fn small(layout: Layout) -> Option<usize> {
    let is_small = layout.size() <= SMALL_BYTES && layout.align() <= 16;
    is_small.then(|| layout.size().saturating_sub(1) / STEP_BYTES)
}

/// A dlmalloc of our own behind a lock of our own, and lanes in front of it in which threads find small blocks
/// without that lock.
pub struct Private {
    lock: Lock,
    heap: UnsafeCell<dlmalloc::Dlmalloc<Pages>>,
    lanes: [Lane; LANES],
}

// SAFETY: the heap is only touched under the lock, and what a lane keeps under the lane's.
unsafe impl Sync for Private {}
// SAFETY: blocks belong to no thread: whichever takes a lock may free what another has allocated.
unsafe impl Send for Private {}

impl Default for Private {
    fn default() -> Self {
        Self::new()
    }
}

impl Private {
    /// An allocator that has not asked the kernel for anything yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lock: Lock::new(),
            heap: UnsafeCell::new(dlmalloc::Dlmalloc::new_with_allocator(Pages)),
            lanes: [const { Lane::new() }; LANES],
        }
    }

    /// The lock, to be held across a fork.
    #[must_use]
    pub const fn lock(&self) -> &Lock {
        &self.lock
    }

    fn with<T>(&self, section: impl FnOnce(&mut dlmalloc::Dlmalloc<Pages>) -> T) -> T {
        let _guard = self.lock.guard();
        // SAFETY: under the lock, so this is the only reference.
        section(unsafe { &mut *self.heap.get() })
    }

    fn lane(&self) -> &Lane {
        &self.lanes[crate::thread::number() as usize % LANES]
    }

    /// The layout that the heap is asked for.
    fn in_heap(layout: Layout) -> Layout {
        match small(layout).map(|size| Layout::from_size_align((size + 1) * STEP_BYTES, layout.align())) {
            Some(Ok(whole)) => whole,
            _ => layout,
        }
    }
}

// SAFETY: dlmalloc returns blocks of the asked size and alignment, or null; a lane holds blocks of its size that
// are aligned as every block of dlmalloc is, to 16 bytes.
unsafe impl GlobalAlloc for Private {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(size) = small(layout) {
            let take = |kept: &mut Kept| {
                kept.count = kept.count.checked_sub(1)?;
                Some(kept.blocks[kept.count])
            };
            if let Some(Some(block)) = self.lane().with(size, take) {
                return block;
            }
        }
        let layout = Self::in_heap(layout);
        // SAFETY: dlmalloc takes any size and any power-of-two alignment.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let layout = Self::in_heap(layout);
        // SAFETY: dlmalloc takes any size and any power-of-two alignment.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(size) = small(layout) {
            let keep = |kept: &mut Kept| {
                let has_room = kept.count < MAX_KEPT;
                if has_room {
                    kept.blocks[kept.count] = pointer;
                    kept.count += 1;
                }
                has_room
            };
            if self.lane().with(size, keep) == Some(true) {
                return;
            }
        }
        let layout = Self::in_heap(layout);
        // SAFETY: the caller passes what `alloc` returned for this layout.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let old = Self::in_heap(layout);
        let Ok(new) = Layout::from_size_align(new_size, layout.align()) else { return core::ptr::null_mut() };
        let new = Self::in_heap(new);
        // SAFETY: the caller passes what `alloc` returned for this layout. What is small before or after is of the same
        // length to the heap and to lanes.
        self.with(|heap| unsafe { heap.realloc(pointer, old.size(), old.align(), new.size()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Blocks that wander between threads, each filled with its own byte while it is in use.
    #[test]
    fn no_block_has_two_owners_and_all_keep_their_bytes() {
        let private = Arc::new(Private::new());
        let (send, receive) = std::sync::mpsc::channel::<(usize, Layout, u8)>();
        let receive = Arc::new(std::sync::Mutex::new(receive));
        let check = |private: &Private, (block, layout, byte): (usize, Layout, u8)| {
            // SAFETY: the block has the layout's length and is this thread's; it was filled.
            unsafe {
                let bytes = core::slice::from_raw_parts(block as *const u8, layout.size());
                assert!(bytes.iter().all(|found| *found == byte));
                private.dealloc(block as *mut u8, layout);
            }
        };
        let threads: Vec<_> = (0u8..4)
            .map(|byte| {
                let (private, send, receive) = (Arc::clone(&private), send.clone(), Arc::clone(&receive));
                std::thread::spawn(move || {
                    for round in 0..4_000usize {
                        let size = 1 + round * 37 % 600;
                        let layout = Layout::from_size_align(size, 8).expect("a layout");
                        // SAFETY: a layout of some bytes; the new block is this thread's.
                        let block = unsafe {
                            let mut block = if round % 5 == 0 {
                                let block = private.alloc_zeroed(layout);
                                assert!((0..size).all(|at| block.add(at).read() == 0));
                                block
                            } else {
                                private.alloc(layout)
                            };
                            block.write_bytes(byte, size);
                            if round % 7 == 0 {
                                block = private.realloc(block, layout, size * 2);
                                assert!((0..size).all(|at| block.add(at).read() == byte));
                                block.write_bytes(byte, size * 2);
                            }
                            block as usize
                        };
                        let size = if round % 7 == 0 { size * 2 } else { size };
                        let layout = Layout::from_size_align(size, 8).expect("a layout");
                        send.send((block, layout, byte)).expect("the receiver lives");
                        if round % 3 != 0 {
                            let block = receive.lock().expect("not poisoned").recv().expect("a block");
                            check(&private, block);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("thread ends"));
        drop(send);
        while let Ok(block) = receive.lock().expect("not poisoned").recv() {
            check(&private, block);
        }
    }
}

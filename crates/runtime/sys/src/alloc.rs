//! The allocator for uncopy's own data, which uses neither the program's heap nor its locks.
//!
//! Rust's containers abort the process when an allocation fails, which must not happen to a program because
//! of the library. So this allocator has a reserve, part of the library's image: if the kernel refuses
//! memory, allocations come from the reserve, and [`is_low`] is true from then on. The engine then makes no
//! new views and turns existing ones into plain memory. The reserve is large enough for that, because it
//! frees views and segments and adds only a few extents and handles.

use crate::call::{kernel, syscall};
use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// dlmalloc's flag for memory that did not come from `Pages`.
const EXTERNAL: u32 = 1;
const RESERVE_BYTES: usize = 1 << 20;

/// Pages of the library's image, which take no memory unless they are used.
#[repr(C, align(4096))]
struct Reserve {
    bytes: UnsafeCell<[u8; RESERVE_BYTES]>,
    used_bytes: AtomicUsize,
}

// SAFETY: `used_bytes` is atomic, and each byte is given out once, to the heap, which has a lock.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Self {
        Self { bytes: UnsafeCell::new([0; RESERVE_BYTES]), used_bytes: AtomicUsize::new(0) }
    }

    fn contains(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(self.bytes.get() as usize) < RESERVE_BYTES
    }

    /// Returns zeroed bytes, or null if too few are left.
    fn take(&self, len_bytes: usize) -> *mut u8 {
        let taken = self.used_bytes.fetch_update(Relaxed, Relaxed, |used| {
            used.checked_add(len_bytes).filter(|used| *used <= RESERVE_BYTES)
        });
        taken.map_or(core::ptr::null_mut(), |used| self.bytes.get().cast::<u8>().wrapping_add(used))
    }
}

/// Reserve for the case that the kernel refuses memory.
static RESERVE: Reserve = Reserve::new();
/// Memory that a forked child uses first. A new mapping would get the highest gap, which may be where the
/// program has memory that children do not inherit (MADV_DONTFORK), and where it maps something itself.
static CHILD_RESERVE: Reserve = Reserve::new();
/// Id of the process that made the first mapping, which its forked children do not change.
static FIRST_PROCESS: AtomicU32 = AtomicU32::new(0);
static LOW: AtomicBool = AtomicBool::new(false);

/// Whether the kernel has refused memory for uncopy's own data.
#[inline]
#[must_use]
pub fn is_low() -> bool {
    LOW.load(Relaxed)
}

struct Pages;

impl Pages {
    fn in_image(pointer: *mut u8) -> bool {
        RESERVE.contains(pointer) || CHILD_RESERVE.contains(pointer)
    }

    /// Whether this process was forked from the one that began to allocate.
    fn is_in_child() -> bool {
        let process = std::process::id();
        let first = FIRST_PROCESS.compare_exchange(0, process, Relaxed, Relaxed);
        first.is_err_and(|first| first != process)
    }
}

// SAFETY: the memory returned is mapped, zeroed, page-aligned, and the heap's alone until freed.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let _errno = crate::errno::SavedErrno::new();
        let whole = size.next_multiple_of(self.page_size());
        if Self::is_in_child() {
            let taken = CHILD_RESERVE.take(whole);
            if !taken.is_null() {
                return (taken, size, EXTERNAL);
            }
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without MAP_FIXED the mapping replaces nothing.
        let mapped =
            unsafe { kernel!(Map, libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0)) };
        if mapped == libc::MAP_FAILED {
            // EXTERNAL: dlmalloc neither frees this memory nor joins it with an adjacent mapping.
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
        let _errno = crate::errno::SavedErrno::new();
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        // SAFETY: `pointer` is a mapping that `alloc` made. A direct system call, because the
        // library interposes on libc's function.
        let moved = unsafe { kernel!(Remap, syscall!(libc::SYS_mremap, pointer, old_size, new_size, flags)) };
        if moved == -1 { core::ptr::null_mut() } else { moved as *mut u8 }
    }

    fn free_part(&self, pointer: *mut u8, old_size: usize, new_size: usize) -> bool {
        self.free(pointer.wrapping_add(new_size), old_size - new_size)
    }

    fn free(&self, pointer: *mut u8, size: usize) -> bool {
        let _errno = crate::errno::SavedErrno::new();
        // SAFETY: the range is a mapping that `alloc` made, or the end of one, and is not in use.
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

/// Maximum length of the blocks that threads cache, bytes.
const SMALL_BYTES: usize = 256;
/// Cached blocks have a multiple of this length, bytes.
const STEP_BYTES: usize = 32;
const SIZES: usize = SMALL_BYTES / STEP_BYTES;
/// Maximum number of free blocks of one size in a cache.
const MAX_CACHED: usize = 8;
const CACHES: usize = 16;

/// Free blocks of one size.
struct FreeBlocks {
    count: usize,
    blocks: [*mut u8; MAX_CACHED],
}

/// Cache of small free blocks for a few threads, mostly one.
#[repr(align(128))]
struct Cache {
    /// Only tried: a thread that finds the lock taken, perhaps by its parent before a fork, uses the heap.
    lock: Lock,
    kept: UnsafeCell<[FreeBlocks; SIZES]>,
}

impl Cache {
    const fn new() -> Self {
        let kept = [const { FreeBlocks { count: 0, blocks: [core::ptr::null_mut(); MAX_CACHED] } }; SIZES];
        Self { lock: Lock::new(), kept: UnsafeCell::new(kept) }
    }

    /// Returns the result of `section` on the free blocks of a size; `None` if another thread holds the lock.
    fn with<T>(&self, size: usize, section: impl FnOnce(&mut FreeBlocks) -> T) -> Option<T> {
        if !self.lock.try_lock() {
            return None;
        }
        // SAFETY: this thread holds the cache's lock, so this is the only reference.
        let result = section(unsafe { &mut (*self.kept.get())[size] });
        self.lock.unlock();
        Some(result)
    }
}

/// Returns the index of the size of small blocks that serves a layout.
fn small(layout: Layout) -> Option<usize> {
    let is_small = layout.size() <= SMALL_BYTES && layout.align() <= 16;
    is_small.then(|| layout.size().saturating_sub(1) / STEP_BYTES)
}

/// A dlmalloc with a lock of its own, and caches in front of it, from which threads get small
/// blocks without that lock.
pub struct PrivateHeap {
    lock: Lock,
    heap: UnsafeCell<dlmalloc::Dlmalloc<Pages>>,
    caches: [Cache; CACHES],
}

// SAFETY: the heap is accessed only under the lock, and each cache under its own lock.
unsafe impl Sync for PrivateHeap {}
// SAFETY: blocks are bound to no thread: any thread that takes the lock may free them.
unsafe impl Send for PrivateHeap {}

impl Default for PrivateHeap {
    fn default() -> Self {
        Self::new()
    }
}

impl PrivateHeap {
    /// Returns an allocator that has not asked the kernel for memory yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lock: Lock::new(),
            heap: UnsafeCell::new(dlmalloc::Dlmalloc::new_with_allocator(Pages)),
            caches: [const { Cache::new() }; CACHES],
        }
    }

    /// The heap's lock, to be held across a fork.
    #[must_use]
    pub const fn lock(&self) -> &Lock {
        &self.lock
    }

    fn with<T>(&self, section: impl FnOnce(&mut dlmalloc::Dlmalloc<Pages>) -> T) -> T {
        let _guard = self.lock.guard();
        // SAFETY: this thread holds the heap's lock, so this is the only reference.
        section(unsafe { &mut *self.heap.get() })
    }

    fn own_cache(&self) -> &Cache {
        &self.caches[crate::thread::number() as usize % CACHES]
    }

    fn in_heap(layout: Layout) -> Layout {
        match small(layout).map(|size| Layout::from_size_align((size + 1) * STEP_BYTES, layout.align())) {
            Some(Ok(whole)) => whole,
            _ => layout,
        }
    }
}

// SAFETY: dlmalloc returns blocks of the requested size and alignment, or null. A cache holds
// blocks of its size, aligned to 16 bytes as all blocks of dlmalloc are.
unsafe impl GlobalAlloc for PrivateHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(size) = small(layout) {
            let take = |kept: &mut FreeBlocks| {
                kept.count = kept.count.checked_sub(1)?;
                Some(kept.blocks[kept.count])
            };
            if let Some(Some(block)) = self.own_cache().with(size, take) {
                return block;
            }
        }
        let layout = Self::in_heap(layout);
        // SAFETY: dlmalloc accepts any size and any power-of-two alignment.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let layout = Self::in_heap(layout);
        // SAFETY: dlmalloc accepts any size and any power-of-two alignment.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(size) = small(layout) {
            let keep = |kept: &mut FreeBlocks| {
                let has_room = kept.count < MAX_CACHED;
                if has_room {
                    kept.blocks[kept.count] = pointer;
                    kept.count += 1;
                }
                has_room
            };
            if self.own_cache().with(size, keep) == Some(true) {
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
        // SAFETY: the caller passes what `alloc` returned for this layout. `in_heap` gives small
        // layouts the length that heap and caches use.
        self.with(|heap| unsafe { heap.realloc(pointer, old.size(), old.align(), new.size()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Threads pass blocks to each other, each filled with its own byte while in use.
    #[test]
    fn no_block_has_two_owners_and_all_keep_their_bytes() {
        let private = Arc::new(PrivateHeap::new());
        let (send, receive) = std::sync::mpsc::channel::<(usize, Layout, u8)>();
        let receive = Arc::new(std::sync::Mutex::new(receive));
        let check = |private: &PrivateHeap, (block, layout, byte): (usize, Layout, u8)| {
            // SAFETY: the block has the layout's length, belongs to this thread, and was filled.
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
                        // SAFETY: the layout is not empty, and the new block belongs to this thread.
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

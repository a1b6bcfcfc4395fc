//! Functions that other allocators than glibc's define beside those of C and POSIX.
//!
//! A program may pass any pointer from `malloc` to its allocator's own functions (`sdallocx`, `tc_free`,
//! `mi_realloc`). So the library interposes on those that take a pointer. A function in no table here may
//! be one more of them; where one is defined, the block heap does not serve the program.

/// Passes the table of functions that the library interposes on to `$with!`, by how each treats a pointer.
///
/// | kind | arguments | a block of ours |
/// |---|---|---|
/// | `free` | pointer, … | is freed |
/// | `size` | pointer, … | has its usable size; is not resized in place |
/// | `resize` | pointer, … | moves to what the function itself allocates for a null pointer |
/// | `resize_or_free` | pointer, … | as `resize`; freed if that fails |
/// | `resize_zero_frees` | pointer, size | as `resize`; freed if the size is 0 |
/// | `heap_resize`, `heap_resize_or_free` | heap, pointer, … | as `resize`, `resize_or_free` |
/// | `resize_place` | address of the pointer, … | as `resize` |
/// | `resize_with_flags` | pointer, size, flags | moves to what `mallocx` allocates |
/// | `expand` | pointer, size | stays if it is large enough |
/// | `own`, `heap_own` | pointer; heap, pointer | is reported as the allocator's |
/// | `any` | none | no further block is allocated: the returned object can be asked about any pointer |
#[macro_export]
macro_rules! allocator_functions {
    ($with:ident) => {
        $with! {
            free: [
                dallocx, sdallocx, je_dallocx, je_sdallocx, sdallocx_noflags,
                tc_free, tc_cfree, tc_free_sized, tc_free_aligned_sized, tc_delete, tc_delete_aligned, tc_delete_aligned_nothrow,
                tc_delete_nothrow, tc_delete_sized, tc_delete_sized_aligned, tc_deletearray, tc_deletearray_aligned,
                tc_deletearray_aligned_nothrow, tc_deletearray_nothrow, tc_deletearray_sized,
                tc_deletearray_sized_aligned,
                mi_free, mi_cfree, mi_free_size, mi_free_aligned, mi_free_size_aligned,
                cfree, vfree, __libc_cfree,
                _ZdlPv, _ZdlPvm, _ZdlPvRKSt9nothrow_t, _ZdlPvSt11align_val_t, _ZdlPvmSt11align_val_t,
                _ZdlPvSt11align_val_tRKSt9nothrow_t,
                _ZdaPv, _ZdaPvm, _ZdaPvRKSt9nothrow_t, _ZdaPvSt11align_val_t, _ZdaPvmSt11align_val_t,
                _ZdaPvSt11align_val_tRKSt9nothrow_t,
            ];
            size: [
                sallocx, xallocx, je_sallocx, je_xallocx, malloc_size, tc_malloc_size, MallocExtension_GetAllocatedSize,
                mi_usable_size, mi_malloc_size, mi_malloc_usable_size,
            ];
            resize: [
                mi_realloc, mi_reallocn, mi_reallocarray, mi_realloc_aligned, mi_realloc_aligned_at,
                mi_rezalloc, mi_rezalloc_aligned, mi_rezalloc_aligned_at,
                mi_recalloc, mi_recalloc_aligned, mi_recalloc_aligned_at, mi_aligned_recalloc, mi_aligned_offset_recalloc,
                mi_new_realloc, mi_new_reallocn,
            ];
            resize_or_free: [reallocf, mi_reallocf];
            resize_zero_frees: [tc_realloc];
            heap_resize: [
                mi_heap_realloc, mi_heap_reallocn, mi_heap_realloc_aligned, mi_heap_realloc_aligned_at,
                mi_heap_rezalloc, mi_heap_rezalloc_aligned, mi_heap_rezalloc_aligned_at,
                mi_heap_recalloc, mi_heap_recalloc_aligned, mi_heap_recalloc_aligned_at,
            ];
            heap_resize_or_free: [mi_heap_reallocf];
            resize_place: [reallocarr, mi_reallocarr];
            resize_with_flags: [rallocx, je_rallocx];
            expand: [mi_expand, mi__expand];
            own: [
                mi_is_in_heap_region, mi_check_owned, MallocExtension_GetOwnership, MallocExtension_VerifyNewMemory,
                MallocExtension_VerifyArrayNewMemory, MallocExtension_VerifyMallocMemory,
            ];
            heap_own: [mi_heap_contains_block, mi_heap_check_owned];
            any: [_ZN15MallocExtension8instanceEv];
        }
    };
}

macro_rules! names {
    ($($kind:ident: [$($name:ident),* $(,)?];)*) => {
        /// Functions of other allocators than glibc's that the library interposes on.
        pub const INTERPOSED: &[&str] = &[$($(stringify!($name)),*),*];
    };
}

allocator_functions!(names);

/// Functions that need no interposing: the library has its own, or they take no pointer from `malloc`.
const HARMLESS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "free",
    "aligned_alloc",
    "posix_memalign",
    "memalign",
    "valloc",
    "pvalloc",
    "reallocarray",
    "malloc_usable_size",
    "free_sized",
    "free_aligned_sized",
    "__libc_free",
    "__libc_realloc",
    "__libc_malloc",
    "__libc_calloc",
    "__libc_memalign",
    "__libc_valloc",
    "__libc_pvalloc",
    "__posix_memalign",
    "_aligned_malloc",
    "mallinfo",
    "mallinfo2",
    "mallopt",
    "malloc_stats",
    "malloc_info",
    "malloc_trim",
    "malloc_good_size",
    "mmap",
    "mmap64",
    "munmap",
    "mremap",
    "sbrk",
    "brk",
    "pthread_create",
    "_init",
    "_fini",
    // Functions of jemalloc that take no pointer.
    "mallocx",
    "nallocx",
    "mallctl",
    "mallctlbymib",
    "mallctlnametomib",
    "malloc_stats_print",
    "je_mallocx",
    "je_nallocx",
    "je_mallctl",
    "je_mallctlbymib",
    "je_mallctlnametomib",
    "je_malloc_stats_print",
    // Functions of tcmalloc that take no pointer.
    "tc_malloc",
    "tc_calloc",
    "tc_memalign",
    "tc_posix_memalign",
    "tc_valloc",
    "tc_pvalloc",
    "tc_new",
    "tc_new_aligned",
    "tc_new_aligned_nothrow",
    "tc_new_nothrow",
    "tc_newarray",
    "tc_newarray_aligned",
    "tc_newarray_aligned_nothrow",
    "tc_newarray_nothrow",
    "tc_nallocx",
    "tc_mallinfo",
    "tc_mallinfo2",
    "tc_malloc_skip_new_handler",
    "tc_malloc_stats",
    "tc_mallopt",
    "tc_query_new_mode",
    "tc_set_new_mode",
    "tc_version",
    "MallocExtension_GetEstimatedAllocatedSize",
    "MallocExtension_GetNumericProperty",
    "MallocExtension_GetStats",
    "MallocExtension_GetThreadCacheSize",
    "MallocExtension_MallocMemoryStats",
    "MallocExtension_MarkThreadBusy",
    "MallocExtension_MarkThreadIdle",
    "MallocExtension_MarkThreadTemporarilyIdle",
    "MallocExtension_ReleaseFreeMemory",
    "MallocExtension_ReleaseToSystem",
    "MallocExtension_SetNumericProperty",
    "MallocExtension_VerifyAllMemory",
];

/// Prefixes of further harmless names: operator new, and mimalloc's allocation and configuration functions.
const HARMLESS_PREFIXES: &[&str] = &[
    "_Znw",
    "_Zna",
    "mi_aligned_alloc",
    "mi_arena_",
    "mi_calloc",
    "mi_collect",
    "mi_debug_",
    "mi_dupenv_s",
    "mi_good_size",
    "mi_heap_alloc_new",
    "mi_heap_calloc",
    "mi_heap_collect",
    "mi_heap_delete",
    "mi_heap_destroy",
    "mi_heap_get_",
    "mi_heap_malloc",
    "mi_heap_new",
    "mi_heap_realpath",
    "mi_heap_set_default",
    "mi_heap_str",
    "mi_heap_visit_blocks",
    "mi_heap_zalloc",
    "mi_is_redirected",
    "mi_malloc",
    "mi_manage_os_memory",
    "mi_mbsdup",
    "mi_memalign",
    "mi_new",
    "mi_option_",
    "mi_posix_memalign",
    "mi_process_",
    "mi_pvalloc",
    "mi_realpath",
    "mi_register_",
    "mi_reserve_",
    "mi_stats_",
    "mi_str",
    "mi_thread_",
    "mi_valloc",
    "mi_version",
    "mi_wcsdup",
    "mi_wdupenv_s",
    "mi_zalloc",
];

/// Families of allocators: name, and a function that only libraries of this family define.
pub const FAMILIES: &[(&str, &str)] =
    &[("jemalloc", "mallocx"), ("tcmalloc", "tc_malloc"), ("mimalloc", "mi_malloc")];

/// How the library treats a function that another allocator than glibc's defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The library interposes on it.
    Interposed,
    /// The library has a function of this name already, or needs none.
    Harmless,
    /// The function may take a pointer from `malloc`.
    Unknown,
}

/// Classifies a function by name.
#[must_use]
pub fn treatment(name: &[u8]) -> Treatment {
    let matches = |listed: &&str| listed.as_bytes() == name;
    if INTERPOSED.iter().any(matches) {
        Treatment::Interposed
    } else if HARMLESS.iter().any(matches)
        || HARMLESS_PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    {
        Treatment::Harmless
    } else {
        Treatment::Unknown
    }
}

/// Returns the allocator family that the function `name` identifies, if any.
#[must_use]
pub fn family(name: &[u8]) -> Option<&'static str> {
    FAMILIES.iter().find(|(_, marker)| marker.as_bytes() == name).map(|(family, _)| *family)
}

/// Sanitizers: name, and prefixes of library file names. They interpose on `malloc` and on system calls
/// themselves and must be the first of a program's libraries, so their programs run without this library.
const SANITIZERS: &[(&str, &[&str])] = &[
    ("AddressSanitizer", &["libasan.so", "libclang_rt.asan"]),
    ("ThreadSanitizer", &["libtsan.so", "libclang_rt.tsan"]),
    ("LeakSanitizer", &["liblsan.so", "libclang_rt.lsan"]),
    ("MemorySanitizer", &["libclang_rt.msan"]),
    ("HWAddressSanitizer", &["libhwasan.so", "libclang_rt.hwasan"]),
];

/// Returns the sanitizer whose library has this file name.
#[must_use]
pub fn sanitizer(file_name: &[u8]) -> Option<&'static str> {
    let matches = |prefixes: &[&str]| prefixes.iter().any(|prefix| file_name.starts_with(prefix.as_bytes()));
    SANITIZERS.iter().find(|(_, prefixes)| matches(prefixes)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_takes_a_pointer_is_never_harmless() {
        for name in ["sdallocx", "rallocx", "tc_free", "mi_free", "mi_heap_realloc", "_ZdlPv", "reallocf"] {
            assert_eq!(treatment(name.as_bytes()), Treatment::Interposed, "{name}");
        }
        for name in ["malloc", "nallocx", "mallctl", "mi_malloc", "_Znwm", "tc_malloc"] {
            assert_eq!(treatment(name.as_bytes()), Treatment::Harmless, "{name}");
        }
        for name in ["scalable_free", "rpfree", "mi_free_later", "dallocm", ""] {
            assert_eq!(treatment(name.as_bytes()), Treatment::Unknown, "{name}");
        }
        let mut names = INTERPOSED.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), INTERPOSED.len(), "a name is in the table once");
        assert!(!HARMLESS.iter().any(|name| INTERPOSED.contains(name)));
    }

    #[test]
    fn allocators_and_sanitizers_are_recognised_by_name() {
        assert_eq!(sanitizer(b"libasan.so.8"), Some("AddressSanitizer"));
        assert_eq!(sanitizer(b"libclang_rt.tsan-x86_64.so"), Some("ThreadSanitizer"));
        assert_eq!((sanitizer(b"libubsan.so.1"), sanitizer(b"libasan")), (None, None));
        assert_eq!((family(b"mallocx"), family(b"malloc")), (Some("jemalloc"), None));
    }
}

//! Classes of processor time, by the names of functions.

/// Kind of work that a sample's time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Copies by the program: memcpy, memmove and their kind.
    Copy,
    /// Copies by the kernel to the program.
    KernelCopyIn,
    /// Copies by the kernel from the program.
    KernelCopyOut,
    /// Memory that is set to zero or another value, by the program or the kernel.
    Zeroing,
    /// Page faults, without the zeroing of pages.
    PageFault,
    /// The allocator, and system calls that map and unmap memory.
    Allocator,
    /// Encryption and its authentication codes.
    Tls,
    /// Checksums and hashes of data.
    Checksum,
    /// Compression and decompression of data.
    Compression,
    /// Other time in the kernel.
    Kernel,
    /// Code of no other class.
    Other,
}

impl Class {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 11] = [
        Self::Copy,
        Self::KernelCopyIn,
        Self::KernelCopyOut,
        Self::Zeroing,
        Self::PageFault,
        Self::Allocator,
        Self::Tls,
        Self::Checksum,
        Self::Compression,
        Self::Kernel,
        Self::Other,
    ];

    /// Name of the class in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::KernelCopyIn => "kernel_copy_in",
            Self::KernelCopyOut => "kernel_copy_out",
            Self::Zeroing => "zeroing",
            Self::PageFault => "page_fault",
            Self::Allocator => "allocator",
            Self::Tls => "tls",
            Self::Checksum => "checksum",
            Self::Compression => "compression",
            Self::Kernel => "kernel",
            Self::Other => "other",
        }
    }

    /// Description in the terminal's report.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Copy => "copies in the program (memcpy, memmove)",
            Self::KernelCopyIn => "copies by the kernel, to the program",
            Self::KernelCopyOut => "copies by the kernel, from the program",
            Self::Zeroing => "zeroing of memory",
            Self::PageFault => "page faults",
            Self::Allocator => "allocator, mapping of memory",
            Self::Tls => "encryption (TLS)",
            Self::Checksum => "checksums and hashes",
            Self::Compression => "compression",
            Self::Kernel => "other time in the kernel",
            Self::Other => "everything else",
        }
    }
}

/// Removes the decoration of a name: underscores, and the words that libraries put around it.
fn core_name(name: &str) -> &str {
    let name = name.trim_start_matches('_');
    ["GI_", "libc_", "interceptor_", "asan_"]
        .iter()
        .fold(name, |name, prefix| name.strip_prefix(prefix).unwrap_or(name))
}

/// Whether a word begins `name` and ends there or at a separator.
fn has_word(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
}

const COPIES: [&str; 6] = ["memcpy", "memmove", "mempcpy", "wmemcpy", "wmemmove", "bcopy"];
const FILLS: [&str; 5] = ["memset", "wmemset", "bzero", "explicit_bzero", "memclrNoHeapPointers"];
const ALLOCATORS: [&str; 25] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "cfree",
    "int_malloc",
    "int_free",
    "int_realloc",
    "int_memalign",
    "malloc_consolidate",
    "unlink_chunk",
    "sysmalloc",
    "systrim",
    "tcache_init",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "malloc_usable_size",
    "je_malloc",
    "je_free",
    "mi_malloc",
    "mi_free",
    "tc_malloc",
    "tc_free",
    "ptmalloc_init",
];

/// Returns the class of a function of a program or library; `None` if its name says nothing.
///
/// `image` is the name of the file, without its directory.
pub fn of_function(name: &str, image: &str) -> Option<Class> {
    let core = core_name(name);
    let is_any = |words: &[&str]| words.iter().any(|word| has_word(core, word));
    if let Some(class) = of_go_function(name).or_else(|| of_jvm_stub(name)) {
        return Some(class);
    }
    if is_any(&COPIES) {
        return Some(Class::Copy);
    }
    if is_any(&FILLS) {
        return Some(Class::Zeroing);
    }
    let allocates = is_any(&ALLOCATORS)
        || name.starts_with("operator new")
        || name.starts_with("operator delete")
        || ["tcmalloc::", "je_arena", "je_tcache", "je_large", "arena_", "mi_page", "mi_heap", "mi_segment"]
            .iter()
            .any(|start| core.starts_with(start));
    if allocates {
        return Some(Class::Allocator);
    }
    of_transformation(core).or_else(|| of_library(image))
}

/// Returns the class of a function of Go's run time.
fn of_go_function(name: &str) -> Option<Class> {
    let name = name.strip_prefix("runtime.")?;
    match name {
        "memmove" | "memmove.abi0" => Some(Class::Copy),
        "memclrNoHeapPointers" | "memclrNoHeapPointersChunked" | "memclrHasPointers" => Some(Class::Zeroing),
        _ if name.starts_with("malloc") || name.starts_with("(*mcache)") || name.starts_with("(*mheap)") => {
            Some(Class::Allocator)
        }
        _ => None,
    }
}

/// Returns the class of a stub of the Java virtual machine, such as `jbyte_disjoint_arraycopy`.
fn of_jvm_stub(name: &str) -> Option<Class> {
    let name = name.strip_prefix("StubRoutines::").unwrap_or(name);
    if name.contains("arraycopy") && !name.contains("::") && !name.contains("slow") {
        return Some(Class::Copy);
    }
    if name.ends_with("_fill") && name.starts_with('j')
        || name.starts_with("arrayof_j") && name.ends_with("_fill")
    {
        return Some(Class::Zeroing);
    }
    match name {
        "updateBytesCRC32" | "updateBytesCRC32C" | "updateBytesAdler32" => Some(Class::Checksum),
        _ if name.starts_with("aescrypt_")
            || name.starts_with("cipherBlockChaining_")
            || name.starts_with("counterMode_")
            || name.starts_with("ghash_")
            || name.starts_with("galoisCounterMode_") =>
        {
            Some(Class::Tls)
        }
        _ if name.starts_with("sha") && name.contains("_implCompress") => Some(Class::Checksum),
        _ => None,
    }
}

/// Returns the class of a function that reads or writes every byte of a buffer.
fn of_transformation(core: &str) -> Option<Class> {
    let lower = core.to_ascii_lowercase();
    let is_any = |starts: &[&str]| starts.iter().any(|start| lower.starts_with(start));
    if is_any(&[
        "aes",
        "vaes",
        "gcm_",
        "ghash",
        "gctr",
        "chacha",
        "poly1305",
        "evp_cipher",
        "evp_encrypt",
        "evp_decrypt",
        "cbc_encrypt",
        "crypto_gcm",
        "crypto_ctr",
        "crypto/aes",
        "crypto/cipher",
        "crypto/internal/fips140/aes",
        "vendor/golang.org/x/crypto/chacha20poly1305",
        "openssl_ia32_aes",
        "padlock",
        "asm_aes",
        "ring_core_",
    ]) {
        return Some(Class::Tls);
    }
    if is_any(&[
        "crc",
        "adler32",
        "xxh",
        "sha1_",
        "sha256_",
        "sha512_",
        "md5_",
        "md5_block",
        "csum_",
        "do_csum",
        "hash/crc",
        "hash/adler",
        "crypto/md5",
        "crypto/sha",
        "crypto/internal/fips140/sha",
        "blake",
        "murmur",
        "cityhash",
        "siphash",
        "rte_hash_crc",
    ]) {
        return Some(Class::Checksum);
    }
    if is_any(&[
        "deflate",
        "inflate",
        "longest_match",
        "compress_block",
        "lz4_",
        "lz4f_",
        "zstd_",
        "huf_",
        "fse_",
        "snappy",
        "brotli",
        "compress/",
        "lzma_",
        "bz2_",
        "lzo1x",
        "slide_hash",
    ]) {
        return Some(Class::Compression);
    }
    None
}

/// Returns the class of a library that does one thing.
fn of_library(image: &str) -> Option<Class> {
    let is = |name: &str| {
        image.strip_prefix(name).is_some_and(|rest| rest.starts_with(".so") || rest.starts_with('-'))
    };
    if is("libcrypto")
        || is("libgcrypt")
        || is("libnettle")
        || is("libsodium")
        || is("libssl")
        || is("libgnutls")
    {
        return Some(Class::Tls);
    }
    if [
        "libz",
        "libzstd",
        "liblz4",
        "libsnappy",
        "libbrotlienc",
        "libbrotlidec",
        "libbrotlicommon",
        "libbz2",
        "liblzma",
    ]
    .into_iter()
    .any(is)
    {
        return Some(Class::Compression);
    }
    if is("libjemalloc") || is("libmimalloc") || is("libtcmalloc") || is("libtcmalloc_minimal") {
        return Some(Class::Allocator);
    }
    None
}

/// Returns the class of a kernel stack: the names of its functions, innermost first, and the system call.
pub fn of_kernel_stack(names: &[&str], system_call: Option<&str>) -> Class {
    let innermost = names.first().map_or("", |name| core_name(name));
    let is_in = |words: &[&str]| words.iter().any(|word| innermost.starts_with(word));
    let has = |words: &[&str]| names.iter().any(|name| words.iter().any(|word| name.contains(word)));
    if is_in(&["clear_page", "clear_user", "clear_huge_page", "clear_subpage", "memset"]) {
        return Class::Zeroing;
    }
    if has(&["exc_page_fault", "handle_mm_fault", "do_user_addr_fault", "do_anonymous_page"]) {
        return Class::PageFault;
    }
    let copies = is_in(&[
        "copy_user",
        "copy_to_user",
        "copy_from_user",
        "copy_to_iter",
        "copy_from_iter",
        "copy_page_to_iter",
        "copy_page_from_iter",
        "copyin",
        "copyout",
        "copy_folio",
        "copy_mc",
        "copy_nocache",
        "rep_movs",
        "memcpy",
        "memmove",
        "memcpy_orig",
        "raw_copy",
        "skb_copy_bits",
        "csum_partial_copy",
        "csum_and_copy",
        "memcpy_to_iter",
        "memcpy_from_iter",
        "copy_page",
    ]);
    if copies {
        // The functions around it say the direction; where all were inlined, the system call does.
        return if has(&["to_iter", "copy_to_user", "copyout", "skb_copy_datagram", "iov_iter_zero"]) {
            Class::KernelCopyIn
        } else if has(&["from_iter", "copy_from_user", "copyin", "nocache"]) {
            Class::KernelCopyOut
        } else {
            match system_call {
                Some(call) if is_input(call) => Class::KernelCopyIn,
                Some(call) if is_output(call) => Class::KernelCopyOut,
                _ => Class::Kernel,
            }
        };
    }
    match of_transformation(innermost) {
        Some(class) => class,
        None => match system_call {
            Some("mmap" | "munmap" | "madvise" | "brk" | "mremap" | "mprotect") => Class::Allocator,
            _ => Class::Kernel,
        },
    }
}

/// Whether a system call receives bytes.
pub fn is_input(system_call: &str) -> bool {
    [
        "read",
        "readv",
        "pread64",
        "preadv",
        "preadv2",
        "recv",
        "recvfrom",
        "recvmsg",
        "recvmmsg",
        "io_uring_enter",
    ]
    .contains(&system_call)
}

/// Whether a system call sends bytes.
pub fn is_output(system_call: &str) -> bool {
    ["write", "writev", "pwrite64", "pwritev", "pwritev2", "send", "sendto", "sendmsg", "sendmmsg"]
        .contains(&system_call)
}

/// Functions that entry points of system calls jump to, so that these are not on the stack.
const INNER_FUNCTIONS: [(&str, &str); 24] = [
    ("ksys_read", "read"),
    ("ksys_write", "write"),
    ("ksys_pread64", "pread64"),
    ("ksys_pwrite64", "pwrite64"),
    ("do_readv", "readv"),
    ("do_writev", "writev"),
    ("do_preadv", "preadv"),
    ("do_pwritev", "pwritev"),
    ("__sys_recvfrom", "recvfrom"),
    ("__sys_recvmsg", "recvmsg"),
    ("__sys_recvmmsg", "recvmmsg"),
    ("__sys_sendto", "sendto"),
    ("__sys_sendmsg", "sendmsg"),
    ("__sys_sendmmsg", "sendmmsg"),
    ("do_sendfile", "sendfile"),
    ("do_splice", "splice"),
    ("do_tee", "tee"),
    ("ksys_mmap_pgoff", "mmap"),
    ("vm_mmap_pgoff", "mmap"),
    ("__vm_munmap", "munmap"),
    ("do_madvise", "madvise"),
    ("do_mprotect_pkey", "mprotect"),
    ("do_fsync", "fsync"),
    ("ksys_sync_file_range", "sync_file_range"),
];

/// Returns the system call of a kernel stack, from the names of its functions.
pub fn system_call<'a>(names: &[&'a str]) -> Option<&'a str> {
    // The entry point is outermost.
    names.iter().rev().find_map(|name| {
        let is_inner = |(inner, call): &(&str, &'static str)| (inner == name).then_some(*call);
        let entry = ["__x64_sys_", "__do_sys_", "__se_sys_", "__ia32_sys_"]
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix));
        entry.or_else(|| INNER_FUNCTIONS.iter().find_map(is_inner))
    })
}

/// Returns the system call that a function of the C library makes, if it is one of those that move bytes or map
/// memory: where the kernel's symbols are hidden, the function is all that is known.
pub fn system_call_of_wrapper(name: &str) -> Option<&'static str> {
    const CALLS: [&str; 22] = [
        "read", "readv", "pread64", "preadv", "recv", "recvfrom", "recvmsg", "recvmmsg", "write", "writev",
        "pwrite64", "pwritev", "send", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice", "mmap",
        "munmap", "madvise", "fsync",
    ];
    let core = core_name(name);
    let core = core.strip_suffix("_nocancel").map_or(core, |core| core.trim_end_matches('_'));
    let core = match core {
        "pread" => "pread64",
        "pwrite" => "pwrite64",
        other => other,
    };
    CALLS.into_iter().find(|call| *call == core)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_told_by_their_names() {
        for (name, image, class) in [
            ("__memmove_avx_unaligned_erms", "libc.so.6", Some(Class::Copy)),
            ("memcpy", "a.out", Some(Class::Copy)),
            ("__memcpy_chk", "libc.so.6", Some(Class::Copy)),
            ("__mempcpy_sse2_unaligned", "libc.so.6", Some(Class::Copy)),
            ("memcpy_helper", "a.out", Some(Class::Copy)),
            ("memcpyable", "a.out", None),
            ("memcmp", "libc.so.6", None),
            ("__memset_avx2_unaligned_erms", "libc.so.6", Some(Class::Zeroing)),
            ("runtime.memmove", "go", Some(Class::Copy)),
            ("runtime.mallocgc", "go", Some(Class::Allocator)),
            ("main.memmove", "go", None),
            ("jbyte_disjoint_arraycopy", "", Some(Class::Copy)),
            ("StubRoutines::jshort_fill", "", Some(Class::Zeroing)),
            ("java.lang.System::arraycopy", "", None),
            ("_int_malloc", "libc.so.6", Some(Class::Allocator)),
            ("freeaddrinfo", "libc.so.6", None),
            ("operator new(unsigned long)", "libstdc++.so.6", Some(Class::Allocator)),
            ("aesni_gcm_encrypt", "libcrypto.so.3", Some(Class::Tls)),
            ("crc32_z", "libz.so.1", Some(Class::Checksum)),
            ("deflate_fast", "libz.so.1", Some(Class::Compression)),
            ("unnamed+0x10", "libcrypto.so.3", Some(Class::Tls)),
            ("unnamed+0x10", "libzip.so.4", None),
        ] {
            assert_eq!(of_function(name, image), class, "{name} {image}");
        }
    }

    #[test]
    fn kernel_time_is_told_by_its_functions_and_system_call() {
        let read =
            ["rep_movs_alternative", "_copy_to_iter", "shmem_file_read_iter", "vfs_read", "__x64_sys_read"];
        assert_eq!(system_call(&read), Some("read"));
        assert_eq!(of_kernel_stack(&read, Some("read")), Class::KernelCopyIn);
        let inlined = ["rep_movs_alternative", "__x64_sys_write"];
        assert_eq!(of_kernel_stack(&inlined, Some("write")), Class::KernelCopyOut);
        let fault = ["clear_page_erms", "handle_mm_fault", "exc_page_fault", "rep_movs_alternative"];
        assert_eq!(of_kernel_stack(&fault, None), Class::Zeroing);
        assert_eq!(of_kernel_stack(&fault[1..], None), Class::PageFault);
        assert_eq!(of_kernel_stack(&["unmap_page_range"], Some("munmap")), Class::Allocator);
        assert_eq!(of_kernel_stack(&["copy_page", "do_wp_page", "handle_mm_fault"], None), Class::PageFault);
        let inner =
            ["_copy_from_iter", "tcp_sendmsg_locked", "__sys_sendto", "__x64_sys_sendto", "do_syscall_64"];
        assert_eq!(system_call(&inner), Some("sendto"));
        assert_eq!(system_call(&["vfs_read", "ksys_read", "do_syscall_64"]), Some("read"));
        assert_eq!(system_call(&["handle_mm_fault", "exc_page_fault"]), None);
        assert_eq!(of_kernel_stack(&["schedule"], Some("poll")), Class::Kernel);
        assert_eq!(of_kernel_stack(&[], None), Class::Kernel);
    }

    #[test]
    fn wrappers_tell_their_system_calls() {
        assert_eq!(system_call_of_wrapper("__libc_read"), Some("read"));
        assert_eq!(system_call_of_wrapper("__read_nocancel"), Some("read"));
        assert_eq!(system_call_of_wrapper("__libc_pwrite"), Some("pwrite64"));
        assert_eq!(system_call_of_wrapper("readlink"), None);
    }
}

/*
 * uncopy.h: memory that is sent without the kernel's copy.
 *
 * Allocate what will be sent here, and send it as ever: send, sendto, sendmsg, sendmmsg, write, writev.
 * Link with -luncopy_send, or run under `uncopy run`. uncopy_alloc(3) has the details.
 *
 * Made by scripts/header from crates/sending/capi/src/lib.rs. SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef UNCOPY_H
#define UNCOPY_H

#include <stddef.h>

/*
 * Settings of the twin allocator, passed to uncopy_options. 0 selects the default.
 */
struct uncopy_settings {
    /*
     * Pages of 4096 bytes per pageblock, 1 to 64. Default: 16.
     */
    size_t pageblock_pages;
    /*
     * Objects larger than this many bytes get pages of their own; 16 to 32768, at most half a pageblock.
     * Default: 4096.
     */
    size_t large_threshold;
    /*
     * Maximum bytes of pages that objects may occupy; allocation fails beyond that. Default: no limit.
     */
    size_t memory_cap;
    /*
     * Reserved for extensions, must be zero.
     */
    size_t reserved[5];
};

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Allocates `size` bytes that the kernel can send by reference: where that is faster, send, sendto, sendmsg,
 * sendmmsg, write and writev to a socket do not copy them. The contents are uninitialized, and the
 * address is a multiple of 16. Otherwise like malloc; must be freed by uncopy_free.
 */
void *uncopy_alloc(size_t size);

/*
 * Like uncopy_alloc, but the address is a multiple of `alignment`, which must be a power of two. Otherwise
 * like aligned_alloc, without restrictions on `size`.
 */
void *uncopy_aligned_alloc(size_t alignment, size_t size);

/*
 * Like uncopy_alloc, for `count` objects of `size` bytes each, initialized to zero. Otherwise like calloc.
 */
void *uncopy_calloc(size_t count, size_t size);

/*
 * Changes the size of memory allocated by this allocator, like realloc: the memory may move, its contents
 * are preserved, and on failure the old memory is unchanged. Size 0 returns memory of the minimum size.
 */
void *uncopy_realloc(void *pointer, size_t size);

/*
 * Frees memory allocated by this allocator; null is allowed. Data still in flight to a peer arrives
 * unchanged. Preserves errno.
 */
void uncopy_free(void *pointer);

/*
 * Returns the number of usable bytes at `pointer`, which must come from this allocator: at least as many as
 * were requested. Returns 0 for null.
 */
size_t uncopy_usable_size(const void *pointer);

/*
 * Returns 1 if `pointer` points into memory of this allocator, 0 if not. For programs that free memory of
 * several allocators in one place.
 */
int uncopy_owns(const void *pointer);

/*
 * Sets options. Must be called before the first allocation. Returns 0, or -1 with errno set to EINVAL
 * (invalid value; nothing is changed) or EBUSY (memory was already allocated).
 */
int uncopy_options(const struct uncopy_settings *settings);

/*
 * Returns 1 if memory of this allocator is sent by reference, 0 if the kernel copies it. If `why` is not
 * null, sets it to a sentence with the reason, which is never freed. Probes the kernel if nothing was
 * allocated so far.
 */
int uncopy_status(const char **why);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif /* UNCOPY_H */

/*
 * uncopy.h: memory that is sent without the kernel's copy.
 *
 * Allocate what will be sent here, and send it as ever: send, sendto, sendmsg, sendmmsg, write, writev.
 * Link with -luncopy_send, or run under `uncopy run`. uncopy_alloc(3) has the details.
 *
 * Made by scripts/header from crates/capi/src/lib.rs. SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef UNCOPY_H
#define UNCOPY_H

#include <stddef.h>

/*
 * What the twin allocator may be told, by uncopy_options. 0 stands for the default.
 */
struct uncopy_settings {
    /*
     * Pages of 4096 bytes in a pageblock, 1 to 64. Default: 16.
     */
    size_t pageblock_pages;
    /*
     * Objects of more bytes have pages of their own; 16 to 32768, at most half a pageblock. Default: 4096.
     */
    size_t large_threshold;
    /*
     * Most bytes of pages that objects may take; beyond, allocation fails. Default: no limit.
     */
    size_t memory_cap;
    /*
     * To be zero.
     */
    size_t reserved[5];
};

#ifdef __cplusplus
extern "C" {
#endif /* __cplusplus */

/*
 * Allocates `size` bytes whose pages the kernel can be given by reference: what send, sendto, sendmsg, sendmmsg,
 * write and writev take from here to a socket or a pipe is not copied where that is faster. The contents are
 * indeterminate, the address is a multiple of 16. Otherwise as malloc; to be freed by uncopy_free.
 */
void *uncopy_alloc(size_t size);

/*
 * As uncopy_alloc, at an address that is a multiple of `alignment`, a power of two. Otherwise as aligned_alloc;
 * any size will do.
 */
void *uncopy_aligned_alloc(size_t alignment, size_t size);

/*
 * As uncopy_alloc, for `count` objects of `size` bytes that are all zero. Otherwise as calloc.
 */
void *uncopy_calloc(size_t count, size_t size);

/*
 * Changes the size of memory that came from here. Otherwise as realloc: the memory may move, the contents stay, and
 * on failure the old memory is as it was. A size of 0 gives memory of the smallest size.
 */
void *uncopy_realloc(void *pointer, size_t size);

/*
 * Frees memory that came from here; null is allowed. What is still on its way to a peer arrives as it was. errno is
 * kept.
 */
void uncopy_free(void *pointer);

/*
 * Bytes that can be used from `pointer` on, which came from here: at least as many as were asked for. 0 for null.
 */
size_t uncopy_usable_size(const void *pointer);

/*
 * Whether `pointer` points into memory of this allocator (1) or not (0): for programs that free memory of both kinds
 * in one place.
 */
int uncopy_owns(const void *pointer);

/*
 * Sets options. To be called before the first allocation. Returns 0; or -1 with errno set to EINVAL (a value that is
 * not legal, and nothing was changed) or EBUSY (memory was allocated before).
 */
int uncopy_options(const struct uncopy_settings *settings);

/*
 * Whether memory from here is sent by reference (1) or copied (0). `why`, if it is not null, is set to a sentence that
 * says so, or what is missing. Asks the kernel if nothing was allocated so far. The sentence is never freed.
 */
int uncopy_status(const char **why);

#ifdef __cplusplus
} /* extern "C" */
#endif /* __cplusplus */

#endif /* UNCOPY_H */

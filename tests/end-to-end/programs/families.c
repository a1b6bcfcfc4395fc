/* Hands pointers from malloc to the functions that only the program's allocator has, and says what it finds. Built with one of
   -DJEMALLOC, -DTCMALLOC, -DMIMALLOC and that library, or with none: then the names that are looked for are weak. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEN ((size_t)1 << 20)

/* Memory of malloc that has carried input, so that it is what the library is most interested in. */
static char *received_buffer(size_t len) {
    char *buffer = malloc(len);
    int file = memfd_create("families", 0);
    if (!buffer || ftruncate(file, (off_t)len) || lseek(file, 0, SEEK_SET))
        exit(3);
    for (size_t at = 0; at < len;) {
        ssize_t got = read(file, buffer + at, len - at);
        if (got <= 0)
            exit(3);
        at += (size_t)got;
    }
    close(file);
    memset(buffer, 3, len / 2);
    return buffer;
}

static bool has_expected_bytes(const char *buffer, size_t len) {
    for (size_t at = 0; at < len; at++)
        if (buffer[at] != (at < LEN / 2 ? 3 : 0))
            return false;
    return true;
}

#define PRINT(what) (printf("%s: %d\n", #what, (int)(what)), fflush(stdout))
#define CALL(what) ((what), printf("%s\n", #what), fflush(stdout))

#ifdef JEMALLOC
size_t sallocx(void *, int), xallocx(void *, size_t, size_t, int), nallocx(size_t, int);
void *mallocx(size_t, int), *rallocx(void *, size_t, int);
void dallocx(void *, int), sdallocx(void *, size_t, int);
static void (*const function_table[])(void *, size_t, int) = {sdallocx};

static void run(void) {
    char *block = received_buffer(LEN);
    PRINT(sallocx(block, 0) >= LEN);
    PRINT(xallocx(block, LEN, LEN / 2, 0) >= LEN);
    PRINT(nallocx(LEN, 0) >= LEN);
    block = rallocx(block, 2 * LEN, 0);
    PRINT(block && has_expected_bytes(block, LEN));
    CALL(sdallocx(block, 2 * LEN, 0));
    block = rallocx(received_buffer(LEN), 2 * LEN, 0x40 | 16); /* MALLOCX_ZERO, aligned to 64 KiB */
    PRINT(has_expected_bytes(block, 2 * LEN) && (size_t)block % 65536 == 0);
    CALL(dallocx(block, 0));
    CALL(dallocx(received_buffer(LEN), 0));
    CALL(function_table[0](received_buffer(LEN), LEN, 0));
    void (*found)(void *, int) = (void (*)(void *, int))dlsym(RTLD_DEFAULT, "dallocx");
    CALL(found(received_buffer(LEN), 0));
    block = rallocx(received_buffer(LEN), LEN / 4, 0);
    PRINT(has_expected_bytes(block, LEN / 4));
    CALL(free(block));
    CALL(free(mallocx(LEN, 0)));
}
#elif defined TCMALLOC
void tc_free(void *), tc_cfree(void *), tc_free_sized(void *, size_t), tc_delete(void *), tc_deletearray_sized(void *, size_t);
void *tc_realloc(void *, size_t), *tc_malloc(size_t);
size_t tc_malloc_size(void *), MallocExtension_GetAllocatedSize(const void *);
int MallocExtension_GetOwnership(const void *);

static void run(void) {
    char *block = received_buffer(LEN);
    PRINT(tc_malloc_size(block) >= LEN);
    PRINT(MallocExtension_GetAllocatedSize(block) >= LEN);
    PRINT(MallocExtension_GetOwnership(block));
    block = tc_realloc(block, 2 * LEN);
    PRINT(block && has_expected_bytes(block, LEN));
    CALL(tc_free(block));
    PRINT(tc_realloc(received_buffer(LEN), 0) == NULL);
    CALL(tc_free(received_buffer(LEN)));
    CALL(tc_cfree(received_buffer(LEN)));
    CALL(tc_free_sized(received_buffer(LEN), LEN));
    CALL(tc_delete(received_buffer(LEN)));
    CALL(tc_deletearray_sized(received_buffer(LEN), LEN));
    CALL(free(tc_malloc(LEN)));
}
#elif defined MIMALLOC
#include <mimalloc.h>

static void run(void) {
    char *block = received_buffer(LEN);
    PRINT(mi_usable_size(block) >= LEN);
    PRINT(mi_is_in_heap_region(block));
    PRINT(mi_expand(block, 64 * LEN) == NULL);
    block = mi_realloc(block, 2 * LEN);
    PRINT(has_expected_bytes(block, LEN));
    CALL(mi_free(block));
    block = mi_rezalloc(received_buffer(LEN), 2 * LEN);
    PRINT(block && has_expected_bytes(block, LEN));
    CALL(mi_free_size(block, 2 * LEN));
    block = mi_heap_recalloc_aligned(mi_heap_get_default(), received_buffer(LEN), 2, LEN, 4096);
    PRINT(has_expected_bytes(block, LEN) && (size_t)block % 4096 == 0);
    CALL(mi_free_aligned(block, 4096));
    block = received_buffer(LEN);
    PRINT(mi_reallocarr(&block, 2, LEN));
    PRINT(has_expected_bytes(block, LEN));
    CALL(free(block));
    PRINT(mi_reallocf(received_buffer(LEN), LEN / 2) != NULL);
    CALL(mi_free(received_buffer(LEN)));
    CALL(free(mi_malloc(LEN)));
}
#else
static void run(void) {}
#endif

#ifdef OWN_DELETE
/* The program's own operator delete is what everybody calls, also where the allocator has one. */
void _ZdlPvm(void *pointer, size_t len) {
    printf("own operator delete of %zu\n", len);
    free(pointer);
}
#endif

/* What a program does to find out whose allocator it has. */
extern void *mallocx(size_t, int) __attribute__((weak));
extern void sdallocx(void *, size_t, int) __attribute__((weak));
extern void tc_free(void *) __attribute__((weak));
extern void mi_free(void *) __attribute__((weak));
extern void cfree(void *) __attribute__((weak));
extern void __libc_free(void *);
extern void *__libc_realloc(void *, size_t);
#ifndef OWN_DELETE
extern void _ZdlPvm(void *, size_t) __attribute__((weak));
#endif

int main(void) {
#ifdef TAKES_ADDRESSES
    void *(*volatile allocate)(size_t) = malloc;
    void (*volatile release)(void *) = free;
    release(allocate(LEN));
#endif
    PRINT(mallocx != NULL);
    PRINT(sdallocx != NULL);
    PRINT(tc_free != NULL);
    PRINT(mi_free != NULL);
    PRINT(cfree != NULL);
    PRINT(dlsym(RTLD_DEFAULT, "sdallocx") != NULL);
    PRINT(dlsym(RTLD_DEFAULT, "tc_realloc") != NULL);
    PRINT(dlsym(RTLD_DEFAULT, "mi_realloc") != NULL);
    run();
#ifndef OWN_DELETE
    if (_ZdlPvm)
#endif
        CALL(_ZdlPvm(received_buffer(LEN), LEN));
    char *block = reallocarray(received_buffer(LEN), 2, LEN);
    PRINT(block && has_expected_bytes(block, LEN));
    CALL(free(block));
    block = aligned_alloc(4096, LEN);
    PRINT((size_t)block % 4096 == 0 && malloc_usable_size(block) >= LEN);
    CALL(free(block));
#ifndef OTHER /* glibc's own names for glibc's own functions */
    CALL(__libc_free(received_buffer(LEN)));
    block = __libc_realloc(received_buffer(LEN), 2 * LEN);
    PRINT(block && has_expected_bytes(block, LEN));
    CALL(free(block));
    void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    if (sized)
        sized(received_buffer(LEN), LEN);
#endif
    puts("done");
    return 0;
}

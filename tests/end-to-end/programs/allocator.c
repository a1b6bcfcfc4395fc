/* A program whose memory comes from an allocator other than libc's: linked with it, preloaded with it, or,
 * with -DOWN_ALLOCATOR, defined here. It receives, copies, resizes, sends and frees, in two threads. */
#include "common.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#ifdef OWN_ALLOCATOR
/* The simplest allocator there is: it never takes anything back but the last block. The length stands in
 * front of each block. Its memory is static at first, then mapped. */
static unsigned char static_memory[64 << 20] __attribute__((aligned(4096)));
static unsigned char *next_free = static_memory, *end_of_free = static_memory + sizeof static_memory;
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static long own_calls;

static size_t *length_of(void *block) { return (size_t *)block - 2; }

void *aligned_alloc(size_t alignment, size_t len) {
    pthread_mutex_lock(&own_lock);
    own_calls++;
    if (alignment < 16) alignment = 16;
    uintptr_t start = ((uintptr_t)next_free + 16 + alignment - 1) / alignment * alignment;
    if (len > ((size_t)1 << 40) || start + len > (uintptr_t)end_of_free) {
        size_t more = (len + alignment + (64 << 20)) / 4096 * 4096;
        void *fresh = len > ((size_t)1 << 40) ? MAP_FAILED
            : mmap(0, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) {
            pthread_mutex_unlock(&own_lock);
            errno = ENOMEM;
            return 0;
        }
        next_free = fresh;
        end_of_free = next_free + more;
        start = ((uintptr_t)next_free + 16 + alignment - 1) / alignment * alignment;
    }
    next_free = (unsigned char *)start + len;
    pthread_mutex_unlock(&own_lock);
    *length_of((void *)start) = len;
    return (void *)start;
}

void *malloc(size_t len) { return aligned_alloc(16, len); }
void *memalign(size_t alignment, size_t len) { return aligned_alloc(alignment, len); }
int posix_memalign(void **block, size_t alignment, size_t len) {
    *block = aligned_alloc(alignment, len);
    return *block ? 0 : ENOMEM;
}
void free(void *block) {
    if (!block) return;
    pthread_mutex_lock(&own_lock);
    if ((unsigned char *)block + *length_of(block) == next_free) next_free = (unsigned char *)block;
    pthread_mutex_unlock(&own_lock);
}
size_t malloc_usable_size(void *block) { return block ? *length_of(block) : 0; }
void *calloc(size_t count, size_t size) {
    size_t len;
    if (__builtin_mul_overflow(count, size, &len)) return errno = ENOMEM, (void *)0;
    void *block = malloc(len);
    if (block) memset(block, 0, len);
    return block;
}
void *realloc(void *block, size_t len) {
    void *fresh = malloc(len);
    if (!block || !fresh) return fresh;
    size_t kept = *length_of(block) < len ? *length_of(block) : len;
    memcpy(fresh, block, kept);
    free(block);
    return fresh;
}
#endif

static size_t sizes[] = {100, 5000, 40000, 65536, 131072, 200001, 1 << 20, (2 << 20) + 77};
#define SIZES (sizeof sizes / sizeof *sizes)

static void *churn(void *argument) {
    uint64_t seed = (uint64_t)(uintptr_t)argument;
    unsigned char *kept[SIZES] = {0};
    for (int round = 0; round < 12; round++) {
        for (size_t at = 0; at < SIZES; at++) {
            size_t len = sizes[(at + (size_t)round) % SIZES];
            unsigned char *block = malloc(len);
            expect(block && malloc_usable_size(block) >= len, "malloc");
            fill(block, len, seed + at);
            free(kept[at]);
            kept[at] = block;
            unsigned char *zeroes = calloc(len, 1);
            for (size_t byte = 0; byte < len; byte += 509) expect(zeroes[byte] == 0, "calloc");
            zeroes = realloc(zeroes, len * 2);
            memcpy(zeroes + len, block, len);
            check(zeroes + len, len, seed + at, 0, "copied in a thread");
            free(zeroes);
            check(block, len, seed + at, 0, "a block of a thread");
        }
    }
    for (size_t at = 0; at < SIZES; at++) free(kept[at]);
    return 0;
}

int main(void) {
    open_wire();
    pthread_t other;
    expect(pthread_create(&other, 0, churn, (void *)7) == 0, "thread");
    for (uint64_t round = 0; round < 6; round++) {
        for (size_t at = 2; at < SIZES; at++) {
            size_t len = sizes[at];
            unsigned char *copy = copied_buffer(len, round);
            unsigned char *second = malloc(len + 45);
            memcpy(second, copy, len);
            memmove(second + 45, second, len);
            send_and_check(second + 45, len, round, 0, "sent");
            if (round % 2) check(second + 45, len, round, 0, "moved");
            second = realloc(second, len * 3 + 5);
            check(second + 45, len, round, 0, "resized");
            second = realloc(second, len / 2 + 45);
            void *aligned = 0;
            expect(posix_memalign(&aligned, 8192, len) == 0 && (uintptr_t)aligned % 8192 == 0, "aligned");
            receive(aligned, len, round + 100);
            memcpy(copy, aligned, len / 2);
            check(second + 45, len / 2, round, 0, "cut");
            check(copy, len / 2, round + 100, 0, "overwritten half");
            check(copy + len / 2, len - len / 2, round, len / 2, "the other half");
            free(aligned);
            free(second);
            free(copy);
        }
    }
    expect(pthread_join(other, 0) == 0, "join");
    expect(malloc((size_t)-1 / 2 - (size_t)near_end) == 0 && errno == ENOMEM, "too much");
#ifdef OWN_ALLOCATOR
    printf("own allocator %s\n", own_calls > 100 ? "used" : "not used");
#endif
    puts("done");
    return 0;
}

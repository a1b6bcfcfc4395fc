/* A program with known shares of its processor time, against which profiles are checked:
 *
 *     30 %   memmove of 64 KiB
 *     20 %   the kernel's copy: reads of 1 MiB from a memory file
 *     50 %   integer arithmetic that touches no memory
 *
 * The program steers itself by the thread's processor clock: each batch (a fraction of a millisecond) belongs to the
 * activity that is furthest behind its share. So the shares hold in every window of a few batches, whatever else the
 * machine does. The kernel's time is that of the whole calls. The file consists of huge pages if the kernel makes them
 * (MADV_COLLAPSE, Linux 6.1; reads of whole huge pages, Linux 6.13), so that the kernel spends about 96 % of that time
 * in the copy itself; with pages of 4 KiB, about 60 %.
 *
 * Usage: shares MODE CPU_SECONDS
 *   MODE  main     the main thread does the work
 *         threads  threads that live for 50 ms of processor time each, one after another
 *         forks    processes that live as long, one after another
 *
 * Prints "ready" when the shares hold. When CPU_SECONDS are over or on SIGTERM, prints one line of JSON: processor time
 * by activity ("memmove_ns", "kernel_ns", "compute_ns"), the rest, spent starting and ending threads or processes
 * ("other_ns"), the sum ("total_ns"), and whether the file has huge pages ("is_huge"). */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MEMMOVE, KERNEL, COMPUTE, ACTIVITIES };
enum { MOVE_BYTES = 64 << 10, READ_BYTES = 1 << 20, AREA_BYTES = 8 << 20 };

/* Values of <linux/mman.h> that older C libraries do not define. */
enum { POPULATE_WRITE = 23, COLLAPSE = 25 };

static const int64_t PERCENT[ACTIVITIES] = {30, 20, 50};
static const int64_t SLICE_NS = 50 * 1000 * 1000;

/* In memory that forked processes share, as is the area: no copy on write takes time. */
static int64_t *spent_ns;
static unsigned char *area;
static int file;
static volatile sig_atomic_t is_stopping;

static void expect(int condition, const char *call) {
    if (!condition) {
        fprintf(stderr, "shares: %s: %s\n", call, strerror(errno));
        _exit(1);
    }
}

static int64_t now_ns(clockid_t clock) {
    struct timespec now;
    expect(clock_gettime(clock, &now) == 0, "clock_gettime");
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Processor time of this process and of its children that were waited for. */
static int64_t process_ns(void) {
    struct rusage children;
    expect(getrusage(RUSAGE_CHILDREN, &children) == 0, "getrusage");
    int64_t micros = (children.ru_utime.tv_sec + children.ru_stime.tv_sec) * INT64_C(1000000) +
                     children.ru_utime.tv_usec + children.ru_stime.tv_usec;
    return now_ns(CLOCK_PROCESS_CPUTIME_ID) + micros * 1000;
}

static uint64_t random_state = 88172645463325252;

/* Returns a random number from 1 to 2 * `mean` - 1. Batches of one length would repeat in step with a profiler's
 * samples, so that these always hit the same activity. */
static int random_count(int mean) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return 1 + (int)(random_state % (uint64_t)(2 * mean - 1));
}

/* Returns the next `len` bytes of the area, from its start after its end. */
static unsigned char *next_piece(size_t len) {
    static size_t end;
    end = end + len <= AREA_BYTES ? end + len : len;
    return area + end - len;
}

__attribute__((noinline)) static void move_batch(void) {
    for (int count = random_count(32); count > 0; count--) {
        unsigned char *from = next_piece(MOVE_BYTES);
        memmove(next_piece(MOVE_BYTES), from, MOVE_BYTES);
    }
}

__attribute__((noinline)) static void kernel_batch(void) {
    static off_t at;
    for (int count = random_count(2); count > 0; count--) {
        at = (at + READ_BYTES) % AREA_BYTES;
        expect(pread(file, next_piece(READ_BYTES), READ_BYTES, at) == READ_BYTES, "pread");
    }
}

__attribute__((noinline)) static void compute_batch(void) {
    static volatile uint64_t sink;
    uint64_t word = sink | 1;
    for (int count = random_count(100000); count > 0; count--) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
    }
    sink = word;
}

/* Returns the activity that is furthest behind its share. */
static int next_activity(void) {
    int64_t total = spent_ns[MEMMOVE] + spent_ns[KERNEL] + spent_ns[COMPUTE];
    int furthest = COMPUTE;
    int64_t most = INT64_MIN;
    for (int activity = 0; activity < ACTIVITIES; activity++) {
        int64_t behind = total * PERCENT[activity] - spent_ns[activity] * 100;
        if (behind > most) {
            most = behind;
            furthest = activity;
        }
    }
    return furthest;
}

/* Works until this thread has used `limit_ns` of processor time. */
static void *work(void *limit_ns) {
    static void (*const BATCHES[ACTIVITIES])(void) = {move_batch, kernel_batch, compute_batch};
    int64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID), before = start;
    while (!is_stopping && before - start < *(const int64_t *)limit_ns) {
        int activity = next_activity();
        BATCHES[activity]();
        int64_t after = now_ns(CLOCK_THREAD_CPUTIME_ID);
        spent_ns[activity] += after - before;
        before = after;
    }
    return NULL;
}

static void work_in_thread(int64_t limit_ns) {
    pthread_t thread;
    expect((errno = pthread_create(&thread, NULL, work, &limit_ns)) == 0, "pthread_create");
    expect((errno = pthread_join(thread, NULL)) == 0, "pthread_join");
}

static void work_in_process(int64_t limit_ns) {
    int status;
    pid_t child = fork();
    expect(child >= 0, "fork");
    if (child == 0) {
        (void)madvise(area, AREA_BYTES, POPULATE_WRITE);
        random_state ^= (uint64_t)now_ns(CLOCK_MONOTONIC);
        work(&limit_ns);
        _exit(0);
    }
    while (waitpid(child, &status, 0) != child) expect(errno == EINTR, "waitpid");
    expect(status == 0, "child");
}

static void stop(int signal) {
    (void)signal;
    is_stopping = 1;
}

/* Maps memory that is aligned to 2 MiB and has huge pages if the kernel makes them; tells so in `is_huge`. */
static void *map_shared(int fd, size_t len, int *is_huge) {
    size_t huge = 2 << 20;
    char *reserved = mmap(NULL, len + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(reserved != MAP_FAILED, "mmap");
    void *aligned = reserved + (huge - (uintptr_t)reserved % huge);
    int flags = MAP_SHARED | MAP_FIXED | (fd < 0 ? MAP_ANONYMOUS : 0);
    expect(mmap(aligned, len, PROT_READ | PROT_WRITE, flags, fd, 0) == aligned, "mmap");
    memset(aligned, 1, len);
    *is_huge = madvise(aligned, len, COLLAPSE) == 0;
    return aligned;
}

/* Returns whether the file has huge pages. */
static int prepare(void) {
    int is_huge, is_area_huge;
    area = map_shared(-1, AREA_BYTES, &is_area_huge);
    spent_ns = mmap(NULL, sizeof *spent_ns * ACTIVITIES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    expect(spent_ns != MAP_FAILED, "mmap");
    file = memfd_create("shares", MFD_CLOEXEC);
    expect(file >= 0 && ftruncate(file, AREA_BYTES) == 0, "memfd_create");
    map_shared(file, AREA_BYTES, &is_huge);
    struct sigaction action = {.sa_handler = stop, .sa_flags = SA_RESTART};
    expect(sigaction(SIGTERM, &action, NULL) == 0, "sigaction");
    return is_huge;
}

int main(int count, char **arguments) {
    const char *mode = count == 3 ? arguments[1] : "";
    int64_t seconds = count == 3 ? strtol(arguments[2], NULL, 10) : 0;
    int is_threads = !strcmp(mode, "threads"), is_forks = !strcmp(mode, "forks");
    if (seconds <= 0 || !(is_threads || is_forks || !strcmp(mode, "main"))) {
        fprintf(stderr, "usage: shares main|threads|forks CPU_SECONDS\n");
        return 2;
    }
    int64_t slice_ns = SLICE_NS;
    int is_huge = prepare();
    work(&slice_ns);
    memset(spent_ns, 0, sizeof *spent_ns * ACTIVITIES);
    puts("ready");
    fflush(stdout);
    int64_t start = process_ns(), end = start + seconds * 1000000000;
    while (!is_stopping && process_ns() < end) {
        if (is_threads) work_in_thread(slice_ns);
        else if (is_forks) work_in_process(slice_ns);
        else work(&slice_ns);
    }
    int64_t total = process_ns() - start;
    int64_t known = spent_ns[MEMMOVE] + spent_ns[KERNEL] + spent_ns[COMPUTE];
    printf("{\"memmove_ns\": %lld, \"kernel_ns\": %lld, \"compute_ns\": %lld, ", (long long)spent_ns[MEMMOVE],
           (long long)spent_ns[KERNEL], (long long)spent_ns[COMPUTE]);
    printf("\"other_ns\": %lld, \"total_ns\": %lld, \"is_huge\": %s}\n", (long long)(total - known), (long long)total,
           is_huge ? "true" : "false");
    return 0;
}

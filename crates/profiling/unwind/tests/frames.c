/* Calls that come back through frames of every shape that a compiler makes. */
#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

typedef void (*probe)(void);
#define OUT_OF_LINE __attribute__((noinline, noclone))

static volatile int sink;

OUT_OF_LINE static void plain(probe p) {
    p();
    sink++;
}

OUT_OF_LINE static void room(probe p, int bytes) {
    volatile char buffer[3000];
    buffer[bytes % 3000] = 1;
    plain(p);
    sink += buffer[bytes % 3000];
}

OUT_OF_LINE static void variable(probe p, int bytes) {
    volatile char *buffer = alloca(bytes);
    buffer[bytes - 1] = 1;
    room(p, bytes);
    sink += buffer[bytes - 1];
}

OUT_OF_LINE static void aligned(probe p, int bytes) {
    volatile char buffer[128] __attribute__((aligned(64)));
    volatile char *more = alloca(bytes);
    buffer[bytes % 128] = more[0] = 1;
    variable(p, bytes);
    sink += buffer[bytes % 128] + more[0];
}

OUT_OF_LINE static void aligned_only(probe p, int bytes) {
    volatile char buffer[128] __attribute__((aligned(128)));
    buffer[bytes % 128] = 1;
    aligned(p, bytes);
    sink += buffer[bytes % 128];
}

OUT_OF_LINE static int many(probe p, int a, int b, int c, int d, int e, int f, int g, int h) {
    aligned_only(p, a + b + c + 100);
    return a + b + c + d + e + f + g + h + sink;
}

OUT_OF_LINE static int registers(probe p, int n) {
    int a = sink, b = sink * 3, c = sink * 5, d = sink * 7, e = sink * 11, f = sink * 13;
    sink += many(p, 1, 2, 3, a, b, c, d, e);
    return a + b * c + d * e + f + n;
}

void shapes(probe p) { sink += registers(p, 5) + 1; }

OUT_OF_LINE void levels(probe p, int count) {
    if (count == 0)
        p();
    else
        levels(p, count - 1);
    sink++;
}

static jmp_buf back;
OUT_OF_LINE __attribute__((noreturn)) static void never(probe p) {
    p();
    longjmp(back, 1);
}

/* The call is the last instruction: it returns to where the next function begins. */
OUT_OF_LINE static void ends_with_a_call(probe p) { never(p); }

void noreturn(probe p) {
    if (!setjmp(back))
        ends_with_a_call(p);
    sink++;
}

static probe comparing;
static int compared;
static int compare(const void *a, const void *b) {
    if (++compared % 16 == 1)
        comparing();
    return *(const int *)a - *(const int *)b;
}

void sorted(probe p) {
    int numbers[64];
    for (int i = 0; i < 64; i++)
        numbers[i] = i * 37 % 64;
    comparing = p;
    qsort(numbers, 64, sizeof *numbers, compare);
    sink += numbers[3];
}

static probe handling;
static void handle(int number) {
    int a = number;
    handling();
    sink += a;
}

static void with_handler(int number, int flags, void (*section)(void)) {
    struct sigaction action, old;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    action.sa_flags = flags | SA_RESTART;
    sigaction(number, &action, &old);
    section();
    sigaction(number, &old, NULL);
}

OUT_OF_LINE static void interrupt(void) {
    raise(SIGUSR2);
    sink++;
}

void signalled(probe p) {
    handling = p;
    with_handler(SIGUSR2, 0, interrupt);
}

void signalled_elsewhere(probe p) {
    size_t bytes = 256 << 10;
    stack_t stack = {.ss_sp = malloc(bytes), .ss_size = bytes}, old;
    handling = p;
    sigaltstack(&stack, &old);
    with_handler(SIGUSR2, SA_ONSTACK, interrupt);
    sigaltstack(&old, NULL);
    free(stack.ss_sp);
}

static volatile int ticks;
static void count_tick(void) {
    ticks++;
}
OUT_OF_LINE static int work(int n) {
    int a = n, b = n * sink, c = n + sink, d = n ^ sink, e = n - sink, f = n | sink;
    volatile char buffer[64] __attribute__((aligned(64)));
    buffer[n & 63] = 1;
    if (n > 0)
        a += work(n - 1) + b;
    return a + b + c + d + e + f + buffer[n & 63];
}
static probe ticking;
static void tick_once(void) {
    ticking();
    count_tick();
}
OUT_OF_LINE static void busy(void) {
    int before = ticks;
    while (ticks < before + 50)
        sink += work(10);
}

/* Interrupted anywhere: in the middle of prologues and epilogues, too. */
void interrupted(probe p) {
    struct itimerval often = {{0, 1000}, {0, 1000}}, never_more = {{0, 0}, {0, 0}};
    ticking = p;
    handling = tick_once;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGVTALRM);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle;
    sigaction(SIGVTALRM, &action, NULL);
    setitimer(ITIMER_VIRTUAL, &often, NULL);
    busy();
    setitimer(ITIMER_VIRTUAL, &never_more, NULL);
    signal(SIGVTALRM, SIG_IGN);
}

static ucontext_t caller, coroutine;
static probe in_coroutine;
static void begin(void) {
    shapes(in_coroutine);
    swapcontext(&coroutine, &caller);
    levels(in_coroutine, 5);
}

static void run_on(char *stack, size_t bytes, probe p) {
    in_coroutine = p;
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = bytes;
    coroutine.uc_link = &caller;
    makecontext(&coroutine, begin, 0);
    swapcontext(&caller, &coroutine);
    swapcontext(&caller, &coroutine);
}

void switched(probe p) {
    size_t bytes = 96 << 10;
    char *stack = malloc(bytes);
    run_on(stack, bytes, p);
    free(stack);
    /* Nothing lies above it, and it is gone afterwards. */
    char *mapping = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(mapping + bytes, 4096);
    run_on(mapping, bytes, p);
    munmap(mapping, bytes);
}

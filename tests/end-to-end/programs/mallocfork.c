/* Forks while another thread, most of the time inside libc's malloc, runs signal handlers that copy buffers
 * which hold received data. libc takes malloc's locks after the fork handlers have run: the fork waits for
 * that thread. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

enum { LEN = 512 << 10, FORKS = 300, MIN_FORKS = 10, LIMIT_S = 20, COPIES = 2, SEED = 7 };

static unsigned char *received, *copies[COPIES];
static volatile int is_over;
static volatile unsigned long handled;

static void on_alarm(int number) {
    (void)number;
    unsigned char *to = copies[handled % COPIES];
    memcpy(to, received, LEN);
    for (size_t at = handled % 4096; at < LEN; at += LEN / 3)
        if (to[at] != stream_byte(SEED, at)) fail("in the handler", at);
    handled++;
}

static void *allocate(void *unused) {
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    for (size_t len = 24; !is_over; len = len % 4000 + 40) {
        void *volatile one = malloc(len);
        void *volatile other = malloc(5000 - len);
        free(one);
        free(other);
    }
    return unused;
}

int main(void) {
    open_wire();
    received = malloc(LEN);
    receive(received, LEN, SEED);
    for (int copy = 0; copy < COPIES; copy++) {
        copies[copy] = malloc(LEN);
        memcpy(copies[copy], received, LEN);
        check(copies[copy], 5000, SEED, 0, "copied before");
    }
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, NULL);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    pthread_t thread;
    expect(pthread_create(&thread, NULL, allocate, NULL) == 0, "pthread_create");
    struct itimerval often = {{0, 150}, {0, 150}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    // A busy machine takes longer for each.
    time_t begun = time(NULL);
    for (int fork_number = 0; fork_number < FORKS && (fork_number < MIN_FORKS || time(NULL) - begun < LIMIT_S); fork_number++) {
        pid_t child = fork();
        expect(child >= 0, "fork");
        if (child == 0) {
            check(received + fork_number * 1000, 5000, SEED, (size_t)fork_number * 1000, "in the child");
            _exit(0);
        }
        int status;
        expect(waitpid(child, &status, 0) == child && status == 0, "the child");
    }
    setitimer(ITIMER_REAL, &never, NULL);
    is_over = 1;
    pthread_join(thread, NULL);
    expect(handled > 100, "too few signals");
    check(received, LEN, SEED, 0, "received");
    for (int copy = 0; copy < COPIES; copy++) check(copies[copy], LEN, SEED, 0, "copied");
    puts("done");
}

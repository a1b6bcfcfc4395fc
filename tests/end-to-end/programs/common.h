/* What the test programs in C share: bytes that are known beforehand, and buffers that hold received data.
 * Compiled with -fno-builtin, so that no loop below becomes a call of memcpy. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Byte `at` of the stream `seed`. */
static inline unsigned char stream_byte(uint64_t seed, size_t at) {
    uint64_t word = (seed + 1) * 0x9e3779b97f4a7c15u + at / 8 * 0xbf58476d1ce4e5b9u;
    word ^= word >> 29;
    return (unsigned char)(word >> (at % 8 * 8));
}

static inline void fail(const char *what, size_t at) {
    fprintf(stderr, "%s: wrong at %zu (errno %d)\n", what, at, errno);
    _exit(1);
}

static inline void expect(int condition, const char *what) {
    if (!condition) fail(what, 0);
}

/* Stores the stream, byte by byte. */
static inline void fill(void *to, size_t len, uint64_t seed) {
    volatile unsigned char *bytes = to;
    for (size_t at = 0; at < len; at++) bytes[at] = stream_byte(seed, at);
}

/* Ends the program unless `from` holds bytes `skip`… of the stream. */
static inline void check(const void *from, size_t len, uint64_t seed, size_t skip, const char *what) {
    const volatile unsigned char *bytes = from;
    for (size_t at = 0; at < len; at++)
        if (bytes[at] != stream_byte(seed, skip + at)) fail(what, at);
}

static int near_end = -1, far_end = -1;
static unsigned char wire[4 << 20];

/* A socket pair that takes four mebibytes without blocking. */
static inline void open_wire(void) {
    int ends[2], buffer_bytes = 4 << 20;
    expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    near_end = ends[0];
    far_end = ends[1];
    for (int end = 0; end < 2; end++) {
        setsockopt(ends[end], SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof buffer_bytes);
        setsockopt(ends[end], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    }
}

/* Receives `len` bytes of the stream `seed` at `to`, by `recv`, in as many parts as it takes. */
static inline void receive(void *to, size_t len, uint64_t seed) {
    size_t written = 0, got = 0;
    fill(wire, len, seed);
    while (got < len) {
        while (written < len) {
            long now = syscall(SYS_sendto, far_end, wire + written, len - written, MSG_DONTWAIT, 0, 0);
            if (now <= 0) break;
            written += (size_t)now;
        }
        ssize_t now = recv(near_end, (char *)to + got, len - got, 0);
        expect(now > 0, "recv");
        got += (size_t)now;
    }
}

/* A buffer that was copied from one that received the stream: it holds a view where it can. */
static inline unsigned char *copied_buffer(size_t len, uint64_t seed) {
    unsigned char *received = malloc(len), *copy = malloc(len);
    expect(received && copy, "malloc");
    receive(received, len, seed);
    memcpy(copy, received, len);
    free(received);
    return copy;
}

/* Sends `len` bytes, which must arrive as bytes `skip`… of the stream. */
static inline void send_and_check(const void *from, size_t len, uint64_t seed, size_t skip, const char *what) {
    size_t done = 0;
    while (done < len) {
        ssize_t sent = send(near_end, (const char *)from + done, len - done, MSG_DONTWAIT);
        expect(sent > 0, what);
        size_t got = 0;
        while (got < (size_t)sent) {
            long now = syscall(SYS_read, far_end, wire + got, (size_t)sent - got);
            expect(now > 0, what);
            got += (size_t)now;
        }
        check(wire, got, seed, skip + done, what);
        done += got;
    }
}

/* Memory of the twin allocator on every kind of descriptor, by every call of the send family: the bytes that arrive
   are those of the moment of the call, whatever happens to the memory afterwards, and results and error numbers are
   those of the same system call made by hand with ordinary memory.

   Usage: sending SCENARIO…   (overwrite, errors, allocator, threads, cancel; alone: options, ends)   Prints each scenario that is done, then uncopy_status. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uncopy.h>

#define LARGEST (1 << 20)

#define expect(what, ...) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s (errno %d): ", __LINE__, #what, errno); \
            fprintf(stderr, __VA_ARGS__); \
            fprintf(stderr, "\n"); \
            _exit(1); \
        } \
    } while (0)

enum call { SEND, SENDTO, SENDMSG, SENDMMSG, WRITE, WRITEV, CALLS };
enum transport { TCP, TCP6, UNIX, SEQUENCED, PIPE, UDP, UNIX_DATAGRAM, TRANSPORTS };
enum change { OVERWRITE, FREE, GROW, READ_INTO, FORK, CHANGES };
static const char *const call_names[] = {"send", "sendto", "sendmsg", "sendmmsg", "write", "writev"};
static const char *const transport_names[] = {"tcp", "tcp6", "unix", "seqpacket", "pipe", "udp", "datagram"};
static const char *const change_names[] = {"overwrite", "free", "grow", "read into", "fork"};

static void fill(unsigned char *to, size_t len, unsigned seed) {
    for (size_t at = 0; at < len; at++) {
        seed = seed * 1103515245u + 12345u;
        to[at] = (unsigned char)(seed >> 16);
    }
}

static int is_datagram(enum transport transport) {
    return transport == UDP || transport == UNIX_DATAGRAM || transport == SEQUENCED;
}

static void inet_pair(int family, int type, int ends[2]) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    memset(&address, 0, sizeof address);
    if (family == AF_INET) {
        struct sockaddr_in *inet = (struct sockaddr_in *)&address;
        inet->sin_family = AF_INET;
        inet->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
        struct sockaddr_in6 *inet = (struct sockaddr_in6 *)&address;
        inet->sin6_family = AF_INET6;
        inet->sin6_addr = in6addr_loopback;
    }
    int listener = socket(family, type, 0);
    expect(listener >= 0 && bind(listener, (struct sockaddr *)&address, len) == 0, "bind");
    expect(getsockname(listener, (struct sockaddr *)&address, &len) == 0, "name");
    ends[0] = socket(family, type, 0);
    if (type == SOCK_STREAM)
        expect(listen(listener, 1) == 0, "listen");
    expect(connect(ends[0], (struct sockaddr *)&address, len) == 0, "connect");
    if (type == SOCK_STREAM) {
        ends[1] = accept(listener, NULL, NULL);
        expect(ends[1] >= 0 && close(listener) == 0, "accept");
    } else {
        ends[1] = listener;
    }
}

/* What is written to ends[0] can be read from ends[1]. */
static void open_transport(enum transport transport, int ends[2]) {
    int swapped[2];
    switch (transport) {
    case TCP: inet_pair(AF_INET, SOCK_STREAM, ends); break;
    case TCP6: inet_pair(AF_INET6, SOCK_STREAM, ends); break;
    case UDP: inet_pair(AF_INET, SOCK_DGRAM, ends); break;
    case UNIX: expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "pair"); break;
    case SEQUENCED: expect(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0, "pair"); break;
    case UNIX_DATAGRAM: expect(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0, "pair"); break;
    default:
        expect(pipe(swapped) == 0, "pipe");
        ends[0] = swapped[1];
        ends[1] = swapped[0];
    }
}

static void set_blocking(int fd, int blocking) {
    int flags = fcntl(fd, F_GETFL);
    expect(fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0, "fcntl");
}

/* One call for the parts; those that take one buffer send the one in the middle. */
static ssize_t send_by(enum call call, int fd, struct iovec *parts, int count) {
    struct mmsghdr message;
    memset(&message, 0, sizeof message);
    message.msg_hdr.msg_iov = parts;
    message.msg_hdr.msg_iovlen = (size_t)count;
    struct iovec *one = &parts[count / 2];
    switch (call) {
    case SEND: return send(fd, one->iov_base, one->iov_len, MSG_NOSIGNAL);
    case SENDTO: return sendto(fd, one->iov_base, one->iov_len, 0, NULL, 0);
    case SENDMSG: return sendmsg(fd, &message.msg_hdr, 0);
    case SENDMMSG: {
        int sent = sendmmsg(fd, &message, 1, 0);
        return sent < 0 ? -1 : (ssize_t)message.msg_len;
    }
    case WRITE: return write(fd, one->iov_base, one->iov_len);
    default: return writev(fd, parts, count);
    }
}

static void read_exactly(int fd, unsigned char *to, size_t len) {
    size_t done = 0;
    while (done < len) {
        struct pollfd ready = {fd, POLLIN, 0};
        expect(poll(&ready, 1, 20000) == 1, "nothing arrives after %zu bytes of %zu", done, len);
        ssize_t got = read(fd, to + done, len - done);
        expect(got > 0, "read after %zu bytes of %zu", done, len);
        done += (size_t)got;
    }
}

/* Changes memory that was sent and not yet read. Gives what is to be freed. */
static unsigned char *change(enum change how, unsigned char *memory, size_t len) {
    int ends[2];
    switch (how) {
    case OVERWRITE: memset(memory, 0xee, len); return memory;
    case FREE:
        uncopy_free(memory);
        for (int round = 0; round < 8; round++) {
            unsigned char *next = uncopy_alloc(len);
            expect(next != NULL, "allocation");
            memset(next, 0xdd, len);
            if (round == 7)
                return next;
            uncopy_free(next);
        }
        return NULL;
    case GROW: {
        unsigned char *grown = uncopy_realloc(memory, len + len / 2 + 1);
        expect(grown != NULL, "reallocation");
        memset(grown, 0xcc, len);
        return grown;
    }
    case READ_INTO: {
        /* The kernel writes: a fault of the kernel's own. */
        static const unsigned char bytes[4096] = {0xbb};
        expect(pipe(ends) == 0, "pipe");
        for (size_t at = 0; at < len; at += 4096) {
            size_t step = len - at < 4096 ? len - at : 4096;
            expect(write(ends[1], bytes, step) == (ssize_t)step, "write");
            expect(read(ends[0], memory + at, step) == (ssize_t)step, "read");
        }
        close(ends[0]);
        close(ends[1]);
        return memory;
    }
    default: {
        pid_t child = fork();
        expect(child >= 0, "fork");
        if (child == 0) {
            memset(memory, 0xaa, len);
            uncopy_free(memory);
            unsigned char *other = uncopy_alloc(len);
            memset(other, 0x99, len);
            _exit(other == NULL);
        }
        memset(memory, 0x88, len);
        int status;
        expect(waitpid(child, &status, 0) == child && status == 0, "child ended with %#x", status);
        return memory;
    }
    }
}

static void check_overwrite(enum transport transport, enum call call, enum change how, size_t len, size_t offset, int ends[2]) {
    unsigned char head[77], tail[2] = "\r\n";
    unsigned char *memory = uncopy_alloc(len + offset);
    expect(memory != NULL, "allocation of %zu", len + offset);
    unsigned char *expected = malloc(len + sizeof head + sizeof tail), *found = malloc(len + sizeof head + sizeof tail);
    fill(head, sizeof head, (unsigned)len);
    fill(memory, len + offset, (unsigned)(len + offset + call));
    struct iovec parts[3] = {{head, sizeof head}, {memory + offset, len}, {tail, sizeof tail}};
    size_t total = len;
    if (call == SENDMSG || call == SENDMMSG || call == WRITEV) {
        memcpy(expected, head, sizeof head);
        memcpy(expected + sizeof head, memory + offset, len);
        memcpy(expected + sizeof head + len, tail, sizeof tail);
        total += sizeof head + sizeof tail;
    } else {
        memcpy(expected, memory + offset, len);
    }
    set_blocking(ends[0], 0);
    errno = 77;
    ssize_t sent = send_by(call, ends[0], parts, 3);
    expect(sent > 0 && (size_t)sent <= total && errno == 77, "%s of %zu bytes: %zd", call_names[call], total, sent);
    expect(!is_datagram(transport) || (size_t)sent == total, "a datagram of %zu bytes: %zd", total, sent);
    unsigned char *remaining = change(how, memory, len + offset);
    read_exactly(ends[1], found, (size_t)sent);
    for (size_t at = 0; at < (size_t)sent; at++)
        expect(found[at] == expected[at], "%s by %s, %s, %zu bytes from %zu: byte %zu of %zd is %#x, not %#x",
               transport_names[transport], call_names[call], change_names[how], len, offset, at, sent, found[at], expected[at]);
    uncopy_free(remaining);
    free(expected);
    free(found);
}

static void overwrite(void) {
    static const size_t sizes[] = {1, 1000, 4096, 16384, 65536, 200001, LARGEST};
    for (enum transport transport = 0; transport < TRANSPORTS; transport++) {
        int ends[2];
        open_transport(transport, ends);
        for (enum call call = 0; call < CALLS; call++) {
            if (transport == PIPE && call < WRITE)
                continue;
            for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
                if (is_datagram(transport) && sizes[size] > 60000)
                    continue;
                for (enum change how = 0; how < CHANGES; how++) {
                    size_t offset = how == OVERWRITE ? 100 : how == FREE ? 4095 : 0;
                    if (how == FORK && size % 3 != 1)
                        continue;
                    check_overwrite(transport, call, how, sizes[size], offset, ends);
                }
            }
        }
        close(ends[0]);
        close(ends[1]);
    }
}

/* The system call itself, which no library stands in front of. */
static ssize_t call_by_hand(enum call call, int fd, struct iovec *parts, int count, int flags) {
    struct mmsghdr message;
    memset(&message, 0, sizeof message);
    message.msg_hdr.msg_iov = parts;
    message.msg_hdr.msg_iovlen = (size_t)count;
    switch (call) {
    case SEND:
    case SENDTO: return syscall(SYS_sendto, fd, parts->iov_base, parts->iov_len, flags, NULL, 0);
    case SENDMSG: return syscall(SYS_sendmsg, fd, &message.msg_hdr, flags);
    case SENDMMSG: return syscall(SYS_sendmmsg, fd, &message, 1, flags);
    case WRITE: return syscall(SYS_write, fd, parts->iov_base, parts->iov_len);
    default: return syscall(SYS_writev, fd, parts, count);
    }
}

static ssize_t call_by_library(enum call call, int fd, struct iovec *parts, int count, int flags) {
    struct mmsghdr message;
    memset(&message, 0, sizeof message);
    message.msg_hdr.msg_iov = parts;
    message.msg_hdr.msg_iovlen = (size_t)count;
    switch (call) {
    case SEND: return send(fd, parts->iov_base, parts->iov_len, flags);
    case SENDTO: return sendto(fd, parts->iov_base, parts->iov_len, flags, NULL, 0);
    case SENDMSG: return sendmsg(fd, &message.msg_hdr, flags);
    case SENDMMSG: return sendmmsg(fd, &message, 1, flags);
    case WRITE: return write(fd, parts->iov_base, parts->iov_len);
    default: return writev(fd, parts, count);
    }
}

static volatile sig_atomic_t pipe_signals;

static void count_signal(int number) {
    (void)number;
    pipe_signals++;
}

/* Both sides of a case have descriptors of their own in the same state. */
static void compare_calls(const char *what, const int fds[2], size_t len, int extra, int flags) {
    unsigned char *ordinary = malloc(len + 1), *twin = uncopy_alloc(len + 1);
    expect(ordinary != NULL && twin != NULL, "memory");
    fill(ordinary, len, 7);
    fill(twin, len, 7);
    struct iovec *hand = calloc(1100, sizeof *hand), *library = calloc(1100, sizeof *library);
    for (enum call call = 0; call < CALLS; call++) {
        hand[0].iov_base = ordinary;
        library[0].iov_base = twin;
        hand[0].iov_len = library[0].iov_len = len;
        pipe_signals = 0;
        errno = 0;
        ssize_t expected = call_by_hand(call, fds[0], hand, 1 + extra, flags);
        int expected_errno = errno, expected_signals = pipe_signals;
        pipe_signals = 0;
        errno = 0;
        ssize_t found = call_by_library(call, fds[1], library, 1 + extra, flags);
        expect(found == expected && errno == expected_errno && pipe_signals == expected_signals,
               "%s by %s: %zd with %d signals, not %zd with errno %d and %d signals", what, call_names[call], found,
               (int)pipe_signals, expected, expected_errno, expected_signals);
    }
    free(hand);
    free(library);
    free(ordinary);
    uncopy_free(twin);
}

static void errors(void) {
    signal(SIGPIPE, count_signal);
    static const enum transport transports[] = {TCP, UNIX, SEQUENCED, PIPE, UDP, UNIX_DATAGRAM};
    int bad[2] = {-1, -1};
    compare_calls("a descriptor that is none", bad, 65536, 0, 0);
    int null[2] = {open("/dev/null", O_RDONLY), open("/dev/null", O_RDONLY)};
    compare_calls("a descriptor to read from", null, 65536, 0, 0);
    int files[2] = {open("/dev/null", O_WRONLY), open("/dev/null", O_WRONLY)};
    compare_calls("/dev/null", files, 65536, 2, 0);
    int events[2] = {eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK)};
    compare_calls("an event counter", events, 65536, 0, 0);
    compare_calls("an event counter, its size", events, 8, 0, 0);
    int unconnected_datagrams[2] = {socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_DGRAM, 0)};
    compare_calls("a datagram to nowhere", unconnected_datagrams, 30000, 0, 0);
    int unconnected_streams[2] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0)};
    compare_calls("a stream to nowhere", unconnected_streams, 65536, 0, 0);
    for (size_t at = 0; at < sizeof transports / sizeof *transports; at++) {
        static const size_t sizes[] = {0, 5, 30000, 65536};
        enum transport transport = transports[at];
        int first[2], second[2];
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
            open_transport(transport, first);
            open_transport(transport, second);
            int fds[2] = {first[0], second[0]};
            set_blocking(fds[0], 0);
            set_blocking(fds[1], 0);
            /* Not more: how much a socket takes until it is full depends on how the kernel keeps it. */
            if (sizes[size] <= 5) {
                compare_calls(transport_names[transport], fds, sizes[size], 2, 0);
                compare_calls("too many parts", fds, sizes[size], 1099, 0);
                compare_calls("a flag that is not known", fds, sizes[size], 0, 0x2000000);
            }
            close(first[1]);
            close(second[1]);
            if (transport != UDP) {
                compare_calls("no reader", fds, sizes[size], 1, 0);
                compare_calls("no reader, no signal", fds, sizes[size], 1, MSG_NOSIGNAL);
            }
            close(fds[0]);
            close(fds[1]);
        }
    }
    int full[2], also_full[2];
    open_transport(UNIX, full);
    open_transport(UNIX, also_full);
    int fds[2] = {full[0], also_full[0]};
    for (int side = 0; side < 2; side++) {
        unsigned char byte = 1;
        while (syscall(SYS_sendto, fds[side], &byte, 1, MSG_DONTWAIT, NULL, 0) == 1) {}
        expect(errno == EAGAIN, "filled");
    }
    set_blocking(fds[0], 0);
    set_blocking(fds[1], 0);
    compare_calls("a full socket", fds, 65536, 0, 0);
    compare_calls("a full socket, without waiting", fds, 65536, 0, MSG_DONTWAIT);
    /* Vectors, headers and parts that cannot be read. */
    open_transport(TCP, full);
    unsigned char *twin = uncopy_alloc(65536);
    memset(twin, 1, 65536);
    /* The compiler must not know them. */
    void *volatile nowhere = (void *)8;
    volatile int negative = -1;
    expect(writev(full[0], nowhere, 2) == -1 && errno == EFAULT, "vector");
    expect(sendmsg(full[0], nowhere, 0) == -1 && errno == EFAULT, "header");
    expect(sendmmsg(full[0], nowhere, 1, 0) == -1 && errno == EFAULT, "headers");
    struct iovec parts[2] = {{nowhere, 100}, {twin, 65536}};
    expect(writev(full[0], parts, 2) == -1 && errno == EFAULT, "first part");
    expect(writev(full[0], parts, negative) == -1 && errno == EINVAL, "count");
    parts[0].iov_base = twin;
    parts[0].iov_len = SIZE_MAX / 2;
    parts[1].iov_len = SIZE_MAX / 2;
    ssize_t huge = syscall(SYS_writev, full[0], parts, 2);
    int huge_errno = errno;
    expect(huge == -1 && writev(full[0], parts, 2) == huge && errno == huge_errno, "lengths beyond the largest");
    close(full[0]);
    close(full[1]);
    /* A descriptor sent beside the bytes. */
    open_transport(UNIX, full);
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control, got;
    memset(&control, 0, sizeof control);
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&control.header), &full[1], sizeof(int));
    struct iovec part = {twin, 65536};
    struct msghdr message = {NULL, 0, &part, 1, &control, sizeof control, 0};
    expect(sendmsg(full[0], &message, 0) == 65536, "with a descriptor");
    unsigned char *found = malloc(65536);
    part.iov_base = found;
    message.msg_control = &got;
    ssize_t received = recvmsg(full[1], &message, 0);
    expect(received > 0 && message.msg_controllen >= sizeof(int), "the descriptor arrives");
    read_exactly(full[1], found + received, 65536 - (size_t)received);
    expect(memcmp(found, twin, 65536) == 0, "beside a descriptor");
    /* A regular file. */
    FILE *file = tmpfile();
    expect(file != NULL && write(fileno(file), twin, 65536) == 65536, "file");
    memset(twin, 2, 65536);
    expect(pread(fileno(file), found, 65536, 0) == 65536 && found[0] == 1 && found[65535] == 1, "file's bytes");
    fclose(file);
    free(found);
    uncopy_free(twin);
}

static void allocator(void) {
    uncopy_free(NULL);
    expect(uncopy_usable_size(NULL) == 0, "usable");
    int local = 0;
    void *ordinary = malloc(100000);
    expect(!uncopy_owns(&local) && !uncopy_owns(NULL) && !uncopy_owns(ordinary), "owns what it does not own");
    free(ordinary);
    for (size_t size = 0; size < 3000000; size = size * 2 + 1) {
        errno = 77;
        unsigned char *memory = uncopy_alloc(size);
        expect(memory != NULL && ((uintptr_t)memory & 15) == 0 && uncopy_owns(memory), "%zu bytes", size);
        expect(uncopy_usable_size(memory) >= size, "usable size of %zu", size);
        fill(memory, size, 3);
        unsigned char *grown = uncopy_realloc(memory, size * 3 + 1);
        expect(grown != NULL, "growing %zu", size);
        unsigned char *expected = malloc(size + 1);
        fill(expected, size, 3);
        expect(memcmp(grown, expected, size) == 0, "grown from %zu", size);
        grown = uncopy_realloc(grown, size / 2);
        expect(grown != NULL && memcmp(grown, expected, size / 2) == 0, "shrunk from %zu", size);
        uncopy_free(grown);
        free(expected);
        unsigned char *zeroes = uncopy_calloc(size, 3);
        expect(zeroes != NULL, "zeroes");
        for (size_t at = 0; at < size * 3; at++)
            expect(zeroes[at] == 0, "byte %zu of %zu", at, size * 3);
        memset(zeroes, 1, size * 3);
        uncopy_free(zeroes);
        expect(errno == 77, "errno kept");
    }
    for (size_t alignment = 1; alignment <= 65536; alignment *= 2) {
        void *memory = uncopy_aligned_alloc(alignment, 1000);
        expect(memory != NULL && ((uintptr_t)memory & (alignment - 1)) == 0, "alignment %zu", alignment);
        uncopy_free(memory);
    }
    expect(uncopy_aligned_alloc(24, 100) == NULL && errno == EINVAL, "alignment");
    errno = 0;
    expect(uncopy_calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM, "product");
    errno = 0;
    expect(uncopy_alloc(SIZE_MAX - 100) == NULL && errno == ENOMEM, "size");
    struct uncopy_settings settings;
    memset(&settings, 0, sizeof settings);
    expect(uncopy_options(NULL) == -1 && errno == EINVAL, "no options");
    expect(uncopy_options(&settings) == -1 && errno == EBUSY, "options after the first allocation");
}

static void *send_in_thread(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (enum transport transport = TCP; transport <= UDP; transport++) {
        int ends[2];
        open_transport(transport, ends);
        for (int round = 0; round < 100; round++) {
            seed = seed * 1103515245u + 12345u;
            size_t len = (seed >> 8) % (transport >= UDP || transport == SEQUENCED ? 60000 : 150000) + 1;
            check_overwrite(transport, WRITEV, (enum change)((seed >> 4) % FORK), len, (seed >> 2) % 5000, ends);
        }
        close(ends[0]);
        close(ends[1]);
    }
    return NULL;
}

static void threads(void) {
    pthread_t all[4];
    for (uintptr_t at = 0; at < 4; at++)
        expect(pthread_create(&all[at], NULL, send_in_thread, (void *)(at + 1)) == 0, "thread");
    for (int at = 0; at < 4; at++)
        expect(pthread_join(all[at], NULL) == 0, "join");
}

struct blocked {
    int fd;
    enum call call;
    unsigned char *memory;
};

static void *send_forever(void *argument) {
    struct blocked *blocked = argument;
    struct iovec part = {blocked->memory, LARGEST};
    for (;;) {
        ssize_t sent = send_by(blocked->call, blocked->fd, &part, 1);
        expect(sent > 0, "a blocking %s", call_names[blocked->call]);
    }
    return NULL;
}

/* A thread that waits for room can be cancelled. */
static void cancel(void) {
    static const enum transport transports[] = {TCP, UNIX, PIPE};
    unsigned char *memory = uncopy_alloc(LARGEST);
    fill(memory, LARGEST, 5);
    for (size_t at = 0; at < sizeof transports / sizeof *transports; at++) {
        for (enum call call = transports[at] == PIPE ? WRITE : 0; call < CALLS; call++) {
            int ends[2];
            open_transport(transports[at], ends);
            struct blocked blocked = {ends[0], call, memory};
            pthread_t sender;
            expect(pthread_create(&sender, NULL, send_forever, &blocked) == 0, "thread");
            /* Until nothing more fits in. */
            for (int unchanged = 0, last = -1; unchanged < 5; usleep(2000)) {
                int queued = 0;
                expect(ioctl(ends[1], FIONREAD, &queued) == 0, "queued");
                unchanged = queued == last && queued > 0 ? unchanged + 1 : 0;
                last = queued;
            }
            void *result;
            expect(pthread_cancel(sender) == 0 && pthread_join(sender, &result) == 0, "cancel");
            expect(result == PTHREAD_CANCELED, "cancelled in %s", call_names[call]);
            close(ends[0]);
            close(ends[1]);
        }
    }
    uncopy_free(memory);
}

/* The first thread ends, the others go on, and then the process ends although our thread is there. */
static void *last_thread(void *argument) {
    (void)argument;
    usleep(20000);
    threads();
    printf("ends\n1: as the last thread\ndone\n");
    return NULL;
}

static void ends(void) {
    pthread_t other;
    threads();
    expect(pthread_create(&other, NULL, last_thread, NULL) == 0 && pthread_detach(other) == 0, "thread");
    pthread_exit(NULL);
}

static void options(void) {
    struct uncopy_settings settings;
    memset(&settings, 0, sizeof settings);
    settings.pageblock_pages = 65;
    expect(uncopy_options(&settings) == -1 && errno == EINVAL, "pages");
    settings.pageblock_pages = 4;
    settings.reserved[4] = 1;
    expect(uncopy_options(&settings) == -1 && errno == EINVAL, "reserved");
    settings.reserved[4] = 0;
    settings.large_threshold = 2048;
    settings.memory_cap = 8 << 20;
    expect(uncopy_options(&settings) == 0, "options");
    void *all[64];
    int count = 0;
    while (count < 64 && (all[count] = uncopy_alloc(1 << 20)) != NULL)
        count++;
    expect(count >= 1 && count <= 8 && errno == ENOMEM, "%d MiB below a cap of 8", count);
    for (int at = 0; at < count; at++)
        uncopy_free(all[at]);
    void *again = uncopy_alloc(1 << 20);
    expect(again != NULL, "after freeing");
    uncopy_free(again);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {{"overwrite", overwrite}, {"errors", errors}, {"allocator", allocator}, {"threads", threads}, {"options", options}, {"cancel", cancel}, {"ends", ends}};
    alarm(50);
    for (int at = 1; at < count; at++)
        for (size_t which = 0; which < sizeof scenarios / sizeof *scenarios; which++)
            if (strcmp(arguments[at], scenarios[which].name) == 0) {
                scenarios[which].run();
                printf("%s\n", scenarios[which].name);
            }
    const char *why = NULL;
    int works = uncopy_status(&why);
    printf("%d: %s\n", works, why);
    printf("done\n");
    return 0;
}

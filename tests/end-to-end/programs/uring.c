/* io_uring on buffers that hold received data: requests that name addresses, registered buffers, sends and
 * receives. The kernel reads and writes the program's pages itself, now or later, in this thread or in others. */
#include "common.h"
#include <liburing.h>

#define LEN (300 * 1000)

static struct io_uring ring;

/* Submits what was prepared and waits for it. */
static int submit_and_wait(void) {
    struct io_uring_cqe *done;
    expect(io_uring_submit(&ring) == 1, "submit");
    expect(io_uring_wait_cqe(&ring, &done) == 0, "completion");
    int result = done->res;
    io_uring_cqe_seen(&ring, done);
    return result;
}

static struct io_uring_sqe *prepare(void) {
    struct io_uring_sqe *request = io_uring_get_sqe(&ring);
    expect(request != 0, "request");
    return request;
}

/* Every second request goes to the kernel's own threads. */
static void maybe_async(struct io_uring_sqe *request, unsigned round) {
    if (round % 2) io_uring_sqe_set_flags(request, IOSQE_ASYNC);
}

static void files(int file, unsigned round) {
    unsigned char *source = copied_buffer(LEN, round), *target = copied_buffer(LEN, round + 50);
    struct io_uring_sqe *request = prepare();
    io_uring_prep_write(request, file, source + 7, LEN - 7, 0);
    maybe_async(request, round);
    expect(submit_and_wait() == LEN - 7, "write");
    struct iovec parts[2] = {{target + 3, 100000}, {target + 150000, 100000}};
    request = prepare();
    io_uring_prep_readv(request, file, parts, 2, 11);
    maybe_async(request, round);
    expect(submit_and_wait() == 200000, "readv");
    check(target, 3, round + 50, 0, "before");
    check(target + 3, 100000, round, 18, "first part");
    check(target + 100003, 49997, round + 50, 100003, "between");
    check(target + 150000, 100000, round, 100018, "second part");
    check(target + 250000, LEN - 250000, round + 50, 250000, "after");
    check(source, LEN, round, 0, "written");
    free(source);
    free(target);
}

static void sockets(unsigned round) {
    unsigned char *source = copied_buffer(LEN, round + 100), *target = copied_buffer(LEN, round + 150);
    struct io_uring_sqe *request = prepare();
    io_uring_prep_send(request, near_end, source + 5, LEN - 5, MSG_WAITALL);
    maybe_async(request, round);
    expect(submit_and_wait() == LEN - 5, "send");
    request = prepare();
    io_uring_prep_recv(request, far_end, target + 9, LEN - 9, MSG_WAITALL);
    maybe_async(request, round);
    int got = submit_and_wait();
    expect(got == LEN - 9, "recv");
    check(target + 9, LEN - 9, round + 100, 5, "received");
    check(target, 9, round + 150, 0, "before what was received");
    expect(recv(far_end, wire, 100, MSG_DONTWAIT) == 4, "rest");
    memcpy(target, source, LEN);
    free(source);
    check(target, LEN, round + 100, 0, "copied");
    /* A receive that waits while the buffer is used otherwise up to where it was told to store. */
    request = prepare();
    io_uring_prep_recv(request, far_end, target, LEN / 2, MSG_WAITALL);
    expect(io_uring_submit(&ring) == 1, "submit");
    receive(target + LEN / 2 + 4096, LEN / 2 - 4096, round + 160);
    fill(wire, LEN / 2, round + 170);
    for (size_t done = 0; done < LEN / 2;) {
        long now = syscall(SYS_write, near_end, wire + done, LEN / 2 - done);
        expect(now > 0, "write");
        done += (size_t)now;
    }
    struct io_uring_cqe *done;
    expect(io_uring_wait_cqe(&ring, &done) == 0 && done->res == LEN / 2, "late receive");
    io_uring_cqe_seen(&ring, done);
    check(target, LEN / 2, round + 170, 0, "received late");
    check(target + LEN / 2, 4096, round + 100, LEN / 2, "between both");
    check(target + LEN / 2 + 4096, LEN / 2 - 4096, round + 160, 0, "received meanwhile");
    free(target);
}

/* Registered buffers: the kernel keeps the pages that were there when they were registered. */
static void registered(int file, unsigned round) {
    /* One that held a view, one that was never touched (of a size that nothing else here has), one that
     * was filled. */
    unsigned char *buffers[3] = {copied_buffer(LEN, round), malloc(2 * MIB << round), malloc(LEN)};
    fill(buffers[2], LEN, round + 2);
    struct iovec parts[3] = {{buffers[0], LEN}, {buffers[1], LEN}, {buffers[2], LEN}};
    expect(io_uring_register_buffers(&ring, parts, 3) == 0, "registered buffers");
    for (int at = 0; at < 3; at++) {
        unsigned seed = round * 10 + 200 + (unsigned)at;
        for (int method = 0; method < 4; method++, seed += 3) {
            unsigned char *other = copied_buffer(LEN, seed), *second;
            switch (method) {
            case 0: receive(buffers[at], LEN, seed); break;
            case 1: memcpy(buffers[at], other, LEN); break;
            case 2: fill(buffers[at], LEN, seed); break;
            default:
                /* The kernel stores, by the pages that it keeps. */
                expect(pwrite(file, other, LEN, 4096) == LEN, "pwrite");
                struct io_uring_sqe *request = prepare();
                io_uring_prep_read_fixed(request, file, buffers[at], LEN, 4096, at);
                maybe_async(request, round);
                expect(submit_and_wait() == LEN, "read into a registered buffer");
            }
            second = malloc(LEN);
            memcpy(second, buffers[at], LEN);
            struct io_uring_sqe *request = prepare();
            io_uring_prep_write_fixed(request, file, buffers[at], LEN, 0, at);
            maybe_async(request, round);
            expect(submit_and_wait() == LEN, "write from a registered buffer");
            for (size_t got = 0; got < LEN;) {
                long now = syscall(SYS_pread64, file, wire + got, LEN - got, got);
                expect(now > 0, "pread");
                got += (size_t)now;
            }
            char what[80];
            snprintf(what, sizeof what, "written from registered buffer %d, way %d", at, method);
            check(wire, LEN, seed, 0, what);
            check(buffers[at], LEN, seed, 0, "in the registered buffer");
            check(second, LEN, seed, 0, "copied from it");
            check(other, LEN, seed, 0, "copied to it");
            free(other);
            free(second);
        }
    }
    expect(io_uring_unregister_buffers(&ring) == 0, "unregister");
    for (int at = 0; at < 3; at++) free(buffers[at]);
}

int main(int count, char **arguments) {
    if (io_uring_queue_init(8, &ring, 0) < 0) {
        puts("io_uring is not allowed here");
        return 0;
    }
    open_wire();
    int file = open("ring.data", O_RDWR | O_CREAT | O_TRUNC, 0600);
    expect(file >= 0, "file");
    for (unsigned round = 0; round < 4; round++) {
        if (count < 2 || arguments[1][0] == 'f') files(file, round);
        if (count < 2 || arguments[1][0] == 's') sockets(round);
        if (count < 2 || arguments[1][0] == 'r') registered(file, round);
    }
    puts("done");
    return 0;
}

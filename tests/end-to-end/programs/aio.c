/* Linux's asynchronous input and output (libaio) on buffers that hold received data, also with O_DIRECT, where the
 * device reads and writes the program's pages. */
#include "common.h"
#include <libaio.h>

#define LEN (512 * 1024)

static void submit_and_wait(io_context_t context, struct iocb **requests, long count) {
    struct io_event events[4];
    expect(io_submit(context, count, requests) == count, "io_submit");
    expect(io_getevents(context, count, count, events, 0) == count, "io_getevents");
    for (long at = 0; at < count; at++) expect(events[at].res == LEN, "result");
}

static unsigned char *aligned_buffer(size_t len) {
    void *block = 0;
    expect(posix_memalign(&block, 4096, len) == 0, "posix_memalign");
    return block;
}

static void round_trip(io_context_t context, int file, uint64_t seed) {
    unsigned char *sources[2], *targets[2];
    struct iocb requests[2], *list[2] = {&requests[0], &requests[1]};
    for (unsigned at = 0; at < 2; at++) {
        unsigned char *received = aligned_buffer(LEN);
        receive(received, LEN, seed + at);
        sources[at] = aligned_buffer(LEN);
        memcpy(sources[at], received, LEN);
        targets[at] = received;
        io_prep_pwrite(&requests[at], file, sources[at], LEN, (long long)at * LEN);
    }
    submit_and_wait(context, list, 2);
    for (unsigned at = 0; at < 2; at++)
        io_prep_pread(&requests[at], file, targets[1 - at], LEN, (long long)at * LEN);
    submit_and_wait(context, list, 2);
    for (unsigned at = 0; at < 2; at++) {
        check(targets[1 - at], LEN, seed + at, 0, "read by aio");
        memcpy(sources[1 - at], targets[1 - at], LEN);
        send_and_check(sources[1 - at], LEN, seed + at, 0, "sent after aio");
        receive(targets[1 - at], LEN, seed + 10);
        check(sources[1 - at], LEN, seed + at, 0, "copied after aio");
        check(targets[1 - at], LEN, seed + 10, 0, "received after aio");
        /* The buffer that a request reads may be received into as soon as the request is done. */
        io_prep_pwrite(&requests[0], file, sources[1 - at], LEN, 0);
        submit_and_wait(context, list, 1);
        receive(sources[1 - at], LEN, seed + 20);
        io_prep_pread(&requests[0], file, sources[1 - at], LEN, 0);
        submit_and_wait(context, list, 1);
        check(sources[1 - at], LEN, seed + at, 0, "read over what was received");
    }
    for (unsigned at = 0; at < 2; at++) {
        free(sources[at]);
        free(targets[at]);
    }
}

int main(void) {
    io_context_t context = 0;
    expect(io_setup(4, &context) == 0, "io_setup");
    open_wire();
    for (int flags = 0; flags <= O_DIRECT; flags += O_DIRECT) {
        int file = open("aio.data", O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
        if (file < 0 && flags) {
            /* Not every file system has it. */
            puts("no O_DIRECT");
            break;
        }
        expect(file >= 0, "file");
        for (uint64_t seed = 0; seed < 6; seed++) round_trip(context, file, seed * 7);
        close(file);
    }
    expect(io_destroy(context) == 0, "io_destroy");
    puts("done");
    return 0;
}

/* Passes on what it reads, from a second buffer: by itself (`passed_on own`), after it has accepted a connection (`accepting`), or in a
 * forked child (`forked`, `forked-by-accepting`). */
#include "plain.h"
#include <netinet/in.h>
#include <sys/wait.h>

enum { LEN = 256 << 10 };

static void accept_one(void) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof here;
    int listening = socket(AF_INET, SOCK_STREAM, 0), connecting = socket(AF_INET, SOCK_STREAM, 0);
    expect(bind(listening, (struct sockaddr *)&here, len) == 0 && listen(listening, 1) == 0, "listen");
    expect(getsockname(listening, (struct sockaddr *)&here, &len) == 0, "getsockname");
    expect(connect(connecting, (struct sockaddr *)&here, len) == 0, "connect");
    expect(accept(listening, NULL, NULL) >= 0, "accept");
}

static int pass_on(void) {
    unsigned char *received = malloc(LEN), *copy = malloc(LEN);
    ssize_t got;
    while ((got = read(0, received, LEN)) > 0) {
        memcpy(copy, received, (size_t)got);
        expect(write(1, copy, (size_t)got) == got, "write");
    }
    return got != 0;
}

int main(int count, char **arguments) {
    const char *who = count > 1 ? arguments[1] : "own";
    if (strstr(who, "accepting")) accept_one();
    if (strncmp(who, "forked", 6) != 0) return pass_on();
    pid_t child = fork();
    if (child == 0) return pass_on();
    int status;
    expect(child > 0 && waitpid(child, &status, 0) == child, "fork");
    return status != 0;
}

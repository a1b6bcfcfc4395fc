/* Passes on what it reads, from a second buffer: by itself (`forwarding own`), after it has accepted a connection (`accepting`), or in a
 * forked child (`forked`, `forked-by-accepting`). */
#include "common.h"
#include <netinet/in.h>
#include <sys/wait.h>

enum { LEN = 256 << 10 };

static void accept_connection(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0), connecting = socket(AF_INET, SOCK_STREAM, 0);
    expect(bind(listening, (struct sockaddr *)&address, len) == 0 && listen(listening, 1) == 0, "listen");
    expect(getsockname(listening, (struct sockaddr *)&address, &len) == 0, "getsockname");
    expect(connect(connecting, (struct sockaddr *)&address, len) == 0, "connect");
    expect(accept(listening, NULL, NULL) >= 0, "accept");
}

static int forward(void) {
    unsigned char *received = malloc(LEN), *copy = malloc(LEN);
    ssize_t got;
    while ((got = read(0, received, LEN)) > 0) {
        memcpy(copy, received, (size_t)got);
        expect(write(1, copy, (size_t)got) == got, "write");
    }
    return got != 0;
}

int main(int count, char **arguments) {
    const char *mode = count > 1 ? arguments[1] : "own";
    if (strstr(mode, "accepting")) accept_connection();
    if (strncmp(mode, "forked", 6) != 0) return forward();
    pid_t child = fork();
    if (child == 0) return forward();
    int status;
    expect(child > 0 && waitpid(child, &status, 0) == child, "fork");
    return status != 0;
}

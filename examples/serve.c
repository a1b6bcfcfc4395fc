/* A server of one value: `serve PORT FILE` answers every connection on the loopback with the file's bytes.
   Two lines of it are uncopy's; see docs/twin.md. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <uncopy.h>

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct stat status;
    FILE *file = count == 3 ? fopen(arguments[2], "rb") : NULL;
    if (file == NULL || fstat(fileno(file), &status) != 0) {
        fprintf(stderr, "usage: serve PORT FILE\n");
        return 2;
    }
    size_t len = (size_t)status.st_size;
    char *value = uncopy_alloc(len); /* instead of malloc */
    if (value == NULL || fread(value, 1, len, file) != len) {
        fprintf(stderr, "serve: cannot read %s\n", arguments[2]);
        return 1;
    }
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_port = htons((unsigned short)atoi(arguments[1]));
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0) {
        perror("serve");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        for (size_t sent = 0; peer >= 0 && sent < len;) {
            ssize_t now = write(peer, value + sent, len - sent);
            if (now <= 0)
                break;
            sent += (size_t)now;
        }
        close(peer);
    }
}

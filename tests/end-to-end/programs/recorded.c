/* Receives and copies something large: linked with the library, it is recorded without being preloaded. */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char from[65536], to[65536];

int main(void) {
    int zeroes = open("/dev/zero", O_RDONLY);
    if (zeroes < 0 || read(zeroes, from, sizeof from) != (ssize_t)sizeof from) {
        return 1;
    }
    memcpy(to, from, sizeof from);
    printf("%u %u\n", (unsigned)getuid(), (unsigned)geteuid());
    return 0;
}

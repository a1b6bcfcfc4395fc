/* Says what it was started with; built with another C library, or for a sanitizer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

int main(int count, char **arguments) {
    int uncopy_variables = 0;
    for (char **entry = environ; *entry; entry++)
        uncopy_variables += !strncmp(*entry, "UNCOPY_", 7) && strncmp(*entry, "UNCOPY_BIN_DIR", 14) && strncmp(*entry, "UNCOPY_TEST_", 12);
    const char *preload = getenv("LD_PRELOAD"), *other = getenv("OTHER");
    printf("%d arguments, the last is %s; LD_PRELOAD=%s, %d of UNCOPY_, OTHER=%s\n", count, arguments[count - 1],
           preload ? preload : "", uncopy_variables, other ? other : "");
    free(malloc(99));
    return 7;
}

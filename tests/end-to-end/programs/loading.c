/* Code that runs before main, after it, and out of libraries that are loaded late: one source, three pieces.
 *
 * -DEARLY: a library with an IFUNC, a constructor and a destructor that receive, copy and allocate.
 * -DPLUGIN: a library for dlopen, also with RTLD_DEEPBIND, where its calls reach libc past everything preloaded.
 * neither: the program. */
#include "common.h"
#include <dlfcn.h>

#define LEN 300000

#if defined EARLY

static unsigned char resolved[64];

static int answer(void) { return resolved[3] + resolved[40]; }

/* Runs while libraries are still being relocated. */
static int (*resolve_answer(void))(void) {
    unsigned char bytes[64];
    for (unsigned at = 0; at < sizeof bytes; at++) bytes[at] = 21;
    memcpy(resolved, bytes, sizeof bytes);
    return answer;
}

int early_answer(void) __attribute__((ifunc("resolve_answer")));

static unsigned char *kept;

static void receive_copy_send(uint64_t seed) {
    unsigned char *copy = copied_buffer(LEN, seed), *second = malloc(LEN);
    memcpy(second, copy, LEN);
    memmove(second + 45, second, LEN - 45);
    send_and_check(second + 45, LEN - 45, seed, 0, "sent early or late");
    check(copy, LEN, seed, 0, "copied early or late");
    free(second);
    free(kept);
    kept = copy;
}

__attribute__((constructor(101))) static void on_load(void) {
    open_wire();
    receive_copy_send(1);
    void *small = malloc(100), *large = calloc(1, LEN);
    expect(small && large, "early memory");
    free(small);
    kept = realloc(kept, 2 * LEN);
    check(kept, LEN, 1, 0, "resized before main");
    free(large);
}

__attribute__((destructor(101))) static void on_unload(void) {
    check(kept, LEN, 1, 0, "kept until after main");
    receive_copy_send(2);
    check(kept, LEN, 2, 0, "received after main");
    puts("ended");
}

#elif defined PLUGIN

/* Copies with this library's own memcpy and malloc, whichever those are. */
unsigned char *plugin_copy(const unsigned char *from, size_t len) {
    unsigned char *to = malloc(len), *own = malloc(len);
    expect(to && own, "plugin's memory");
    memcpy(own, from, len);
    memcpy(to, own, len);
    own = realloc(own, len * 2);
    check(own, len, 9, 0, "a plugin's own copy");
    free(own);
    return to;
}

void plugin_overwrite(unsigned char *to, size_t len) { memset(to, 5, len); }

#else

int early_answer(void);

static void check_plugin(const char *path, int flags) {
    void *library = dlopen(path, flags);
    if (!library) fail(dlerror(), 0);
    unsigned char *(*copy_in_plugin)(const unsigned char *, size_t);
    void (*overwrite)(unsigned char *, size_t);
    *(void **)&copy_in_plugin = dlsym(library, "plugin_copy");
    *(void **)&overwrite = dlsym(library, "plugin_overwrite");
    for (int round = 0; round < 3; round++) {
        unsigned char *view = copied_buffer(LEN, 9), *other = malloc(LEN);
        unsigned char *from_plugin = copy_in_plugin(view, LEN);
        check(from_plugin, LEN, 9, 0, "copied by a plugin");
        memcpy(other, from_plugin, LEN);
        overwrite(view + 1000, 5000);
        check(view, 1000, 9, 0, "before what a plugin stored");
        check(view + 6000, LEN - 6000, 9, 6000, "after what a plugin stored");
        check(other, LEN, 9, 0, "copied from a plugin's memory");
        /* What one library's malloc gave, the program's free takes. */
        free(from_plugin);
        free(view);
        free(other);
    }
    if (flags & RTLD_NODELETE) return;
    expect(dlclose(library) == 0, "dlclose");
}

static void at_exit(void) {
    unsigned char *copy = copied_buffer(LEN, 11);
    check(copy, LEN, 11, 0, "received at exit");
    free(copy);
}

int main(int count, char **arguments) {
    expect(count == 2, "path of the plugin");
    expect(early_answer() == 42, "a function chosen while loading");
    open_wire();
    atexit(at_exit);
    check_plugin(arguments[1], RTLD_NOW);
    check_plugin(arguments[1], RTLD_LAZY | RTLD_LOCAL);
    check_plugin(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    puts("done");
    return 0;
}

#endif

/* What a program and other libraries find while libraries are being loaded.
   -DCONSTRUCTOR: a library whose constructor looks for what is not there and frees what that left, as libfaketime does.
   -DLOCALE: a library whose constructor lets libc allocate under a lock of libc's own, as p11-kit does.
   -DWRAPPER: a library that stands in front of malloc and calls glibc's by its other names.
   -DPLUGIN: a library for dlopen with RTLD_DEEPBIND that is given memory of the program's.
   -DODD: the same as -DWRAPPER with a function of its own, which nobody else knows.
   Else a program that says how it finds errno, dlerror and its memory (with an argument: its heap, too), and executes what its
   arguments say: METHOD FILE ARGUMENT... */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <malloc.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined CONSTRUCTOR
__attribute__((constructor)) static void start(void) {
    for (int round = 0; round < 5; round++) {
        if (dlsym(RTLD_NEXT, "nobody_has_this") || dlsym(RTLD_DEFAULT, "nor_this"))
            abort();
        free(realloc(malloc(10), 100000));
        free(calloc(3, 5));
        void *aligned = NULL;
        if (posix_memalign(&aligned, 64, 100) || !reallocarray(aligned, 10, 100))
            abort();
    }
    dlerror(); /* Nobody else's lookup may find this one's message. */
}
#elif defined LOCALE
__attribute__((constructor)) static void start(void) {
    locale_t locale = newlocale(LC_MESSAGES_MASK, "POSIX", (locale_t)0);
    if (!locale)
        abort();
    freelocale(locale);
}
#elif defined PLUGIN
size_t work(char *given, char *freed) {
    size_t len = malloc_usable_size(given);
    given = reallocarray(realloc(given, 3000000), 2, 2000000);
    size_t sum = (size_t)(given[0] + given[999999]);
    free(given);
    free(freed);
    return sum + (len >= 1000000);
}
#elif defined WRAPPER || defined ODD
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
void __libc_free(void *);
void *malloc(size_t len) { return __libc_malloc(len); }
void *calloc(size_t count, size_t each) { return __libc_calloc(count, each); }
void *realloc(void *pointer, size_t len) { return __libc_realloc(pointer, len); }
void free(void *pointer) { __libc_free(pointer); }
#ifdef ODD
void odd_free(void *pointer) { __libc_free(pointer); }
#endif
#else
extern char **environ;

static char *received_buffer(void) {
    char *buffer = malloc(1000000);
    int zeroes = open("/dev/zero", O_RDONLY);
    if (read(zeroes, buffer, 1000000) != 1000000)
        abort();
    close(zeroes);
    memset(buffer, 3, 1000);
    buffer[999999] = 4;
    return buffer;
}

static int use_plugin(const char *path) {
    void *plugin = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
    size_t (*work)(char *, char *) = plugin ? (size_t(*)(char *, char *))dlsym(plugin, "work") : NULL;
    if (!work)
        return 5;
    for (int round = 0; round < 3; round++)
        printf("%zu\n", work(received_buffer(), received_buffer()));
    return 0;
}

static int run_spawned(int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
                                char *const[], char *const[]),
                   char **arguments) {
    pid_t child;
    int status = spawn(&child, arguments[0], NULL, NULL, arguments, environ);
    if (status || waitpid(child, &status, 0) != child)
        return 3;
    return WEXITSTATUS(status);
}

static int execute(const char *method, char **arguments) {
#define IS_METHOD(name) !strcmp(method, #name)
    const char *file = arguments[0];
    if (IS_METHOD(execve))
        execve(file, arguments, environ);
    else if (IS_METHOD(execv))
        execv(file, arguments);
    else if (IS_METHOD(execvp))
        execvp(file, arguments);
    else if (IS_METHOD(execvpe))
        execvpe(file, arguments, environ);
    else if (IS_METHOD(execl))
        execl(file, file, arguments[1], "2", "3", "4", "5", "6", (char *)NULL);
    else if (IS_METHOD(execlp))
        execlp(file, file, arguments[1], "2", "3", (char *)NULL);
    else if (IS_METHOD(execle))
        execle(file, file, arguments[1], "2", "3", "4", "5", (char *)NULL, environ);
    else if (IS_METHOD(fexecve))
        fexecve(open(file, O_RDONLY | O_CLOEXEC), arguments, environ);
    else if (IS_METHOD(execveat))
        execveat(open("/", O_PATH), file + 1, arguments, environ, 0);
    else if (IS_METHOD(empty_execveat))
        execveat(open(file, O_PATH | O_CLOEXEC), "", arguments, environ, AT_EMPTY_PATH);
    else if (IS_METHOD(syscall))
        syscall(SYS_execve, file, arguments, environ);
    else if (IS_METHOD(vfork)) {
        pid_t child = vfork();
        int status = 0;
        if (!child) {
            execv(file, arguments);
            _exit(3);
        }
        if (waitpid(child, &status, 0) != child)
            return 3;
        return WEXITSTATUS(status);
    } else if (IS_METHOD(posix_spawn))
        return run_spawned(posix_spawn, arguments);
    else if (IS_METHOD(posix_spawnp))
        return run_spawned(posix_spawnp, arguments);
    perror(method);
    return 3;
}

int main(int count, char **arguments) {
    int at_start = errno;
    struct mallinfo2 heap = mallinfo2();
    const char *dl_error = dlerror();
    setlocale(LC_ALL, "");
    if (count > 2 && !strcmp(arguments[1], "plugin"))
        return use_plugin(arguments[2]);
    if (count > 2)
        return execute(arguments[1], arguments + 2);
    printf("errno %d, dlerror %s\n", at_start, dl_error ? dl_error : "none");
    if (count > 1)
        printf("heap of %zu with %zu free in %zu parts\n", heap.arena, heap.fordblks + heap.fsmblks, heap.ordblks + heap.smblks);
    for (size_t len = 100; len < 10000000; len *= 10) {
        char *buffer = malloc(len);
        memset(buffer, 1, len);
        buffer = realloc(buffer, 2 * len);
        errno = 77;
        char *aligned = aligned_alloc(64, len);
        if (errno != 77 || !aligned || buffer[len - 1] != 1)
            return 4;
        free(aligned);
        free(buffer);
    }
    puts("done");
    return 0;
}
#endif

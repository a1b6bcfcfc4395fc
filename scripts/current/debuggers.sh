# gdb, strace and valgrind with a program of large buffers below them.
# shellcheck shell=bash
packages="gdb strace valgrind gcc libc6-dev"
drive() {
    cat >a.c <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static __attribute__((noinline)) unsigned sum_of_bytes(const unsigned char *p, size_t n) { unsigned s = 0; while (n--) s = s * 31 + *p++; return s; }
int main(void) {
    size_t n = 1 << 20;
    char *a = malloc(n), *b = malloc(n);
    for (int round = 0; round < 4; round++) {
        lseek(0, 0, SEEK_SET);
        ssize_t got = read(0, a, n);
        memcpy(b, a, got);
        printf("%zd %u\n", got, sum_of_bytes((unsigned char *)b, got));
    }
    free(a); free(b);
    return 5;
}
C
    client gcc -g -O1 a.c -o a && bytes 1 1000000 >in || return
    client ./a <in; echo "ended with $?"
    client strace -f -o trace -e trace=openat,lseek ./a <in; echo "ended with $?"
    grep -c 'lseek(0' trace
    client valgrind -q --error-exitcode=9 ./a <in 2>"$logs/valgrind"; echo "ended with $?"
    client gdb -q -batch -ex 'break sum_of_bytes' -ex 'run <in' -ex 'print n' -ex 'x/4xb p' -ex 'delete' -ex continue ./a 2>/dev/null | grep -E '^\$1 =|^0x[0-9a-f]*:|Inferior.*exited' | sed 's/^0x[0-9a-f]*//; s/process [0-9]*/process/'
}

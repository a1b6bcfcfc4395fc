// What a program of epoll sees of connections that go through a service of TCP: address of the service, port.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                              \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static struct sockaddr_in address_of(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    EXPECT(inet_pton(AF_INET, host, &address.sin_addr) == 1);
    return address;
}

static int get_option(int fd, int level, int name) {
    int value = -1;
    socklen_t len = sizeof value;
    EXPECT(getsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void set_option(int fd, int level, int name, int value) {
    EXPECT(setsockopt(fd, level, name, &value, sizeof value) == 0);
}

// Registered before it connects, as nginx does; by which descriptor epoll tells of it.
static int start_connect(int epoll, const struct sockaddr_in *to) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    EXPECT(fd >= 0);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = 1000 + fd};
    EXPECT(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    EXPECT(connect(fd, (const struct sockaddr *)to, sizeof *to) == -1 && errno == EINPROGRESS);
    EXPECT(fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC);
    return fd;
}

static unsigned next_events(int epoll, int fd) {
    struct epoll_event event;
    EXPECT(epoll_wait(epoll, &event, 1, 10000) == 1);
    EXPECT(event.data.u64 == (unsigned)(1000 + fd));
    return event.events;
}

int main(int count, char **arguments) {
    EXPECT(count == 3);
    struct sockaddr_in service_address = address_of(arguments[1], atoi(arguments[2]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(EPOLL_CLOEXEC);
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    struct sockaddr_in any = address_of("0.0.0.0", atoi(arguments[2]));
    EXPECT(bind(listener, (struct sockaddr *)&any, sizeof any) == 0);
    EXPECT(bind(listener, (struct sockaddr *)&any, sizeof any) == -1 && errno == EINVAL);
    set_option(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    EXPECT(listen(listener, 16) == 0);
    EXPECT(get_option(listener, SOL_SOCKET, SO_DOMAIN) == AF_INET && get_option(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1);

    int near = start_connect(epoll, &service_address);
    EXPECT(next_events(epoll, near) & EPOLLOUT);
    EXPECT(get_option(near, SOL_SOCKET, SO_ERROR) == 0 && get_option(near, IPPROTO_TCP, TCP_NODELAY) == 1);
    EXPECT(connect(near, (struct sockaddr *)&service_address, sizeof service_address) == 0);
    EXPECT(connect(near, (struct sockaddr *)&service_address, sizeof service_address) == -1 && errno == EISCONN);
    // The length is told, whatever there is room for.
    struct sockaddr_in peer, own;
    socklen_t len = 4;
    memset(&peer, 0xee, sizeof peer);
    int far = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    EXPECT(far >= 0 && len == sizeof peer && peer.sin_family == AF_INET && peer.sin_addr.s_addr == 0xeeeeeeee);
    EXPECT(fcntl(far, F_GETFL) & O_NONBLOCK && get_option(far, IPPROTO_TCP, TCP_NODELAY) == 1);
    len = sizeof peer;
    EXPECT(getpeername(far, (struct sockaddr *)&peer, &len) == 0 && len == sizeof peer);
    len = sizeof own;
    EXPECT(getsockname(near, (struct sockaddr *)&own, &len) == 0 && len == sizeof own);
    EXPECT(own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr);
    len = sizeof own;
    EXPECT(getsockname(far, (struct sockaddr *)&own, &len) == 0 && own.sin_port == service_address.sin_port);
    EXPECT(getpeername(listener, (struct sockaddr *)&own, &len) == -1 && errno == ENOTCONN);
    EXPECT(getsockname(near, (struct sockaddr *)8, &len) == -1 && errno == EFAULT);
    struct tcp_info info;
    len = sizeof info;
    EXPECT(getsockopt(near, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_ESTABLISHED);

    // Bytes come by a child that inherits it, and by every call.
    pid_t child = fork();
    if (child == 0) {
        struct iovec parts[2] = {{"from ", 5}, {"a child", 7}};
        _exit(writev(near, parts, 2) == 12 ? 0 : 1);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    char text[32] = "";
    struct pollfd ready = {.fd = far, .events = POLLIN};
    EXPECT(poll(&ready, 1, 10000) == 1);
    EXPECT(recv(far, text, sizeof text, MSG_PEEK | MSG_DONTWAIT) == 12);
    EXPECT(read(far, text, sizeof text) == 12 && memcmp(text, "from a child", 12) == 0);
    EXPECT(recv(far, text, 1, 0) == -1 && errno == EAGAIN);

    // Closed with no time to linger: a reset, told by whatever is called.
    struct linger none = {.l_onoff = 1, .l_linger = 0};
    EXPECT(setsockopt(far, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
    EXPECT(close(far) == 0);
    ready = (struct pollfd){.fd = near, .events = POLLIN};
    EXPECT(poll(&ready, 1, 10000) == 1);
    EXPECT(recv(near, text, 1, 0) == -1 && errno == ECONNRESET);
    EXPECT(send(near, "x", 1, MSG_NOSIGNAL) == -1 && (errno == ECONNRESET || errno == EPIPE));
    EXPECT(close(near) == 0);

    // Nobody listens at the next port: told by epoll and SO_ERROR, and by a connect that waits, again and again.
    struct sockaddr_in nobody = service_address;
    nobody.sin_port = htons(9);
    near = start_connect(epoll, &nobody);
    EXPECT(next_events(epoll, near) & (EPOLLERR | EPOLLHUP));
    EXPECT(get_option(near, SOL_SOCKET, SO_ERROR) == ECONNREFUSED);
    EXPECT(close(near) == 0);
    near = socket(AF_INET, SOCK_STREAM, 0);
    for (int turn = 0; turn < 2; ++turn)
        EXPECT(connect(near, (struct sockaddr *)&nobody, sizeof nobody) == -1 && errno == ECONNREFUSED);
    EXPECT(connect(near, (struct sockaddr *)&service_address, sizeof service_address) == 0);
    EXPECT(close(near) == 0);

    // A bound socket that connects to somebody of the kernel's is the kernel's again.
    int kernel = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in loopback = address_of("127.0.0.1", 0);
    EXPECT(bind(kernel, (struct sockaddr *)&loopback, sizeof loopback) == 0 && listen(kernel, 4) == 0);
    len = sizeof loopback;
    EXPECT(getsockname(kernel, (struct sockaddr *)&loopback, &len) == 0);
    near = socket(AF_INET, SOCK_STREAM, 0);
    any.sin_port = 0;
    EXPECT(bind(near, (struct sockaddr *)&any, sizeof any) == 0);
    len = sizeof own;
    EXPECT(getsockname(near, (struct sockaddr *)&own, &len) == 0 && own.sin_port != 0);
    EXPECT(connect(near, (struct sockaddr *)&loopback, sizeof loopback) == 0);
    len = sizeof peer;
    far = accept(kernel, (struct sockaddr *)&peer, &len);
    EXPECT(far >= 0 && peer.sin_port == own.sin_port);
    puts("done");
    return 0;
}

/* A part of the library that is preloaded into the processes of a run. It binds a TCP socket to the address of one
 * interface if the process would bind the socket to all interfaces.
 *
 * TensorFlow's servers, mpirun's daemons and MPI over TCP bind to all interfaces and have no option for an address.
 * This library binds their sockets to the address from which this host reaches the address "towards". With
 * 127.0.0.1, only this machine can connect. With the driver's address, only machines that can reach that interface
 * can connect. The same holds for sockets that listen without a call of bind(). Sockets that are bound to a specific
 * address, UDP sockets and Unix sockets are not changed.
 *
 * PARALLAX_BIND_TOWARDS is read when the process starts. parallax_bind_towards() sets the address later, because a
 * process with threads must not change its environment. Without either, nothing is changed.
 *
 * Horovod has an option for the interface of Gloo, and Horovod 0.28.1 ignores it for its second device. That device binds
 * to the address of the host's name, which other hosts may not reach (127.0.1.1) or which does not exist. While Horovod
 * creates its devices, parallax_name_host() makes gethostname() return an address.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DISCARD_PORT 9

static _Atomic in_addr_t towards = INADDR_ANY;

/* An invalid address counts as 127.0.0.1, so that sockets are not open to other machines by mistake. */
void parallax_bind_towards(const char *address) {
    struct in_addr read;
    atomic_store(&towards, inet_pton(AF_INET, address, &read) == 1 ? read.s_addr : htonl(INADDR_LOOPBACK));
}

__attribute__((constructor)) static void read_environment(void) {
    const char *address = getenv("PARALLAX_BIND_TOWARDS");
    if (address != NULL) parallax_bind_towards(address);
}

/* Finds the address from which the kernel would send to the target. Nothing is sent. */
static int own_address(in_addr_t target, struct in_addr *own) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(DISCARD_PORT), .sin_addr.s_addr = target};
    socklen_t length = sizeof address;
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (probe < 0) return -1;
    int failed = connect(probe, (struct sockaddr *)&address, sizeof address) ||
                 getsockname(probe, (struct sockaddr *)&address, &length);
    int reason = errno;
    close(probe);
    errno = reason;
    *own = address.sin_addr;
    return failed ? -1 : 0;
}

static _Atomic(char *) host_name = NULL;

/* NULL restores the host's own name. The old name is not freed, because another thread may still be reading it. */
void parallax_name_host(const char *address) {
    atomic_store(&host_name, address == NULL ? NULL : strdup(address));
}

int gethostname(char *name, size_t size) {
    static int (*next)(char *, size_t);
    if (next == NULL) next = (int (*)(char *, size_t))dlsym(RTLD_NEXT, "gethostname");
    const char *given = atomic_load(&host_name);
    if (given == NULL) return next(name, size);
    if (strlen(given) >= size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(name, given);
    return 0;
}

static int option(int fd, int level, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

static int is_any(const struct sockaddr *address, socklen_t length) {
    if (address->sa_family == AF_INET && length >= (socklen_t)sizeof(struct sockaddr_in))
        return ((const struct sockaddr_in *)address)->sin_addr.s_addr == INADDR_ANY;
    if (address->sa_family == AF_INET6 && length >= (socklen_t)sizeof(struct sockaddr_in6)) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
        return IN6_IS_ADDR_UNSPECIFIED(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr32[3] == INADDR_ANY);
    }
    return 0;
}

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (next == NULL) next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    in_addr_t target = atomic_load(&towards);
    struct in_addr own;
    if (target == INADDR_ANY || address == NULL || !is_any(address, length) ||
        option(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM)
        return next(fd, address, length);
    if (own_address(target, &own)) return -1;
    if (address->sa_family == AF_INET) {
        struct sockaddr_in four = *(const struct sockaddr_in *)address;
        four.sin_addr = own;
        return next(fd, (struct sockaddr *)&four, sizeof four);
    }
    struct sockaddr_in6 six = *(const struct sockaddr_in6 *)address;
    if (option(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1) { /* an IPv6-only socket cannot have the host's IPv4 address */
        six.sin6_addr = in6addr_loopback;
    } else {
        memset(&six.sin6_addr, 0, 10);
        memset(&six.sin6_addr.s6_addr[10], 0xff, 2);
        six.sin6_addr.s6_addr32[3] = own.s_addr;
    }
    return next(fd, (struct sockaddr *)&six, sizeof six);
}

/* The kernel binds a socket that listens without bind() to all interfaces and a free port. Bind it before that. */
int listen(int fd, int backlog) {
    static int (*next)(int, int);
    if (next == NULL) next = (int (*)(int, int))dlsym(RTLD_NEXT, "listen");
    union {
        struct sockaddr any_family;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address;
    socklen_t length = sizeof address;
    /* Both address families store the port at the same offset. The port of a bound socket is not 0. */
    if (atomic_load(&towards) != INADDR_ANY && getsockname(fd, &address.any_family, &length) == 0 &&
        is_any(&address.any_family, length) && address.four.sin_port == 0 && bind(fd, &address.any_family, length))
        return -1;
    return next(fd, backlog);
}

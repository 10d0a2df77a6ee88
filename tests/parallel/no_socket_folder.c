/* Preloaded: a process cannot list its files, so its sockets are not watched. It stands for MPI over a network without
   sockets, such as InfiniBand. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

DIR *opendir(const char *name) {
  DIR *(*next)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
  if (strcmp(name, "/proc/self/fd") == 0) {
    errno = ENOENT;
    return NULL;
  }
  return next(name);
}

#include "sockets.h"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace parallax {
namespace {

constexpr auto kBetweenLooks = std::chrono::seconds(1);
constexpr int kChangesAtOnce = 64;

bool IsTcp(int file) {
  int protocol = 0;
  socklen_t bytes = sizeof(protocol);
  return getsockopt(file, SOL_SOCKET, SO_PROTOCOL, &protocol, &bytes) == 0 && protocol == IPPROTO_TCP;
}

}  // namespace

Sockets::Sockets() : file_(epoll_create1(EPOLL_CLOEXEC)) {}

Sockets::~Sockets() {
  if (file_ >= 0) close(file_);
}

void Sockets::Forget() {
  if (Clock::now() >= next_look_) {
    WatchNewOnes();
    next_look_ = Clock::now() + kBetweenLooks;
  }
  epoll_event changes[kChangesAtOnce];
  while (epoll_wait(file_, changes, kChangesAtOnce, 0) == kChangesAtOnce) {
  }
}

void Sockets::Came(bool is_told) {
  untold_ = is_told ? 0 : untold_ + 1;
  if (!is_told) next_look_ = Clock::time_point();  // MPI may have a new connection
}

// The kernel no longer watches a socket once it is closed.
void Sockets::WatchNewOnes() {
  DIR* files = opendir("/proc/self/fd");
  if (files == nullptr) return;
  while (const dirent* entry = readdir(files)) {
    const int socket = std::atoi(entry->d_name);  // 0 for "." and ".."
    if (!IsTcp(socket)) continue;
    epoll_event changes{};
    // Only what is new is told. What comes for others, such as gRPC, therefore ends one sleep, and not all of them.
    changes.events = EPOLLIN | EPOLLOUT | EPOLLET;
    epoll_ctl(file_, EPOLL_CTL_ADD, socket, &changes);  // fails if it is watched already
  }
  closedir(files);
}

}  // namespace parallax

#include "host_pipes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

namespace parallax {
namespace {

// Where a pipe is, for the other ranks of the host.
struct OfferedPipe {
  int process = 0;
  int file = -1;       // or -1 if there is no pipe
  uint64_t inode = 0;  // shows a rank that it has opened this pipe: in a container, a process may have another number
};

uint64_t InodeOf(int file) {
  struct stat found;
  return fstat(file, &found) == 0 ? found.st_ino : 0;
}

// Returns the end to write of the pipe that another process offers, or -1.
int OpenPipe(const OfferedPipe& offered) {
  if (offered.file < 0) return -1;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", offered.process, offered.file);
  // Who could also read it gets no SIGPIPE if the other process has ended.
  const int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return -1;
  if (InodeOf(file) == offered.inode) return file;
  close(file);
  return -1;
}

}  // namespace

HostPipes ConnectPipes(MPI_Comm on_host) {
  int rank = 0, size = 0;
  MPI_Comm_rank(on_host, &rank);
  MPI_Comm_size(on_host, &size);
  HostPipes pipes;
  int ends[2] = {-1, -1};
  OfferedPipe offered;
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
    offered.process = getpid();
    offered.file = ends[1];
    offered.inode = InodeOf(ends[1]);
  }
  pipes.to_read = ends[0];
  std::vector<OfferedPipe> all(size);
  MPI_Allgather(&offered, sizeof(OfferedPipe), MPI_BYTE, all.data(), sizeof(OfferedPipe), MPI_BYTE, on_host);
  int are_open = 1;
  for (int other = 0; other < size; ++other) {
    pipes.to_write.push_back(other == rank ? ends[1] : OpenPipe(all[other]));
    if (pipes.to_write[other] < 0) are_open = 0;
  }
  int are_all_open = 0;
  MPI_Allreduce(&are_open, &are_all_open, 1, MPI_INT, MPI_MIN, on_host);
  pipes.are_all_open = are_all_open != 0;
  return pipes;
}

}  // namespace parallax

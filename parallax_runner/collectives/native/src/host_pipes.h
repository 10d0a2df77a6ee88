// Pipes into which the ranks of a host write, to wake the rank that reads.
#ifndef PARALLAX_RUNNER_HOST_PIPES_H_
#define PARALLAX_RUNNER_HOST_PIPES_H_

#include <mpi.h>

#include <vector>

namespace parallax {

// The ends of pipes that this rank uses, or -1.
struct HostPipes {
  int to_read = -1;           // of this rank's own pipe
  std::vector<int> to_write;  // of the pipe of each rank of the host
  bool are_all_open = false;  // on all ranks of the host
};

// Makes a pipe for each rank of `on_host`, and opens those of the other ones. All of them call this together. Pipes have
// no name, so nothing stays behind when ranks are killed.
HostPipes ConnectPipes(MPI_Comm on_host);

}  // namespace parallax

#endif  // PARALLAX_RUNNER_HOST_PIPES_H_

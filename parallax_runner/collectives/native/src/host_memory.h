// Memory that the ranks of a host share.
#ifndef PARALLAX_RUNNER_HOST_MEMORY_H_
#define PARALLAX_RUNNER_HOST_MEMORY_H_

#include <mpi.h>

#include <cstddef>

namespace parallax {

// Returns `bytes` of zeros that all ranks of `on_host` share until the last of them ends, or null on all of them if
// they cannot share memory. All of them call this together. The memory has no name, so nothing stays behind when they
// are killed.
void* ShareMemory(MPI_Comm on_host, size_t bytes);

}  // namespace parallax

#endif  // PARALLAX_RUNNER_HOST_MEMORY_H_

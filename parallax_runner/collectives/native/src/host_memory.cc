#include "host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <random>

namespace parallax {
namespace {

// The first bytes of the memory. They show a rank that it has opened the memory of this host's first rank: in a
// container, the number of the process may be that of another one.
struct Mark {
  uint64_t drawn[2] = {0, 0};
};
constexpr size_t kMarkBytes = 64;  // what follows begins at a cache line
static_assert(sizeof(Mark) <= kMarkBytes, "the mark has a place of its own");

// Where the memory is, for the other ranks of the host.
struct Offer {
  int process = 0;
  int file = -1;  // or -1 if there is no memory
  Mark mark;
};

// Returns the file of new memory, which begins with `mark`, or -1.
int NewMemory(const Mark& mark, size_t bytes) {
  const int file = memfd_create("parallax", MFD_CLOEXEC);
  if (file < 0) return -1;
  const bool has_room = posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0;
  if (has_room && pwrite(file, &mark, sizeof(Mark), 0) == sizeof(Mark)) return file;
  close(file);
  return -1;
}

// Returns the file of the memory that another process offers, or -1.
int OfferedMemory(const Offer& offer) {
  if (offer.file < 0) return -1;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", offer.process, offer.file);
  const int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return -1;
  Mark found;
  const bool is_whole = pread(file, &found, sizeof(Mark), 0) == sizeof(Mark);
  const bool is_offered = found.drawn[0] == offer.mark.drawn[0] && found.drawn[1] == offer.mark.drawn[1];
  if (is_whole && is_offered) return file;
  close(file);
  return -1;
}

}  // namespace

void* ShareMemory(MPI_Comm on_host, size_t bytes) {
  const size_t all_bytes = kMarkBytes + bytes;
  int rank = 0;
  MPI_Comm_rank(on_host, &rank);
  Offer offer;
  if (rank == 0) {
    std::random_device random;
    for (uint64_t& drawn : offer.mark.drawn) drawn = uint64_t{random()} << 32 | random();
    offer.process = getpid();
    offer.file = NewMemory(offer.mark, all_bytes);
  }
  MPI_Bcast(&offer, sizeof(Offer), MPI_BYTE, 0, on_host);
  const int file = rank == 0 ? offer.file : OfferedMemory(offer);
  void* memory = file < 0 ? MAP_FAILED : mmap(nullptr, all_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int is_mapped = memory != MAP_FAILED;
  int are_all_mapped = 0;
  MPI_Allreduce(&is_mapped, &are_all_mapped, 1, MPI_INT, MPI_MIN, on_host);
  if (file >= 0) close(file);
  if (are_all_mapped) return static_cast<char*>(memory) + kMarkBytes;
  if (is_mapped) munmap(memory, all_bytes);
  return nullptr;
}

}  // namespace parallax

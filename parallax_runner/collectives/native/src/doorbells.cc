#include "doorbells.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "host_memory.h"

namespace parallax {

void Doorbells::Connect(MPI_Comm comm, MPI_Comm on_host) {
  int rank = 0, size = 0, host_size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Comm_size(on_host, &host_size);
  bells_.assign(size, nullptr);
  all_ranks_ring_ = size == 1;
  if (host_size == 1) return;
  std::vector<int> ranks(host_size);
  MPI_Allgather(&rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, on_host);
  Bell* shared = static_cast<Bell*>(ShareMemory(on_host, host_size * sizeof(Bell)));
  if (shared == nullptr) return;
  for (int i = 0; i < host_size; ++i) bells_[ranks[i]] = shared + i;
  own_ = bells_[rank];
  all_ranks_ring_ = host_size == size;
}

void Doorbells::Ring(int rank) {
  Bell* bell = bells_[rank];
  if (bell == nullptr) return;
  bell->rings.fetch_add(1);
  // Only the first ring of a sleep wakes the sleeper.
  Listens listens = Listens::kToAllRanks;
  if (bell->listens.compare_exchange_strong(listens, Listens::kToNobody)) Wake(*bell);
}

void Doorbells::RingThoseDue() {
  for (const int rank : due_) Ring(rank);
  due_.clear();
}

void Doorbells::RingOwn() {
  own_->rings.fetch_add(1);
  if (own_->listens.exchange(Listens::kToNobody) != Listens::kToNobody) Wake(*own_);
}

bool Doorbells::SleepUnlessRung(uint32_t rings, std::chrono::microseconds longest, Listens listens) {
  timespec timeout;
  timeout.tv_sec = longest.count() / 1000000;
  timeout.tv_nsec = longest.count() % 1000000 * 1000;
  // Who rings adds a ring and then reads whether somebody listens. This is the other way round, so no ring is missed.
  own_->listens.store(listens);
  syscall(SYS_futex, &own_->rings, FUTEX_WAIT, rings, &timeout, nullptr, 0);
  own_->listens.store(Listens::kToNobody);
  return own_->rings.load() != rings;
}

void Doorbells::Wake(Bell& bell) { syscall(SYS_futex, &bell.rings, FUTEX_WAKE, 1, nullptr, nullptr, 0); }

}  // namespace parallax

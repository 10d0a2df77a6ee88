// Ends the sleep of the engine's thread when this rank, or another rank of its host, has something for it.
#ifndef PARALLAX_RUNNER_DOORBELLS_H_
#define PARALLAX_RUNNER_DOORBELLS_H_

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <set>
#include <vector>

namespace parallax {

// MPI has no call that sleeps until something arrives. So the ranks of a host share memory with a bell for each rank.
// Whoever sends something to a rank, or takes something from it, then rings its bell. A bell only ends a sleep: MPI still
// tells what has arrived.
class Doorbells {
 public:
  // Whose rings end a sleep.
  enum class Listens : uint32_t { kToNobody = 0, kToThisRank = 1, kToAllRanks = 2 };

  // All ranks of `on_host` call this together. The number of a rank is that in `comm`. If they cannot share memory, no
  // rank can ring the bell of another one.
  void Connect(MPI_Comm comm, MPI_Comm on_host);
  // Returns whether all other ranks can ring this rank's bell.
  bool AllRanksRing() const { return all_ranks_ring_; }

  // Rings the bell of another rank. Does nothing if the rank is on another host.
  void Ring(int rank);
  // Rings it at the next call of `RingThoseDue`, so a rank is not woken for the first of several messages.
  void RingSoon(int rank) { due_.insert(rank); }
  void RingThoseDue();
  // Rings this rank's bell. Any thread may call this.
  void RingOwn();
  // Returns a number that changes when this rank's bell rings.
  uint32_t Rings() const { return own_->rings.load(); }
  // Sleeps until `Rings` is not `rings`, but not longer than `longest`. Returns whether the bell has rung.
  bool SleepUnlessRung(uint32_t rings, std::chrono::microseconds longest, Listens listens);

 private:
  // In a cache line of its own. Zeros are a bell that has never rung.
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings{0};
    std::atomic<Listens> listens{Listens::kToNobody};
  };
  static_assert(sizeof(Bell) == 64, "all processes agree on where a bell is");
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share a bell");
  static_assert(std::atomic<Listens>::is_always_lock_free, "processes share a bell");

  static void Wake(Bell& bell);

  Bell unshared_;
  Bell* own_ = &unshared_;
  std::vector<Bell*> bells_;  // of each rank, or null
  std::set<int> due_;
  bool all_ranks_ring_ = false;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_DOORBELLS_H_

// Ends the sleep of the engine's thread when this rank, or another rank, has something for it.
#ifndef PARALLAX_RUNNER_DOORBELLS_H_
#define PARALLAX_RUNNER_DOORBELLS_H_

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "sockets.h"

namespace parallax {

// Whose rings end a sleep.
enum class Listens : uint32_t { kToNobody = 0, kToThisRank = 1, kToHost = 2, kToAllRanks = 3 };

// MPI has no call that sleeps until something arrives. So the ranks of a host share memory with a bell for each rank.
// Whoever sends something to a rank, or takes something from it, then rings its bell. What comes from other hosts changes
// a socket. Both only end a sleep: MPI still tells what has arrived.
class Doorbells {
 public:
  // All ranks of `on_host` call this together. The number of a rank is that in `comm`. If they cannot share memory, no
  // rank can ring the bell of another one. Returns whether this rank has a bell.
  bool Connect(MPI_Comm comm, MPI_Comm on_host);
  // Returns whether whatever comes from another rank ends a sleep of this one that listens to all ranks.
  bool AllRanksRing() const { return host_rings_ && (is_one_host_ || sockets_.AreReliable()); }

  // Rings the bell of another rank. Does nothing if the rank is on another host.
  void Ring(int rank);
  // Rings it at the next call of `RingThoseDue`, so a rank is not woken for the first of several messages.
  void RingSoon(int rank) { due_.insert(rank); }
  void RingThoseDue();
  // Rings this rank's bell. Any thread may call this.
  void RingOwn();
  // Returns a number that changes when this rank's bell rings.
  uint32_t Rings() const { return own_->rings.load(); }
  // Sleeps until `Rings` is not `rings`, but not longer than `longest`. Returns whether a bell or a socket has ended it.
  bool SleepUnlessRung(uint32_t rings, std::chrono::microseconds longest, Listens listens);
  // The next sleep goes on although sockets have changed before this call.
  void ForgetSockets();
  // Says that something has come from another rank.
  void Came();

 private:
  // In a cache line of its own. Zeros are a bell that has never rung.
  struct alignas(64) Bell {
    std::atomic<uint32_t> rings{0};
    std::atomic<Listens> listens{Listens::kToNobody};
  };
  static_assert(sizeof(Bell) == 64, "all processes agree on where a bell is");
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "processes share a bell");
  static_assert(std::atomic<Listens>::is_always_lock_free, "processes share a bell");

  Bell unshared_;
  Bell* own_ = &unshared_;
  std::vector<Bell*> bells_;  // of each rank, or null
  std::vector<int> pipes_;    // that wake each rank, or -1
  int own_pipe_to_write_ = -1, own_pipe_to_read_ = -1;
  std::set<int> due_;
  Sockets sockets_;  // through which other hosts reach this one
  // Whether a socket has ended the last sleep that listened to all ranks, unless a bell has, or something came since.
  std::optional<bool> is_told_by_socket_;
  bool host_rings_ = false;  // all other ranks of this host ring
  bool is_one_host_ = false;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_DOORBELLS_H_

// Tells when something comes over the network.
#ifndef PARALLAX_RUNNER_SOCKETS_H_
#define PARALLAX_RUNNER_SOCKETS_H_

#include <chrono>

namespace parallax {

// MPI has no call that sleeps until something arrives, but it reads from sockets of this process. So this watches the TCP
// sockets of the process, whoever has opened them. A change of a socket only ends a sleep: MPI still tells what has
// arrived.
//
// MPI may use something else than TCP, or a connection that is not watched yet. So whoever sleeps says what came, and
// whether a socket told it.
class Sockets {
 public:
  Sockets();
  ~Sockets();
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  // Returns a file that is readable when a socket has changed, or -1 if sockets cannot be watched.
  int file() const { return file_; }
  // Forgets the changes so far. Also watches sockets that are new, now and then.
  void Forget();
  // Says whether a socket told what came during a long sleep.
  void Came(bool is_told);
  // Returns whether sockets tell what comes.
  bool AreReliable() const { return file_ >= 0 && untold_ < kMostUntold; }

 private:
  using Clock = std::chrono::steady_clock;
  // A message may come just when a sleep ends by itself. That many do so, one after the other, is no coincidence.
  static constexpr int kMostUntold = 8;

  void WatchNewOnes();

  int file_ = -1;
  int untold_ = 0;  // since a socket last told what came
  Clock::time_point next_look_;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_SOCKETS_H_

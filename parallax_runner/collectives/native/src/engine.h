// Runs the exchanges of this process in one thread, which alone talks to MPI.
#ifndef PARALLAX_RUNNER_ENGINE_H_
#define PARALLAX_RUNNER_ENGINE_H_

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "doorbells.h"
#include "early_messages.h"
#include "exchange.h"
#include "identities.h"
#include "message.h"
#include "transfers.h"

namespace parallax {

// The ranks from which nothing has come for exchanges that have waited for long, and the name of the first of these
// exchanges.
struct Awaited {
  std::set<int> ranks;
  std::string exchange;
};

class Engine {
 public:
  static Engine& Instance();

  // Connects to the other ranks, and starts the thread. Returns a message if that fails. Joining again does nothing.
  std::string Join();
  // Tells the other ranks that this one leaves, and ends the thread and MPI.
  void Leave();
  bool is_joined() const { return is_joined_.load(); }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  bool has_threads() const { return has_threads_; }
  // Returns how many sends and receives are under way.
  int transfers() const { return transfers_under_way_.load(); }
  // Returns how many messages have come for exchanges that this rank has not posted.
  int early() const { return early_messages_.load(); }
  // Returns how often the thread has slept.
  int64_t sleeps() const { return sleeps_.load(); }
  // Returns what has not come for the exchanges that this rank posted 5 s ago.
  Awaited AwaitedNow();

  Identities& identities() { return identities_; }
  // Says that a run of a session has ended on this rank: it begins no more exchanges. `identity` is one of the run.
  void EndRun(const Identity& identity);
  // Hands an exchange to the thread.
  void Post(std::shared_ptr<Exchange> exchange);
  // Ends an exchange of this rank and those of the other ranks with an error, unless it has ended.
  void Cancel(const std::shared_ptr<Exchange>& exchange, const std::string& why);

  // The following are for exchanges, in the engine's thread.
  void Send(const std::shared_ptr<Exchange>& exchange, int to, Content content, const void* data, int64_t bytes,
            Held held);
  // Puts the payload of a message into `data`. `on_arrived` is called whenever more of it is there, with the number of
  // bytes so far, until the exchange ends.
  void Receive(const std::shared_ptr<Exchange>& exchange, int from, const Received& message, void* data, Held held,
               std::function<void(int64_t arrived_bytes)> on_arrived);

 private:
  struct FailedRun {
    uint64_t run = 0;
    std::string why;
  };
  // What the thread knows of the runs of one stream of a session.
  struct RunsOfStream {
    std::vector<uint64_t> newest;  // of each rank
    uint64_t ended = 0;            // the last one of this rank
    FailedRun failed;              // the last one of this rank in which an exchange has failed
  };
  struct Command {
    std::shared_ptr<Exchange> exchange;  // null if a run has ended
    std::string cancelled;               // why, or "" for a new exchange
    Identity ended;
  };

  // Functions that may remove an exchange from `exchanges_` hold a reference of their own.
  void Run();
  RunsOfStream& RunsOf(const Identity& identity);
  void FinishIfDone(std::shared_ptr<Exchange> exchange);
  void Fail(std::shared_ptr<Exchange> exchange, const std::string& why, bool tell_others);
  bool TakeCommands();
  bool TakeMessages();
  void Begin(const std::shared_ptr<Exchange>& exchange);
  void Deliver(int from, Received message);
  void DeliverTo(std::shared_ptr<Exchange> exchange, int from, Received message);
  void DropOlder(int from, const Identity& identity);
  void DropEarly(int from, const Identity& identity);
  void Drain(int from, const Header& header);
  void RefuseEarly(const Identity& ended);
  void Refuse(int from, const Header& header);
  std::string WhyLeftOut(const Identity& identity);
  void Tell(int other, const Identity& identity, Kind kind, const std::string& why);
  void TellOthers(const Identity& identity, Kind kind, const std::string& why);
  std::chrono::microseconds LongestPause(Clock::duration wait) const;
  void CountWaiting();
  void ReportWaiting();
  void FailAll(const std::string& why);

  std::atomic<bool> is_joined_{false};
  std::atomic<int> transfers_under_way_{0}, early_messages_{0};
  std::atomic<int64_t> sleeps_{0};
  bool has_threads_ = false;
  bool must_finalize_ = false;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::thread thread_;
  Doorbells bells_;
  Identities identities_;

  std::mutex mutex_;
  std::deque<Command> commands_;
  bool leaves_ = false;
  Awaited awaited_;

  // The thread's own.
  std::map<Identity, std::shared_ptr<Exchange>> exchanges_;
  EarlyMessages early_;
  Transfers transfers_{bells_, [this](const std::string& error) { FailAll(error); }};
  uint64_t begun_exchanges_ = 0;
  std::vector<int32_t> next_tag_;
  std::vector<bool> has_left_;
  std::map<std::pair<uint32_t, uint64_t>, RunsOfStream> runs_;  // by the numbers of the session and the stream
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_ENGINE_H_

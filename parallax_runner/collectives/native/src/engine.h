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
#include "message.h"
#include "transfers.h"

namespace parallax {

using Clock = std::chrono::steady_clock;

struct Received {
  Header header;
  std::vector<char> inline_payload;
};

// The ranks from which nothing has come for exchanges that have waited for long, and the name of the first of these
// exchanges.
struct Awaited {
  std::set<int> ranks;
  std::string exchange;
};

class Engine;

// An exchange among all ranks, from the moment when this rank's op runs until its results are there. The engine's
// thread calls all methods, except the constructor.
//
// No rank gets its results before every rank has posted the exchange: each rank sends each other rank a message, if only
// a header. So a rank is never ahead of another one by more than one run that succeeds, and the messages that come early
// are those of one run of each stream.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(Identity identity, Content content, std::string name)
      : identity_(identity), content_(content), name_(std::move(name)) {}
  virtual ~Exchange() = default;

  // Sends what this rank has.
  virtual void Start(Engine& engine) = 0;
  // Takes a message of the rank `from`. Its content was checked with `Explain`.
  virtual void Take(Engine& engine, int from, Received message) = 0;
  // Returns why a message does not fit to this exchange, or "".
  virtual std::string Explain(const Content& other) const;
  // Returns whether all results are there. Sends may still be under way: they keep their memory alive.
  virtual bool HasResults() const = 0;
  // Returns the messages whose payloads still wait at their senders, although `Take` has got the headers.
  virtual std::vector<std::pair<int, Header>> Untaken() const { return {}; }
  // Tells the op that its results are there, or, with a message, that it failed.
  virtual void Finish(const std::string& error) = 0;

  // Returns which ranks have sent nothing yet, as a clause, or "".
  std::string Unheard() const;

  const Identity& identity() const { return identity_; }
  const Content& content() const { return content_; }
  const std::string& name() const { return name_; }

  Urgency urgency;
  bool is_finished = false;
  bool is_told = false;  // the log says that this exchange waits
  std::set<int> missing;  // ranks that have sent nothing yet
  Clock::time_point posted = Clock::now();

 private:
  const Identity identity_;
  const Content content_;
  const std::string name_;
};

// FNV-1a.
uint64_t Fingerprint(const std::string& text);

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
  // Returns what has not come for the exchanges that this rank posted 5 s ago.
  Awaited AwaitedNow();

  // Returns the identity of the next exchange of an op. `session` and `step` are TensorFlow's names of the session and
  // of its run.
  Identity Next(const std::string& session, int64_t step, uint64_t stream, uint64_t key, uint64_t frame,
                int64_t iteration);
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
  // The runs of one stream of a session.
  struct Runs {
    int64_t step = -1;
    uint64_t run = 0;
    std::map<std::tuple<uint64_t, uint64_t, int64_t>, uint32_t> repeats;
  };
  struct Session {
    uint32_t epoch = 0;
    std::map<uint64_t, Runs> streams;
  };
  struct FailedRun {
    uint64_t run = 0;
    std::string why;
  };
  struct Command {
    std::shared_ptr<Exchange> exchange;  // null if a run has ended
    std::string cancelled;               // why, or "" for a new exchange
    Identity ended;
  };
  using StreamOfSession = std::pair<uint32_t, uint64_t>;  // epoch and stream

  // Functions that may remove an exchange from `exchanges_` hold a reference of their own.
  void Run();
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
  std::string WhyLeftOut(const Identity& identity) const;
  void Tell(int other, const Identity& identity, Kind kind, const std::string& why);
  void TellOthers(const Identity& identity, Kind kind, const std::string& why);
  std::chrono::microseconds LongestPause(Clock::duration wait) const;
  void CountWaiting();
  void ReportWaiting();
  void FailAll(const std::string& why);

  std::atomic<bool> is_joined_{false};
  std::atomic<int> transfers_under_way_{0}, early_messages_{0};
  bool has_threads_ = false;
  bool must_finalize_ = false;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::thread thread_;
  Doorbells bells_;

  std::mutex mutex_;
  std::deque<Command> commands_;
  bool leaves_ = false;
  std::map<std::string, Session> sessions_;
  Awaited awaited_;

  // The thread's own.
  std::map<Identity, std::shared_ptr<Exchange>> exchanges_;
  std::map<Identity, std::vector<std::pair<int, Received>>> early_;
  Transfers transfers_{bells_, [this](const std::string& error) { FailAll(error); }};
  uint64_t begun_exchanges_ = 0;
  std::vector<int32_t> next_tag_;
  std::vector<bool> has_left_;
  std::map<StreamOfSession, std::vector<uint64_t>> newest_run_;  // of each rank
  std::map<StreamOfSession, uint64_t> ended_run_;                // the last one of this rank
  std::map<StreamOfSession, FailedRun> failed_run_;              // the last one of this rank in which an exchange failed
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_ENGINE_H_

// An exchange among all ranks.
#ifndef PARALLAX_RUNNER_EXCHANGE_H_
#define PARALLAX_RUNNER_EXCHANGE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "message.h"
#include "transfers.h"

namespace parallax {

using Clock = std::chrono::steady_clock;

class Engine;

struct Received {
  Header header;
  std::vector<char> inline_payload;
};

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

// For messages: a kind of exchange, and what a rank sends.
const char* NameOf(Kind kind);
std::string Described(const Content& content);

}  // namespace parallax

#endif  // PARALLAX_RUNNER_EXCHANGE_H_

// Messages for exchanges that this rank has not posted.
#ifndef PARALLAX_RUNNER_EARLY_MESSAGES_H_
#define PARALLAX_RUNNER_EARLY_MESSAGES_H_

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "exchange.h"
#include "message.h"

namespace parallax {

class EarlyMessages {
 public:
  // A message and the rank that has sent it.
  using Sent = std::pair<int, Received>;

  void Keep(int from, Received message);
  // Removes the messages of an exchange, and returns them in the order in which they came.
  std::vector<Sent> Take(const Identity& identity);
  // The same for all messages that fulfil a condition, exchange by exchange.
  std::vector<Sent> TakeIf(const std::function<bool(int from, const Header& header)>& condition);
  int Count() const;

 private:
  std::map<Identity, std::vector<Sent>> messages_;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_EARLY_MESSAGES_H_

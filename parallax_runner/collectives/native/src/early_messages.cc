#include "early_messages.h"

#include <algorithm>
#include <iterator>

namespace parallax {

void EarlyMessages::Keep(int from, Received message) {
  const Identity identity = message.header.identity;
  messages_[identity].emplace_back(from, std::move(message));
}

std::vector<EarlyMessages::Sent> EarlyMessages::Take(const Identity& identity) {
  const auto found = messages_.find(identity);
  if (found == messages_.end()) return {};
  std::vector<Sent> taken = std::move(found->second);
  messages_.erase(found);
  return taken;
}

std::vector<EarlyMessages::Sent> EarlyMessages::TakeIf(
    const std::function<bool(int from, const Header& header)>& condition) {
  std::vector<Sent> taken;
  for (auto entry = messages_.begin(); entry != messages_.end();) {
    std::vector<Sent>& kept = entry->second;
    const auto first_taken = std::stable_partition(kept.begin(), kept.end(), [&condition](const Sent& one) {
      return !condition(one.first, one.second.header);
    });
    std::move(first_taken, kept.end(), std::back_inserter(taken));
    kept.erase(first_taken, kept.end());
    entry = kept.empty() ? messages_.erase(entry) : std::next(entry);
  }
  return taken;
}

int EarlyMessages::Count() const {
  size_t count = 0;
  for (const auto& entry : messages_) count += entry.second.size();
  return static_cast<int>(count);
}

}  // namespace parallax

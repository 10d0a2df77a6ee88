#include "identities.h"

namespace parallax {

uint64_t Fingerprint(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

Identity Identities::Next(const std::string& session, int64_t step, uint64_t stream, uint64_t key, uint64_t frame,
                          int64_t iteration) {
  Identity identity;
  identity.stream = stream;
  identity.key = key;
  identity.frame = frame;
  identity.iteration = iteration;
  std::lock_guard<std::mutex> lock(mutex_);
  auto [found, is_new] = sessions_.try_emplace(session);
  if (is_new) found->second.epoch = static_cast<uint32_t>(sessions_.size());
  Runs& runs = found->second.streams[stream];
  if (runs.step != step) {
    runs.step = step;
    runs.run += 1;
    runs.repeats.clear();
  }
  identity.epoch = found->second.epoch;
  identity.run = runs.run;
  identity.repeat = runs.repeats[{key, frame, iteration}]++;
  return identity;
}

}  // namespace parallax

// Names the exchanges of this process, so that all ranks give one exchange the same name.
#ifndef PARALLAX_RUNNER_IDENTITIES_H_
#define PARALLAX_RUNNER_IDENTITIES_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "message.h"

namespace parallax {

// FNV-1a.
uint64_t Fingerprint(const std::string& text);

// Any thread may call this.
class Identities {
 public:
  // Returns the identity of the next exchange of an op. `session` and `step` are TensorFlow's names of the session and
  // of its run.
  Identity Next(const std::string& session, int64_t step, uint64_t stream, uint64_t key, uint64_t frame,
                int64_t iteration);

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

  std::mutex mutex_;
  std::map<std::string, Session> sessions_;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_IDENTITIES_H_

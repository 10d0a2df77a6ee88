// What ranks send each other: a header, and after it the payload, or both in one message if the payload is short.
#ifndef PARALLAX_RUNNER_MESSAGE_H_
#define PARALLAX_RUNNER_MESSAGE_H_

#include <cstdint>
#include <tuple>

namespace parallax {

// Names one exchange. All ranks run the same graph, so each rank computes the same identity without asking.
struct Identity {
  uint32_t epoch = 0;   // number of the session in its process
  uint32_t repeat = 0;  // how often this key has run before, in the same run and iteration
  uint64_t key = 0;     // fingerprint of the key of the op
  uint64_t stream = 0;  // fingerprint of the stream: runs of several streams may overlap
  uint64_t run = 0;     // number of the run of the session within the stream
  uint64_t frame = 0;   // of a loop
  int64_t iteration = 0;

  std::tuple<uint32_t, uint64_t, uint64_t, uint64_t, uint64_t, int64_t, uint32_t> AsTuple() const {
    return {epoch, stream, run, key, frame, iteration, repeat};
  }
  bool operator<(const Identity& other) const { return AsTuple() < other.AsTuple(); }
  bool operator==(const Identity& other) const { return AsTuple() == other.AsTuple(); }
};

// Returns whether both are of one stream of a session, and `one` is of an earlier run.
inline bool IsOfEarlierRun(const Identity& one, const Identity& other) {
  return one.epoch == other.epoch && one.stream == other.stream && one.run < other.run;
}

// Returns whether both are of one run.
inline bool IsOfSameRun(const Identity& one, const Identity& other) {
  return one.epoch == other.epoch && one.stream == other.stream && one.run == other.run;
}

enum class Kind : uint16_t { kSum, kGather, kAllToAll, kBroadcast, kAbort, kLeaving };

// What both sides of a message must agree about.
struct Content {
  Kind kind = Kind::kSum;
  uint16_t phase = 0;    // of an exchange that sends twice
  int32_t dtype = 0;     // tensorflow::DataType
  int64_t row_bytes = 0; // bytes of a row; of an element for a sum
  int64_t rows = 0;      // rows in this message; elements of the whole tensor for a sum
};

struct Header {
  Identity identity;
  Content content;
  int64_t payload_bytes = 0;
  int32_t payload_tag = 0;  // 0: the payload follows the header in the same message
  int32_t reserved = 0;
};

// A payload of at most this size travels with its header. A longer one waits at its sender until the receiver has
// posted its exchange, so messages that come early need little memory.
constexpr int64_t kInlineBytes = 8192;

}  // namespace parallax

#endif  // PARALLAX_RUNNER_MESSAGE_H_

// The messages and payloads that MPI carries now, or soon.
#ifndef PARALLAX_RUNNER_TRANSFERS_H_
#define PARALLAX_RUNNER_TRANSFERS_H_

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "doorbells.h"

namespace parallax {

// Keeps memory alive while MPI reads or writes it.
using Held = std::shared_ptr<void>;

// When a payload is needed, compared with others. Less is sooner.
struct Urgency {
  int deadline_steps = 0;  // after how many steps the result is needed
  uint64_t order = 0;      // of the exchange on this rank

  bool operator<(const Urgency& other) const {
    return std::pair(deadline_steps, order) < std::pair(other.deadline_steps, other.order);
  }
};

// A payload that another rank has announced.
struct Incoming {
  int from = 0;
  int tag = 0;
  char* to = nullptr;
  int64_t bytes = 0;
  Urgency urgency;
  Held held;
  std::function<void(int64_t arrived_bytes)> on_arrived;  // called after each piece; may be empty

  int64_t begun_bytes = 0, arrived_bytes = 0;
};

// Payloads are carried in pieces. The receiver decides whose pieces come next, because a payload waits at its sender until
// the receiver asks for it: what is needed first comes first, and a piece that is not urgent never waits in front of one
// that is. Only a few pieces are under way between two ranks, so that an urgent payload soon gets the link.
//
// Only the engine's thread calls this.
class Transfers {
 public:
  // `on_error` gets an error of MPI in words.
  Transfers(Doorbells& bells, std::function<void(const std::string& error)> on_error)
      : bells_(bells), on_error_(std::move(on_error)) {}
  void Connect(MPI_Comm comm, int size);

  void SendMessage(int to, int tag, std::vector<char> message);
  void SendPayload(int to, int tag, const char* data, int64_t bytes, Held held);
  void Receive(Incoming incoming);
  // Goes on with what has arrived. Returns whether anything has.
  bool Test();
  // Returns how many sends and receives have not ended.
  int Count() const;
  // Returns whether MPI has succeeded. `call` is its function.
  bool Check(int code, const char* call);

 private:
  struct Outgoing {
    int to = 0, tag = 0;
    const char* data = nullptr;
    int64_t bytes = 0, begun_bytes = 0;
    Held held;
  };
  // The payloads of one sender.
  struct Sender {
    std::multimap<Urgency, std::shared_ptr<Incoming>> waiting;
    int pieces_under_way = 0;
  };
  struct Request {
    Held held;
    std::function<void()> on_end;  // may be empty
  };

  void SendNextPiece(const std::shared_ptr<Outgoing>& outgoing);
  void ReceiveNextPieces(Sender& sender);
  bool ReceiveNextPiece(Sender& sender, const std::shared_ptr<Incoming>& incoming);
  void Add(MPI_Request request, Held held, std::function<void()> on_end);
  void DropEnded();

  Doorbells& bells_;
  const std::function<void(const std::string&)> on_error_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<Sender> senders_;
  int pieces_of_sender_ = 0;  // that may be under way
  // Of one length, in the same order.
  std::vector<MPI_Request> handles_;
  std::vector<Request> requests_;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_TRANSFERS_H_

#include "transfers.h"

#include <algorithm>

namespace parallax {
namespace {

// At 200 Mbit/s, a piece takes 5 ms.
constexpr int64_t kPieceBytes = 128 * 1024;
// How many pieces are under way to this rank from all senders together, but at least `kPiecesOfSender` from each. Few
// pieces keep the senders abreast. If TCP decides, one sender may get most of the link, and the exchange ends late.
constexpr int kPieces = 8;
constexpr int kPiecesOfSender = 2;
// What is needed in a later step has fewer under way, since they delay what is needed first.
constexpr int kPiecesOfLater = 1;
// How many pieces of a payload are offered to its receiver at once.
constexpr int kOfferedPieces = 8;

}  // namespace

void Transfers::Connect(MPI_Comm comm, int size) {
  comm_ = comm;
  senders_.resize(size);
  pieces_of_sender_ = std::max(kPiecesOfSender, kPieces / std::max(1, size - 1));
}

void Transfers::SendMessage(int to, int tag, std::vector<char> message) {
  const auto kept = std::make_shared<std::vector<char>>(std::move(message));
  MPI_Request handle;
  const int code = MPI_Isend(kept->data(), static_cast<int>(kept->size()), MPI_BYTE, to, tag, comm_, &handle);
  if (Check(code, "MPI_Isend")) Add(handle, kept, nullptr);
  bells_.RingSoon(to);
}

void Transfers::SendPayload(int to, int tag, const char* data, int64_t bytes, Held held) {
  const auto outgoing = std::make_shared<Outgoing>();
  outgoing->to = to;
  outgoing->tag = tag;
  outgoing->data = data;
  outgoing->bytes = bytes;
  outgoing->held = std::move(held);
  for (int piece = 0; piece < kOfferedPieces; ++piece) SendNextPiece(outgoing);
}

void Transfers::SendNextPiece(const std::shared_ptr<Outgoing>& outgoing) {
  const int64_t count = std::min(kPieceBytes, outgoing->bytes - outgoing->begun_bytes);
  if (count == 0) return;
  MPI_Request handle;
  const int code = MPI_Isend(outgoing->data + outgoing->begun_bytes, static_cast<int>(count), MPI_BYTE, outgoing->to,
                             outgoing->tag, comm_, &handle);
  if (!Check(code, "MPI_Isend")) return;
  outgoing->begun_bytes += count;
  Add(handle, outgoing->held, [this, outgoing] { SendNextPiece(outgoing); });
  bells_.RingSoon(outgoing->to);
}

void Transfers::Receive(Incoming incoming) {
  Sender& sender = senders_[incoming.from];
  const Urgency urgency = incoming.urgency;
  sender.waiting.emplace(urgency, std::make_shared<Incoming>(std::move(incoming)));
  ReceiveNextPieces(sender);
}

void Transfers::ReceiveNextPieces(Sender& sender) {
  while (!sender.waiting.empty()) {
    const auto next = sender.waiting.begin();
    const std::shared_ptr<Incoming> incoming = next->second;
    const bool is_later = incoming->urgency.deadline_steps > 0;
    if (sender.pieces_under_way >= (is_later ? kPiecesOfLater : pieces_of_sender_)) return;
    if (!ReceiveNextPiece(sender, incoming)) return;
    if (incoming->begun_bytes == incoming->bytes) sender.waiting.erase(next);
  }
}

bool Transfers::ReceiveNextPiece(Sender& sender, const std::shared_ptr<Incoming>& incoming) {
  const int64_t count = std::min(kPieceBytes, incoming->bytes - incoming->begun_bytes);
  MPI_Request handle;
  const int code = MPI_Irecv(incoming->to + incoming->begun_bytes, static_cast<int>(count), MPI_BYTE, incoming->from,
                             incoming->tag, comm_, &handle);
  if (!Check(code, "MPI_Irecv")) return false;
  incoming->begun_bytes += count;
  sender.pieces_under_way += 1;
  bells_.RingSoon(incoming->from);  // MPI may have asked it for the piece
  // Messages of one tag come in their order, so pieces end in their order.
  Add(handle, incoming->held, [this, &sender, incoming, count] {
    sender.pieces_under_way -= 1;
    incoming->arrived_bytes += count;
    bells_.RingSoon(incoming->from);  // it may offer the next piece
    ReceiveNextPieces(sender);
    if (incoming->on_arrived) incoming->on_arrived(incoming->arrived_bytes);
  });
  return true;
}

void Transfers::Add(MPI_Request handle, Held held, std::function<void()> on_end) {
  handles_.push_back(handle);
  requests_.push_back({std::move(held), std::move(on_end)});
}

bool Transfers::Test() {
  if (handles_.empty()) return false;
  std::vector<int> ended(handles_.size());
  int count = 0;
  const int code = MPI_Testsome(static_cast<int>(handles_.size()), handles_.data(), &count, ended.data(),
                                MPI_STATUSES_IGNORE);
  if (!Check(code, "MPI_Testsome")) {
    DropEnded();
    return false;
  }
  if (count == MPI_UNDEFINED || count == 0) return false;
  // MPI may list them in any order, but the pieces of a payload end in the order in which they began.
  std::sort(ended.begin(), ended.begin() + count);
  std::vector<Request> done;
  for (int i = 0; i < count; ++i) done.push_back(std::move(requests_[ended[i]]));
  DropEnded();
  for (Request& request : done) {
    if (request.on_end) request.on_end();
  }
  return true;
}

// MPI has set the handles of what has ended to null, also after an error. The others keep their order.
void Transfers::DropEnded() {
  size_t kept = 0;
  for (size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] == MPI_REQUEST_NULL) continue;
    handles_[kept] = handles_[i];
    if (kept != i) requests_[kept] = std::move(requests_[i]);
    ++kept;
  }
  handles_.resize(kept);
  requests_.resize(kept);
}

int Transfers::Count() const {
  size_t count = handles_.size();
  for (const Sender& sender : senders_) count += sender.waiting.size();
  return static_cast<int>(count);
}

bool Transfers::Check(int code, const char* call) {
  if (code == MPI_SUCCESS) return true;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  on_error_(std::string(call) + ": " + std::string(text, length));
  return false;
}

}  // namespace parallax

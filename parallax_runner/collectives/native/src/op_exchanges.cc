#include "op_exchanges.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sums.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/tensor.h"

namespace parallax {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;

// Up to this size, a rank sends its addends to all others at once, which takes one message less per sum.
constexpr int64_t kDirectBytes = 16384;
// Sums are sent in messages of at least this size.
constexpr int64_t kSumBytes = 128 * 1024;

Held Holding(const Tensor& tensor) { return std::make_shared<Tensor>(tensor); }

char* Data(Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

}  // namespace

bool WaitingOp::WatchCancellation(std::function<void()> cancel) {
  tensorflow::CancellationManager* manager = context_->cancellation_manager();
  if (manager == nullptr) return true;
  token_ = manager->get_cancellation_token();
  return manager->RegisterCallback(*token_, std::move(cancel));
}

void WaitingOp::End(const std::string& name, const std::string& error) {
  if (token_) context_->cancellation_manager()->TryDeregisterCallback(*token_);
  if (!error.empty()) context_->SetStatus(absl::AbortedError("exchange «" + name + "»: " + error));
  done_();  // hands what follows in the graph to TensorFlow's threads
}

void OpExchange::Finish(const std::string& error) {
  if (error.empty()) WriteOutputs();
  op_.End(name(), error);
}

// --- Sums ------------------------------------------------------------------------------------------------------------

SumExchange::SumExchange(Identity identity, Content content, std::string name, WaitingOp op, std::vector<Tensor> inputs,
                         std::vector<Tensor> outputs)
    : OpExchange(identity, content, std::move(name), std::move(op)),
      size_(Engine::Instance().size()),
      rank_(Engine::Instance().rank()),
      inputs_(std::move(inputs)),
      outputs_(std::move(outputs)),
      came_(size_),
      came_bytes_(size_),
      sums_begun_bytes_(size_),
      addends_to_come_(size_ - 1) {
  if (!IsDirect()) sum_bytes_to_come_ = (content.rows - Count(rank_)) * content.row_bytes;
  if (inputs_.size() == 1) {
    own_ = inputs_[0];
    sums_ = outputs_[0];
    return;
  }
  const auto dtype = static_cast<tensorflow::DataType>(content.dtype);
  own_ = Tensor(dtype, TensorShape({content.rows}));
  sums_ = Tensor(dtype, TensorShape({content.rows}));
  char* to = Data(own_);
  for (const Tensor& input : inputs_) {
    std::memcpy(to, input.tensor_data().data(), input.tensor_data().size());
    to += input.tensor_data().size();
  }
}

bool SumExchange::IsDirect() const { return size_ <= 2 || content().rows * content().row_bytes <= kDirectBytes; }

void SumExchange::Start(Engine& engine) {
  const auto dtype = static_cast<tensorflow::DataType>(content().dtype);
  const int64_t element_bytes = content().row_bytes;
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    const char* data = Data(own_) + PartBegin(other) * element_bytes;
    engine.Send(shared_from_this(), other, content(), data, PartOf(other) * element_bytes, Holding(own_));
    came_[other] = Tensor(dtype, TensorShape({PartOf(rank_)}));
  }
  if (size_ == 1) AddUpWhatCame(engine);
}

void SumExchange::Take(Engine& engine, int from, Received message) {
  const int64_t bytes = message.header.payload_bytes;
  if (message.header.content.phase == 0) {
    addends_to_come_ -= 1;
    Tensor& to = came_[from];
    engine.Receive(shared_from_this(), from, message, Data(to), Holding(to), [this, &engine, from](int64_t arrived_bytes) {
      came_bytes_[from] = arrived_bytes;
      AddUpWhatCame(engine);
    });
    return;
  }
  char* to = Sums() + First(from) * content().row_bytes + sums_begun_bytes_[from];
  sums_begun_bytes_[from] += bytes;
  engine.Receive(shared_from_this(), from, message, to, Holding(sums_), [this, bytes](int64_t arrived_bytes) {
    if (arrived_bytes == bytes) sum_bytes_to_come_ -= bytes;
  });
}

// Sums the elements of the own part that have come from all ranks, and sends them, unless they are few and more come.
void SumExchange::AddUpWhatCame(Engine& engine) {
  const int64_t element_bytes = content().row_bytes;
  int64_t came = PartOf(rank_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) came = std::min(came, came_bytes_[rank] / element_bytes);
  }
  const int64_t first = summed_, count = came - summed_;
  if (count == 0) return;
  const bool is_last = came == PartOf(rank_);
  if (!is_last && count * element_bytes < kSumBytes) return;
  AddUp(first, count);
  summed_ = came;
  if (IsDirect()) return;
  Content sums = content();
  sums.phase = 1;
  const char* data = Sums() + (First(rank_) + first) * element_bytes;
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    engine.Send(shared_from_this(), other, sums, data, count * element_bytes, Holding(sums_));
  }
}

// Sums `count` elements of the own part, from the element `first` of the part.
void SumExchange::AddUp(int64_t first, int64_t count) {
  const int64_t in_part_bytes = first * content().row_bytes;
  const int64_t in_all_bytes = PartBegin(rank_) * content().row_bytes + in_part_bytes;
  std::vector<const char*> parts(size_);
  for (int rank = 0; rank < size_; ++rank) {
    parts[rank] = rank == rank_ ? Data(own_) + in_all_bytes : Data(came_[rank]) + in_part_bytes;
  }
  Sum(static_cast<tensorflow::DataType>(content().dtype), parts, Sums() + in_all_bytes, count);
}

void SumExchange::WriteOutputs() {
  if (inputs_.size() == 1) return;
  const char* from = Sums();
  for (Tensor& output : outputs_) {
    std::memcpy(Data(output), from, output.tensor_data().size());
    from += output.tensor_data().size();
  }
}

// --- Rows ------------------------------------------------------------------------------------------------------------

RowExchange::RowExchange(Identity identity, Content content, std::string name, WaitingOp op, Tensor rows,
                         std::vector<int64_t> counts)
    : OpExchange(identity, content, std::move(name), std::move(op)),
      size_(Engine::Instance().size()),
      rank_(Engine::Instance().rank()),
      rows_(std::move(rows)),
      counts_(std::move(counts)),
      messages_(size_),
      headers_to_come_(size_ - 1),
      payloads_to_come_(size_ - 1) {}

void RowExchange::Start(Engine& engine) {
  const char* data = rows_.tensor_data().data();
  for (int other = 0; other < size_; ++other) {
    const int64_t bytes = RowsTo(other) * content().row_bytes;
    if (other != rank_) {
      Content sent = content();
      sent.rows = RowsTo(other);
      engine.Send(shared_from_this(), other, sent, data, bytes, Holding(rows_));
    }
    if (!counts_.empty()) data += bytes;
  }
  if (size_ == 1) Allocate(engine);
}

void RowExchange::Take(Engine& engine, int from, Received message) {
  messages_[from] = std::move(message);
  headers_to_come_ -= 1;
  if (headers_to_come_ == 0) Allocate(engine);
}

// Makes room for the rows of all ranks, since their number is now known.
void RowExchange::Allocate(Engine& engine) {
  std::vector<int64_t> received(size_);
  int64_t total = 0;
  for (int rank = 0; rank < size_; ++rank) {
    received[rank] = rank == rank_ ? RowsTo(rank_) : messages_[rank].header.content.rows;
    total += received[rank];
  }
  TensorShape shape = rows_.shape();
  shape.set_dim(0, total);
  tensorflow::OpKernelContext* context = op().context();
  Tensor* output = nullptr;
  absl::Status status = context->allocate_output(0, shape, &output);
  Tensor* counts = nullptr;
  if (status.ok() && !counts_.empty()) status = context->allocate_output(1, TensorShape({size_}), &counts);
  if (!status.ok()) {
    // The exchange ends on all ranks. An op without its outputs must not end with success.
    engine.Cancel(shared_from_this(), std::string(status.message()));
    return;
  }
  has_output_ = true;
  if (counts != nullptr) {
    for (int rank = 0; rank < size_; ++rank) counts->vec<int32_t>()(rank) = static_cast<int32_t>(received[rank]);
  }
  char* to = Data(*output);
  for (int rank = 0; rank < size_; ++rank) {
    const int64_t bytes = received[rank] * content().row_bytes;
    if (rank == rank_) {
      int64_t before = 0;
      for (int other = 0; other < rank_ && !counts_.empty(); ++other) before += counts_[other];
      if (bytes > 0) std::memcpy(to, rows_.tensor_data().data() + before * content().row_bytes, bytes);
    } else {
      const int64_t awaited_bytes = messages_[rank].header.payload_bytes;
      const auto count_payload = [this, awaited_bytes](int64_t arrived_bytes) {
        if (arrived_bytes == awaited_bytes) payloads_to_come_ -= 1;
      };
      engine.Receive(shared_from_this(), rank, messages_[rank], to, Holding(*output), count_payload);
    }
    to += bytes;
  }
}

std::vector<std::pair<int, Header>> RowExchange::Untaken() const {
  std::vector<std::pair<int, Header>> untaken;
  if (has_output_) return untaken;
  for (int rank = 0; rank < size_; ++rank) untaken.emplace_back(rank, messages_[rank].header);
  return untaken;  // `Drain` ignores headers without a payload of their own, also those that have not come
}

// --- Broadcast -------------------------------------------------------------------------------------------------------

BroadcastExchange::BroadcastExchange(Identity identity, Content content, std::string name, WaitingOp op, Tensor input,
                                     Tensor output)
    : OpExchange(identity, content, std::move(name), std::move(op)),
      rank_(Engine::Instance().rank()),
      input_(std::move(input)),
      output_(std::move(output)),
      messages_to_come_(Engine::Instance().size() - 1) {}

void BroadcastExchange::Start(Engine& engine) {
  const int64_t bytes = rank_ == 0 ? input_.tensor_data().size() : 0;
  for (int other = 0; other < engine.size(); ++other) {
    if (other == rank_) continue;
    engine.Send(shared_from_this(), other, content(), input_.tensor_data().data(), bytes, Holding(input_));
  }
}

void BroadcastExchange::Take(Engine& engine, int from, Received message) {
  if (from != 0) {
    messages_to_come_ -= 1;
    return;
  }
  const int64_t awaited_bytes = message.header.payload_bytes;
  engine.Receive(shared_from_this(), from, message, Data(output_), Holding(output_),
                 [this, awaited_bytes](int64_t arrived_bytes) {
                   if (arrived_bytes == awaited_bytes) messages_to_come_ -= 1;
                 });
}

}  // namespace parallax

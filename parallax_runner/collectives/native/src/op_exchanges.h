// The exchanges between ranks, each with the op that waits for it.
#ifndef PARALLAX_RUNNER_OP_EXCHANGES_H_
#define PARALLAX_RUNNER_OP_EXCHANGES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace parallax {

// An op that waits for an exchange.
class WaitingOp {
 public:
  WaitingOp(tensorflow::OpKernelContext* context, tensorflow::AsyncOpKernel::DoneCallback done)
      : context_(context), done_(std::move(done)) {}

  // Calls `cancel` if the session's run is cancelled. Returns false if it has been cancelled already.
  bool WatchCancellation(std::function<void()> cancel);
  // Lets the run go on; with a message, the op fails.
  void End(const std::string& name, const std::string& error);
  tensorflow::OpKernelContext* context() const { return context_; }

 private:
  tensorflow::OpKernelContext* const context_;
  const tensorflow::AsyncOpKernel::DoneCallback done_;
  std::optional<tensorflow::CancellationToken> token_;
};

class OpExchange : public Exchange {
 public:
  OpExchange(Identity identity, Content content, std::string name, WaitingOp op)
      : Exchange(identity, content, std::move(name)), op_(std::move(op)) {}
  void Finish(const std::string& error) override;
  WaitingOp& op() { return op_; }

 protected:
  // Called before the op ends with success.
  virtual void WriteOutputs() {}

 private:
  WaitingOp op_;
};

// Sums of tensors of one type. Between two ranks, and for few bytes, each rank sends all it has to all others. Otherwise
// each rank sums a part of the elements for all. It sends the first sums while the last addends still come, so that both
// directions of a link are in use.
class SumExchange : public OpExchange {
 public:
  SumExchange(Identity identity, Content content, std::string name, WaitingOp op, std::vector<tensorflow::Tensor> inputs,
              std::vector<tensorflow::Tensor> outputs);
  void Start(Engine& engine) override;
  void Take(Engine& engine, int from, Received message) override;
  bool HasResults() const override { return addends_to_come_ == 0 && summed_ == PartOf(rank_) && sum_bytes_to_come_ == 0; }

 protected:
  void WriteOutputs() override;

 private:
  int64_t First(int rank) const { return content().rows * rank / size_; }
  int64_t Count(int rank) const { return First(rank + 1) - First(rank); }
  bool IsDirect() const;
  // The part of the elements that a rank sums: where it begins, and how many elements it has.
  int64_t PartBegin(int rank) const { return IsDirect() ? 0 : First(rank); }
  int64_t PartOf(int rank) const { return IsDirect() ? content().rows : Count(rank); }
  void AddUpWhatCame(Engine& engine);
  void AddUp(int64_t first, int64_t count);
  char* Sums() { return const_cast<char*>(sums_.tensor_data().data()); }

  const int size_, rank_;
  const std::vector<tensorflow::Tensor> inputs_;
  std::vector<tensorflow::Tensor> outputs_;
  tensorflow::Tensor own_, sums_;  // flat: the inputs and outputs, or copies if there are several
  std::vector<tensorflow::Tensor> came_;  // by rank: the elements that this rank sums
  std::vector<int64_t> came_bytes_;        // of these
  std::vector<int64_t> sums_begun_bytes_;  // by rank: the sums of its part that it has announced
  int64_t summed_ = 0;                     // elements of the own part
  int addends_to_come_;                    // ranks that have announced nothing yet
  int64_t sum_bytes_to_come_ = 0;
};

// Rows of all ranks, one rank after the other. `counts` are the rows that go to each rank, or empty if all rows go to
// all ranks.
class RowExchange : public OpExchange {
 public:
  RowExchange(Identity identity, Content content, std::string name, WaitingOp op, tensorflow::Tensor rows,
              std::vector<int64_t> counts);
  void Start(Engine& engine) override;
  void Take(Engine& engine, int from, Received message) override;
  bool HasResults() const override { return has_output_ && payloads_to_come_ == 0; }
  std::vector<std::pair<int, Header>> Untaken() const override;

 private:
  void Allocate(Engine& engine);
  int64_t RowsTo(int rank) const { return counts_.empty() ? rows_.dim_size(0) : counts_[rank]; }

  const int size_, rank_;
  const tensorflow::Tensor rows_;
  const std::vector<int64_t> counts_;
  std::vector<Received> messages_;  // by rank
  bool has_output_ = false;
  int headers_to_come_, payloads_to_come_;
};

// The tensor of rank 0. The other ranks send headers only, which tell what they expect.
class BroadcastExchange : public OpExchange {
 public:
  BroadcastExchange(Identity identity, Content content, std::string name, WaitingOp op, tensorflow::Tensor input,
                    tensorflow::Tensor output);
  void Start(Engine& engine) override;
  void Take(Engine& engine, int from, Received message) override;
  bool HasResults() const override { return messages_to_come_ == 0; }

 private:
  const int rank_;
  const tensorflow::Tensor input_;
  tensorflow::Tensor output_;
  int messages_to_come_;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_OP_EXCHANGES_H_

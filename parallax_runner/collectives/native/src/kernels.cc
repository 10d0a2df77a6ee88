// The TensorFlow ops, and the functions that Python calls.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "op_exchanges.h"
#include "sums.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace parallax {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::DataType;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr char kNotJoined[] = "this process has not joined the other ranks";

// Ends an op with an error. `Make` returns what this function returns.
std::nullptr_t Refused(OpKernelContext* context, const AsyncOpKernel::DoneCallback& done, const absl::Status& status) {
  context->SetStatus(status);
  done();
  return nullptr;
}

// Tells the engine when a run of a session ends, with success or not: TensorFlow destroys the resources of a step then.
class EndOfRun : public tensorflow::ResourceBase {
 public:
  explicit EndOfRun(const Identity& identity) : identity_(identity) {}
  ~EndOfRun() override { Engine::Instance().EndRun(identity_); }
  std::string DebugString() const override { return "the exchanges of a run"; }

 private:
  const Identity identity_;
};

void WatchEndOfRun(OpKernelContext* context, const Identity& identity) {
  if (context->step_container() == nullptr) return;
  const auto make = [&identity](EndOfRun** made) {
    *made = new EndOfRun(identity);
    return absl::OkStatus();
  };
  EndOfRun* found = nullptr;
  const std::string name = "parallax_end_of_run_" + std::to_string(identity.stream);
  const absl::Status status =
      context->step_container()->LookupOrCreate<EndOfRun>(context->resource_manager(), name, &found, make);
  if (status.ok()) found->Unref();  // the step container has a reference of its own
}

// An op that exchanges something with the same op of all ranks. `key` and `stream` are the same on all
// ranks.
class ExchangeOp : public AsyncOpKernel {
 public:
  explicit ExchangeOp(OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("key", &key_));
    if (key_.empty()) key_ = name();
    std::string stream;
    OP_REQUIRES_OK(construction, construction->GetAttr("stream", &stream));
    OP_REQUIRES_OK(construction, construction->GetAttr("deadline_steps", &deadline_steps_));
    key_fingerprint_ = Fingerprint(key_);
    stream_fingerprint_ = Fingerprint(stream);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) final {
    OP_REQUIRES_ASYNC(context, Engine::Instance().is_joined(), absl::FailedPreconditionError(kNotJoined), done);
    const std::shared_ptr<OpExchange> exchange = Make(context, done);
    if (exchange == nullptr) return;  // `Refused` has called `done`
    const std::string why = "the run was cancelled or failed on rank " + std::to_string(Engine::Instance().rank());
    const std::weak_ptr<OpExchange> watched = exchange;
    const bool is_watched = exchange->op().WatchCancellation([watched, why] {
      if (const auto one = watched.lock()) Engine::Instance().Cancel(one, why);
    });
    exchange->urgency.deadline_steps = deadline_steps_;
    WatchEndOfRun(context, exchange->identity());
    Engine::Instance().Post(exchange);
    if (!is_watched) Engine::Instance().Cancel(exchange, why);
  }

 protected:
  // Returns the exchange, or the result of `Refused`.
  virtual std::shared_ptr<OpExchange> Make(OpKernelContext* context, DoneCallback done) = 0;

  Identity Next(OpKernelContext* context) const {
    const tensorflow::FrameAndIter place = context->frame_iter();
    Identities& identities = Engine::Instance().identities();
    return identities.Next(context->session_handle(), context->step_id(), stream_fingerprint_, key_fingerprint_,
                           place.frame_id, place.iter_id);
  }
  const std::string& key() const { return key_; }

 private:
  std::string key_;
  int deadline_steps_ = 0;  // after how many steps the result is needed
  uint64_t key_fingerprint_ = 0, stream_fingerprint_ = 0;
};

Content ContentOf(Kind kind, DataType dtype, int64_t row_bytes, int64_t rows) {
  Content content;
  content.kind = kind;
  content.dtype = dtype;
  content.row_bytes = row_bytes;
  content.rows = rows;
  return content;
}

int64_t RowBytes(const Tensor& tensor) {
  int64_t bytes = tensorflow::DataTypeSize(tensor.dtype());
  for (int dimension = 1; dimension < tensor.dims(); ++dimension) bytes *= tensor.dim_size(dimension);
  return bytes;
}

class SumOp : public ExchangeOp {
 public:
  explicit SumOp(OpKernelConstruction* construction) : ExchangeOp(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("T", &dtype_));
    OP_REQUIRES(construction, CanSum(dtype_),
                absl::InvalidArgumentError("values of " + tensorflow::DataTypeString(dtype_) + " have no sum"));
  }

 protected:
  std::shared_ptr<OpExchange> Make(OpKernelContext* context, DoneCallback done) override {
    std::vector<Tensor> inputs, outputs;
    int64_t elements = 0;
    for (int i = 0; i < context->num_inputs(); ++i) {
      inputs.push_back(context->input(i));
      elements += inputs.back().NumElements();
      Tensor* output = nullptr;
      const absl::Status status = context->allocate_output(i, inputs.back().shape(), &output);
      if (!status.ok()) return Refused(context, done, status);
      outputs.push_back(*output);
    }
    const Content content = ContentOf(Kind::kSum, dtype_, tensorflow::DataTypeSize(dtype_), elements);
    return std::make_shared<SumExchange>(Next(context), content, key(), WaitingOp(context, std::move(done)),
                                         std::move(inputs), std::move(outputs));
  }

 private:
  DataType dtype_;
};

class GatherOp : public ExchangeOp {
 public:
  using ExchangeOp::ExchangeOp;

 protected:
  std::shared_ptr<OpExchange> Make(OpKernelContext* context, DoneCallback done) override {
    const Tensor& rows = context->input(0);
    if (rows.dims() == 0) {
      return Refused(context, done, absl::InvalidArgumentError("a scalar has no rows to concatenate"));
    }
    const Content content = ContentOf(Kind::kGather, rows.dtype(), RowBytes(rows), rows.dim_size(0));
    return std::make_shared<RowExchange>(Next(context), content, key(), WaitingOp(context, std::move(done)), rows,
                                         std::vector<int64_t>());
  }
};

class AllToAllOp : public ExchangeOp {
 public:
  using ExchangeOp::ExchangeOp;

 protected:
  std::shared_ptr<OpExchange> Make(OpKernelContext* context, DoneCallback done) override {
    const Tensor& rows = context->input(0);
    const Tensor& counts = context->input(1);
    std::vector<int64_t> numbers;
    const std::string fault = Read(rows, counts, numbers);
    if (!fault.empty()) return Refused(context, done, absl::InvalidArgumentError(fault));
    const Content content = ContentOf(Kind::kAllToAll, rows.dtype(), RowBytes(rows), 0);
    return std::make_shared<RowExchange>(Next(context), content, key(), WaitingOp(context, std::move(done)), rows,
                                         std::move(numbers));
  }

 private:
  // Returns what is wrong, or "".
  std::string Read(const Tensor& rows, const Tensor& counts, std::vector<int64_t>& numbers) const {
    const int size = Engine::Instance().size();
    if (rows.dims() == 0) return "a scalar has no rows to send";
    if (counts.dims() != 1 || counts.dim_size(0) != size) {
      return "expected the number of rows for each of " + std::to_string(size) + " ranks, got " +
             std::to_string(counts.NumElements()) + " numbers";
    }
    int64_t total = 0;
    for (int rank = 0; rank < size; ++rank) {
      numbers.push_back(counts.vec<int32_t>()(rank));
      total += numbers.back();
      if (numbers.back() < 0) return "a negative number of rows for rank " + std::to_string(rank);
    }
    if (total == rows.dim_size(0)) return "";
    return std::to_string(total) + " rows are to be sent, but there are " + std::to_string(rows.dim_size(0));
  }
};

class BroadcastOp : public ExchangeOp {
 public:
  using ExchangeOp::ExchangeOp;

 protected:
  std::shared_ptr<OpExchange> Make(OpKernelContext* context, DoneCallback done) override {
    const Tensor& input = context->input(0);
    Tensor output;
    if (Engine::Instance().rank() == 0) {
      context->set_output(0, input);
    } else {
      Tensor* allocated = nullptr;
      const absl::Status status = context->allocate_output(0, input.shape(), &allocated);
      if (!status.ok()) return Refused(context, done, status);
      output = *allocated;
    }
    const int64_t element_bytes = tensorflow::DataTypeSize(input.dtype());
    const Content content = ContentOf(Kind::kBroadcast, input.dtype(), element_bytes, input.NumElements());
    return std::make_shared<BroadcastExchange>(Next(context), content, key(), WaitingOp(context, std::move(done)), input,
                                               output);
  }
};

class PlaceOp : public OpKernel {
 public:
  explicit PlaceOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("place", &place_));
  }

  void Compute(OpKernelContext* context) override {
    const Engine& engine = Engine::Instance();
    OP_REQUIRES(context, engine.is_joined(), absl::FailedPreconditionError(kNotJoined));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<int32_t>()() = Number(engine);
  }

 private:
  int Number(const Engine& engine) const {
    if (place_ == "rank") return engine.rank();
    return place_ == "size" ? engine.size() : engine.local_rank();
  }
  std::string place_;
};

#define CPU_KERNEL(name, type) REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU), type)
CPU_KERNEL("ParallaxSum", SumOp);
CPU_KERNEL("ParallaxGather", GatherOp);
CPU_KERNEL("ParallaxAllToAll", AllToAllOp);
CPU_KERNEL("ParallaxBroadcast", BroadcastOp);
CPU_KERNEL("ParallaxPlace", PlaceOp);
#undef CPU_KERNEL

// The shape of the rows of all ranks.
absl::Status RowsOfAll(InferenceContext* context) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

absl::Status SameShapes(InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ParallaxSum")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double, int8, uint8, int16, uint16, int32, int64}")
    .Attr("key: string = ''")
    .Attr("stream: string = ''")
    .Attr("deadline_steps: int >= 0 = 0")
    .Input("values: N * T")
    .Output("sums: N * T")
    .SetIsStateful()
    .SetShapeFn(SameShapes);

REGISTER_OP("ParallaxGather")
    .Attr("T: {numbertype, bool}")
    .Attr("key: string = ''")
    .Attr("stream: string = ''")
    .Attr("deadline_steps: int >= 0 = 0")
    .Input("rows: T")
    .Output("gathered: T")
    .SetIsStateful()
    .SetShapeFn(RowsOfAll);

REGISTER_OP("ParallaxAllToAll")
    .Attr("T: {numbertype, bool}")
    .Attr("key: string = ''")
    .Attr("stream: string = ''")
    .Attr("deadline_steps: int >= 0 = 0")
    .Input("rows: T")
    .Input("counts: int32")
    .Output("came: T")
    .Output("came_counts: int32")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      TF_RETURN_IF_ERROR(RowsOfAll(context));
      context->set_output(1, context->input(1));
      return absl::OkStatus();
    });

REGISTER_OP("ParallaxBroadcast")
    .Attr("T: {numbertype, bool}")
    .Attr("key: string = ''")
    .Attr("stream: string = ''")
    .Attr("deadline_steps: int >= 0 = 0")
    .Input("value: T")
    .Output("of_chief: T")
    .SetIsStateful()
    .SetShapeFn(SameShapes);

REGISTER_OP("ParallaxPlace")
    .Attr("place: {'rank', 'size', 'local_rank'}")
    .Output("number: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

}  // namespace parallax

extern "C" {

// Joins the other ranks. Returns null, or a message that stays valid.
const char* parallax_join() {
  static std::string error;
  error = parallax::Engine::Instance().Join();
  return error.empty() ? nullptr : error.c_str();
}

void parallax_leave() { parallax::Engine::Instance().Leave(); }
int parallax_rank() { return parallax::Engine::Instance().rank(); }
int parallax_size() { return parallax::Engine::Instance().size(); }
int parallax_transfers() { return parallax::Engine::Instance().transfers(); }
// Writes the ranks for which this one has waited for long to `ranks`, which has room for all, and the name of the exchange
// that has waited longest to `exchange`. Returns the number of ranks.
int parallax_awaited(int* ranks, char* exchange, int exchange_bytes) {
  const parallax::Awaited awaited = parallax::Engine::Instance().AwaitedNow();
  std::copy(awaited.ranks.begin(), awaited.ranks.end(), ranks);
  std::snprintf(exchange, exchange_bytes, "%s", awaited.exchange.c_str());
  return static_cast<int>(awaited.ranks.size());
}
int64_t parallax_sleeps() { return parallax::Engine::Instance().sleeps(); }
int parallax_early() { return parallax::Engine::Instance().early(); }
int parallax_local_rank() { return parallax::Engine::Instance().local_rank(); }
}

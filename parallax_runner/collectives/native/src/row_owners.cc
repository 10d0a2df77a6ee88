// Which rank owns which rows, and where rows stand in messages between a rank and the owners. Each op replaces a chain of
// TensorFlow ops. No op here talks to other ranks.
#include <algorithm>
#include <string>
#include <vector>

#include "rows.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace parallax {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The place of each row in a message that is ordered by rank.
class PlacesByRankOp : public OpKernel {
 public:
  explicit PlacesByRankOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("size", &size_));
  }

  void Compute(OpKernelContext* context) override {
    const auto ranks = context->input(0).flat<int32_t>();
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &output));
    std::vector<int32_t> next(size_ + 1, 0);
    for (int64_t i = 0; i < ranks.size(); ++i) {
      OP_REQUIRES(context, IsIn(ranks(i), size_),
                  absl::InvalidArgumentError("there is no rank " + std::to_string(ranks(i))));
      ++next[ranks(i) + 1];
    }
    for (int rank = 0; rank < size_; ++rank) next[rank + 1] += next[rank];
    auto places = output->flat<int32_t>();
    for (int64_t i = 0; i < ranks.size(); ++i) places(i) = next[ranks(i)]++;
  }

 private:
  int size_ = 0;
};

// Splits keys by their owners. A key is an id plus the first key of its table, and its owner is the key modulo the number
// of ranks. An owner gets the quotient.
template <typename Key, typename Place>
class PackIdsOp : public OpKernel {
 public:
  explicit PackIdsOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("size", &size_));
    OP_REQUIRES_OK(construction, construction->GetAttr("first_rows", &first_rows_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const auto keys = input.flat<Key>();
    const int64_t tables = first_rows_.size();
    Tensor *message = nullptr, *owners = nullptr, *counts = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output("message", input.shape(), &message));
    OP_REQUIRES_OK(context, context->allocate_output("owners", input.shape(), &owners));
    OP_REQUIRES_OK(context, context->allocate_output("counts", TensorShape({size_, tables}), &counts));
    auto numbers = counts->matrix<int32_t>();
    numbers.setZero();
    std::vector<int64_t> next(size_ + 1, 0);
    int64_t table = 0;
    for (int64_t i = 0; i < keys.size(); ++i) {
      OP_REQUIRES(context, keys(i) >= 0 && (i == 0 || keys(i) > keys(i - 1)),
                  absl::InvalidArgumentError("keys must be ascending"));
      while (table + 1 < tables && keys(i) / size_ >= first_rows_[table + 1]) ++table;
      const int owner = static_cast<int>(keys(i) % size_);
      owners->flat<int32_t>()(i) = owner;
      ++numbers(owner, table);
      ++next[owner + 1];
    }
    for (int rank = 0; rank < size_; ++rank) next[rank + 1] += next[rank];
    auto sent = message->flat<Place>();
    for (int64_t i = 0; i < keys.size(); ++i) sent(next[keys(i) % size_]++) = static_cast<Place>(keys(i) / size_);
  }

 private:
  int64_t size_ = 0;
  std::vector<int64_t> first_rows_;
};

// Groups by table what `PackIdsOp` of all ranks has sent to this rank.
template <typename Place>
class GroupArrivedOp : public OpKernel {
 public:
  explicit GroupArrivedOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("first_rows", &first_rows_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    const Tensor& came_counts = context->input(1);
    const int64_t tables = first_rows_.size();
    OP_REQUIRES(context, Total(came_counts) == input.NumElements(),
                absl::InvalidArgumentError("the numbers of the ranks do not fit to the ids"));
    Tensor *ranks = nullptr, *counts = nullptr, *own = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output("ranks", input.shape(), &ranks));
    OP_REQUIRES_OK(context, context->allocate_output("counts", TensorShape({came_counts.NumElements(), tables}), &counts));
    OP_REQUIRES_OK(context, context->allocate_output("own", input.shape(), &own));
    auto numbers = counts->matrix<int32_t>();
    numbers.setZero();
    const auto came = input.flat<Place>();
    std::vector<int32_t> table_of(came.size());
    std::vector<int64_t> next(tables + 1, 0);
    int64_t i = 0;
    for (int64_t rank = 0; rank < came_counts.NumElements(); ++rank) {
      for (const int64_t end = i + came_counts.flat<int32_t>()(rank); i < end; ++i) {
        table_of[i] = TableOf(came(i));
        ++numbers(rank, table_of[i]);
        ++next[table_of[i] + 1];
      }
    }
    for (int64_t table = 0; table < tables; ++table) next[table + 1] += next[table];
    i = 0;
    for (int64_t rank = 0; rank < came_counts.NumElements(); ++rank) {
      for (const int64_t end = i + came_counts.flat<int32_t>()(rank); i < end; ++i) {
        const int64_t place = next[table_of[i]]++;
        ranks->flat<int32_t>()(place) = static_cast<int32_t>(rank);
        own->flat<Place>()(place) = static_cast<Place>(came(i) - first_rows_[table_of[i]]);
      }
    }
  }

 private:
  int32_t TableOf(int64_t place) const {
    const auto after = std::upper_bound(first_rows_.begin() + 1, first_rows_.end(), place);
    return static_cast<int32_t>(after - first_rows_.begin()) - 1;
  }

  std::vector<int64_t> first_rows_;
};

#define CPU_OP(name) Name(name).Device(tensorflow::DEVICE_CPU)
#define REGISTER_KEY_TYPE(Key, Place)                                                                    \
  REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxPackIds").TypeConstraint<Key>("K").TypeConstraint<Place>("P"), \
                          PackIdsOp<Key, Place>);
REGISTER_KEY_TYPE(int32_t, int32_t)
REGISTER_KEY_TYPE(int64_t, int32_t)
REGISTER_KEY_TYPE(int64_t, int64_t)
REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxGroupArrived").TypeConstraint<int32_t>("P"), GroupArrivedOp<int32_t>);
REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxGroupArrived").TypeConstraint<int64_t>("P"), GroupArrivedOp<int64_t>);
REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxPlacesByRank"), PlacesByRankOp);
#undef REGISTER_KEY_TYPE
#undef CPU_OP

}  // namespace

REGISTER_OP("ParallaxPlacesByRank")
    .Attr("size: int >= 1")
    .Input("ranks: int32")
    .Output("places: int32")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("ParallaxPackIds")
    .Attr("K: {int32, int64}")
    .Attr("P: {int32, int64}")
    .Attr("size: int >= 1")
    .Attr("first_rows: list(int) >= 1")
    .Input("keys: K")
    .Output("message: P")
    .Output("owners: int32")
    .Output("counts: int32")
    .SetShapeFn([](InferenceContext* context) {
      int64_t size = 0;
      std::vector<int64_t> first_rows;
      TF_RETURN_IF_ERROR(context->GetAttr("size", &size));
      TF_RETURN_IF_ERROR(context->GetAttr("first_rows", &first_rows));
      context->set_output(0, context->input(0));
      context->set_output(1, context->input(0));
      context->set_output(2, context->Matrix(size, first_rows.size()));
      return absl::OkStatus();
    });

REGISTER_OP("ParallaxGroupArrived")
    .Attr("P: {int32, int64}")
    .Attr("first_rows: list(int) >= 1")
    .Input("came: P")
    .Input("came_counts: int32")
    .Output("ranks: int32")
    .Output("counts: int32")
    .Output("own: P")
    .SetShapeFn([](InferenceContext* context) {
      std::vector<int64_t> first_rows;
      TF_RETURN_IF_ERROR(context->GetAttr("first_rows", &first_rows));
      ShapeHandle counts;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 1, &counts));
      context->set_output(0, context->input(0));
      context->set_output(1, context->Matrix(context->Dim(counts, 0), first_rows.size()));
      context->set_output(2, context->input(0));
      return absl::OkStatus();
    });

}  // namespace parallax

// Ops on the rows of several tables, which are grouped by table. Each op replaces a chain of TensorFlow ops for each
// table. No op here talks to other ranks.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "rows.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace parallax {

int64_t RowElements(const tensorflow::Tensor& rows) {
  int64_t elements = 1;
  for (int dimension = 1; dimension < rows.dims(); ++dimension) elements *= rows.dim_size(dimension);
  return elements;
}

int64_t Total(const tensorflow::Tensor& lengths) {
  int64_t total = 0;
  for (int64_t table = 0; table < lengths.NumElements(); ++table) {
    const int32_t length = lengths.flat<int32_t>()(table);
    if (length < 0) return -1;
    total += length;
  }
  return total;
}

namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Copies each row of a message to all places where its id was looked up.
class UnpackRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OpInputList ids;
    OpOutputList found;
    OP_REQUIRES_OK(context, context->input_list("ids", &ids));
    OP_REQUIRES_OK(context, context->output_list("found", &found));
    const Tensor& places = context->input(1);
    const Tensor& lengths = context->input(2);
    const Tensor& positions = context->input(3);
    OP_REQUIRES(context, lengths.NumElements() == ids.size() && Total(lengths) == places.NumElements(),
                absl::InvalidArgumentError("the lengths of the tables do not fit to the places"));
    int64_t given = 0;
    for (const Tensor& of_table : ids) given += of_table.NumElements();
    OP_REQUIRES(context, positions.NumElements() == given, absl::InvalidArgumentError("each id needs a position"));
    const int32_t* next = positions.flat<int32_t>().data();
    int64_t start = 0;
    for (int table = 0; table < ids.size(); ++table) {
      const int64_t length = lengths.flat<int32_t>()(table);
      TensorShape shape = ids[table].shape();
      for (int dimension = 1; dimension < context->input(0).dims(); ++dimension) {
        shape.AddDim(context->input(0).dim_size(dimension));
      }
      Tensor* output = nullptr;
      OP_REQUIRES_OK(context, found.allocate(table, shape, &output));
      const int32_t* of_table = places.flat<int32_t>().data() + start;
      OP_REQUIRES(context, Copy(context->input(0), of_table, length, next, ids[table].NumElements(), output),
                  absl::InvalidArgumentError("a position or a place is outside of its table"));
      next += ids[table].NumElements();
      start += length;
    }
  }

 private:
  static bool Copy(const Tensor& rows, const int32_t* places, int64_t length, const int32_t* positions, int64_t count,
                   Tensor* output) {
    const int64_t bytes = RowElements(rows) * tensorflow::DataTypeSize(rows.dtype());
    const char* from = rows.tensor_data().data();
    char* to = const_cast<char*>(output->tensor_data().data());
    for (int64_t i = 0; i < count; ++i, to += bytes) {
      const int32_t position = positions[i];
      if (!IsIn(position, length) || !IsIn(places[position], rows.dim_size(0))) return false;
      std::memcpy(to, from + places[position] * bytes, bytes);
    }
    return true;
  }
};

// Sums the rows that have the same position in a table, and writes each sum to its place in a message.
template <typename T, typename Wide>
class PackSumsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OpInputList values, positions;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    OP_REQUIRES_OK(context, context->input_list("positions", &positions));
    const Tensor& lengths = context->input(2 * values.size());
    const Tensor& places = context->input(2 * values.size() + 1);
    OP_REQUIRES(context, lengths.NumElements() == values.size() && Total(lengths) == places.NumElements(),
                absl::InvalidArgumentError("the lengths of the tables do not fit to the places"));
    OP_REQUIRES(context, values[0].dims() > 0, absl::InvalidArgumentError("a scalar has no rows to send"));
    TensorShape shape = values[0].shape();
    shape.set_dim(0, places.NumElements());
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    Sums<T, Wide> sums(output->flat<T>().data(), places.NumElements(), RowElements(values[0]));
    int64_t start = 0;
    for (int table = 0; table < values.size(); ++table) {
      const int64_t length = lengths.flat<int32_t>()(table);
      OP_REQUIRES(context, IsAlike(values[table], values[0]) && values[table].dim_size(0) == positions[table].NumElements(),
                  absl::InvalidArgumentError("the rows of the tables do not fit to each other or to their positions"));
      const int32_t* of_table = places.flat<int32_t>().data() + start;
      OP_REQUIRES(context, Add(values[table], positions[table], of_table, length, places.NumElements(), sums),
                  absl::InvalidArgumentError("a position or a place is outside of its table"));
      start += length;
    }
    sums.Write();
  }

 private:
  static bool IsAlike(const Tensor& one, const Tensor& other) {
    return one.dims() == other.dims() && RowElements(one) == RowElements(other);
  }

  static bool Add(const Tensor& values, const Tensor& positions, const int32_t* places, int64_t length, int64_t rows,
                  Sums<T, Wide>& sums) {
    const int64_t elements = RowElements(values);
    const T* row = values.flat<T>().data();
    const auto wanted = positions.flat<int32_t>();
    for (int64_t i = 0; i < wanted.size(); ++i, row += elements) {
      if (!IsIn(wanted(i), length) || !IsIn(places[wanted(i)], rows)) return false;
      sums.Add(places[wanted(i)], row);
    }
    return true;
  }
};

// Sums the rows that have arrived for the same id. Ids are grouped by table.
template <typename T, typename Wide, typename Id>
class SumArrivedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& rows = context->input(0);
    const Tensor& places = context->input(1);
    const Tensor& ids = context->input(2);
    const Tensor& lengths = context->input(3);
    const int64_t count = ids.NumElements();
    OP_REQUIRES(context, rows.dims() > 0 && rows.dim_size(0) == count && places.NumElements() == count,
                absl::InvalidArgumentError("each row needs an id and a place"));
    OP_REQUIRES(context, Total(lengths) == count,
                absl::InvalidArgumentError("the lengths of the tables do not fit to the ids"));
    Tensor* distinct_lengths = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(2, lengths.shape(), &distinct_lengths));
    std::vector<Id> distinct;
    std::vector<int64_t> sum_of(count);  // by place among the ids
    int64_t start = 0;
    for (int64_t table = 0; table < lengths.NumElements(); ++table) {
      const size_t before = distinct.size();
      const int64_t end = start + lengths.flat<int32_t>()(table);
      OP_REQUIRES(context, Number(ids.flat<Id>(), start, end, distinct, sum_of),
                  absl::InvalidArgumentError("a negative id"));
      distinct_lengths->flat<int32_t>()(table) = static_cast<int32_t>(distinct.size() - before);
      start = end;
    }
    Tensor *sums = nullptr, *distinct_ids = nullptr;
    TensorShape shape = rows.shape();
    shape.set_dim(0, distinct.size());
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sums));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({shape.dim_size(0)}), &distinct_ids));
    std::copy(distinct.begin(), distinct.end(), distinct_ids->flat<Id>().data());
    OP_REQUIRES(context, Add(rows, places.flat<int32_t>(), sum_of, *sums),
                absl::InvalidArgumentError("a place is outside of the message"));
  }

 private:
  // Appends the distinct ids of a table.
  static bool Number(typename tensorflow::TTypes<Id>::ConstFlat ids, int64_t start, int64_t end,
                     std::vector<Id>& distinct, std::vector<int64_t>& sum_of) {
    std::vector<Item> items, spare;
    for (int64_t i = start; i < end; ++i) {
      if (ids(i) < 0) return false;
      items.push_back({static_cast<uint64_t>(ids(i)), i});
    }
    SortById(items, spare);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i == 0 || items[i].id != items[i - 1].id) distinct.push_back(static_cast<Id>(items[i].id));
      sum_of[items[i].place] = static_cast<int64_t>(distinct.size()) - 1;
    }
    return true;
  }

  // Within a table, rows stand in the order of the message, so each sum is added in rank order.
  static bool Add(const Tensor& rows, tensorflow::TTypes<int32_t>::ConstFlat places, const std::vector<int64_t>& sum_of,
                  Tensor& out) {
    const int64_t elements = RowElements(rows);
    Sums<T, Wide> sums(out.flat<T>().data(), out.dim_size(0), elements);
    for (int64_t i = 0; i < places.size(); ++i) {
      if (!IsIn(places(i), rows.dim_size(0))) return false;
      sums.Add(sum_of[i], rows.flat<T>().data() + places(i) * elements);
    }
    sums.Write();
    return true;
  }
};

// float16 is added as float16, as TensorFlow's segment sum does; bfloat16 is added as float32 and rounded once.
#define FOR_ROW_TYPES(REGISTER) \
  REGISTER(Eigen::half, Eigen::half) REGISTER(Eigen::bfloat16, float) REGISTER(float, float) REGISTER(double, double)
#define CPU_OP(name) Name(name).Device(tensorflow::DEVICE_CPU)
#define REGISTER_ROW_TYPE(T, Wide)                                                                                    \
  REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxPackSums").TypeConstraint<T>("D"), PackSumsOp<T, Wide>);                    \
  REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxSumArrived").TypeConstraint<T>("D").TypeConstraint<int32_t>("I"),           \
                          SumArrivedOp<T, Wide, int32_t>);                                                            \
  REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxSumArrived").TypeConstraint<T>("D").TypeConstraint<int64_t>("I"),           \
                          SumArrivedOp<T, Wide, int64_t>);
FOR_ROW_TYPES(REGISTER_ROW_TYPE)
REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxUnpackRows"), UnpackRowsOp);
#undef REGISTER_ROW_TYPE
#undef CPU_OP
#undef FOR_ROW_TYPES

// The shape of some rows like those of an input.
absl::Status RowsLike(InferenceContext* context, int input) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(input), 1, &shape));
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("ParallaxUnpackRows")
    .Attr("N: int >= 1")
    .Attr("T: {int32, int64}")
    .Attr("D: {numbertype, bool}")
    .Input("rows: D")
    .Input("places: int32")
    .Input("lengths: int32")
    .Input("positions: int32")
    .Input("ids: N * T")
    .Output("found: N * D")
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle row;
      TF_RETURN_IF_ERROR(context->Subshape(context->input(0), 1, &row));
      const int tables = context->num_outputs();
      for (int table = 0; table < tables; ++table) {
        ShapeHandle found;
        TF_RETURN_IF_ERROR(context->Concatenate(context->input(4 + table), row, &found));
        context->set_output(table, found);
      }
      return absl::OkStatus();
    });

REGISTER_OP("ParallaxPackSums")
    .Attr("N: int >= 1")
    .Attr("D: {half, bfloat16, float, double}")
    .Input("values: N * D")
    .Input("positions: N * int32")
    .Input("lengths: int32")
    .Input("places: int32")
    .Output("message: D")
    .SetShapeFn([](InferenceContext* context) { return RowsLike(context, 0); });

REGISTER_OP("ParallaxSumArrived")
    .Attr("D: {half, bfloat16, float, double}")
    .Attr("I: {int32, int64}")
    .Input("rows: D")
    .Input("places: int32")
    .Input("ids: I")
    .Input("lengths: int32")
    .Output("sums: D")
    .Output("distinct: I")
    .Output("distinct_lengths: int32")
    .SetShapeFn([](InferenceContext* context) {
      TF_RETURN_IF_ERROR(RowsLike(context, 0));
      context->set_output(1, SomeNumbers(context));
      context->set_output(2, context->input(3));
      return absl::OkStatus();
    });

}  // namespace parallax

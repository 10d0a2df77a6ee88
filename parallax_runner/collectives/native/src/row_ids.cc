// The distinct ids of several tables. The op replaces a chain of TensorFlow ops, and does not talk to other ranks.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "rows.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace parallax {

void SortById(std::vector<Item>& items, std::vector<Item>& spare) {
  uint64_t used_bits = 0;
  for (const Item& item : items) used_bits |= item.id;
  spare.resize(items.size());
  // Radix sort, the lowest byte first.
  for (int shift = 0; shift < 64 && (used_bits >> shift) != 0; shift += 8) {
    std::array<int64_t, 257> starts{};
    for (const Item& item : items) ++starts[((item.id >> shift) & 255) + 1];
    for (int digit = 0; digit < 256; ++digit) starts[digit + 1] += starts[digit];
    for (const Item& item : items) spare[starts[(item.id >> shift) & 255]++] = item;
    items.swap(spare);
  }
}

namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Finds the distinct ids of each table.
template <typename T, typename Key>
class UniqueIdsOp : public OpKernel {
 public:
  explicit UniqueIdsOp(OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(construction, construction->GetAttr("first_keys", &first_keys_));
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    const size_t tables = construction->num_inputs();
    OP_REQUIRES(construction, rows_.size() == tables && first_keys_.size() == tables && names_.size() == tables,
                absl::InvalidArgumentError("each table needs ids, rows, a first key and a name"));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList ids;
    OP_REQUIRES_OK(context, context->input_list("ids", &ids));
    int64_t given = 0;
    for (const Tensor& of_table : ids) given += of_table.NumElements();
    Tensor *positions = nullptr, *given_lengths = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output("positions", TensorShape({given}), &positions));
    OP_REQUIRES_OK(context, context->allocate_output("given_lengths", TensorShape({ids.size()}), &given_lengths));
    std::vector<Key> keys;
    int32_t* next = positions->flat<int32_t>().data();
    for (int table = 0; table < ids.size(); ++table) {
      OP_REQUIRES_OK(context, Number(table, ids[table].flat<T>(), keys, next));
      next += ids[table].NumElements();
      given_lengths->flat<int32_t>()(table) = static_cast<int32_t>(ids[table].NumElements());
    }
    Tensor* distinct = nullptr;
    const TensorShape shape({static_cast<int64_t>(keys.size())});
    OP_REQUIRES_OK(context, context->allocate_output("keys", shape, &distinct));
    std::copy(keys.begin(), keys.end(), distinct->flat<Key>().data());
  }

 private:
  // Appends the distinct keys of a table to `keys`.
  absl::Status Number(int table, typename tensorflow::TTypes<T>::ConstFlat ids, std::vector<Key>& keys,
                      int32_t* positions) const {
    std::vector<Item> items(ids.size()), spare;
    for (int64_t i = 0; i < ids.size(); ++i) {
      if (!IsIn(ids(i), rows_[table])) return NoRow(table, ids(i));
      items[i] = {static_cast<uint64_t>(ids(i)), i};
    }
    SortById(items, spare);
    int32_t position = -1;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i == 0 || items[i].id != items[i - 1].id) {
        keys.push_back(static_cast<Key>(first_keys_[table] + items[i].id));
        position += 1;
      }
      positions[items[i].place] = position;
    }
    return absl::OkStatus();
  }

  absl::Status NoRow(int table, int64_t id) const {
    return absl::InvalidArgumentError("no row of the variable has this id (variable, number of rows, id): [«" +
                                      names_[table] + "»] [" + std::to_string(rows_[table]) + "] [" +
                                      std::to_string(id) + "]");
  }

  std::vector<int64_t> rows_, first_keys_;
  std::vector<std::string> names_;
};

#define CPU_OP(name) Name(name).Device(tensorflow::DEVICE_CPU)
#define REGISTER_ID_TYPE(T, Key)                                                                       \
  REGISTER_KERNEL_BUILDER(CPU_OP("ParallaxUniqueIds").TypeConstraint<T>("T").TypeConstraint<Key>("K"), \
                          UniqueIdsOp<T, Key>);
REGISTER_ID_TYPE(int32_t, int32_t)
REGISTER_ID_TYPE(int32_t, int64_t)
REGISTER_ID_TYPE(int64_t, int64_t)
#undef REGISTER_ID_TYPE
#undef CPU_OP

}  // namespace

REGISTER_OP("ParallaxUniqueIds")
    .Attr("N: int >= 1")
    .Attr("T: {int32, int64}")
    .Attr("K: {int32, int64}")
    .Attr("rows: list(int)")
    .Attr("first_keys: list(int)")
    .Attr("names: list(string)")
    .Input("ids: N * T")
    .Output("keys: K")
    .Output("positions: int32")
    .Output("given_lengths: int32")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, SomeNumbers(context));
      context->set_output(1, SomeNumbers(context));
      context->set_output(2, context->Vector(context->num_inputs()));
      return absl::OkStatus();
    });

}  // namespace parallax

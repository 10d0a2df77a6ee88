// What the ops on rows of several tables share.
#ifndef PARALLAX_RUNNER_ROWS_H_
#define PARALLAX_RUNNER_ROWS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace parallax {

// An id, and the place where it stands.
struct Item {
  uint64_t id = 0;
  int64_t place = 0;
};

// Sorts items by id. Items with the same id stay in their order. `spare` is memory that calls can share.
void SortById(std::vector<Item>& items, std::vector<Item>& spare);

// The number of elements in a row of `rows`.
int64_t RowElements(const tensorflow::Tensor& rows);

// The sum of the lengths of all tables, or -1 if one is negative.
int64_t Total(const tensorflow::Tensor& lengths);

inline bool IsIn(int64_t value, int64_t end) { return value >= 0 && value < end; }

// The shape of a vector whose length is known when the op runs.
inline tensorflow::shape_inference::ShapeHandle SomeNumbers(tensorflow::shape_inference::InferenceContext* context) {
  return context->Vector(context->UnknownDim());
}

// Adds a row to a sum.
template <typename T, typename Wide>
inline void AddRow(const T* row, int64_t elements, Wide* sum) {
  for (int64_t i = 0; i < elements; ++i) sum[i] += static_cast<Wide>(row[i]);
}

// Sums of rows of type T, added as type Wide. If the types differ, sums have memory of their own until they are rounded.
template <typename T, typename Wide>
class Sums {
 public:
  // `out` has room for `rows` rows.
  Sums(T* out, int64_t rows, int64_t elements) : out_(out), elements_(elements), sums_(rows * elements, Wide(0)) {}
  void Add(int64_t row, const T* addend) { AddRow(addend, elements_, sums_.data() + row * elements_); }
  void Write() {
    for (size_t i = 0; i < sums_.size(); ++i) out_[i] = static_cast<T>(sums_[i]);
  }

 private:
  T* const out_;
  const int64_t elements_;
  std::vector<Wide> sums_;
};

template <typename T>
class Sums<T, T> {
 public:
  Sums(T* out, int64_t rows, int64_t elements) : out_(out), elements_(elements) {
    for (int64_t i = 0; i < rows * elements; ++i) out_[i] = T(0);
  }
  void Add(int64_t row, const T* addend) { AddRow(addend, elements_, out_ + row * elements_); }
  void Write() {}

 private:
  T* const out_;
  const int64_t elements_;
};

}  // namespace parallax

#endif  // PARALLAX_RUNNER_ROWS_H_

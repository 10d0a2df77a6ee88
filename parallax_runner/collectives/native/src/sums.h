// Element-wise sums in the order of ranks, so that no sum depends on which rank was late.
#ifndef PARALLAX_RUNNER_SUMS_H_
#define PARALLAX_RUNNER_SUMS_H_

#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/types.h"

namespace parallax {

// Returns whether `Sum` can add values of this type.
bool CanSum(tensorflow::DataType dtype);

// Writes parts[0][i] + parts[1][i] + ... to out[i], for `count` elements. float16 and bfloat16 are added as float32 and
// rounded once. `out` may be one of the parts only if it is parts[0].
void Sum(tensorflow::DataType dtype, const std::vector<const char*>& parts, char* out, int64_t count);

}  // namespace parallax

#endif  // PARALLAX_RUNNER_SUMS_H_

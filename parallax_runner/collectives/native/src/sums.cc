#include "sums.h"

#include <algorithm>
#include <cstring>

namespace parallax {
namespace {

constexpr int64_t kBlock = 4096;  // elements that stay in the cache while all parts are added

template <typename T, typename Wide>
void SumOf(const std::vector<const char*>& parts, char* out, int64_t count) {
  Wide sum[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t length = std::min(kBlock, count - start);
    const T* first = reinterpret_cast<const T*>(parts[0]) + start;
    for (int64_t i = 0; i < length; ++i) sum[i] = static_cast<Wide>(first[i]);
    for (size_t part = 1; part < parts.size(); ++part) {
      const T* values = reinterpret_cast<const T*>(parts[part]) + start;
      for (int64_t i = 0; i < length; ++i) sum[i] += static_cast<Wide>(values[i]);
    }
    T* to = reinterpret_cast<T*>(out) + start;
    for (int64_t i = 0; i < length; ++i) to[i] = static_cast<T>(sum[i]);
  }
}

}  // namespace

bool CanSum(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
    case tensorflow::DT_DOUBLE:
    case tensorflow::DT_HALF:
    case tensorflow::DT_BFLOAT16:
    case tensorflow::DT_INT8:
    case tensorflow::DT_UINT8:
    case tensorflow::DT_INT16:
    case tensorflow::DT_UINT16:
    case tensorflow::DT_INT32:
    case tensorflow::DT_INT64:
      return true;
    default:
      return false;
  }
}

void Sum(tensorflow::DataType dtype, const std::vector<const char*>& parts, char* out, int64_t count) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return SumOf<float, float>(parts, out, count);
    case tensorflow::DT_DOUBLE:
      return SumOf<double, double>(parts, out, count);
    case tensorflow::DT_HALF:
      return SumOf<Eigen::half, float>(parts, out, count);
    case tensorflow::DT_BFLOAT16:
      return SumOf<Eigen::bfloat16, float>(parts, out, count);
    case tensorflow::DT_INT8:
      return SumOf<int8_t, int8_t>(parts, out, count);
    case tensorflow::DT_UINT8:
      return SumOf<uint8_t, uint8_t>(parts, out, count);
    case tensorflow::DT_INT16:
      return SumOf<int16_t, int16_t>(parts, out, count);
    case tensorflow::DT_UINT16:
      return SumOf<uint16_t, uint16_t>(parts, out, count);
    case tensorflow::DT_INT32:
      return SumOf<int32_t, int32_t>(parts, out, count);
    case tensorflow::DT_INT64:
      return SumOf<int64_t, int64_t>(parts, out, count);
    default:
      return;  // the op has refused other types
  }
}

}  // namespace parallax

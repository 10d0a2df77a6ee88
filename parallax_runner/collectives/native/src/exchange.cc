#include "exchange.h"

#include "tensorflow/core/framework/types.h"

namespace parallax {

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kSum:
      return "a sum";
    case Kind::kGather:
      return "a concatenation";
    case Kind::kAllToAll:
      return "an exchange of rows";
    case Kind::kBroadcast:
      return "a broadcast";
    default:
      return "a message";
  }
}

std::string Described(const Content& content) {
  std::string text = NameOf(content.kind);
  text += " of " + tensorflow::DataTypeString(static_cast<tensorflow::DataType>(content.dtype));
  if (content.kind == Kind::kSum || content.kind == Kind::kBroadcast) {
    return text + " with " + std::to_string(content.rows) + " elements";
  }
  return text + " with rows of " + std::to_string(content.row_bytes) + " bytes";
}

std::string Exchange::Explain(const Content& other) const {
  const bool is_alike =
      other.kind == content_.kind && other.dtype == content_.dtype && other.row_bytes == content_.row_bytes;
  const bool must_be_as_long = content_.kind == Kind::kSum || content_.kind == Kind::kBroadcast;
  if (is_alike && (!must_be_as_long || other.rows == content_.rows)) return "";
  return Described(other);
}

std::string Exchange::Unheard() const {
  std::string ranks;
  for (const int other : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(other);
  return ranks.empty() ? "" : "nothing has come from rank " + ranks;
}

}  // namespace parallax

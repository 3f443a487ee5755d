// The text of one header, as torch's and Hugging Face's readers want it.
//
// `__metadata__` comes first and is written in this order:
//   "format": "pt"               transformers refuses a file without it
//   "DCP_VERSION": "1.0"         torch.distributed.checkpoint's Hugging Face reader
//   "DCP_SHARDING_INFO": "..."   JSON in a string: {"<name>": {"saved_offsets": [..]}} for every tensor of this file,
//   or
//                                that reader dies; zeros for a tensor that is whole, [] for one without dimensions
//   "ckptd.format": "1"
//   "ckptd.aliases": "..."       JSON in a string: {"<alias>": "<stored name>"}; absent without aliases
#ifndef CKPTD_CLIENT_CORE_IMAGE_HEADER_H_
#define CKPTD_CLIENT_CORE_IMAGE_HEADER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "client/core/image/dtype.h"

namespace ckptd {

struct HeaderTensor {
  std::string_view name;
  Dtype dtype = Dtype::kU8;
  std::span<const uint64_t> shape;
  std::span<const uint64_t> saved_offsets;  // empty: zeros
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct HeaderAlias {
  std::string_view name;
  std::string_view target;
};

// The 8-byte length, the JSON text and the spaces that make it a multiple of 4096. All names are valid UTF-8 and
// distinct, and the tensors are contiguous: the caller (layout.cc) has checked it.
[[nodiscard]] std::string WriteHeader(std::span<const HeaderTensor> tensors, std::span<const HeaderAlias> aliases);

// Upper bounds of what one entry adds to a header, and of a header without entries (padding included).
[[nodiscard]] uint64_t TensorTextBound(std::string_view name, uint64_t dims);
[[nodiscard]] uint64_t AliasTextBound(const HeaderAlias& alias);
inline constexpr uint64_t kEmptyHeaderBound = 4096 + 512;

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_HEADER_H_

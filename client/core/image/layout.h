// Where every byte of a rank's state goes.
//
// A slot holds the images of one rank back to back; usually there is one. Each image is a safetensors file of its own,
// a multiple of 4096 bytes long:
//
//   8+N bytes   header, padded with spaces to a multiple of 4096
//   tensors     element size largest first, then name, then place in the whole tensor: naturally aligned without holes
//   filler      one U8 tensor that makes the image a multiple of 4096
//
// The filler of the last image is the extra tensor `__ckptd_extra__.rank-00000`, which carries what is not a tensor;
// its capacity is the one asked for, rounded up. Every earlier image ends with `__ckptd_pad__.rank-00000.part-00` (0 to
// 4095 zero bytes). Both are named by rank and part, because torch's reader joins the tensors of one name over all
// files.
//
// More than one image: a safetensors file holds a name once, so the k-th chunk of a tensor goes to the k-th group of
// images; and an image whose header would pass the limit is split. Tied tensors are stored once; the other names are
// aliases, written to the metadata of each image that holds their target.
#ifndef CKPTD_CLIENT_CORE_IMAGE_LAYOUT_H_
#define CKPTD_CLIENT_CORE_IMAGE_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/core/image/dtype.h"
#include "client/core/image/image_error.h"
#include "client/core/image/parser.h"

namespace ckptd {

inline constexpr char kReservedPrefix[] = "__ckptd_";  // no tensor of the user may begin with it

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<uint64_t> shape;          // of what this rank stores
  std::vector<uint64_t> saved_offsets;  // where that lies in the whole tensor; empty: it is the whole, or starts at 0
};

struct AliasSpec {
  std::string name;
  std::string target;  // the name of a TensorSpec
};

struct LayoutOptions {
  uint32_t rank = 0;
  uint64_t extra_capacity = 64 << 10;  // bytes, the least the extra tensor gets
  HeaderLimits limits = {};
};

inline constexpr uint32_t kFiller = UINT32_MAX;  // PlacedTensor::source of the extra or pad tensor

struct PlacedTensor {
  uint32_t source = kFiller;  // index in the table given
  uint64_t slot_offset = 0;   // bytes from the start of the slot
  uint64_t bytes = 0;
};

struct LayoutImage {
  std::string header;  // the first bytes of the image as they are: 8+N
  uint64_t slot_offset = 0;
  uint64_t bytes = 0;                 // header and data, a multiple of 4096
  std::vector<PlacedTensor> tensors;  // by offset; the filler is the last
};

struct Layout {
  std::vector<LayoutImage> images;  // never empty
  uint64_t slot_bytes = 0;
  uint64_t extra_offset = 0;  // of the extra tensor, from the start of the slot
  uint64_t extra_bytes = 0;
};

[[nodiscard]] std::string ExtraTensorName(uint32_t rank);
[[nodiscard]] bool IsExtraTensor(std::string_view name);  // of whatever rank
[[nodiscard]] std::string PadTensorName(uint32_t rank, uint64_t part);

// The same table gives the same bytes, in whatever order its rows and aliases come. An error names the tensor.
ImageError BuildLayout(std::span<const TensorSpec> tensors, std::span<const AliasSpec> aliases,
                       const LayoutOptions& options, Layout* layout);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_LAYOUT_H_

// The tensors of images as messages of the admin service: what `ckptctl inspect` shows, of an agent's snapshot or of
// files that lie anywhere. Pure.
#ifndef CKPTD_DAEMON_FORMAT_TENSOR_ENTRIES_H_
#define CKPTD_DAEMON_FORMAT_TENSOR_ENTRIES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/core/image/parser.h"
#include "daemon/base/ids.h"
#include "daemon/format/image_notes.h"
#include "proto/ckptd/v1/admin.pb.h"

namespace ckptd {

// One safetensors file with its checked header.
struct NamedImage {
  std::string file;
  Rank rank = 0;
  ImageInfo info;
  ImageNotes notes;
};

// CORRUPT when the notes in the header are damaged.
[[nodiscard]] absl::StatusOr<NamedImage> NameImage(std::string file, Rank rank, ImageInfo info);

// Shapes of whole tensors, as far as the pieces in `images` tell: a shape grows with each piece.
using TensorExtents = std::map<std::string, std::vector<uint64_t>, std::less<>>;
[[nodiscard]] TensorExtents ExtentsOf(const std::vector<NamedImage>& images);
// Of further images. `only_known`: of tensors that are in `extents` already.
void GrowExtents(const std::vector<NamedImage>& images, bool only_known, TensorExtents* extents);

// `tensor` is one of image.info.tensors, and the image one of those that `extents` was made of.
[[nodiscard]] v1::TensorEntry ToTensorEntry(const NamedImage& image, const TensorEntry& tensor,
                                            const TensorExtents& extents);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_FORMAT_TENSOR_ENTRIES_H_

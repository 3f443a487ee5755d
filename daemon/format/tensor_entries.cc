#include "daemon/format/tensor_entries.h"

#include <algorithm>
#include <utility>

#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

uint64_t OffsetOf(const NamedImage& image, const std::string& name, size_t dimension) {
  auto found = image.notes.offsets.find(name);
  bool there = found != image.notes.offsets.end() && dimension < found->second.size();
  return there ? found->second[dimension] : 0;
}

}  // namespace

absl::StatusOr<NamedImage> NameImage(std::string file, Rank rank, ImageInfo info) {
  NamedImage image;
  CKPTD_ASSIGN_OR_RETURN(image.notes, ReadImageNotes(info, file));
  image.file = std::move(file);
  image.rank = rank;
  image.info = std::move(info);
  return image;
}

void GrowExtents(const std::vector<NamedImage>& images, bool only_known, TensorExtents* extents) {
  for (const NamedImage& image : images) {
    for (const TensorEntry& tensor : image.info.tensors) {
      if (only_known && extents->count(tensor.name) == 0) continue;
      std::vector<uint64_t>& whole = (*extents)[tensor.name];
      whole.resize(std::max(whole.size(), tensor.shape.size()));
      for (size_t i = 0; i < tensor.shape.size(); ++i) {
        whole[i] = std::max(whole[i], OffsetOf(image, tensor.name, i) + tensor.shape[i]);
      }
    }
  }
}

TensorExtents ExtentsOf(const std::vector<NamedImage>& images) {
  TensorExtents extents;
  GrowExtents(images, /*only_known=*/false, &extents);
  return extents;
}

v1::TensorEntry ToTensorEntry(const NamedImage& image, const TensorEntry& tensor, const TensorExtents& extents) {
  v1::TensorEntry entry;
  entry.set_name(tensor.name);
  entry.set_dtype(std::string(DtypeName(tensor.dtype)));
  entry.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  entry.set_bytes(tensor.end - tensor.begin);
  entry.set_rank(image.rank);
  entry.set_file(image.file);
  entry.set_file_offset(image.info.header_bytes + tensor.begin);
  if (auto whole = extents.find(tensor.name); whole != extents.end()) {
    entry.mutable_global_shape()->Add(whole->second.begin(), whole->second.end());
  }
  for (size_t i = 0; i < tensor.shape.size(); ++i) entry.add_global_offset(OffsetOf(image, tensor.name, i));
  if (auto aliases = image.notes.aliases.find(tensor.name); aliases != image.notes.aliases.end()) {
    for (const std::string& alias : aliases->second) entry.add_aliases(alias);
  }
  return entry;
}

}  // namespace ckptd

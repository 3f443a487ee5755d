#include "daemon/app/admin_inspect.h"

#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

absl::Status NobodyAsks() { return Error(ErrorCode::CANCELLED, "nobody waits for it"); }

bool IsDamaged(const absl::Status& status) {
  return CodeOf(status) == ErrorCode::CORRUPT || CodeOf(status) == ErrorCode::NOT_FOUND;
}

// Of the tensors that are asked for.
absl::StatusOr<TensorExtents> WholeShapes(const InspectOrder& order) {
  TensorExtents extents;
  if (order.wanted) {
    CKPTD_ASSIGN_OR_RETURN(const auto images, order.read(*order.wanted));
    extents = ExtentsOf(images);
  }
  for (const Rank rank : order.ranks) {
    if (order.cancelled()) return NobodyAsks();
    if (rank == order.wanted) continue;
    const auto images = order.read(rank);
    if (order.wanted && IsDamaged(images.status())) continue;
    CKPTD_RETURN_IF_ERROR(images.status());
    GrowExtents(*images, /*only_known=*/order.wanted.has_value(), &extents);
  }
  return extents;
}

}  // namespace

absl::Status InspectRanks(const InspectOrder& order) {
  CKPTD_ASSIGN_OR_RETURN(const TensorExtents extents, WholeShapes(order));
  for (const Rank rank : order.ranks) {
    if (order.cancelled()) return NobodyAsks();
    if (order.wanted && rank != *order.wanted) continue;
    CKPTD_ASSIGN_OR_RETURN(const auto images, order.read(rank));
    for (const NamedImage& image : images) {
      for (const TensorEntry& tensor : image.info.tensors) {
        if (!order.send(ToTensorEntry(image, tensor, extents))) return NobodyAsks();
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace ckptd

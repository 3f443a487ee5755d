#include "daemon/persist/mend.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

absl::Status CheckSidecar(Store& store, const FlushSource& source, const std::vector<uint32_t>& chunk_crcs) {
  CKPTD_ASSIGN_OR_RETURN(auto sidecar, ReadSidecar(store, source.job, source.id, source.rank, source.world));
  const auto& stored = sidecar.chunk_crc32c();
  if (sidecar.chunk_bytes() == source.chunk_bytes && std::ranges::equal(stored, chunk_crcs)) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat("job ", source.job, " rank ", source.rank, ": memory holds another ",
                                                ToString(source.id), " than was committed"));
}

// A step that is being deleted, or is gone, does not come back.
absl::Status CheckCommitted(Store& store, const FlushSource& source) {
  CKPTD_ASSIGN_OR_RETURN(StepListing step, ListStep(store, source.job, source.id));
  if (step.committed && step.marker == 0) return absl::OkStatus();
  return Error(ErrorCode::CANCELLED, absl::StrCat("job ", source.job, ": step ", ToString(source.id), " is deleted"));
}

absl::StatusOr<std::unique_ptr<PartWriter>> WriteImage(Store& store, const FlushSource& source, const std::string& name,
                                                       const ImageExtent& image) {
  CKPTD_ASSIGN_OR_RETURN(auto writer, store.OpenForWrite(name, image.bytes));
  for (uint64_t at = 0; at < image.bytes; at += source.chunk_bytes) {
    const uint64_t length = std::min(source.chunk_bytes, image.bytes - at);
    CKPTD_RETURN_IF_ERROR(writer->Write(at, source.slot.subspan(image.offset + at, length)));
  }
  return writer;
}

}  // namespace

absl::Status MendImages(Store& store, const FlushSource& source, const std::vector<uint32_t>& chunk_crcs) {
  CKPTD_RETURN_IF_ERROR(CheckSidecar(store, source, chunk_crcs));
  for (uint32_t i = 0; i < source.images.size(); ++i) {
    const std::string name = InStep(source.job, source.id, ImageFileName(source.rank, source.world, i));
    CKPTD_ASSIGN_OR_RETURN(auto writer, WriteImage(store, source, name, source.images[i]));
    CKPTD_RETURN_IF_ERROR(writer->Sync());
    CKPTD_RETURN_IF_ERROR(CheckCommitted(store, source));
    CKPTD_RETURN_IF_ERROR(store.Delete(name));
    CKPTD_FP("mend.after_delete");
    CKPTD_RETURN_IF_ERROR(writer->Finish());
  }
  return absl::OkStatus();
}

}  // namespace ckptd

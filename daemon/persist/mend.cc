#include "daemon/persist/mend.h"

#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"

namespace ckptd {

absl::Status MendImages(Store& store, const Clock& clock, const FlushSource& source, const FlushSeal& seal) {
  RankFlush flush(store, clock, source);
  for (uint32_t chunk = 0; chunk < seal.chunk_crcs.size(); ++chunk) {
    CKPTD_RETURN_IF_ERROR(flush.WriteChunk(chunk));
  }
  for (uint32_t image = 0; image < source.images.size(); ++image) {
    const std::string name = ImageFileName(source.rank, source.world, image);
    CKPTD_RETURN_IF_ERROR(store.Delete(InStep(source.job, source.id, name)));
    CKPTD_FP("mend.after_delete");
  }
  return flush.Finish(seal);
}

}  // namespace ckptd

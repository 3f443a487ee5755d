#include "daemon/region/verify.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::region {
namespace {

constexpr size_t kBufferBytes = 1u << 20;

absl::StatusOr<uint32_t> ChunkCrc(const SlotFile& file, uint64_t offset, uint64_t length,
                                  std::vector<std::byte>& buffer, Progress& progress,
                                  const std::function<void(uint64_t bytes)>& on_read) {
  uint32_t crc = 0;
  while (length > 0) {
    if (progress.cancelled()) return Error(ErrorCode::CANCELLED, absl::StrCat(file.path(), ": check cancelled"));
    const size_t piece = std::min<uint64_t>(length, buffer.size());
    CKPTD_RETURN_IF_ERROR(file.Read(offset, std::span(buffer).first(piece)));
    crc = Crc32c(crc, buffer.data(), piece);
    progress.Add(piece);
    if (on_read) on_read(piece);
    offset += piece;
    length -= piece;
  }
  return crc;
}

}  // namespace

absl::Status VerifySlot(const SlotFile& file, const SlotRecord& record, Progress& progress,
                        const std::function<void(uint64_t bytes)>& on_read) {
  std::vector<std::byte> buffer(std::min<uint64_t>(kBufferBytes, record.chunk_bytes));
  for (size_t chunk = 0; chunk < record.chunk_crcs.size(); ++chunk) {
    CKPTD_ASSIGN_OR_RETURN(
        uint32_t crc, ChunkCrc(file, chunk * record.chunk_bytes, record.ChunkLength(chunk), buffer, progress, on_read));
    if (crc != record.chunk_crcs[chunk])
      return Error(ErrorCode::CORRUPT, absl::StrCat(file.path(), ": chunk ", chunk, " of snapshot ",
                                                    ToString(record.id()), " has another checksum"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Progress>> StartVerify(std::shared_ptr<const SlotFile> file,
                                                      std::shared_ptr<const SlotRecord> record, Executor& executor,
                                                      std::function<void(absl::Status)> done) {
  auto progress = std::make_shared<Progress>(record->slot_bytes);
  bool taken = executor.Run([file = std::move(file), record = std::move(record), progress, done = std::move(done)] {
    done(VerifySlot(*file, *record, *progress));
  });
  if (!taken) return Error(ErrorCode::BUSY, "no worker is free to check a slot");
  return progress;
}

}  // namespace ckptd::region

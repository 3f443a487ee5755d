#include "daemon/region/slot_file.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/ids.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd::region {
namespace {

// On the region's tmpfs "full" means the region, not the storage.
absl::Status AsRegionFull(absl::Status status, absl::string_view need) {
  if (status.ok() || CodeOf(status) != ErrorCode::STORAGE_FULL) return status;
  return Error(ErrorCode::REGION_FULL, absl::StrCat(status.message(), ": needs ", need));
}

}  // namespace

std::string SlotFileName(uint64_t file_id) { return absl::StrCat("slot-", absl::Hex(file_id, absl::kZeroPad16)); }

absl::Status SlotFile::OpenDescriptors(bool create) {
  CKPTD_ASSIGN_OR_RETURN(writable_, files_.Open(path_, {.write = true, .create = create}));
  CKPTD_ASSIGN_OR_RETURN(readable_, files_.Open(path_, {}));
  return absl::OkStatus();
}

std::shared_ptr<SlotFile> SlotFile::Make(Files& files, const std::string& rank_dir, uint64_t file_id, uint64_t size,
                                         QuotaHold hold, Executor* freeing) {
  std::string path = absl::StrCat(rank_dir, "/", SlotFileName(file_id));
  return {new SlotFile(files, std::move(path), file_id, size, std::move(hold), freeing), Free};
}

// Of the last who has it. What has a name keeps its memory: there is nothing to wait for.
void SlotFile::Free(SlotFile* last) {
  std::shared_ptr<SlotFile> file(last);
  if (!file->unlinked() || file->freeing_ == nullptr) return;
  Executor& freeing = *file->freeing_;
  (void)freeing.Run([file = std::move(file)] {});  // goes with the work, done or refused
}

SlotFile::~SlotFile() {
  if (unlinked()) CKPTD_FP("region.slot.free");
}

absl::StatusOr<std::shared_ptr<SlotFile>> SlotFile::Create(Files& files, const std::string& rank_dir, uint64_t size,
                                                           QuotaHold hold, Executor* freeing) {
  std::shared_ptr<SlotFile> file = Make(files, rank_dir, RandomId(), size, std::move(hold), freeing);
  absl::Status opened = file->OpenDescriptors(true);
  if (opened.ok()) return file;
  file->Unlink();
  return AsRegionFull(opened, "one more file");
}

absl::StatusOr<std::shared_ptr<SlotFile>> SlotFile::Open(Files& files, const std::string& rank_dir, uint64_t file_id,
                                                         uint64_t size, QuotaHold hold, Executor* freeing) {
  std::shared_ptr<SlotFile> file = Make(files, rank_dir, file_id, size, std::move(hold), freeing);
  CKPTD_RETURN_IF_ERROR(file->OpenDescriptors(false));
  CKPTD_RETURN_IF_ERROR(file->CheckSize());
  return file;
}

absl::Status SlotFile::Extend() {
  constexpr std::byte kEnd[1] = {};
  return AsRegionFull(writable_->PWrite(size_ - 1, kEnd), FormatBytes(size_));
}

absl::Status SlotFile::Reserve() { return AsRegionFull(writable_->Fallocate(size_), FormatBytes(size_)); }

absl::Status SlotFile::CheckSize() const {
  CKPTD_ASSIGN_OR_RETURN(FileInfo info, readable_->Stat());
  if (info.type == FileType::kRegular && info.size == size_) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat(path_, ": ", info.size, " bytes, ", size_, " expected"));
}

absl::Status SlotFile::Read(uint64_t offset, std::span<std::byte> bytes) const {
  CKPTD_ASSIGN_OR_RETURN(size_t got, readable_->PRead(offset, bytes));
  if (got == bytes.size()) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat(path_, ": ends at ", offset + got, ", ", size_, " bytes expected"));
}

absl::Status SlotFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset)
    return Error(ErrorCode::INTERNAL, absl::StrCat(path_, ": write of ", bytes.size(), " bytes at ", offset));
  return AsRegionFull(writable_->PWrite(offset, bytes), FormatBytes(size_));
}

absl::StatusOr<Mapping> SlotFile::Map(MapAccess access) const {
  return Mapping::Map(access == MapAccess::kReadWrite ? writable_->fd() : readable_->fd(), size_, access);
}

absl::StatusOr<std::span<const std::byte>> SlotFile::ReadOnlyBytes() {
  if (!mapping_) {
    CKPTD_ASSIGN_OR_RETURN(Mapping mapped, Map(MapAccess::kReadOnly));
    mapping_ = std::move(mapped);
  }
  return std::as_const(*mapping_).bytes();
}

void SlotFile::Discard(const std::shared_ptr<SlotFile>& file) {
  file->Unlink();
  if (file->freeing_ == nullptr || !file->freeing_->Run([file] { file->Punch(); })) file->Punch();
}

void SlotFile::Punch() {
  absl::Status punched = writable_->PunchHole(size_);
  // Then it comes back with the last mapping.
  if (!punched.ok()) Log(kWarning, "region.punch").Error(punched);
}

void SlotFile::Unlink() {
  if (unlinked_.exchange(true)) return;
  hold_.Leave();
  absl::Status removed = files_.Unlink(path_);
  // Nothing depends on it now: the next start removes what no ctl file names.
  if (!removed.ok() && !absl::IsNotFound(removed)) Log(kWarning, "region.unlink").Error(removed);
}

}  // namespace ckptd::region

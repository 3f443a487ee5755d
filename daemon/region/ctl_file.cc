#include "daemon/region/ctl_file.h"

#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/region/scan.h"

namespace ckptd::region {
namespace {

// The head, then FREE slots (every state word 0) with their files.
std::vector<std::byte> FirstContent(const CtlHead& head, std::span<const uint64_t> file_ids) {
  std::vector<std::byte> bytes = EncodeCtlHead(head);
  std::byte* states = bytes.data() + head.block.states_offset + sizeof(Grant);
  for (size_t slot = 0; slot < file_ids.size(); ++slot) {
    reinterpret_cast<SlotState*>(states)[slot].file_id.store(file_ids[slot], std::memory_order_relaxed);
  }
  return bytes;
}

absl::Status WriteTemporary(Files& files, const std::string& path, const CtlHead& head,
                            std::span<const uint64_t> file_ids) {
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path, {.write = true, .create = true}));
  // Reserved first: a store through the mapping must never find the tmpfs full.
  CKPTD_RETURN_IF_ERROR(file->Fallocate(head.block.file_bytes));
  CKPTD_FP("region.ctl.half");
  CKPTD_RETURN_IF_ERROR(file->PWrite(0, FirstContent(head, file_ids)));
  return file->Close();
}

absl::Status AsRegionFull(const absl::Status& status) {
  return CodeOf(status) == ErrorCode::STORAGE_FULL ? Error(ErrorCode::REGION_FULL, status.message()) : status;
}

}  // namespace

std::string CtlFileName(uint32_t layout) { return absl::StrCat("ctl.", layout); }

CtlFile::CtlFile(Files& files, std::string path, const CtlHead& head)
    : files_(files), path_(std::move(path)), block_(head.block) {}

absl::StatusOr<std::unique_ptr<CtlFile>> CtlFile::Create(Files& files, const std::string& rank_dir, const CtlHead& head,
                                                         std::span<const uint64_t> file_ids) {
  if (file_ids.size() != head.block.slot_count) return Error(ErrorCode::INTERNAL, "ctl file: one file id per slot");
  const std::string name = CtlFileName(head.block.layout);
  const std::string temporary = absl::StrCat(rank_dir, "/", kTemporaryPrefix, name);
  absl::Status status = WriteTemporary(files, temporary, head, file_ids);
  CKPTD_FP("region.ctl.before_link");
  if (status.ok()) status = files.Link(temporary, absl::StrCat(rank_dir, "/", name));
  CKPTD_FP("region.ctl.after_link");
  absl::Status removed = files.Unlink(temporary);
  if (!status.ok()) return AsRegionFull(status);
  CKPTD_RETURN_IF_ERROR(removed);
  return Open(files, rank_dir, head);
}

absl::StatusOr<std::unique_ptr<CtlFile>> CtlFile::Open(Files& files, const std::string& rank_dir, const CtlHead& head) {
  std::unique_ptr<CtlFile> ctl(new CtlFile(files, absl::StrCat(rank_dir, "/", CtlFileName(head.block.layout)), head));
  CKPTD_ASSIGN_OR_RETURN(auto writable, files.Open(ctl->path_, {.write = true}));
  CKPTD_ASSIGN_OR_RETURN(ctl->readable_, files.Open(ctl->path_, {}));
  CKPTD_ASSIGN_OR_RETURN(ctl->mapping_, Mapping::Map(writable->fd(), head.block.file_bytes, MapAccess::kReadWrite));
  return ctl;
}

Grant& CtlFile::grant() { return *reinterpret_cast<Grant*>(mapping_.data() + block_.states_offset); }

SlotState& CtlFile::slot(uint32_t slot) {
  return reinterpret_cast<SlotState*>(mapping_.data() + block_.states_offset + sizeof(Grant))[slot];
}

std::span<std::byte> CtlFile::record(uint32_t slot) {
  return mapping_.bytes().subspan(block_.records_offset + slot * block_.record_stride, block_.record_stride);
}

absl::Status CtlFile::Unlink() { return files_.Unlink(path_); }

}  // namespace ckptd::region

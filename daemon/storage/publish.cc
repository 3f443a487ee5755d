#include "daemon/storage/publish.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/ids.h"
#include "daemon/base/status_macros.h"
#include "daemon/storage/store.h"

namespace ckptd {
namespace {

constexpr absl::string_view kTemporaryPrefix = ".tmp-";
// The umask of the service decides who may read checkpoints.
constexpr uint32_t kFileMode = 0644;
constexpr uint32_t kDirectoryMode = 0755;

}  // namespace

bool IsTemporaryName(absl::string_view name) { return absl::StartsWith(name, kTemporaryPrefix); }

Publisher::Publisher(Files& files, absl::string_view owner)
    : files_(files),
      owner_prefix_(
          absl::StrCat(kTemporaryPrefix, absl::Hex(Crc32c(0, owner.data(), owner.size()), absl::kZeroPad8), "-")),
      process_prefix_(absl::StrCat(owner_prefix_, absl::Hex(RandomId(), absl::kZeroPad16), "-")) {}

bool Publisher::IsLeftover(absl::string_view name) const {
  return absl::StartsWith(name, owner_prefix_) && !absl::StartsWith(name, process_prefix_);
}

absl::Status Publisher::MakeDirectories(const std::string& root, absl::string_view relative) {
  std::string path;
  std::string parent;
  for (std::string* each : {&path, &parent}) each->reserve(root.size() + 1 + relative.size());
  path = root;
  for (absl::string_view level : absl::StrSplit(relative, '/', absl::SkipEmpty())) {
    parent = path;
    absl::StrAppend(&path, "/", level);
    absl::Status made = files_.Mkdir(path, kDirectoryMode);
    if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
    CKPTD_RETURN_IF_ERROR(SyncDirectory(parent));
  }
  return absl::OkStatus();
}

std::string Publisher::TempPath(const std::string& directory) const {
  return absl::StrCat(directory, "/", process_prefix_, absl::Hex(RandomId(), absl::kZeroPad16));
}

absl::StatusOr<TempFile> Publisher::CreateTemp(const std::string& directory, bool direct) {
  std::string path = TempPath(directory);
  CKPTD_ASSIGN_OR_RETURN(auto file,
                         files_.Open(path, {.write = true, .create = true, .direct = direct, .mode = kFileMode}));
  return TempFile{std::move(file), std::move(path)};
}

absl::Status Publisher::Publish(TempFile temp, const std::string& final_path) {
  absl::Status status = MakeDurable(temp);
  if (status.ok()) status = GiveName(temp.path, final_path);
  const bool named = status.ok() || absl::IsAlreadyExists(status);
  // Best effort: the name is gone after a rename, and what stays is RemoveTemporary's.
  Discard(std::move(temp));
  if (!named) return status;
  CKPTD_RETURN_IF_ERROR(SyncDirectory(ParentOf(final_path)));
  CKPTD_FP("publish.after_syncdir");
  return status;
}

void Publisher::Discard(TempFile temp) {
  temp.file.reset();
  (void)files_.Unlink(temp.path);
}

absl::Status Publisher::MakeDurable(TempFile& temp) {
  if (temp.durable) return absl::OkStatus();
  CKPTD_FP("publish.after_write");
  CKPTD_RETURN_IF_ERROR(CKPTD_FP_STATUS("publish.sync"));
  CKPTD_RETURN_IF_ERROR(temp.file->Sync());
  CKPTD_FP("publish.after_fsync");
  CKPTD_RETURN_IF_ERROR(temp.file->Close());
  temp.durable = true;
  return absl::OkStatus();
}

absl::Status Publisher::GiveName(const std::string& temp_path, const std::string& final_path) {
  absl::Status linked = files_.Link(temp_path, final_path);
  if (absl::IsAlreadyExists(linked)) {
    absl::StatusOr<FileInfo> temp = files_.Stat(temp_path);
    if (temp.ok() && temp->links == 2) linked = absl::OkStatus();
  }
  // Linux says EPERM, FUSE and others ENOSYS or EOPNOTSUPP, where there are no hard links.
  if (absl::IsUnimplemented(linked) || absl::IsPermissionDenied(linked)) {
    linked = files_.RenameNoReplace(temp_path, final_path);
  }
  if (absl::IsUnimplemented(linked)) {
    return Error(ErrorCode::REFUSED,
                 absl::StrCat(final_path, ": this file system can neither link nor rename without replacing"));
  }
  CKPTD_RETURN_IF_ERROR(linked);
  CKPTD_FP("publish.after_link");
  return absl::OkStatus();
}

absl::Status Publisher::SyncDirectory(const std::string& path) {
  {
    MutexLock lock(mutex_);
    if (failed_directories_.contains(path)) {
      return Error(ErrorCode::STORAGE_IO,
                   absl::StrCat("fsync ", path, ": failed before, so what it holds is not known to be durable; check ",
                                "the storage, then restart the agent"));
    }
  }
  absl::Status status = files_.SyncDir(path);
  if (status.ok() || absl::IsNotFound(status) || IsBeforeSync(status)) return status;
  MutexLock lock(mutex_);
  failed_directories_.insert(path);
  return status;
}

}  // namespace ckptd

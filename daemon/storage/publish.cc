#include "daemon/storage/publish.h"

#include <utility>
#include <vector>

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
constexpr size_t kMaxListed = size_t{1} << 20;

absl::Status NotTrusted(const std::string& directory) {
  return Error(ErrorCode::STORAGE_IO,
               absl::StrCat("fsync ", directory, ": failed before, so what it held then is not known to be durable; ",
                            "check the storage, then restart the agent unless later steps are saved again"));
}

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
    CKPTD_RETURN_IF_ERROR(MakeDirectory(parent, path));
  }
  return absl::OkStatus();
}

absl::Status Publisher::MakeDirectory(const std::string& parent, const std::string& path) {
  ListFailed(parent);
  const uint64_t failures = FailuresOf(parent);
  absl::Status made = files_.Mkdir(path, kDirectoryMode);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  if (!made.ok()) CKPTD_RETURN_IF_ERROR(CheckNewer(parent, path));
  CKPTD_ASSIGN_OR_RETURN(const uint64_t inode, InodeOf(path, made.ok()));
  absl::Status synced = SyncChange(parent, failures);
  if (synced.ok()) {
    SetDurable(path, inode);
  } else if (FailuresOf(parent) != failures) {
    if (made.ok()) (void)files_.Rmdir(path);  // made anew it is a new name; where others use it already, it stays
    ListFailed(parent);                       // at once: what others make from now on is not in doubt
  }
  return synced;
}

absl::Status Publisher::RemoveDirectory(const std::string& path) {
  const std::string parent = ParentOf(path);
  const uint64_t failures = FailuresOf(parent);
  absl::Status removed = files_.Rmdir(path);
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  {
    MutexLock lock(mutex_);
    durable_.Forget(path);
  }
  absl::Status synced = removed.ok() ? SyncChange(parent, failures) : SyncDirectory(parent);
  if (!synced.ok()) ListFailed(parent);
  return absl::IsNotFound(synced) ? absl::OkStatus() : synced;
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

absl::Status Publisher::SyncDirectory(const std::string& path) { return SyncChange(path, 0); }

absl::Status Publisher::SyncChange(const std::string& directory, uint64_t failures) {
  if (FailuresOf(directory) != failures) return NotTrusted(directory);
  absl::Status status = CKPTD_FP_STATUS("publish.syncdir");
  if (status.ok()) status = files_.SyncDir(directory);
  if (status.ok()) return FailuresOf(directory) == failures ? status : NotTrusted(directory);
  if (absl::IsNotFound(status) || IsBeforeSync(status)) return status;
  MutexLock lock(mutex_);
  Failed& failed = failed_[directory];
  ++failed.times;
  failed.names.reset();
  return status;
}

// Before an fsync, so that what it makes durable is this one or a later one.
absl::StatusOr<uint64_t> Publisher::InodeOf(const std::string& path, bool fresh) {
  if (!fresh) {
    MutexLock lock(mutex_);
    if (const std::optional<uint64_t> known = durable_.Find(path)) return *known;
  }
  CKPTD_ASSIGN_OR_RETURN(const FileInfo info, files_.Stat(path));
  return info.inode;
}

absl::StatusOr<bool> Publisher::KnownDurable(const std::string& path) {
  std::optional<uint64_t> known;
  {
    MutexLock lock(mutex_);
    known = durable_.Find(path);
  }
  if (!known) return false;
  const absl::StatusOr<FileInfo> now = files_.Stat(path);
  if (absl::IsNotFound(now.status())) return false;
  CKPTD_RETURN_IF_ERROR(now.status());
  return now->inode == *known;
}

void Publisher::SetDurable(const std::string& path, uint64_t inode) {
  MutexLock lock(mutex_);
  durable_.Set(path, inode);
}

uint64_t Publisher::FailuresOf(const std::string& directory) {
  MutexLock lock(mutex_);
  const auto failed = failed_.find(directory);
  return failed == failed_.end() ? 0 : failed->second.times;
}

// Notes once which names in a directory may be lost since its fsync failed. All that are found there, until that works.
void Publisher::ListFailed(const std::string& directory) {
  uint64_t times = 0;
  {
    MutexLock lock(mutex_);
    const auto failed = failed_.find(directory);
    if (failed == failed_.end() || failed->second.names) return;
    times = failed->second.times;
  }
  absl::StatusOr<std::vector<DirEntry>> entries = files_.ReadDir(directory, kMaxListed);
  if (!entries.ok()) return;
  std::set<std::string> names;
  for (DirEntry& entry : *entries) {
    const absl::StatusOr<bool> durable = KnownDurable(absl::StrCat(directory, "/", entry.name));
    if (!durable.ok()) return;
    if (!*durable) names.insert(std::move(entry.name));
  }
  MutexLock lock(mutex_);
  Failed& failed = failed_[directory];
  if (failed.times == times) failed.names = std::move(names);
}

// OK for a name that is there and was not made before the directory's fsync failed, or was durable then.
absl::Status Publisher::CheckNewer(const std::string& directory, const std::string& path) {
  MutexLock lock(mutex_);
  const auto failed = failed_.find(directory);
  if (failed == failed_.end()) return absl::OkStatus();
  const std::optional<std::set<std::string>>& names = failed->second.names;
  return names && !names->contains(path.substr(directory.size() + 1)) ? absl::OkStatus() : NotTrusted(directory);
}

}  // namespace ckptd

#include "daemon/storage/posix_store.h"

#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/probe.h"
#include "daemon/storage/io_pool.h"
#include "daemon/storage/part_io.h"
#include "daemon/storage/publish.h"

namespace ckptd {
namespace {

// Far above what one directory of ours holds (ranks of a step, attempts of a job), so that a strange tree is an error
// and not an exhausted memory.
constexpr size_t kMaxEntries = size_t{1} << 20;

bool IsComponent(absl::string_view part) {
  return !part.empty() && part != "." && part != ".." && !IsTemporaryName(part) && !absl::StrContains(part, '\0');
}

// Room format makes the names; this is the second wall in front of "..".
absl::Status CheckName(absl::string_view name) {
  for (absl::string_view part : absl::StrSplit(name, '/')) {
    if (!IsComponent(part)) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("storage name '", name, "'"));
  }
  return absl::OkStatus();
}

// What is before the last slash, "" where there is none.
absl::string_view DirectoryOf(absl::string_view name) {
  size_t slash = name.rfind('/');
  return slash == absl::string_view::npos ? absl::string_view() : name.substr(0, slash);
}

class PosixStore final : public Store {
 public:
  PosixStore(Files& files, PosixStoreOptions options)
      : files_(files), options_(std::move(options)), publisher_(files, options_.owner), pool_(options_.make_queue) {}

  absl::Status Probe() override {
    CKPTD_ASSIGN_OR_RETURN(FileInfo root, files_.Stat(options_.root));
    if (root.type != FileType::kDirectory) {
      return Error(ErrorCode::REFUSED, absl::StrCat(options_.root, ": not a directory"));
    }
    CKPTD_ASSIGN_OR_RETURN(auto queue, pool_.BorrowQueue());
    if (options_.direct) AskWhetherDirect();
    MutexLock lock(mutex_);
    queue_name_ = std::string(queue->name());
    return absl::OkStatus();
  }

  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    CKPTD_ASSIGN_OR_RETURN(TempFile temp, NewTemp(name, /*direct=*/false));
    absl::Status status = temp.file->PWrite(0, std::as_bytes(std::span(bytes.data(), bytes.size())));
    if (status.ok()) return publisher_.Publish(std::move(temp), PathOf(name));
    publisher_.Discard(std::move(temp));
    return status;
  }

  // Its bytes are durable: they were synced before it was named.
  absl::Status Confirm(const std::string& name) override {
    CKPTD_RETURN_IF_ERROR(CheckName(name));
    absl::Status synced = publisher_.SyncDirectory(PathOf(DirectoryOf(name)));
    return absl::IsNotFound(synced) ? absl::OkStatus() : synced;
  }

  absl::StatusOr<std::string> ReadSmall(const std::string& name, size_t max_bytes) override {
    CKPTD_RETURN_IF_ERROR(CheckName(name));
    return ckptd::ReadSmall(files_, PathOf(name), max_bytes);
  }

  absl::StatusOr<std::vector<DirEntry>> List(const std::string& directory) override {
    CKPTD_ASSIGN_OR_RETURN(auto entries, ReadDirectory(directory));
    std::erase_if(entries, [](const DirEntry& entry) { return IsTemporaryName(entry.name); });
    return entries;
  }

  absl::StatusOr<FileInfo> Stat(const std::string& name) override {
    CKPTD_RETURN_IF_ERROR(CheckName(name));
    return files_.Stat(PathOf(name));
  }

  absl::Status Delete(const std::string& name) override {
    CKPTD_RETURN_IF_ERROR(CheckName(name));
    return Gone(name, files_.Unlink(PathOf(name)));
  }

  absl::Status DeleteDirectory(const std::string& directory) override {
    CKPTD_RETURN_IF_ERROR(CheckName(directory));
    return publisher_.RemoveDirectory(PathOf(directory));
  }

  absl::StatusOr<size_t> RemoveTemporary(const std::string& directory, Nanos age) override {
    CKPTD_ASSIGN_OR_RETURN(auto entries, ReadDirectory(directory));
    std::erase_if(entries, [](const DirEntry& entry) {
      return !IsTemporaryName(entry.name) || entry.type != FileType::kRegular;
    });
    if (entries.empty()) return 0;
    Nanos latest = Nanos::max();  // whatever their age: also where there is no room for one file more
    if (age > Nanos(0)) {
      CKPTD_ASSIGN_OR_RETURN(Nanos now, StorageTime(directory));
      latest = now - age;
    }
    size_t removed = 0;
    for (const DirEntry& entry : entries) {
      const std::string path = absl::StrCat(PathOf(directory), "/", entry.name);
      absl::StatusOr<FileInfo> info = files_.Stat(path);
      if (!info.ok() || info->modified > latest) continue;  // its writer lives, or has just removed it
      removed += files_.Unlink(path).ok() ? 1 : 0;
    }
    return removed;
  }

  absl::StatusOr<size_t> RemoveLeftovers(const std::string& directory) override {
    CKPTD_ASSIGN_OR_RETURN(auto entries, ReadDirectory(directory));
    size_t removed = 0;
    for (const DirEntry& entry : entries) {
      if (!publisher_.IsLeftover(entry.name) || entry.type != FileType::kRegular) continue;
      removed += files_.Unlink(absl::StrCat(PathOf(directory), "/", entry.name)).ok() ? 1 : 0;
    }
    return removed;
  }

  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name, uint64_t size) override {
    if (ask_again_) AskWhetherDirect();
    const bool direct = direct_ && size % kDirectAlignment == 0;
    CKPTD_ASSIGN_OR_RETURN(auto queue, pool_.BorrowQueue());
    CKPTD_ASSIGN_OR_RETURN(TempFile temp, NewTemp(name, direct));
    absl::Status reserved = size == 0 ? absl::OkStatus() : temp.file->Fallocate(size);
    if (!reserved.ok() && !absl::IsUnimplemented(reserved)) {
      publisher_.Discard(std::move(temp));
      return reserved;
    }
    return std::make_unique<PosixPartWriter>(publisher_, std::move(temp), std::move(queue),
                                             PosixPartWriter::Target{PathOf(name), size, options_.io_bytes, direct});
  }

  absl::StatusOr<std::unique_ptr<PartReader>> OpenForRead(const std::string& name) override {
    CKPTD_RETURN_IF_ERROR(CheckName(name));
    CKPTD_ASSIGN_OR_RETURN(auto buffered, files_.Open(PathOf(name), {}));
    CKPTD_ASSIGN_OR_RETURN(FileInfo info, buffered->Stat());
    if (info.type != FileType::kRegular) {
      return Error(ErrorCode::REFUSED, absl::StrCat(PathOf(name), ": not a regular file"));
    }
    std::unique_ptr<File> direct;
    if (direct_) direct = files_.Open(PathOf(name), {.direct = true}).value_or(nullptr);
    return std::make_unique<PosixPartReader>(std::move(buffered), std::move(direct), info.size, pool_);
  }

  absl::StatusOr<SpaceInfo> Space() override { return files_.Space(options_.root); }
  std::string Describe() const override {
    MutexLock lock(mutex_);
    return queue_name_.empty() ? "not looked at yet" : absl::StrCat(queue_name_, direct_ ? ", direct" : ", buffered");
  }
  bool IsDirect() const override { return direct_; }

 private:
  // A storage that is full, read-only or away gives no answer, so it is asked again when the next part is written.
  void AskWhetherDirect() {
    const absl::Status can = ProbeDirectIo(files_, publisher_.TempPath(options_.root));
    const bool cannot = absl::IsUnimplemented(can) || CodeOf(can) == ErrorCode::INVALID_ARGUMENT;
    if (can.ok()) direct_ = true;
    ask_again_ = !can.ok() && !cannot;
  }

  std::string PathOf(absl::string_view name) const {
    return name.empty() ? options_.root : absl::StrCat(options_.root, "/", name);
  }

  // By the clock that dates its files: this node's may be hours off, and the files of a node that writes would be old.
  absl::StatusOr<Nanos> StorageTime(const std::string& directory) {
    CKPTD_ASSIGN_OR_RETURN(TempFile fresh, publisher_.CreateTemp(PathOf(directory), /*direct=*/false));
    absl::StatusOr<FileInfo> info = files_.Stat(fresh.path);
    publisher_.Discard(std::move(fresh));
    CKPTD_RETURN_IF_ERROR(info.status());
    return info->modified;
  }

  absl::StatusOr<TempFile> NewTemp(const std::string& name, bool direct) {
    CKPTD_RETURN_IF_ERROR(CheckName(name));
    CKPTD_RETURN_IF_ERROR(publisher_.MakeDirectories(options_.root, DirectoryOf(name)));
    return publisher_.CreateTemp(PathOf(DirectoryOf(name)), direct);
  }

  absl::StatusOr<std::vector<DirEntry>> ReadDirectory(const std::string& directory) {
    if (!directory.empty()) CKPTD_RETURN_IF_ERROR(CheckName(directory));
    auto entries = files_.ReadDir(PathOf(directory), kMaxEntries);
    if (absl::IsNotFound(entries.status()) && !directory.empty()) return std::vector<DirEntry>();
    return entries;
  }

  // A missing name may have been removed just before a crash, so its directory is synced as well.
  absl::Status Gone(const std::string& name, const absl::Status& removed) {
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    absl::Status synced = publisher_.SyncDirectory(PathOf(DirectoryOf(name)));
    return absl::IsNotFound(synced) ? absl::OkStatus() : synced;
  }

  Files& files_;
  const PosixStoreOptions options_;
  Publisher publisher_;
  IoPool pool_;
  std::atomic<bool> direct_{false};
  std::atomic<bool> ask_again_{false};
  mutable Mutex mutex_;
  std::string queue_name_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> MakePosixStore(Files& files, const PosixStoreOptions& options) {
  if (!absl::StartsWith(options.root, "/") || options.io_bytes == 0 || options.io_bytes % kDirectAlignment != 0) {
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("storage root '", options.root, "', transfers of ", options.io_bytes, " bytes"));
  }
  return std::make_unique<PosixStore>(files, options);
}

absl::StatusOr<std::unique_ptr<Store>> OpenPosixStore(Files& files, const PosixStoreOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, MakePosixStore(files, options));
  CKPTD_RETURN_IF_ERROR(store->Probe());
  return store;
}

}  // namespace ckptd

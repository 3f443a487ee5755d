#include "daemon/os/posix_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/fd.h"
#include "daemon/os/places.h"

namespace ckptd {
namespace {

template <typename Call>
auto RetryEintr(Call call) {
  for (;;) {
    auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

absl::Status StatusOf(int result, absl::string_view operation, absl::string_view path) {
  return result < 0 ? FileError(errno, operation, path) : absl::OkStatus();
}

FileType TypeOf(mode_t mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  return S_ISDIR(mode) ? FileType::kDirectory : FileType::kOther;
}

FileInfo InfoFrom(const struct stat& info) {
  return {.type = TypeOf(info.st_mode),
          .size = static_cast<uint64_t>(info.st_size),
          .links = info.st_nlink,
          .inode = info.st_ino,
          .uid = info.st_uid,
          .mode = info.st_mode & 07777,
          .modified = std::chrono::seconds(info.st_mtim.tv_sec) + Nanos(info.st_mtim.tv_nsec)};
}

class PosixFile final : public File {
 public:
  PosixFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  absl::Status PWrite(uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      ssize_t done =
          RetryEintr([&] { return pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
      if (done < 0) return FileError(errno, "write", path_);
      if (done == 0) return Error(ErrorCode::STORAGE_IO, absl::StrCat("write ", path_, ": the storage took no bytes"));
      offset += static_cast<uint64_t>(done);
      bytes = bytes.subspan(static_cast<size_t>(done));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) override {
    size_t total = 0;
    while (total < bytes.size()) {
      ssize_t done = RetryEintr([&] {
        return pread(fd_.get(), bytes.data() + total, bytes.size() - total, static_cast<off_t>(offset + total));
      });
      if (done < 0) return FileError(errno, "read", path_);
      if (done == 0) break;
      total += static_cast<size_t>(done);
    }
    return total;
  }

  absl::Status Fallocate(uint64_t size) override {
    return StatusOf(RetryEintr([&] { return fallocate(fd_.get(), 0, 0, static_cast<off_t>(size)); }), "fallocate",
                    path_);
  }

  absl::Status PunchHole(uint64_t size) override {
    constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return StatusOf(RetryEintr([&] { return fallocate(fd_.get(), kMode, 0, static_cast<off_t>(size)); }), "punch hole",
                    path_);
  }

  // Also EINTR is a failure: whether a second fsync would tell the truth is not known.
  absl::Status Sync() override { return StatusOf(fsync(fd_.get()), "fsync", path_); }

  void StartWriteback(uint64_t offset, uint64_t length) override {
    (void)sync_file_range(fd_.get(), static_cast<off64_t>(offset), static_cast<off64_t>(length), SYNC_FILE_RANGE_WRITE);
  }

  absl::StatusOr<FileInfo> Stat() override {
    struct stat info {};
    CKPTD_RETURN_IF_ERROR(StatusOf(fstat(fd_.get(), &info), "fstat", path_));
    return InfoFrom(info);
  }

  absl::Status Close() override {
    return StatusOf(close(fd_.Release()), "close", path_);  // EINTR too: the outcome of the last writes is unknown
  }

  int fd() const override { return fd_.get(); }
  const std::string& path() const override { return path_; }

 private:
  UniqueFd fd_;
  const std::string path_;
};

int FlagsOf(const OpenOptions& options) {
  int flags = O_NONBLOCK;  // a FIFO in our place must not block the open
  flags |= options.write ? O_RDWR : O_RDONLY;
  if (options.create) flags |= O_CREAT | O_EXCL;
  if (options.direct) flags |= O_DIRECT;
  return flags;
}

FileType TypeOfEntry(unsigned char type) {
  if (type == DT_REG) return FileType::kRegular;
  return type == DT_DIR ? FileType::kDirectory : FileType::kOther;
}

class RealFiles final : public Files {
 public:
  explicit RealFiles(std::string root = "") : places_(std::move(root)) {}

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    const LastLink link = options.follow ? LastLink::kFollow : LastLink::kRefuse;
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, places_.Open(path, FlagsOf(options), options.mode, link));
    CKPTD_RETURN_IF_ERROR(StatusOf(fcntl(fd.get(), F_SETFL, options.direct ? O_DIRECT : 0), "fcntl", path));
    return std::make_unique<PosixFile>(std::move(fd), path);
  }

  absl::Status Mkdir(const std::string& path, uint32_t mode) override {
    CKPTD_ASSIGN_OR_RETURN(const Place place, places_.Find(path, "mkdir"));
    const int made = mkdirat(place.at(), place.name, mode);
    // What most callers expect, on each level of each file that they publish: it costs no sentence.
    if (made < 0 && errno == EEXIST) return {absl::StatusCode::kAlreadyExists, ""};
    return StatusOf(made, "mkdir", path);
  }
  absl::Status Rmdir(const std::string& path) override {
    CKPTD_ASSIGN_OR_RETURN(const Place place, places_.Find(path, "rmdir"));
    return StatusOf(unlinkat(place.at(), place.name, AT_REMOVEDIR), "rmdir", path);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    CKPTD_ASSIGN_OR_RETURN(const TwoPlaces two, places_.FindBoth(from, to, "link"));
    return StatusOf(linkat(two.from_at(), two.from.name, two.to.at(), two.to.name, 0), "link", to);
  }

  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override {
    CKPTD_ASSIGN_OR_RETURN(const TwoPlaces two, places_.FindBoth(from, to, "rename"));
    const int renamed = renameat2(two.from_at(), two.from.name, two.to.at(), two.to.name, RENAME_NOREPLACE);
    if (renamed == 0) return absl::OkStatus();
    // A file system that does not know the flag says EINVAL.
    return FileError(errno == EINVAL ? EOPNOTSUPP : errno, "rename", to);
  }

  absl::Status Unlink(const std::string& path) override {
    CKPTD_ASSIGN_OR_RETURN(const Place place, places_.Find(path, "unlink"));
    return StatusOf(unlinkat(place.at(), place.name, 0), "unlink", path);
  }

  absl::Status SyncDir(const std::string& path) override {
    absl::StatusOr<UniqueFd> fd = OpenDirectory(path);
    if (!fd.ok()) return BeforeSync(fd.status());
    return StatusOf(fsync(fd->get()), "fsync", path);
  }

  absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override {
    CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenDirectory(path));
    std::unique_ptr<DIR, int (*)(DIR*)> dir(fdopendir(fd.get()), closedir);
    if (dir == nullptr) return FileError(errno, "opendir", path);
    (void)fd.Release();  // closedir closes it
    return ReadEntries(dir.get(), path, max_entries);
  }

  absl::StatusOr<FileInfo> Stat(const std::string& path) override {
    CKPTD_ASSIGN_OR_RETURN(const Place place, places_.Find(path, "stat"));
    struct stat info {};
    CKPTD_RETURN_IF_ERROR(StatusOf(fstatat(place.at(), place.name, &info, AT_SYMLINK_NOFOLLOW), "stat", path));
    return InfoFrom(info);
  }

  absl::StatusOr<SpaceInfo> Space(const std::string& path) override {
    struct statvfs info {};
    CKPTD_RETURN_IF_ERROR(StatusOf(RetryEintr([&] { return statvfs(path.c_str(), &info); }), "statvfs", path));
    return SpaceInfo{.total = info.f_blocks * info.f_frsize, .available = info.f_bavail * info.f_frsize};
  }

 private:
  absl::StatusOr<UniqueFd> OpenDirectory(const std::string& path) { return places_.Open(path, O_RDONLY | O_DIRECTORY); }

  absl::StatusOr<std::vector<DirEntry>> ReadEntries(DIR* dir, const std::string& path, size_t max_entries) {
    std::vector<DirEntry> entries;
    entries.reserve(16);  // most directories hold fewer
    for (;;) {
      errno = 0;
      const dirent* entry = readdir(dir);
      if (entry == nullptr) break;
      absl::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (entries.size() == max_entries) {
        return Error(ErrorCode::REFUSED, absl::StrCat("readdir ", path, ": more than ", max_entries, " entries"));
      }
      CKPTD_ASSIGN_OR_RETURN(FileType type, EntryType(path, *entry));
      entries.push_back({std::string(name), type});
    }
    if (errno != 0) return FileError(errno, "readdir", path);
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return entries;
  }

  // Some file systems (older XFS, some network ones) leave d_type unknown.
  absl::StatusOr<FileType> EntryType(const std::string& directory, const dirent& entry) {
    if (entry.d_type != DT_UNKNOWN) return TypeOfEntry(entry.d_type);
    absl::StatusOr<FileInfo> info = Stat(absl::StrCat(directory, "/", entry.d_name));
    if (absl::IsNotFound(info.status())) return FileType::kOther;  // removed meanwhile
    if (!info.ok()) return info.status();
    return info->type;
  }

  const Places places_;
};

}  // namespace

Files& PosixFiles() {
  static RealFiles files;
  return files;
}

std::unique_ptr<Files> MakeFilesBelow(std::string root) { return std::make_unique<RealFiles>(std::move(root)); }

}  // namespace ckptd

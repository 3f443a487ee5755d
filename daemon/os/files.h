// Files and directories. The only way the agent reaches a file system, so that a simulator (testing/sim_files.h) can
// stand in for it.
//
// Paths are absolute. Errors carry the operation and the path; an existing name is absl::StatusCode::kAlreadyExists, a
// missing one NOT_FOUND, a full storage STORAGE_FULL, memory that vanished under a transfer (EFAULT: a trainer
// truncated its slot) CORRUPT. Calls block as long as the storage does: never call them on the control thread for
// anything but the region. EINTR and short transfers are handled here.
//
// A Files may be used by any thread; a File by any thread for PRead and PWrite of disjoint ranges, by one for the rest.
#ifndef CKPTD_DAEMON_OS_FILES_H_
#define CKPTD_DAEMON_OS_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"

namespace ckptd {

// What O_DIRECT needs of file offset, length and memory address.
inline constexpr uint64_t kDirectAlignment = 4096;

struct OpenOptions {
  bool write = false;    // else read only
  bool create = false;   // O_CREAT|O_EXCL: an existing name is an error
  bool direct = false;   // O_DIRECT: past the page cache; INVALID_ARGUMENT where the file system cannot
  bool follow = false;   // the name may be a symbolic link; never below a root (places.h)
  uint32_t mode = 0600;  // of a created file
};

enum class FileType { kRegular, kDirectory, kOther };

struct FileInfo {
  FileType type = FileType::kOther;
  uint64_t size = 0;
  uint64_t links = 0;
  uint64_t inode = 0;
  uint32_t uid = 0;
  uint32_t mode = 0;  // permission bits only
  Nanos modified{0};  // wall clock of the file system
};

struct SpaceInfo {
  uint64_t total = 0;
  uint64_t available = 0;  // to this user
};

struct DirEntry {
  std::string name;
  FileType type = FileType::kOther;
};

class File {
 public:
  virtual ~File() = default;  // closes; an error of that close is lost

  // Writes all of `bytes` or fails.
  [[nodiscard]] virtual absl::Status PWrite(uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Bytes read; fewer than asked only at the end of the file.
  [[nodiscard]] virtual absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) = 0;
  // Reserves [0, size) and extends the file to it. UNIMPLEMENTED where the file system cannot.
  [[nodiscard]] virtual absl::Status Fallocate(uint64_t size) = 0;
  // Gives the memory or blocks of [0, size) back; they read as zeros from now on. The size stays, so that whoever has
  // the file mapped finds zeros and no SIGBUS. UNIMPLEMENTED where the file system cannot.
  [[nodiscard]] virtual absl::Status PunchHole(uint64_t size) = 0;
  // fsync. After a failure the file's content is unknown for ever: abandon it, never sync it again.
  [[nodiscard]] virtual absl::Status Sync() = 0;
  // A hint: begin writing a buffered range back now, so that Sync() later finds little left.
  virtual void StartWriteback(uint64_t offset, uint64_t length) = 0;
  [[nodiscard]] virtual absl::StatusOr<FileInfo> Stat() = 0;
  // Once. Network file systems report failed writes here.
  [[nodiscard]] virtual absl::Status Close() = 0;

  // The descriptor, or -1 where there is none (simulator). Owned by the File.
  [[nodiscard]] virtual int fd() const = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
};

class Files {
 public:
  virtual ~Files() = default;

  // Follows no symbolic link in the last component unless `options` say so; close-on-exec.
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path,
                                                                   const OpenOptions& options) = 0;
  // kAlreadyExists, without a message, when the name is there.
  [[nodiscard]] virtual absl::Status Mkdir(const std::string& path, uint32_t mode) = 0;
  [[nodiscard]] virtual absl::Status Rmdir(const std::string& path) = 0;
  // A second name for the file `from`; an existing `to` is never replaced.
  [[nodiscard]] virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // renameat2(RENAME_NOREPLACE). UNIMPLEMENTED where the file system cannot.
  [[nodiscard]] virtual absl::Status RenameNoReplace(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual absl::Status Unlink(const std::string& path) = 0;
  // Makes the names in directory `path` durable. After a failure what is durable of them is unknown for ever, except
  // where IsBeforeSync.
  [[nodiscard]] virtual absl::Status SyncDir(const std::string& path) = 0;
  // Sorted by name, without "." and "..". More than `max_entries` is an error, not a cut.
  [[nodiscard]] virtual absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) = 0;
  [[nodiscard]] virtual absl::StatusOr<FileInfo> Stat(const std::string& path) = 0;
  // Of the file system that holds `path`.
  [[nodiscard]] virtual absl::StatusOr<SpaceInfo> Space(const std::string& path) = 0;
};

// False for a missing name only; any other failure is reported.
[[nodiscard]] absl::StatusOr<bool> Exists(Files& files, const std::string& path);

// A whole regular file of at most `max_bytes`; a larger one is CORRUPT. For records, not for images.
[[nodiscard]] absl::StatusOr<std::string> ReadSmall(Files& files, const std::string& path, size_t max_bytes);

// The same of a file that the operator names, such as the configuration or a certificate: it may be a symbolic link, as
// Kubernetes and certbot make them, which is looked up for each read. Not for what lies where others may write.
[[nodiscard]] absl::StatusOr<std::string> ReadOperatorFile(Files& files, const std::string& path, size_t max_bytes);

// errno of a file operation as a Status (the table at the top of this file).
[[nodiscard]] absl::Status FileError(int error, absl::string_view operation, absl::string_view path);

// An error of SyncDir that came before the fsync, such as no free descriptor: nothing is lost, it may be tried again.
[[nodiscard]] bool IsBeforeSync(const absl::Status& status);
[[nodiscard]] absl::Status BeforeSync(absl::Status status);  // marked for it

// "/a/b" of "/a/b/c"; "/" of "/a".
[[nodiscard]] std::string ParentOf(absl::string_view path);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_FILES_H_

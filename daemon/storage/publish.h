// How a file gets its name on storage: the publish protocol.
//
//   1. mkdir what is missing on the way, from the root down; fsync the parent of each level, also where mkdir said
//      EEXIST (whoever made it may not have come to its fsync yet).
//   2. open(O_CREAT|O_EXCL) `<directory>/.tmp-<owner>-<start>-<random>`; fallocate (a full storage shows here); write.
//      No reader takes a temporary name for data: it ends in nothing we read.
//   3. fsync, close. The bytes are durable before any name shows them.
//   4. link() to the final name, or renameat2(RENAME_NOREPLACE) where the file system has no hard links. No call here
//      can replace a name. EEXIST = somebody else won; NFS may also say it after it lost the reply of our own link, so
//      a temporary file with two links means that we won.
//   5. unlink the temporary name, fsync the directory. Only now is the caller told that the file is durable. The loser
//      fsyncs too: it goes on to rely on the winner's file.
//
// After any failure in 2 to 4 the file is abandoned: unlinked, never fsynced again, because a second fsync of a file
// that failed once says OK over lost bytes (ext4 and XFS do that). The caller writes all anew from memory. The same is
// true of the names in a directory, and those cannot be written anew: when its fsync fails, all that was in it then and
// was not known to be durable is refused until this process ends. Directories that are made or removed there later are
// fresh changes, of which the next fsync tells the truth. Files are not told apart like that, as one says what another
// holds: their directory takes no more of them. It is that of one step, mostly.
#ifndef CKPTD_DAEMON_STORAGE_PUBLISH_H_
#define CKPTD_DAEMON_STORAGE_PUBLISH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/mutex.h"
#include "daemon/os/files.h"
#include "daemon/storage/durable_names.h"

namespace ckptd {

struct TempFile {
  std::unique_ptr<File> file;
  std::string path;
  bool durable = false;  // step 3 is done
};

[[nodiscard]] bool IsTemporaryName(absl::string_view name);

// Any thread. `files` outlives it. Paths are absolute.
class Publisher {
 public:
  // `owner`: stable name of the agent. What a killed predecessor of this process left is known by it.
  Publisher(Files& files, absl::string_view owner);

  // Step 1 for `relative` ("a/b"; "" = nothing to do) below `root`, which exists.
  [[nodiscard]] absl::Status MakeDirectories(const std::string& root, absl::string_view relative);
  // Removes an empty directory, durably. OK when it is gone: that may be a moment before a crash.
  [[nodiscard]] absl::Status RemoveDirectory(const std::string& path) CKPTD_EXCLUDES(mutex_);
  // A fresh temporary name.
  [[nodiscard]] std::string TempPath(const std::string& directory) const;
  // Step 2 without the writing.
  [[nodiscard]] absl::StatusOr<TempFile> CreateTemp(const std::string& directory, bool direct);
  // Step 3, once.
  [[nodiscard]] absl::Status MakeDurable(TempFile& temp);
  // What is left of steps 3 to 5; takes the file whatever happens. kAlreadyExists: the name is another one's, and
  // durable. Any other error: the file is dead (store.h).
  [[nodiscard]] absl::Status Publish(TempFile temp, const std::string& final_path);
  // Drops a file that shall not be published.
  void Discard(TempFile temp);
  // True for a temporary name that an earlier process of this owner gave, and nobody will publish any more.
  [[nodiscard]] bool IsLeftover(absl::string_view name) const;
  // fsync of a directory, at most one failure each: whatever is in it may be from before.
  [[nodiscard]] absl::Status SyncDirectory(const std::string& path);

 private:
  // A directory whose fsync failed.
  struct Failed {
    uint64_t times = 0;
    std::optional<std::set<std::string>> names;  // that may be lost since the last time, once it could be listed
  };

  absl::Status GiveName(const std::string& temp_path, const std::string& final_path);
  absl::Status MakeDirectory(const std::string& parent, const std::string& path);
  absl::StatusOr<bool> KnownDurable(const std::string& path) CKPTD_EXCLUDES(mutex_);
  absl::StatusOr<uint64_t> InodeOf(const std::string& path, bool fresh) CKPTD_EXCLUDES(mutex_);
  void SetDurable(const std::string& path, uint64_t inode) CKPTD_EXCLUDES(mutex_);
  uint64_t FailuresOf(const std::string& directory) CKPTD_EXCLUDES(mutex_);
  void ListFailed(const std::string& directory) CKPTD_EXCLUDES(mutex_);
  absl::Status CheckNewer(const std::string& directory, const std::string& path) CKPTD_EXCLUDES(mutex_);
  // fsync for a change before which the directory had failed so many times.
  absl::Status SyncChange(const std::string& directory, uint64_t failures) CKPTD_EXCLUDES(mutex_);

  Files& files_;
  const std::string owner_prefix_;    // of all processes of this owner
  const std::string process_prefix_;  // of this one
  Mutex mutex_;
  std::map<std::string, Failed> failed_ CKPTD_GUARDED_BY(mutex_);
  DurableNames durable_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_PUBLISH_H_

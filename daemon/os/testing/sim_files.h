// A file system in memory that can lose power.
//
// It logs every operation that changes something. CrashImage(n, seed) builds what a disk may hold when the power fails
// after the first n operations: all that a completed Sync (content) or SyncDir (names) made durable, and of the rest a
// random subset: each 4 KiB block of each write, each change of size, each directory entry on its own. Seed 0 keeps
// nothing of the rest, seed 1 all of it. After a failed Sync the blocks that were dirty then may be on disk or not, and
// no later Sync changes that (what ext4 and XFS do).
//
// Sync never makes a name durable and a rename is two independent entries: harsher than real journals on purpose.
// One thread.
#ifndef CKPTD_DAEMON_OS_TESTING_SIM_FILES_H_
#define CKPTD_DAEMON_OS_TESTING_SIM_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/os/files.h"

namespace ckptd {

struct SimState;  // the tree and its log

class SimFiles final : public Files {
 public:
  SimFiles();  // an empty, durable "/"
  SimFiles(SimFiles&&) noexcept;
  SimFiles& operator=(SimFiles&&) noexcept;
  ~SimFiles() override;

  // The log: operation boundaries are 0..OpCount() inclusive.
  [[nodiscard]] size_t OpCount() const;
  [[nodiscard]] std::string OpName(size_t op) const;  // "link /a/b" for messages
  [[nodiscard]] SimFiles CrashImage(size_t op_count, uint64_t seed) const;

  // Calls: every call of Files and File counts, also those that change nothing.
  [[nodiscard]] size_t CallCount() const;
  // The n-th call from now (0 = the next) fails with `error` (errno). Only a write leaves something: its first half.
  void FailCall(size_t n, int error);
  // The n-th Sync or SyncDir from now says OK and does nothing. For checks of the checks.
  void DropSync(size_t n);
  [[nodiscard]] size_t SyncCount() const;
  // Link and RenameNoReplace answer UNIMPLEMENTED, as on file systems without them.
  void DisableLinks();
  void DisableRenames();
  // The next Link takes effect and says kAlreadyExists, as NFS does after a lost reply.
  void LoseReplyOfNextLink();
  [[nodiscard]] size_t OpenFiles() const;

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override;
  absl::Status Mkdir(const std::string& path, uint32_t mode) override;
  absl::Status Rmdir(const std::string& path) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status RenameNoReplace(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status SyncDir(const std::string& path) override;
  absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override;
  absl::StatusOr<FileInfo> Stat(const std::string& path) override;
  absl::StatusOr<SpaceInfo> Space(const std::string& path) override;

 private:
  std::shared_ptr<SimState> state_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_SIM_FILES_H_

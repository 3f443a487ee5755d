// A file system in memory that can lose power.
//
// It logs every operation that changes something. CrashImage(n, seed) builds what a disk may hold when the power fails
// after the first n operations: all that a completed Sync (content) or SyncDir (names) made durable, and of the rest a
// random subset: each 4 KiB block of each write, each change of size, each directory entry on its own. Seed 0 keeps
// nothing of the rest, seed 1 all of it. After a failed Sync the blocks that were dirty then may be on disk or not, and
// no later Sync changes that (what ext4 and XFS do).
//
// Sync never makes a name durable and a rename is two independent entries: harsher than real journals on purpose.
// A block that is written is whole or missing (4 KiB is not torn further), and a block that is missing inside of the
// file's size reads as zeros. One thread.
#ifndef CKPTD_DAEMON_OS_TESTING_SIM_FILES_H_
#define CKPTD_DAEMON_OS_TESTING_SIM_FILES_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/os/files.h"
#include "daemon/os/testing/sim_log.h"

namespace ckptd {

struct SimState;  // the tree and its log

class SimFiles final : public Files {
 public:
  SimFiles();                          // an empty, durable "/"
  explicit SimFiles(sim::Tree image);  // after a power failure
  SimFiles(SimFiles&&) noexcept;
  SimFiles& operator=(SimFiles&&) noexcept;
  ~SimFiles() override;

  // The log: operation boundaries are 0..OpCount() inclusive.
  [[nodiscard]] size_t OpCount() const;
  [[nodiscard]] std::string OpName(size_t op) const;  // "link /a/b" for messages
  [[nodiscard]] SimFiles CrashImage(size_t op_count, uint64_t seed) const;
  // For whoever looks at every disk of a log: what was durable before it, its operations, and all inodes at its end.
  [[nodiscard]] const sim::Tree& base() const;
  [[nodiscard]] const std::vector<sim::Op>& log() const;
  [[nodiscard]] const sim::Tree& live() const;

  // Calls: every call of Files and File counts, also those that change nothing.
  [[nodiscard]] size_t CallCount() const;
  // The n-th call from now (0 = the next) fails with `error` (errno). Only a write leaves something: its first half.
  void FailCall(size_t n, int error);
  // The n-th Sync or SyncDir from now says OK and does nothing. For checks of the checks.
  void DropSync(size_t n);
  void DropSyncs(std::set<size_t> which);  // counted from the first ever
  [[nodiscard]] size_t SyncCount() const;
  // Link and RenameNoReplace answer UNIMPLEMENTED, as on file systems without them.
  void DisableLinks();
  void DisableRenames();
  // The next Link takes effect and says kAlreadyExists, as NFS does after a lost reply.
  void LoseReplyOfNextLink();
  [[nodiscard]] size_t OpenFiles() const;
  // The process is killed when the log has `op_count` operations: from then on every call fails and changes nothing,
  // until Revive(), when the next process finds what the kernel knew.
  void KillAt(size_t op_count);
  void Revive();
  [[nodiscard]] bool Killed() const;
  // Link and RenameNoReplace replace a name that is there, as they never should.
  void ReplaceNames();
  // From now on only so many bytes can be allocated; a write that does not fit leaves its first half.
  void SetFree(uint64_t bytes);

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

// Making slot files ready in the background: every page is there before a trainer gets the file, so that a full tmpfs
// is an error here and not a SIGBUS in training, and no save pays for the first touch (0.3 to 0.7 GB/s against 5 to 20
// afterwards). The files are new, so they hold zeros: nobody sees another tenant's bytes.
//
// They are of huge pages where the kernel has some, which it makes ten times as fast as small ones; a restore out of
// them is twice as fast, and whoever maps 100 GB of them needs no 200 MB of page tables. Where it has none, all that is
// left of a file is reserved first: what does not fit is known before it is populated. Files for a snapshot that is on
// its way from elsewhere are then not populated: it fills its own, and the trainer populates all when it maps them,
// which is after it has restored. The restore of 1 GiB took a third longer otherwise.
#ifndef CKPTD_DAEMON_REGION_POPULATE_H_
#define CKPTD_DAEMON_REGION_POPULATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/executor.h"
#include "daemon/base/mutex.h"
#include "daemon/os/files.h"
#include "daemon/region/progress.h"
#include "daemon/region/quota.h"
#include "daemon/region/slot_file.h"

namespace ckptd::region {

enum class Preparation : uint8_t { kPopulated, kReserved };  // kReserved: small pages are only reserved

struct SlotBuildOrder {
  std::string rank_dir;
  uint32_t count = 0;
  uint64_t file_bytes = 0;  // each
  QuotaHold hold;           // count * file_bytes
  Preparation preparation = Preparation::kPopulated;
  Executor* freeing = nullptr;  // SlotFile::Create
};

// Files of a build that are not taken are unlinked when the last reference goes.
class SlotBuild {
 public:
  // Runs once, on a thread of the executor's (with an inline executor before Start returns). CANCELLED after Cancel().
  using Done = std::function<void(const absl::Status&)>;

  // An error when the files cannot be created or the executor's queue is full; `done` will then not run.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SlotBuild>> Start(Files& files, SlotBuildOrder order,
                                                                        Executor& executor, Done done);
  ~SlotBuild();

  [[nodiscard]] Progress& progress() { return progress_; }  // any thread
  [[nodiscard]] static std::shared_ptr<Progress> ProgressOf(const std::shared_ptr<SlotBuild>& build) {
    return {build, &build->progress_};
  }
  // After `done` was called with OK; once.
  [[nodiscard]] std::vector<std::shared_ptr<SlotFile>> Take() { return std::move(files_); }

 private:
  SlotBuild(uint64_t total_bytes, Preparation preparation) : preparation_(preparation), progress_(total_bytes) {}
  static void Work(const std::shared_ptr<SlotBuild>& build, Executor& executor, const Done& done);
  void Prepare(size_t file, const Done& done);
  absl::Status PopulateFile(SlotFile& file);

  const Preparation preparation_;
  Progress progress_;
  std::vector<std::shared_ptr<SlotFile>> files_;

  Mutex mutex_;
  size_t prepared_ CKPTD_GUARDED_BY(mutex_) = 0;
  absl::Status status_ CKPTD_GUARDED_BY(mutex_);  // the first error
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_POPULATE_H_

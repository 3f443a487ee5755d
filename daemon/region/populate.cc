#include "daemon/region/populate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/mapping.h"

namespace ckptd::region {
namespace {

// Between two looks at the wish to stop: about 0.1 s.
constexpr uint64_t kPieceBytes = 64u << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<SlotBuild>> SlotBuild::Start(Files& files, SlotBuildOrder order, Executor& executor,
                                                            Done done) {
  std::shared_ptr<SlotBuild> build(new SlotBuild(order.count * order.file_bytes, order.preparation));
  for (uint32_t i = 0; i < order.count; ++i) {
    CKPTD_ASSIGN_OR_RETURN(auto file, SlotFile::Create(files, order.rank_dir, order.file_bytes,
                                                       order.hold.Split(order.file_bytes), order.freeing));
    build->files_.push_back(std::move(file));
  }
  if (!executor.Run([build, &executor, done = std::move(done)] { Work(build, executor, done); }))
    return Error(ErrorCode::BUSY, absl::StrCat(order.rank_dir, ": no worker is free to prepare slots"));
  return build;
}

SlotBuild::~SlotBuild() {
  for (const auto& file : files_) file->Unlink();
}

// Each is a piece of work of its own, this thread's where the queue is full.
void SlotBuild::Work(const std::shared_ptr<SlotBuild>& build, Executor& executor, const Done& done) {
  if (build->progress_.cancelled()) return done(Error(ErrorCode::CANCELLED, "slots: preparation cancelled"));
  const size_t count = build->files_.size();
  std::vector<size_t> ours = {0};
  for (size_t file = 1; file < count; ++file) {
    if (!executor.Run([build, file, done] { build->Prepare(file, done); })) ours.push_back(file);
  }
  for (size_t file : ours) build->Prepare(file, done);
}

// Whoever comes last tells.
void SlotBuild::Prepare(size_t file, const Done& done) {
  absl::Status status = PopulateFile(*files_[file]);
  {
    MutexLock lock(mutex_);
    status_.Update(status);
    if (++prepared_ < files_.size()) return;
    status = status_;
  }
  done(status);
}

absl::Status SlotBuild::PopulateFile(SlotFile& file) {
  const auto cancelled = [&] {
    return Error(ErrorCode::CANCELLED, absl::StrCat(file.path(), ": preparation cancelled"));
  };
  if (progress_.cancelled()) return cancelled();
  CKPTD_RETURN_IF_ERROR(CKPTD_FP_STATUS("region.reserve"));
  CKPTD_RETURN_IF_ERROR(file.Extend());
  CKPTD_FP("region.slot.extended");
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, file.Map(MapAccess::kReadWrite));
  bool huge = true;
  for (uint64_t offset = 0; offset < file.size(); offset += kPieceBytes) {
    if (progress_.cancelled()) return cancelled();
    const uint64_t length = std::min(kPieceBytes, file.size() - offset);
    if (huge && !UseHugePages(mapping, offset, length)) {
      huge = false;
      CKPTD_RETURN_IF_ERROR(file.Reserve());  // what does not fit is known before it is populated
    }
    if (!huge && preparation_ == Preparation::kReserved) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(Populate(mapping, offset, length));
    progress_.Add(length);
  }
  return absl::OkStatus();
}

}  // namespace ckptd::region

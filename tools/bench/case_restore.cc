#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/job.h"
#include "tools/bench/limits.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr uint32_t kFromRegion = 1;  // ckpt_restored.source
constexpr uint32_t kFromStorage = 5;

double Rate(const Job& job, double seconds) { return static_cast<double>(job.total_bytes()) / 1e9 / seconds; }

std::unique_ptr<Job> MakeJob(const Agent& agent, const Options& options) {
  return std::make_unique<Job>(agent.socket(), options.ranks, options.bytes != 0 ? options.bytes : kGiB,
                               options.tensors != 0 ? options.tensors : 1000);
}

absl::StatusOr<double> RestoreFrom(Job& job, uint32_t expected) {
  uint32_t source = 0;
  CKPTD_ASSIGN_OR_RETURN(double seconds, job.Restore(&source));
  job.Close();
  if (source == expected) return Rate(job, seconds);
  return Error(ErrorCode::INTERNAL, absl::StrCat("restored from source ", source, " instead of ", expected));
}

std::vector<std::string> Images(const std::string& storage) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(storage)) {
    if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
  }
  return found;
}

}  // namespace

// A trainer that died and comes back: joins, decides, copies and checks every chunk.
absl::StatusOr<Line> RestoreRegion(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options));
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  auto job = MakeJob(*agent, options);
  CKPTD_RETURN_IF_ERROR(job->Warm());
  CKPTD_ASSIGN_OR_RETURN(auto mirror, Mirror::Make(*job, options));
  auto ours = [&] { return RestoreFrom(*job, kFromRegion); };
  auto limit = [&]() -> absl::StatusOr<double> { return Rate(*job, mirror->CopyOut()); };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{"restore.region", "GB/s", "memcpy out of populated shared memory", found};
}

// As after a reboot: the region is empty, and the page cache holds nothing since all I/O is O_DIRECT.
absl::StatusOr<Line> RestoreStorage(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options));
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  auto job = MakeJob(*agent, options);
  CKPTD_RETURN_IF_ERROR(job->Warm());
  job->Close();
  const std::vector<std::string> images = Images(agent->storage());
  auto ours = [&]() -> absl::StatusOr<double> {
    agent->Kill();
    agent->LoseRegion();
    CKPTD_RETURN_IF_ERROR(agent->Start().status());
    return RestoreFrom(*job, kFromStorage);
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, ReadPlainFiles(images));
    return Rate(*job, seconds);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{"restore.storage", "GB/s", "plain O_DIRECT sequential read of the same files", found};
}

}  // namespace ckptd::bench

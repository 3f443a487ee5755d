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
#include "tools/bench/room.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kMappedBytes = 4 * kGiB;  // of one slot
constexpr double kAllowedMapMs = 10;         // the contract

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

// What was asked for, or the largest up to 4 GiB that fits: halved until it does.
absl::StatusOr<uint64_t> BytesToMap(const Options& options, std::string* no_room) {
  for (uint64_t bytes = options.bytes != 0 ? options.bytes : kMappedBytes;; bytes /= 2) {
    CKPTD_ASSIGN_OR_RETURN(*no_room, NoRoom(options, bytes, 0));
    if (no_room->empty() || options.bytes != 0 || bytes <= kMiB) return bytes;
  }
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

// A trainer that comes back and wants to look at its snapshot where it lies.
absl::StatusOr<Line> RestoreMap(const Options& options) {
  std::string no_room;
  CKPTD_ASSIGN_OR_RETURN(uint64_t bytes, BytesToMap(options, &no_room));
  if (!no_room.empty()) return Line{"restore.map", "", "", {}, no_room};
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options, Storage::kNothing));
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  Job job(agent->socket(), options.ranks, bytes, options.tensors != 0 ? options.tensors : 1000);
  CKPTD_RETURN_IF_ERROR(job.Warm(CKPT_CAPTURED));
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, job.Map());
    return seconds * 1e3;
  };
  auto limit = []() -> absl::StatusOr<double> { return kAllowedMapMs; };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  const std::string of = absl::StrCat("10 ms, the contract; ours: inside ckpt_restore_map of ", FormatBytes(bytes));
  return Line{"restore.map", "ms", of + " whose checksums are made; its pages come as they are read", found};
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

// ckptctl salvage REGION_DIR [JOB[@STEP]] --to DIR
#include <cstdio>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/format/paths.h"
#include "daemon/os/posix_files.h"
#include "daemon/region/salvage.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/output.h"
#include "tools/ckptctl/output_files.h"
#include "tools/ckptctl/progress.h"

namespace ckptd {
namespace {

// What the region holds of one snapshot.
struct Found {
  std::string job;
  SnapshotId id;
  uint32_t world = 0;
  std::map<Rank, region::SalvageSnapshot> ranks;

  [[nodiscard]] bool whole() const { return ranks.size() == world; }
  [[nodiscard]] std::string name() const { return absl::StrCat("job ", job, ": step ", ToString(id)); }
  [[nodiscard]] uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [rank, snapshot] : ranks) sum += snapshot.record->slot_bytes;
    return sum;
  }
};

// By job; of each, newest first.
using ByJob = std::map<std::string, std::map<SnapshotId, Found, std::greater<>>>;

absl::StatusOr<ByJob> FindAll(const std::string& dir, const std::optional<v1::Target>& only) {
  auto listed = region::ListSalvage(PosixFiles(), dir);
  if (CodeOf(listed.status()) == ErrorCode::NOT_FOUND) {
    return Error(ErrorCode::NOT_FOUND, absl::StrCat(dir, " is no region of ckptd: ", listed.status().message()));
  }
  CKPTD_ASSIGN_OR_RETURN(auto snapshots, std::move(listed));
  ByJob out;
  for (region::SalvageSnapshot& each : snapshots) {
    const SnapshotId id = each.record->id();
    if (only && (each.job != only->job() || (only->has_step() && id.step != only->step()) ||
                 (only->has_attempt() && id.attempt != only->attempt()))) {
      continue;
    }
    Found& found = out[each.job][id];
    found.job = each.job;
    found.id = id;
    found.world = each.world;
    // Of a rank that ran here, its own comes before the copy that was made for another node.
    const Rank rank = each.rank;
    found.ranks.try_emplace(rank, std::move(each));
  }
  return out;
}

absl::Status WriteImage(const region::SalvageSnapshot& snapshot, size_t image, OutputFiles& out, Progress& progress,
                        uint64_t total) {
  const std::string name = ImageFileName(snapshot.rank, snapshot.world, static_cast<uint32_t>(image));
  CKPTD_RETURN_IF_ERROR(out.Begin(name, snapshot.images[image].bytes));
  uint64_t offset = 0;
  uint32_t crc = 0;
  CKPTD_RETURN_IF_ERROR(region::ReadSalvage(PosixFiles(), snapshot, image, [&](std::span<const std::byte> bytes) {
    absl::Status status = out.Append(offset, bytes);
    offset += bytes.size();
    crc = Crc32c(crc, bytes.data(), bytes.size());  // of bytes that matched the save's checksums
    progress.Update(out.bytes(), total);
    return status;
  }));
  return out.End(crc);
}

absl::Status Write(const Found& found, const std::string& to, Progress& progress, v1::ListResponse& told) {
  const std::string dir = absl::StrCat(to, "/", StepPath(found.job, found.id));
  CKPTD_ASSIGN_OR_RETURN(auto out, OutputFiles::Open(PosixFiles(), dir));
  for (const auto& [rank, snapshot] : found.ranks) {
    for (size_t image = 0; image < snapshot.images.size(); ++image) {
      CKPTD_RETURN_IF_ERROR(WriteImage(snapshot, image, *out, progress, found.bytes()));
    }
  }
  CKPTD_RETURN_IF_ERROR(out->Commit());
  v1::SnapshotEntry* entry = told.add_snapshots();
  entry->set_job(found.job);
  entry->set_attempt(found.id.attempt);
  entry->set_step(found.id.step);
  entry->set_bytes(found.bytes());
  entry->set_world_size(found.world);
  entry->set_captured(found.whole());
  entry->add_sources("region");
  return absl::OkStatus();
}

std::string MissingRanks(const Found& found) {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < found.world && missing.size() < 8; ++rank) {
    if (found.ranks.count(rank) == 0) missing.push_back(rank);
  }
  return absl::StrCat(found.name(), " is not whole here: no rank ", absl::StrJoin(missing, ", "));
}

class Salvage {
 public:
  Salvage(std::string to, bool all, bool quiet) : to_(std::move(to)), all_(all), progress_("salvage", quiet) {}

  // The newest whole one that can be read, or with --all every one.
  absl::Status TakeJob(const std::map<SnapshotId, Found, std::greater<>>& steps) {
    bool written = false;
    for (const auto& [id, found] : steps) {
      if (!all_ && written) break;
      absl::Status status = found.whole() || all_ ? Write(found, to_, progress_, told_)
                                                  : Error(ErrorCode::NOT_FOUND, MissingRanks(found));
      written = written || status.ok();
      if (status.ok()) continue;
      const ErrorCode code = CodeOf(status);
      if (code != ErrorCode::NOT_FOUND && code != ErrorCode::CORRUPT) return status;
      std::fprintf(stderr, "passed over: %s\n", Clean(status.message()).c_str());
      if (failed_.ok() || code == ErrorCode::CORRUPT) failed_ = status;
    }
    if (written && !all_) failed_ = absl::OkStatus();
    return absl::OkStatus();
  }

  [[nodiscard]] const absl::Status& failed() const { return failed_; }
  [[nodiscard]] const v1::ListResponse& told() const { return told_; }

 private:
  const std::string to_;
  const bool all_;
  Progress progress_;
  v1::ListResponse told_;
  absl::Status failed_;
};

}  // namespace

absl::StatusOr<int> RunSalvage(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  const std::string to = args.Get("--to");
  if (to.empty()) return Error(ErrorCode::INVALID_ARGUMENT, "salvage wants --to DIR");
  std::optional<v1::Target> only;
  if (args.words().size() > 1) {
    CKPTD_ASSIGN_OR_RETURN(only, ParseTarget(args.word(1)));
  }
  CKPTD_ASSIGN_OR_RETURN(ByJob jobs, FindAll(args.word(0), only));
  if (jobs.empty()) return Error(ErrorCode::NOT_FOUND, absl::StrCat(args.word(0), ": no such snapshot in this region"));
  Salvage salvage(to, args.Has("--all"), json);
  absl::Status worst;
  for (const auto& [job, steps] : jobs) {
    CKPTD_RETURN_IF_ERROR(salvage.TakeJob(steps));
    if (worst.ok()) worst = salvage.failed();
  }
  if (json) PrintJson(salvage.told());
  for (const v1::SnapshotEntry& entry : salvage.told().snapshots()) {
    const std::string dir = absl::StrCat(to, "/", StepPath(entry.job(), {entry.attempt(), entry.step()}));
    if (!json) Print(absl::StrCat(dir, "  ", FormatBytes(entry.bytes()), "\n"));
  }
  if (!worst.ok()) return worst;
  return kYes;
}

}  // namespace ckptd

#include "daemon/format/paths.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace ckptd {
namespace {

constexpr uint32_t kMaxParts = 100000;

// Takes a number written with at least `width` digits, in the one way that we write it.
template <typename Number>
bool TakeNumber(absl::string_view* text, size_t width, Number* number) {
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isdigit((*text)[digits])) ++digits;
  bool padded_once = digits == width || (digits > width && (*text)[0] != '0');
  if (!padded_once || !absl::SimpleAtoi(text->substr(0, digits), number)) return false;
  text->remove_prefix(digits);
  return true;
}

std::optional<AttemptId> ParseAttempt(absl::string_view name, absl::string_view suffix) {
  AttemptId attempt = 0;
  bool ours = absl::ConsumePrefix(&name, "a") && TakeNumber(&name, 4, &attempt) && name == suffix && attempt > 0;
  return ours ? std::optional<AttemptId>(attempt) : std::nullopt;
}

// What follows "rank-00000-of-00008".
bool TakeRankSuffix(absl::string_view name, RankFile* file) {
  if (name == ".json") {
    file->sidecar = true;
    return true;
  }
  if (name == ".safetensors") return true;
  return absl::ConsumePrefix(&name, ".part-") && TakeNumber(&name, 2, &file->image) && name == ".safetensors" &&
         file->image > 0 && file->image < kMaxParts;
}

void AppendStepDirectory(const SnapshotId& id, std::string* path) {
  absl::StrAppendFormat(path, "step-%010d.a%04d", id.step, id.attempt);
}

}  // namespace

std::string AttemptFileName(AttemptId attempt) { return absl::StrFormat("a%04d.json", attempt); }
std::string DecisionFileName(AttemptId attempt) { return absl::StrFormat("a%04d.decided.json", attempt); }
std::string StepDirectoryName(const SnapshotId& id) {
  std::string name;
  AppendStepDirectory(id, &name);
  return name;
}

std::string ImageFileName(Rank rank, uint32_t world, uint32_t image) {
  std::string part = image == 0 ? "" : absl::StrFormat(".part-%02d", image);
  return absl::StrFormat("rank-%05d-of-%05d%s.safetensors", rank, world, part);
}

std::string SidecarFileName(Rank rank, uint32_t world) {
  return absl::StrFormat("rank-%05d-of-%05d.json", rank, world);
}

std::string AttemptsPath(absl::string_view job) { return absl::StrCat(job, "/", kAttemptsName); }
std::string AttemptPath(absl::string_view job, AttemptId attempt) {
  return absl::StrCat(AttemptsPath(job), "/", AttemptFileName(attempt));
}
std::string DecisionPath(absl::string_view job, AttemptId attempt) {
  return absl::StrCat(AttemptsPath(job), "/", DecisionFileName(attempt));
}
std::string StepPath(absl::string_view job, const SnapshotId& id) {
  std::string path = absl::StrCat(job, "/");
  AppendStepDirectory(id, &path);
  return path;
}
// A save makes a dozen of these: in one piece of memory.
std::string InStep(absl::string_view job, const SnapshotId& id, absl::string_view name) {
  constexpr size_t kDirectoryBytes = 49;  // with the largest numbers
  std::string path;
  path.reserve(job.size() + kDirectoryBytes + name.size());
  absl::StrAppend(&path, job, "/");
  AppendStepDirectory(id, &path);
  absl::StrAppend(&path, "/", name);
  return path;
}

std::optional<AttemptId> ParseAttemptFileName(absl::string_view name) { return ParseAttempt(name, ".json"); }
std::optional<AttemptId> ParseDecisionFileName(absl::string_view name) { return ParseAttempt(name, ".decided.json"); }

std::optional<SnapshotId> ParseStepDirectoryName(absl::string_view name) {
  SnapshotId id;
  bool ours = absl::ConsumePrefix(&name, "step-") && TakeNumber(&name, 10, &id.step) &&
              absl::ConsumePrefix(&name, ".a") && TakeNumber(&name, 4, &id.attempt) && name.empty() && id.attempt > 0;
  return ours ? std::optional<SnapshotId>(id) : std::nullopt;
}

std::optional<RankFile> ParseRankFileName(absl::string_view name) {
  RankFile file;
  bool ours = absl::ConsumePrefix(&name, "rank-") && TakeNumber(&name, 5, &file.rank) &&
              absl::ConsumePrefix(&name, "-of-") && TakeNumber(&name, 5, &file.world) && TakeRankSuffix(name, &file) &&
              file.rank < file.world;
  return ours ? std::optional<RankFile>(file) : std::nullopt;
}

}  // namespace ckptd

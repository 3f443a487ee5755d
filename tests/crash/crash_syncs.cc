// What each fsync of a log is for.
#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "daemon/format/paths.h"
#include "daemon/storage/publish.h"
#include "tests/crash/crash_workloads.h"

namespace ckptd::crash {
namespace {

using sim::Op;

std::string KindOf(const std::string& name) {
  if (name == kJob) return "job";
  if (name == kAttemptsName) return "list of attempts";
  if (name == kManifestName) return "manifest";
  if (name == kDeletingName) return "marker";
  if (name == kPinnedName) return "pin";
  if (ParseAttemptFileName(name)) return "attempt record";
  if (ParseDecisionFileName(name)) return "decision";
  if (ParseStepDirectoryName(name)) return "step directory";
  const auto file = ParseRankFileName(name);
  return !file ? "" : file->sidecar ? "sidecar" : "image";
}

// The last change of a name of ours in `directory` since its last fsync.
std::string DirectorySync(const std::vector<Op>& log, size_t sync) {
  for (size_t i = sync; i-- > 0 && !(log[i].kind == Op::kSync && log[i].inode == log[sync].inode);) {
    if (log[i].kind != Op::kEntry || log[i].inode != log[sync].inode || IsTemporaryName(log[i].name)) continue;
    const std::string kind = KindOf(log[i].name);
    if (log[i].target) return absl::StrCat("directory of a new ", kind);
    const bool file = kind == "image" || kind == "sidecar" || kind == "pin";
    return absl::StrCat("directory of a deleted ", file ? "file" : kind);
  }
  return "directory without news";
}

// The name that the file gets next.
std::string FileSync(const std::vector<Op>& log, size_t sync) {
  for (size_t i = sync; i < log.size(); ++i) {
    const bool named = log[i].kind == Op::kEntry && log[i].target == log[sync].inode;
    if (named && !IsTemporaryName(log[i].name)) return KindOf(log[i].name);
  }
  return "file without a name";
}

}  // namespace

std::map<std::string, std::set<size_t>> SyncClasses(const SimFiles& files, size_t first_op) {
  std::map<std::string, std::set<size_t>> classes;
  const std::vector<Op>& log = files.log();
  size_t number = 0;
  for (size_t i = first_op; i < log.size(); ++i) {
    if (log[i].kind != Op::kSync) continue;
    const bool directory = files.live().at(log[i].inode).type == FileType::kDirectory;
    classes[directory ? DirectorySync(log, i) : FileSync(log, i)].insert(number++);
  }
  return classes;
}

}  // namespace ckptd::crash

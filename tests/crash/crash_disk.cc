#include "tests/crash/crash_disk.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/format/paths.h"
#include "daemon/storage/publish.h"
#include "tests/crash/crash_content.h"

namespace ckptd::crash {
namespace {

using sim::Inode;
using sim::InodeId;
using sim::Tree;

// 0 = not there.
InodeId Find(const Tree& tree, absl::string_view path) {
  InodeId id = sim::kRoot;
  for (absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    const auto& entries = tree.at(id).entries;
    const auto entry = entries.find(std::string(name));
    if (entry == entries.end()) return 0;
    id = entry->second;
  }
  return id;
}

std::string InRoot(absl::string_view name) { return absl::StrCat(kRoot, "/", name); }

std::string WrongPromise(const Tree& tree, const Promise& promise) {
  for (const auto& [name, hash] : promise.named) {
    const uint64_t found = HashOfFile(tree, InRoot(name));
    if (found == 0) return absl::StrCat("lost: ", name, " was acknowledged");
    if (hash != 0 && found != hash) return absl::StrCat("torn: ", name, " was acknowledged with other bytes");
  }
  for (const std::string& name : promise.gone) {
    if (Find(tree, InRoot(name)) != 0) return absl::StrCat("back: the deletion of ", name, " was acknowledged");
  }
  return "";
}

// All names below the store whose inode has not its final content.
std::string TornName(const Tree& tree, InodeId directory, const std::string& path, const Finals& finals) {
  for (const auto& [name, target] : tree.at(directory).entries) {
    if (IsTemporaryName(name)) continue;
    const std::string here = absl::StrCat(path, "/", name);
    if (tree.at(target).type == FileType::kDirectory) {
      std::string torn = TornName(tree, target, here, finals);
      if (!torn.empty()) return torn;
      continue;
    }
    const auto whole = finals.find(target);
    if (whole != finals.end() && sim::ContentHash(tree.at(target)) != whole->second) {
      return absl::StrCat("torn: ", here, " has its name before its bytes");
    }
  }
  return "";
}

struct StepNames {
  std::set<std::pair<Rank, uint32_t>> images;
  std::set<Rank> sidecars;
  uint32_t world = 0;
  bool manifest = false;
};

StepNames NamesOf(const Inode& step) {
  StepNames names;
  for (const auto& [name, target] : step.entries) {
    names.manifest = names.manifest || name == kManifestName;
    const auto file = ParseRankFileName(name);
    if (!file) continue;
    names.world = file->world;
    if (file->sidecar) names.sidecars.insert(file->rank);
    if (!file->sidecar) names.images.insert({file->rank, file->image});
  }
  return names;
}

std::string WrongStep(const Inode& step, const std::string& path) {
  const StepNames names = NamesOf(step);
  for (const Rank rank : names.sidecars) {
    for (uint32_t image = 0; image < ImagesPerRank(names.world); ++image) {
      if (!names.images.contains({rank, image})) {
        return absl::StrCat("unfounded: ", path, " has the sidecar of rank ", rank, " and not its image");
      }
    }
  }
  const bool whole = names.world != 0 && names.sidecars.size() == names.world;
  return names.manifest && !whole ? absl::StrCat("unfounded: ", path, " has a manifest and not every sidecar") : "";
}

std::string WrongImage(const Tree& tree, const Inode& step, const SnapshotId& id, const std::string& spared) {
  for (const auto& [name, target] : step.entries) {
    const auto file = ParseRankFileName(name);
    if (!file || file->sidecar || InStep(kJob, id, name) == spared) continue;
    if (sim::ContentHash(tree.at(target)) == HashOfImage(id, file->rank, file->world, file->image)) continue;
    return absl::StrCat("R1: ", InStep(kJob, id, name), " has its name and holds other bytes");
  }
  return "";
}

// fn(directory, id) for each step of the job, until it says something.
template <typename Fn>
std::string EachStep(const Tree& tree, Fn fn) {
  const InodeId job = Find(tree, InRoot(kJob));
  if (job == 0) return "";
  for (const auto& [name, target] : tree.at(job).entries) {
    const auto id = ParseStepDirectoryName(name);
    if (!id) continue;
    std::string wrong = fn(tree.at(target), *id);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

uint64_t HashOfFile(const Tree& tree, const std::string& path) {
  const InodeId id = Find(tree, path);
  return id == 0 ? 0 : sim::ContentHash(tree.at(id));
}

uint64_t HashOfDisk(const Tree& tree) {
  return sim::HashOf(tree, [](const std::string& name) { return IsTemporaryName(name); });
}

Finals FinalsOf(const Tree& tree) {
  Finals finals;
  for (const auto& [id, inode] : tree) {
    if (inode->type != FileType::kDirectory) finals[id] = sim::ContentHash(*inode);
  }
  return finals;
}

std::string WrongNames(const Tree& tree, const Finals& finals, const Promise& promise) {
  std::string wrong = WrongPromise(tree, promise);
  const InodeId store = Find(tree, kRoot);
  if (wrong.empty() && store != 0) wrong = TornName(tree, store, "", finals);
  if (!wrong.empty()) return wrong;
  return EachStep(tree, [](const Inode& step, const SnapshotId& id) { return WrongStep(step, StepPath(kJob, id)); });
}

std::string WrongSteps(const Tree& tree, const std::string& spared) {
  return EachStep(tree, [&](const Inode& step, const SnapshotId& id) {
    if (!step.entries.contains(kManifestName)) return std::string();
    std::string wrong = WrongStep(step, StepPath(kJob, id));
    return wrong.empty() ? WrongImage(tree, step, id, spared) : wrong;
  });
}

std::string WrongImages(const Tree& tree) {
  return EachStep(tree, [&](const Inode& step, const SnapshotId& id) { return WrongImage(tree, step, id, ""); });
}

}  // namespace ckptd::crash

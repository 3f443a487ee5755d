#include "tests/crash/crash_mutants.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/storage/testing/store_around.h"

namespace ckptd::crash {
namespace {

std::string InDirectoryOf(const std::string& name, const char* other) {
  return absl::StrCat(name.substr(0, name.rfind('/') + 1), other);
}
bool IsManifest(absl::string_view name) { return absl::EndsWith(name, kManifestName); }
bool IsMarker(absl::string_view name) { return absl::EndsWith(name, kDeletingName); }
bool IsSidecar(absl::string_view name) {
  const auto file = ParseRankFileName(name.substr(name.rfind('/') + 1));
  return file && file->sidecar;
}

// Images say that they are durable and get their names only after the next record that `trigger` knows.
class LateImages final : public StoreAround {
 public:
  LateImages(Store& inner, bool (*trigger)(absl::string_view)) : StoreAround(inner), trigger_(trigger) {}

  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name, uint64_t size) override {
    CKPTD_ASSIGN_OR_RETURN(auto writer, inner_.OpenForWrite(name, size));
    return std::make_unique<Writer>(std::move(writer), late_);
  }
  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    absl::Status status = inner_.CreateExclusive(name, bytes);
    if (!trigger_(name)) return status;
    for (auto& writer : std::exchange(late_, {})) (void)writer->Finish();
    return status;
  }

 private:
  struct Writer final : WriterAround {
    Writer(std::unique_ptr<PartWriter> inner, std::vector<std::unique_ptr<PartWriter>>& late)
        : WriterAround(std::move(inner)), late(late) {}
    absl::Status Finish() override {
      late.push_back(std::move(inner_));
      return absl::OkStatus();
    }
    std::vector<std::unique_ptr<PartWriter>>& late;
  };
  bool (*trigger_)(absl::string_view);
  std::vector<std::unique_ptr<PartWriter>> late_;
};

// Sidecars are readable at once, and reach the disk only after the manifest.
class LateSidecars final : public StoreAround {
 public:
  using StoreAround::StoreAround;

  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    if (IsSidecar(name)) {
      late_[name] = std::string(bytes);
      return absl::OkStatus();
    }
    absl::Status status = inner_.CreateExclusive(name, bytes);
    if (!IsManifest(name)) return status;
    for (const auto& [late, text] : std::exchange(late_, {})) (void)inner_.CreateExclusive(late, text);
    return status;
  }
  absl::StatusOr<std::string> ReadSmall(const std::string& name, size_t max_bytes) override {
    const auto late = late_.find(name);
    return late != late_.end() ? late->second : inner_.ReadSmall(name, max_bytes);
  }
  absl::StatusOr<std::vector<DirEntry>> List(const std::string& directory) override {
    CKPTD_ASSIGN_OR_RETURN(auto entries, inner_.List(directory));
    for (const auto& [name, text] : late_) {
      if (name.substr(0, name.rfind('/')) != directory) continue;
      entries.push_back({name.substr(name.rfind('/') + 1), FileType::kRegular});
    }
    return entries;
  }

 private:
  std::map<std::string, std::string> late_;
};

// Records are written under their final name, or get it before their bytes are durable.
class RashRecords final : public StoreAround {
 public:
  RashRecords(Store& inner, Files& files, bool temporary) : StoreAround(inner), files_(files), temporary_(temporary) {}

  absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) override {
    CKPTD_RETURN_IF_ERROR(MakeDirectory(name));
    const std::string path = absl::StrCat(kRoot, "/", name);
    const std::string first = temporary_ ? absl::StrCat(ParentOf(path), "/.tmp-rash-", RandomId()) : path;
    CKPTD_ASSIGN_OR_RETURN(auto file, files_.Open(first, {.write = true, .create = true}));
    absl::Status status = file->PWrite(0, std::as_bytes(std::span(bytes.data(), bytes.size())));
    if (temporary_) {
      status.Update(files_.Link(first, path));
      (void)files_.Unlink(first);
    }
    status.Update(file->Sync());
    status.Update(files_.SyncDir(ParentOf(path)));
    return status;
  }

 private:
  // As the real store makes it, for a part that is then dropped.
  absl::Status MakeDirectory(const std::string& name) { return inner_.OpenForWrite(name, 0).status(); }

  Files& files_;
  const bool temporary_;
};

// Goes on from what it finds without an fsync of its own.
class Credulous final : public StoreAround {
 public:
  using StoreAround::StoreAround;
  absl::Status Confirm(const std::string&) override { return absl::OkStatus(); }
};

// Deletion whose manifest goes last, or whose marker goes first.
class RashDeletion final : public StoreAround {
 public:
  RashDeletion(Store& inner, bool manifest_last) : StoreAround(inner), manifest_last_(manifest_last) {}

  absl::Status Delete(const std::string& name) override {
    if (manifest_last_ && IsManifest(name)) return absl::OkStatus();
    if (manifest_last_ && IsMarker(name)) CKPTD_RETURN_IF_ERROR(inner_.Delete(InDirectoryOf(name, kManifestName)));
    if (!manifest_last_ && IsManifest(name)) CKPTD_RETURN_IF_ERROR(inner_.Delete(InDirectoryOf(name, kDeletingName)));
    return inner_.Delete(name);
  }

 private:
  const bool manifest_last_;
};

Mutant Order(std::string name, std::function<std::unique_ptr<Store>(Store&, Files&)> around) {
  Mutant mutant;
  mutant.name = std::move(name);
  mutant.around = std::move(around);
  return mutant;
}

Mutant Rule(std::string name, bool job::Rules::*rule) {
  Mutant mutant;
  mutant.name = std::move(name);
  mutant.rules = [rule](job::Rules& rules) { rules.*rule = false; };
  return mutant;
}

}  // namespace

std::vector<Mutant> SyncMutants() {
  std::set<std::string> classes;
  for (const Workload& workload : Workloads()) {
    for (size_t i = 0; i < workload.runs; i += 7) {
      const auto run = workload.make(i);
      if (run == nullptr) continue;
      for (const auto& [name, numbers] : SyncClasses(run->files, 0)) classes.insert(name);
    }
  }
  std::vector<Mutant> mutants;
  for (const std::string& name : classes) {
    mutants.emplace_back().name = absl::StrCat("fsync: ", name);
    mutants.back().sync = name;
  }
  return mutants;
}

std::vector<Mutant> OrderMutants() {
  Mutant credulous = Order("a record that is found is made durable",
                           [](Store& inner, Files&) { return std::make_unique<Credulous>(inner); });
  credulous.where = "agent killed, then power";
  Mutant late_record = Rule("attempt record before listing", &job::Rules::record_before_listing);
  late_record.where = "two agents";  // in few of its orders
  Mutant replace;
  replace.name = "names are created exclusively";
  replace.replace = true;
  return {
      replace,
      Order("a record has its bytes before its name",
            [](Store& inner, Files& files) { return std::make_unique<RashRecords>(inner, files, false); }),
      Order("a record is synced before its name",
            [](Store& inner, Files& files) { return std::make_unique<RashRecords>(inner, files, true); }),
      Order("sidecar after images",
            [](Store& inner, Files&) { return std::make_unique<LateImages>(inner, IsSidecar); }),
      Order("manifest after images",
            [](Store& inner, Files&) { return std::make_unique<LateImages>(inner, IsManifest); }),
      Order("manifest after sidecars", [](Store& inner, Files&) { return std::make_unique<LateSidecars>(inner); }),
      Order("deletion: manifest before files",
            [](Store& inner, Files&) { return std::make_unique<RashDeletion>(inner, true); }),
      Order("deletion: marker after files",
            [](Store& inner, Files&) { return std::make_unique<RashDeletion>(inner, false); }),
      credulous,
      Rule("deletion: successor re-read", &job::Rules::verify_before_delete),
      Rule("deletion: marker", &job::Rules::deletion_marker),
      Rule("deletion: still newest after the marker", &job::Rules::check_after_marker),
      Rule("listing skips what is being deleted", &job::Rules::listing_skips_marked),
      Rule("commit: still newest after the manifest", &job::Rules::newest_check_after_manifest),
      late_record,
      Rule("lineage, not the highest number", &job::Rules::lineage_not_number),
  };
}

Caught Hunt(const Mutant& mutant, bool names) {
  const size_t states = mutant.where.empty() ? 400 : 5000;
  Caught caught;
  for (const Workload& workload : Workloads(mutant)) {
    if (!mutant.where.empty() && workload.name != mutant.where) continue;
    const Tally tally = Explore(workload, {.states = states, .names = names});
    caught.tally.tried += tally.tried;
    caught.tally.distinct += tally.distinct;
    if (tally.violations == 0) continue;
    caught.workload = workload.name;
    caught.tally.violations = tally.violations;
    caught.tally.first = tally.first;
    break;
  }
  return caught;
}

}  // namespace ckptd::crash

#include "tests/crash/crash_explore.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ckptd::crash {
namespace {

// What came of one disk. The next disk like it is only held against its own promise.
struct Verdict {
  absl::Status status;
  SnapshotId id;
  std::string wrong;
};
using Verdicts = std::unordered_map<uint64_t, Verdict>;

std::string Broken(const Verdict& verdict, const Promise& promise) {
  if (!promise.broken.empty()) return promise.broken;
  if (!verdict.wrong.empty()) return verdict.wrong;
  if (!verdict.status.ok()) return absl::StrCat("R2: restore() refuses: ", verdict.status.message());
  const std::string gave = absl::StrCat("restore() gave ", ToString(verdict.id));
  if (promise.exact && verdict.id != promise.least) {
    return absl::StrCat("R7: ", gave, ", before the crash in its midst it was ", ToString(promise.least));
  }
  if (verdict.id < promise.least) return absl::StrCat("R2: ", gave, ", ", ToString(promise.least), " was durable");
  if (promise.undone.contains(verdict.id)) return absl::StrCat("R2: ", gave, ", which was rolled back");
  return "";
}

class Explorer {
 public:
  Explorer(const Run& run, const Share& share, size_t quota, Verdicts& known, Tally& tally)
      : run_(run), share_(share), quota_(quota), known_(known), tally_(tally), finals_(FinalsOf(run.files.live())) {
    if (!run.spared.empty()) std::erase_if(finals_, [&](const auto& f) { return f.second == SparedHash(); });
  }

  void Explore() {
    const uint64_t before = tally_.distinct;
    for (uint64_t round = 0; round < kRounds && !Enough(before); ++round) {
      const uint64_t distinct = tally_.distinct;
      Round(round, before);
      if (tally_.distinct == distinct && round >= kAtLeast) return;  // no new ones come up any more
    }
  }

 private:
  static constexpr uint64_t kRounds = 4096;
  static constexpr uint64_t kAtLeast = 4;
  static constexpr uint64_t kSeeds = 4;      // a round
  static constexpr size_t kExhaustive = 12;  // uncertain pieces

  [[nodiscard]] uint64_t SparedHash() const {
    return HashOfFile(run_.files.live(), absl::StrCat(kRoot, "/", run_.spared));
  }
  [[nodiscard]] bool Enough(uint64_t before) const {
    return tally_.distinct - before >= quota_ || (share_.stop_at_violation && tally_.violations != 0);
  }

  void Round(uint64_t round, uint64_t before) {
    sim::Disk disk(run_.files.base());
    Ledger::Walk walk(run_.ledger);
    const auto& log = run_.files.log();
    for (size_t op = 0; op <= log.size() && !Enough(before); ++op) {
      if (op > 0) disk.Play(log[op - 1]);
      const Promise& promise = walk.At(op);
      if (op < run_.first_op) continue;
      const size_t pieces = disk.Uncertain();
      for (uint64_t seed = round * kSeeds; seed < (round + 1) * kSeeds; ++seed) {
        const bool few = pieces <= kExhaustive;
        if (few && seed >= uint64_t{1} << pieces) break;
        Look(disk.Fail(few ? sim::Lot::Subset(seed) : sim::Lot(seed)), promise, op);
      }
    }
  }

  void Look(sim::Tree disk, const Promise& promise, size_t op) {
    const uint64_t hash = HashOfDisk(disk);
    if (hash % share_.parts != share_.part) return;
    ++tally_.tried;
    std::string wrong = WrongNames(disk, finals_, promise);
    if (wrong.empty()) wrong = Broken(VerdictOn(hash, std::move(disk)), promise);
    if (wrong.empty()) return;
    if (tally_.violations++ == 0) tally_.first = absl::StrCat(wrong, " [power fails after ", After(op), "]");
  }

  const Verdict& VerdictOn(uint64_t hash, sim::Tree disk) {
    const auto [found, fresh] = known_.try_emplace(hash);
    if (fresh) {
      ++tally_.distinct;
      Recovered recovered = Recover(std::move(disk), run_.recovery, run_.spared);
      found->second = {std::move(recovered.status), recovered.id, std::move(recovered.wrong)};
    }
    return found->second;
  }

  [[nodiscard]] std::string After(size_t op) const { return op == 0 ? "nothing" : run_.files.OpName(op - 1); }

  const Run& run_;
  const Share share_;
  const size_t quota_;
  Verdicts& known_;
  Tally& tally_;
  Finals finals_;
};

}  // namespace

Recovered Recover(sim::Tree disk, const NodeOptions& options, const std::string& spared) {
  Recovered recovered{{}, {}, {}, SimFiles(std::move(disk))};
  Memory memory;
  Node node(recovered.files, memory, options, nullptr);
  recovered.status = node.Restore();
  recovered.id = node.parent();
  recovered.wrong = node.wrong();
  if (!recovered.status.ok() || !recovered.wrong.empty()) return recovered;
  node.Drain();
  recovered.wrong = WrongSteps(recovered.files.live(), spared);
  SimFiles again = recovered.files.CrashImage(recovered.files.OpCount(), 0);
  Memory nothing;
  Node second(again, nothing, options, nullptr);
  const absl::Status status = second.Restore();
  if (recovered.wrong.empty()) recovered.wrong = second.wrong();
  if (!recovered.wrong.empty() || (status.ok() && second.parent() == recovered.id)) return recovered;
  recovered.wrong = absl::StrCat("R7: restore() gave ", ToString(recovered.id), ", the next one ",
                                 status.ok() ? ToString(second.parent()) : std::string(status.message()));
  return recovered;
}

Tally Explore(const Workload& workload, const Share& share) {
  Tally tally;
  Verdicts known;
  for (size_t i = 0; i < workload.runs; ++i) {
    if (tally.distinct >= share.states || (share.stop_at_violation && tally.violations != 0)) break;
    const std::unique_ptr<Run> run = workload.make(i);
    const size_t quota = (share.states - tally.distinct + workload.runs - i - 1) / (workload.runs - i);
    if (run != nullptr) Explorer(*run, share, quota, known, tally).Explore();
  }
  return tally;
}

}  // namespace ckptd::crash

#include "tests/crash/crash_explore.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ckptd::crash {
namespace {

// What came of one disk. The next disk like it is only held against its own promise.
struct Verdicts {
  std::unordered_map<uint64_t, Answer> first;
  SecondAnswers second;
};

class Explorer {
 public:
  Explorer(const Run& run, const Share& share, size_t quota, Verdicts& known, Tally& tally)
      : run_(run), share_(share), quota_(quota), known_(known), tally_(tally), finals_(FinalsOf(run.files.live())) {
    if (!run.spared.empty()) std::erase_if(finals_, [&](const auto& f) { return f.second == SparedHash(); });
  }

  void Explore() {
    const uint64_t before = tally_.distinct;
    const size_t moments = run_.files.OpCount() + 1 - run_.first_op;
    const uint64_t stride = std::max<uint64_t>(1, moments / std::max<size_t>(1, quota_));
    for (uint64_t round = 0; round < kRounds * stride && !Enough(before); round += kSpell * stride) {
      const Tally begin = tally_;
      for (uint64_t i = 0; i < kSpell * stride && !Enough(before); ++i) Round(round + i, stride);
      if ((tally_.distinct - begin.distinct) * kRare < tally_.tried - begin.tried) return;
    }
  }

 private:
  static constexpr uint64_t kRounds = 1 << 14;
  // Where fewer than one disk of kRare in a spell of rounds is new, the states are another run's or workload's.
  static constexpr uint64_t kSpell = 6;
  static constexpr uint64_t kRare = 32;
  static constexpr size_t kExhaustive = 12;  // uncertain pieces

  [[nodiscard]] uint64_t SparedHash() const {
    return HashOfFile(run_.files.live(), absl::StrCat(kRoot, "/", run_.spared));
  }
  [[nodiscard]] bool Enough(uint64_t before) const {
    return tally_.distinct - before >= quota_ || tally_.violations != 0;
  }

  // One disk at every moment of the log, or at every `stride`-th, where many runs share the states.
  void Round(uint64_t round, uint64_t stride) {
    sim::Disk disk(run_.files.base());
    Ledger::Walk walk(run_.ledger);
    const auto& log = run_.files.log();
    const uint64_t seed = round / stride;
    for (size_t op = 0; op <= log.size(); ++op) {
      if (op > 0) disk.Play(log[op - 1]);
      if (op < run_.first_op || (op + round + 7 * run_.number) % stride != 0) continue;
      const bool few = disk.Uncertain() <= kExhaustive;
      if (few && seed >= uint64_t{1} << disk.Uncertain()) continue;
      Look(disk.Fail(few ? sim::Lot::Subset(seed) : sim::Lot(seed)), walk.At(op), op);
      if (tally_.violations != 0) return;
    }
  }

  void Look(sim::Tree disk, const Promise& promise, size_t op) {
    const uint64_t hash = HashOfDisk(disk);
    if (hash % share_.parts != share_.part) return;
    ++tally_.tried;
    std::string wrong = share_.names ? WrongNames(disk, finals_, promise) : "";
    if (wrong.empty()) wrong = WrongAnswer(VerdictOn(hash, std::move(disk)), promise);
    if (wrong.empty()) return;
    if (tally_.violations++ == 0) {
      tally_.first = absl::StrCat(wrong, " [power fails after ", After(op), ", run ", run_.number, "]");
    }
  }

  const Answer& VerdictOn(uint64_t hash, sim::Tree disk) {
    const auto [found, fresh] = known_.first.try_emplace(hash);
    if (fresh) {
      ++tally_.distinct;
      found->second = Recover(std::move(disk), run_.recovery, run_.spared, known_.second);
      tally_.left = known_.second.size();
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

// So that what a recovery leaves depends on what it found alone.
constexpr uint64_t kIdsOfFirst = uint64_t{1} << 60;
constexpr uint64_t kIdsOfSecond = uint64_t{1} << 61;

NodeOptions WithIds(NodeOptions options, uint64_t ids) {
  options.ids = ids;
  return options;
}

const Answer& SecondAnswer(SimFiles disk, const NodeOptions& options, SecondAnswers& known) {
  const auto [found, fresh] = known.try_emplace(HashOfDisk(disk.live()));
  Answer& answer = found->second;
  if (!fresh) return answer;
  Memory nothing;
  Node node(disk, nothing, WithIds(options, kIdsOfSecond), nullptr);
  answer.status = node.Restore();
  answer.id = node.parent();
  answer.wrong = node.wrong();
  return answer;
}

}  // namespace

std::string WrongAnswer(const Answer& answer, const Promise& promise) {
  if (!promise.broken.empty()) return promise.broken;
  if (!answer.wrong.empty()) return answer.wrong;
  if (!answer.status.ok()) return absl::StrCat("R2: restore() refuses: ", answer.status.message());
  const std::string gave = absl::StrCat("restore() gave ", ToString(answer.id));
  if (promise.exact && answer.id != promise.least) {
    return absl::StrCat("R7: ", gave, ", before the crash in its midst it was ", ToString(promise.least));
  }
  if (answer.id < promise.Least()) return absl::StrCat("R2: ", gave, ", ", ToString(promise.least), " was durable");
  if (promise.undone.contains(answer.id)) return absl::StrCat("R2: ", gave, ", which was rolled back");
  return "";
}

Answer Recover(sim::Tree disk, const NodeOptions& options, const std::string& spared, SecondAnswers& seconds) {
  Answer recovered;
  SimFiles files(std::move(disk));
  Memory memory;
  Node node(files, memory, WithIds(options, kIdsOfFirst), nullptr);
  recovered.status = node.Restore();
  recovered.id = node.parent();
  recovered.wrong = node.wrong();
  if (!recovered.status.ok() || !recovered.wrong.empty()) return recovered;
  node.Drain();
  recovered.wrong = WrongSteps(files.live(), spared);
  if (!recovered.wrong.empty()) return recovered;
  const Answer& second = SecondAnswer(files.CrashImage(files.OpCount(), 0), options, seconds);
  recovered.wrong = second.wrong;
  if (!recovered.wrong.empty() || (second.status.ok() && second.id == recovered.id)) return recovered;
  recovered.wrong = absl::StrCat("R7: restore() gave ", ToString(recovered.id), ", the next one ",
                                 second.status.ok() ? ToString(second.id) : std::string(second.status.message()));
  return recovered;
}

Tally Explore(const Workload& workload, const Share& share) {
  const bool by_run = workload.runs >= 2 * share.parts;
  const size_t step = by_run ? share.parts : 1;
  Share of_run = share;
  if (by_run) of_run.part = 0, of_run.parts = 1;
  Tally tally;
  Verdicts known;
  for (size_t i = by_run ? share.part : 0; i < workload.runs; i += step) {
    if (tally.distinct >= share.states || tally.violations != 0) break;
    const std::unique_ptr<Run> run = workload.make(i);
    const size_t runs_left = (workload.runs - i + step - 1) / step;
    const size_t quota = (share.states - tally.distinct + runs_left - 1) / runs_left;
    if (run == nullptr) continue;
    run->number = i;
    Explorer(*run, of_run, quota, known, tally).Explore();
  }
  for (const auto& [hash, answer] : known.first) tally.disks.push_back(hash);
  return tally;
}

}  // namespace ckptd::crash

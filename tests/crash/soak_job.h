// A job of the soak: its ranks, and a ledger of what it was told about its steps, against which each restore is judged.
//
//   R1  what is restored is whole: the trainer compares every element and ends with 1 when one is wrong.
//   R2  no going back: a restore gives a step at or above the newest that was acknowledged. Acknowledged is what was
//       captured as long as the node's memory was never lost, else what was durable. After bytes were damaged it may
//       give an older one, at or above the newest durable step that was not hit, and only when it tells what it
//       skipped.
//   R7  restored again, the same: all ranks get one step, also after a restore that was killed.
#ifndef CKPTD_TESTS_CRASH_SOAK_JOB_H_
#define CKPTD_TESTS_CRASH_SOAK_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/harness.h"

namespace ckptd::harness {

class SoakJob {
 public:
  SoakJob(Node& node, std::string name, int world) : node_(node), name_(std::move(name)), world_(world) {}

  // All ranks, and what they restore is judged. `want`: "newest" or a step.
  void Start(const std::string& want = "newest");
  void KillAll();  // and notes what they were told
  // Every rank saves again; with `durable`, and a save of each reaches the storage.
  void AwaitProgress(bool durable);

  // What happens to it. Each is forgotten when it was answered for: restored over, and a newer step is durable.
  void MemoryLost() { memory_lost_ = true; }
  void SlotDamaged();
  void ImageDamaged(uint64_t step);
  void Grows() { grow_at_ = grow_at_ == 0 ? captured_ + 40 : grow_at_; }  // once

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Child& rank(size_t index) { return *ranks_[index % ranks_.size()]; }
  [[nodiscard]] size_t world() const { return ranks_.size(); }
  // Acknowledged as durable on this lineage, and still there; oldest first.
  [[nodiscard]] std::vector<uint64_t> Durables();
  [[nodiscard]] std::string FolderOf(uint64_t step) const;  // "" = it has none
  void Removed(uint64_t step);
  [[nodiscard]] bool damaged() const { return damaged_; }
  [[nodiscard]] uint64_t restores() const { return restores_; }
  [[nodiscard]] uint64_t fallbacks() const { return fallbacks_; }
  [[nodiscard]] uint64_t durable() const { return durable_; }
  [[nodiscard]] uint64_t noted() const { return noted_; }  // acknowledgements

 private:
  bool AllRestored();
  void JudgeRestore(const std::string& want);
  void Hear() const;
  void Note();
  void Damage(uint64_t from, uint64_t to);
  [[nodiscard]] std::string History() const;

  Node& node_;
  const std::string name_;
  const int world_;
  std::vector<std::unique_ptr<Child>> ranks_;
  uint64_t captured_ = 0;  // newest acknowledged on this lineage
  uint64_t durable_ = 0;
  std::map<uint64_t, uint64_t> durables_;  // and their attempts
  uint64_t attempt_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> hit_;  // steps, from and to, that storage need not have any more
  uint64_t sure_ = 0;                               // newest durable that no damage has hit; counts while damaged_
  uint64_t damaged_at_ = 0;                         // captured_ then: what is durable above it was written later
  bool damaged_ = false;
  bool memory_lost_ = false;
  uint64_t grow_at_ = 0;
  uint64_t starts_ = 0;
  uint64_t restores_ = 0;
  uint64_t fallbacks_ = 0;
  uint64_t noted_ = 0;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_CRASH_SOAK_JOB_H_

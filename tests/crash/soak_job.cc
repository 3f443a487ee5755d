#include "tests/crash/soak_job.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sstream>

#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr Millis kRestore{kSanitized ? 90'000 : 40'000};
constexpr char kLine[] = " --every 5 --step-ms 8 --steps 100000000 --close-ms 0 --restore-ms 30000";

uint64_t Count(const Child& child, const std::string& prefix) {
  return static_cast<uint64_t>(std::count_if(child.lines().begin(), child.lines().end(), [&](const std::string& line) {
    return line.rfind(prefix + " ", 0) == 0;
  }));
}

}  // namespace

// An attempt that was rolled back may have had a step of the same number.
std::string SoakJob::FolderOf(uint64_t step) const {
  const auto known = durables_.find(step);
  if (known == durables_.end()) return "";
  char name[64];
  snprintf(name, sizeof name, "/step-%010lu.a%04lu", step, known->second);
  std::string folder = node_.storage() + "/" + name_ + name;
  return fs::exists(folder + "/manifest.json") ? folder : "";
}

std::vector<uint64_t> SoakJob::Durables() {
  Note();
  std::vector<uint64_t> steps;
  for (const auto& [step, attempt] : durables_) {
    if (!FolderOf(step).empty()) steps.push_back(step);
  }
  return steps;
}

void SoakJob::Start(const std::string& want) {
  ranks_.clear();
  std::string line = "--job " + name_ + " --world " + std::to_string(world_) + " --want " + want + kLine;
  if (grow_at_ != 0) line += " --grow-at " + std::to_string(grow_at_);
  line += " --meet " + node_.base() + "/" + name_ + "-" + std::to_string(++starts_);
  for (int rank = 0; rank < world_; ++rank)
    ranks_.push_back(node_.Train(Args(line + " --rank " + std::to_string(rank))));
  if (AllRestored()) return JudgeRestore(want);
  // It told why, and names what may be restored instead: only after damage.
  const bool told = !ranks_[0]->Errors().empty();
  const bool excused = damaged_ && told && want == "newest" && sure_ != 0;
  EXPECT_TRUE(excused) << "restore(" << want << ") failed: " << History();
  if (!excused) return;
  ++fallbacks_;
  Start(std::to_string(sure_));
}

bool SoakJob::AllRestored() {
  bool all = true;
  for (auto& rank : ranks_) all = rank->WaitFor("RESTORED", all ? kRestore : Millis(0)).has_value() && all;
  if (all) return true;
  for (auto& rank : ranks_) rank->Kill();
  return false;
}

void SoakJob::JudgeRestore(const std::string& want) {
  ++restores_;
  std::vector<uint64_t> steps;
  bool skipped = false;
  for (const auto& rank : ranks_) {
    for (const std::string& line : rank->lines()) {
      if (line.rfind("RESTORED", 0) == 0) steps.push_back(NumberField(line, "step"));
      if (line.rfind("RESTORED", 0) == 0) attempt_ = NumberField(line, "attempt");
      skipped = skipped || line.rfind("SKIPPED", 0) == 0;
    }
  }
  const uint64_t step = steps.front();
  for (const uint64_t other : steps) EXPECT_EQ(other, step) << "R7: ranks restored different steps: " << History();
  if (want != "newest") {
    EXPECT_EQ(std::to_string(step), want) << History();
    captured_ = durable_ = step;  // the user's roll-back stays
    durables_.erase(durables_.upper_bound(step), durables_.end());
    damaged_ = memory_lost_ = false;
    return;
  }
  const uint64_t owed = memory_lost_ ? durable_ : std::max(captured_, durable_);
  if (step < owed) {
    EXPECT_TRUE(damaged_ && skipped && step >= sure_)
        << "R2: step " << step << " restored, " << owed << " was acknowledged" << (damaged_ ? ", damaged" : "")
        << (skipped ? ", told" : ", not told") << ", sure " << sure_ << ": " << History();
    ++fallbacks_;
  }
  captured_ = std::max(step, memory_lost_ || damaged_ ? step : captured_);
  if (damaged_) durable_ = std::min(durable_, step);
  durables_.erase(durables_.upper_bound(captured_), durables_.end());
  memory_lost_ = false;
}

// All that was said so far: the ledger must not lag behind what is hit.
void SoakJob::Hear() const {
  for (const auto& rank : ranks_) {
    size_t known = 0;
    do {
      known = rank->lines().size();
      (void)rank->WaitFor("never", Millis(1));
    } while (rank->lines().size() != known);
  }
}

void SoakJob::Note() {
  Hear();
  for (const auto& rank : ranks_) {
    captured_ = std::max({captured_, rank->Last("CAPTURED"), rank->Last("DURABLE")});
    durable_ = std::max(durable_, rank->Last("DURABLE"));
    for (const std::string& line : rank->lines()) {
      if (line.rfind("DURABLE ", 0) != 0) continue;
      const uint64_t step = strtoull(line.c_str() + 8, nullptr, 10);
      const bool hit = std::any_of(hit_.begin(), hit_.end(),
                                   [&](const auto& range) { return step >= range.first && step <= range.second; });
      if (!hit) durables_[step] = attempt_;
    }
  }
  if (damaged_ && durable_ > damaged_at_) damaged_ = false;  // written from later fills
}

void SoakJob::KillAll() {
  for (auto& rank : ranks_) rank->Kill();
  for (auto& rank : ranks_) EXPECT_EQ(rank->Errors(), "") << name_ << ": R1: " << History();
  for (auto& rank : ranks_) noted_ += Count(*rank, "CAPTURED") + Count(*rank, "DURABLE");
  Note();
}

void SoakJob::AwaitProgress(bool durable) {
  Hear();
  for (auto& rank : ranks_) {
    const char* what = durable ? "DURABLE" : "CAPTURED";
    // Twice: the first may have been on its way before.
    for (int i = 0; i < 2; ++i)
      ASSERT_TRUE(rank->WaitFor(what, kRestore)) << name_ << ": no step is " << what << " any more: " << History();
  }
  Note();
}

void SoakJob::Removed(uint64_t step) {
  hit_.emplace_back(step, step);
  durables_.erase(step);
}

// Any slot: also one that is being filled or written to the storage, and the fills under way.
void SoakJob::SlotDamaged() {
  Note();
  Damage(durable_ + 1, captured_ + 200);
}

void SoakJob::ImageDamaged(uint64_t step) {
  Note();
  Damage(step, step);
}

void SoakJob::Damage(uint64_t from, uint64_t to) {
  hit_.emplace_back(from, to);
  durables_.erase(durables_.lower_bound(from), durables_.upper_bound(to));
  if (!damaged_) sure_ = durable_;
  if (sure_ >= from) sure_ = durables_.empty() ? 0 : durables_.rbegin()->first;
  damaged_at_ = std::max(captured_, to);
  damaged_ = true;
}

std::string SoakJob::History() const {
  Hear();
  std::string text = name_ + " captured " + std::to_string(captured_) + " durable " + std::to_string(durable_) + "\n";
  for (const auto& rank : ranks_) {
    text += rank->Errors();
    const size_t from = rank->lines().size() - std::min<size_t>(rank->lines().size(), 4);
    for (size_t i = 0; i < rank->lines().size(); ++i) {
      const std::string& line = rank->lines()[i];
      if (i >= from || line.rfind("RESTORED", 0) == 0 || line.rfind("SKIPPED", 0) == 0) text += line + "\n";
    }
  }
  std::istringstream all(node_.AgentLog());
  std::string log;
  for (std::string line; std::getline(all, line);) {
    if (line.find("job=") == line.npos || line.find("job=" + name_) != line.npos) log += line + "\n";
  }
  return text + log.substr(log.size() - std::min<size_t>(log.size(), 8000));
}

}  // namespace ckptd::harness

// At every step of a pull, everything that can befall the copier, the agent or both: killed, stopped for longer than
// the gate's deadline, and wrong in what they say and write. Training must go on to the state of an undisturbed run, no
// step held up beyond the deadline, one save lost at most; another session, and everything after, as if nothing was.
//
// The cells run beside each other, for they mostly wait.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <thread>

#include "tests/crash/pull_cell.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

constexpr size_t kBeside = kSanitized ? 6 : 17;

std::vector<std::string> PointsInSources() {
  std::vector<std::string> points;
  const std::regex pattern("CKPTD_COPIER_FP\\(\"([^\"]+)\"\\)");
  for (const auto& entry : std::filesystem::directory_iterator(CKPTD_SOURCE_DIR "/daemon/copier")) {
    if (entry.path().extension() != ".cc") continue;
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (std::sregex_iterator hit(text.begin(), text.end(), pattern), end; hit != end; ++hit)
      points.push_back((*hit)[1]);
  }
  return points;
}

std::vector<std::string> Steps() {
  std::vector<std::string> steps = PointsInSources();
  steps.emplace_back("idle");  // COPY is sent, and not read
  return steps;
}

// Before the gate there is one way less to be stuck: fewer blows are worth their time.
bool IsWorthItUnarmed(const CellPlan& plan) {
  const bool usual = plan.blow == Blow::kKillCopier || plan.blow == Blow::kStopCopier || plan.blow == Blow::kKillBoth ||
                     plan.blow == Blow::kScribbledGate;
  return usual && plan.point != "release";
}

bool Night() {
  const char* night = getenv("CKPTD_NIGHTLY");
  return night != nullptr && *night != '\0';
}

// All by night, every fourth one by day and under a sanitizer, other ones at each point.
size_t KeptOf() { return Night() && !kSanitized ? 1 : 4; }

void KeepOneOf(size_t share, size_t first, std::vector<CellPlan>* cells) {
  std::vector<CellPlan> kept;
  for (size_t i = first % share; i < cells->size(); i += share) kept.push_back((*cells)[i]);
  cells->swap(kept);
}

std::vector<CellPlan> CellsOf(const std::string& point) {
  std::vector<CellPlan> cells;
  for (const bool armed : {true, false}) {
    for (const Blow blow : kBlows) {
      // Only the copier that moves the capture word comes to that point; else both kinds of memory in turn.
      const bool vmm = point == "copy.complete" || (point.size() + static_cast<size_t>(blow)) % 2 == 0;
      const CellPlan plan = {point, blow, armed, vmm};
      if (armed || IsWorthItUnarmed(plan)) cells.push_back(plan);
    }
  }
  KeepOneOf(KeptOf(), point.size(), &cells);
  return cells;
}

std::vector<CellPlan> AllCells() {
  const char* only = getenv("CKPTD_CELL");  // a part of a cell's name
  std::vector<CellPlan> all;
  for (const std::string& point : Steps()) {
    for (const CellPlan& plan : CellsOf(point)) {
      if (only == nullptr || plan.name().find(only) != std::string::npos) all.push_back(plan);
    }
  }
  return all;
}

// What the cells of one step came to.
struct Tally {
  size_t ran = 0;
  size_t dropped = 0;
  Millis longest{0};

  void Add(const PullCell& cell) {
    ran += 1;
    dropped += cell.dropped() ? 1 : 0;
    longest = std::max(longest, cell.longest());
  }
};

TEST(PullMatrix, TrainingGoesOn) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
#endif
  const std::vector<CellPlan> cells = AllCells();
  std::mutex mutex;
  size_t next = 0;
  std::map<std::string, Tally> tallies;
  const auto work = [&] {
    for (;;) {
      std::unique_lock lock(mutex);
      if (next == cells.size()) return;
      const CellPlan& plan = cells[next++];
      lock.unlock();
      PullCell cell(plan);
      cell.Run();
      lock.lock();
      tallies[plan.point].Add(cell);
    }
  };
  std::vector<std::thread> workers;
  for (size_t i = 0; i < kBeside; ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  for (const auto& [point, tally] : tallies) {
    printf(
        "%s: %zu cells, %zu lost their save; the longest a step was held up: %ld ms, the gate's deadline is %ld ms\n",
        point.c_str(), tally.ran, tally.dropped, static_cast<long>(tally.longest.count()),
        static_cast<long>(PullCell::kGate.count()));
  }
}

TEST(PullMatrixSteps, AreFound) { EXPECT_GE(PointsInSources().size(), 13u); }

}  // namespace
}  // namespace ckptd::harness

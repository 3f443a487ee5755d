// A job whose ranks run on nodes that hold copies for each other. Storage is kept out of it by flush_every, so that a
// step can come from memory only.
#ifndef CKPTD_TESTS_INTEGRATION_COPIES_FIXTURE_H_
#define CKPTD_TESTS_INTEGRATION_COPIES_FIXTURE_H_

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cluster.h"

namespace ckptd::harness {

inline constexpr char kForever[] = "--every 5 --step-ms 5 --steps 100000";
inline constexpr uint64_t kRegion = 1;  // where a snapshot was read from
inline constexpr uint64_t kReplica = 2;
inline constexpr uint64_t kParity = 3;
inline constexpr uint64_t kStorage = 5;

inline const std::map<std::string, std::string>& MemoryOnly() {
  static const auto* const settings = new std::map<std::string, std::string>{{"agent.decide_timeout", Quoted("2s")},
                                                                             {"durability.flush_every", "1000000"}};
  return *settings;
}

// $CKPTD_NIGHTLY; tools/test sets it to nothing by day.
inline bool ByNight() {
  const char* night = std::getenv("CKPTD_NIGHTLY");
  return night != nullptr && *night != 0;
}

// Chunks of one capture that a holder had been sent when its step became the one to protect.
inline uint64_t MostEarly(const std::string& logs) {
  uint64_t most = 0;
  for (size_t at = logs.find("op=copy.early"); at != std::string::npos; at = logs.find("op=copy.early", at + 1))
    most = std::max(most, NumberField(logs.substr(at, logs.find('\n', at) - at), "chunks"));
  return most;
}

class CopiesTest : public testing::Test {
 protected:
  void Make(size_t nodes, std::map<std::string, std::string> settings = MemoryOnly()) {
    cluster_ = std::make_unique<Cluster>(ClusterOptions{nodes, std::move(settings), {}});
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  }
  // Until every rank was told of `steps` protected ones.
  Ranks TrainUntilProtected(const std::vector<size_t>& where, int steps = 2) {
    Ranks ranks = cluster_->Train(where, kForever);
    AwaitProtected(ranks, steps);
    return ranks;
  }
  void AwaitProtected(const Ranks& ranks, int steps) {
    for (const auto& rank : ranks) {
      for (int i = 0; i < steps; ++i) ASSERT_TRUE(rank->WaitFor("PROTECTED")) << rank->Errors() << cluster_->Logs();
    }
  }
  // As a machine that burns: agent, memory and what it was doing.
  void LoseNode(size_t number) {
    cluster_->node(number).KillAgent();
    cluster_->node(number).LoseRegion();
  }
  struct Rest {
    uint64_t step = 0;
    std::vector<uint64_t> sources;
    std::string skipped;  // what rank 0 heard of steps that were passed over
  };
  // On to step `steps`: all ranks restored one step, and the state at the end is the right one.
  Rest TrainToTheEnd(const std::vector<size_t>& where, uint64_t steps) {
    const std::string line = LineTo(steps);
    Ranks ranks = cluster_->Train(where, line);
    return Finish(ranks, where, line);
  }
  static std::string LineTo(uint64_t steps) {
    return "--every 5 --step-ms 5 --close-ms 0 --steps " + std::to_string(steps);
  }
  Rest Finish(const Ranks& ranks, const std::vector<size_t>& where, const std::string& line) {
    Rest rest;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const std::string restored = Restored(*ranks[i]);
      if (i == 0) rest.step = NumberField(restored, "step");
      EXPECT_EQ(NumberField(restored, "step"), rest.step) << "rank " << i << cluster_->Logs();
      rest.sources.push_back(NumberField(restored, "source"));
    }
    for (const std::string& said : ranks[0]->lines()) {
      if (said.rfind("SKIPPED", 0) == 0) rest.skipped += said + "\n";
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_EQ(ranks[i]->Wait(), 0) << "rank " << i << ": " << ranks[i]->Errors() << cluster_->Logs();
      EXPECT_EQ(ranks[i]->lines().back(),
                cluster_->node(where[i]).ExpectedDigest(
                    Args("--world " + std::to_string(where.size()) + " --rank " + std::to_string(i) + " " + line)));
    }
    return rest;
  }
  // The slots of what was read to restore are free for what is held next.
  void IsProtectedAgainAtOnceWithout(size_t ranks, size_t lost) {
    std::vector<size_t> where;
    for (size_t i = 0; i < ranks; ++i) where.push_back(i);
    Ranks running = TrainUntilProtected(where);
    if (HasFailure()) return;
    LoseNode(lost);
    KillAll(running);
    where[lost] = ranks;
    IsProtectedAgainAtOnce(where);
  }
  void IsProtectedAgainAtOnce(const std::vector<size_t>& where, const std::string& line = kForever) {
    Ranks running = cluster_->Train(where, line);
    for (const auto& rank : running) EXPECT_NE(NumberField(Restored(*rank), "source"), kStorage);
    const auto began = std::chrono::steady_clock::now();
    AwaitProtected(running, 4);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(8)) << cluster_->Logs();
    KillAll(running);
  }
  // Of a job with a rank on each of the first `ranks` nodes; `lost` is replaced by the next node.
  void ComesBackWithout(size_t ranks, size_t lost) {
    std::vector<size_t> where;
    for (size_t i = 0; i < ranks; ++i) where.push_back(i);
    Ranks running = TrainUntilProtected(where);
    if (HasFailure()) return;
    LoseNode(lost);
    KillAll(running);
    const uint64_t promised = LastOf(running, "PROTECTED");
    where[lost] = ranks;
    const Rest rest = TrainToTheEnd(where, LastOf(running, "STEP") + 30);
    EXPECT_GE(rest.step, promised) << cluster_->Logs();
    for (size_t i = 0; i < ranks; ++i)
      EXPECT_EQ(rest.sources[i], i == lost ? kReplica : kRegion) << "rank " << i << cluster_->Logs();
  }

  std::unique_ptr<Cluster> cluster_;
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_COPIES_FIXTURE_H_

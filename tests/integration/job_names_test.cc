// A node sees more jobs of one user than it keeps: short ones, each with a name of its own. What storage holds and
// nobody uses is forgotten, oldest first, and nobody is refused for it.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/harness.h"
#include "tests/integration/raw_holder.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostJobs = 1024;  // of a user
constexpr size_t kTogether = 8;

// A thousand small jobs sync some ten thousand files: the storage is memory, too.
class JobNames : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog(); }
  void TearDown() override { fs::remove_all(node_.storage()); }

  static NodeOptions Options() {
    char name[] = "/dev/shm/ckptd-names-XXXXXX";
    NodeOptions options;
    options.storage = mkdtemp(name);
    return options;
  }

  static std::string Name(size_t number) { return "run" + std::to_string(number); }

  // Where its state came from; it saves a step, waits until storage has it, and leaves.
  Source Train(size_t number) {
    RawHolder run(node_.socket(), Name(number), ++last_ticket_);
    const uint64_t step = run.load.snapshot_step + 1;
    EXPECT_TRUE(run.good() && run.Save(step) && run.AwaitDurable(step)) << Name(number) << "\n" << node_.AgentLog();
    run.Bye();
    return static_cast<Source>(run.load.source);
  }

  // Where its state comes from when it is started again. (It saves nothing: of a process that leaves a job and joins it
  // again the agent replaces slots, which a trainer by hand does not follow.)
  Source Rejoin(size_t number) {
    RawTrainer run(node_.socket());
    run.Join(Name(number), 0, 1, ++last_ticket_);
    const auto load = run.Await<LoadMessage>(MessageType::kLoad);
    EXPECT_EQ(load.snapshot_step, 1u) << Name(number) << "\n" << node_.AgentLog();
    run.Say(MessageType::kBye, ByeMessage{});
    return static_cast<Source>(load.source);
  }

  // Several at a time, each thread its own: a storage is asked for much at once.
  void TrainAll(size_t first, size_t end) {
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kTogether; ++thread) {
      threads.emplace_back([this, first, end, thread] {
        for (size_t run = first + thread; run < end; run += kTogether) Train(run);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  [[nodiscard]] std::set<std::string> InMemory() const {
    std::set<std::string> jobs;
    for (const auto& entry : fs::directory_iterator(node_.region() + "/r")) {
      if (entry.is_directory()) jobs.insert(entry.path().filename());
    }
    return jobs;
  }

  std::atomic<uint64_t> last_ticket_{0};
  Node node_{Options()};
};

TEST_F(JobNames, MoreThanAUserMayHaveOneAfterTheOther) {
  TrainAll(0, kMostJobs);
  ASSERT_EQ(InMemory().size(), kMostJobs);
  constexpr size_t kMore = 24;
  for (size_t run = kMostJobs; run < kMostJobs + kMore; ++run) EXPECT_EQ(Train(run), Source::kNone);
  EXPECT_EQ(InMemory().size(), kMostJobs);
  for (size_t run = kMostJobs - kMore; run < kMostJobs + kMore; ++run) EXPECT_TRUE(InMemory().contains(Name(run)));
  EXPECT_EQ(Rejoin(kMostJobs + 3), Source::kRegion) << "the newest are still in memory";
  // Their folders went in the order of their saves, which a few threads made.
  size_t forgotten = 0;
  while (InMemory().contains(Name(forgotten))) ++forgotten;
  EXPECT_LT(forgotten, kMore + kTogether);
  EXPECT_EQ(Rejoin(forgotten), Source::kStorage) << "what was forgotten is on storage";

  node_.KillAgent();
  ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
  const std::set<std::string> found = InMemory();
  EXPECT_EQ(found.size(), kMostJobs);
  EXPECT_EQ(Train(kMostJobs + kMore), Source::kNone) << "what an agent found counts, and may go";
  for (const std::string& job : found) {
    if (InMemory().contains(job)) continue;
    EXPECT_EQ(Rejoin(std::stoul(job.substr(3))), Source::kStorage) << "as if it had never been found: " << job;
    break;
  }
}

}  // namespace
}  // namespace ckptd::harness

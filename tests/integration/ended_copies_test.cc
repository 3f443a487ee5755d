// What nodes hold for each other of a job that has ended, and how it is given up by hand.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <regex>
#include <string>
#include <vector>

#include "tests/integration/copies_fixture.h"

namespace ckptd::harness {
namespace {

class EndedCopies : public CopiesTest {
 protected:
  std::vector<std::string> Held(size_t node, const std::string& what = "peer-") {
    return FilesWith(cluster_->node(node).region(), what);
  }

  // The last copies may be on their way when the trainers are killed: until what was captured is protected, and what
  // was not is given up by its holder, which waits a minute for its rest.
  [[nodiscard]] bool AwaitNoMoreCopies() {
    for (int i = 0; i < 900; ++i, usleep(100'000)) {
      const std::string status = cluster_->Ctl(0, "status").out;
      const std::string captured = StepBehind(status, "  captured ");
      const bool all = !captured.empty() && StepBehind(status, "  protected ") == captured;
      if (all && cluster_->Ctl(0, "gc trainer --force --dry-run").Has("would go")) return true;
    }
    return false;
  }

 private:
  // "20" of "  captured  step 20, 3 s ago".
  static std::string StepBehind(const std::string& status, const std::string& word) {
    std::smatch found;
    return std::regex_search(status, found, std::regex(word + " *step ([0-9]+)")) ? found[1].str() : "";
  }
};

// Two ranks, each with its copy on the other one's node; storage has nothing.
TEST_F(EndedCopies, GcSaysWhatIsLostAndFreesThemByForce) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  Ranks ranks = TrainUntilProtected({0, 1});
  const Said running = cluster_->Ctl(0, "gc trainer --force");
  EXPECT_TRUE(running.Has("the job is in use on this node")) << running;
  KillAll(ranks);
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("job      trainer  idle"); });
  ASSERT_TRUE(said.Has("job      trainer  idle")) << said;
  ASSERT_TRUE(AwaitNoMoreCopies()) << cluster_->Ctl(0, "status") << cluster_->Ctl(0, "gc trainer --force --dry-run");

  const Said kept = cluster_->Ctl(0, "gc trainer");
  EXPECT_EQ(kept.code, 0) << kept;
  EXPECT_TRUE(kept.Has("or, if it has ended, ckptctl gc trainer --force")) << kept;
  EXPECT_TRUE(cluster_->Ctl(0, "gc").Has("ckptctl gc trainer --force")) << "storage knows no step of it";
  EXPECT_EQ(cluster_->Ctl(0, "gc --force").code, 2);
  const Said dry = cluster_->Ctl(0, "gc trainer --force --dry-run");
  EXPECT_TRUE(dry.Has("would go")) << dry;
  EXPECT_FALSE(Held(0).empty());

  const Said freed = cluster_->Ctl(0, "gc trainer --force");
  EXPECT_EQ(freed.code, 0) << freed;
  EXPECT_TRUE(freed.Has("given up with it: step ")) << freed;
  EXPECT_TRUE(freed.Has("storage has no step of it")) << freed;
  EXPECT_THAT(Held(0), testing::IsEmpty());
  EXPECT_FALSE(Held(1).empty()) << "another node's";
  EXPECT_FALSE(cluster_->Ctl(0, "status -o json").Has("\"held\": [\n"));
  EXPECT_TRUE(cluster_->Ctl(1, "status -o json").Has("\"held\": [\n"));
  const Rest rest = TrainToTheEnd({0, 1}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED")) << cluster_->Logs();
}

// It has no rank of the job. What it holds is all that is left once the rank's node is lost, also after gc was asked.
TEST_F(EndedCopies, AHolderThatWasAskedStillGivesThemToARestart) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  Ranks ranks = TrainUntilProtected({0});
  KillAll(ranks);
  const size_t holder = Held(1).empty() ? 2 : 1;
  EXPECT_EQ(cluster_->Ctl(holder, "gc trainer").code, 0);
  LoseNode(0);
  const Rest rest = TrainToTheEnd({3 - holder}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED")) << cluster_->Logs();
  EXPECT_THAT(rest.sources, testing::ElementsAre(kReplica));
}

// It was no ended job after all: its coordinator hears that they are gone, and protects it anew.
TEST_F(EndedCopies, OfAJobThatRunsElsewhereTheyAreMadeAnew) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  Ranks ranks = TrainUntilProtected({0});
  ranks[0]->Signal(SIGSTOP);
  const size_t holder = Held(1).empty() ? 2 : 1;
  Said freed;
  for (int i = 0; i < 50 && !freed.Has("given up with it: step "); ++i) {  // until the last copy has come
    freed = cluster_->Ctl(holder, "gc trainer --force");
    usleep(100'000);
  }
  ASSERT_TRUE(freed.Has("given up with it: step ")) << freed;
  while (ranks[0]->WaitFor("STEP", Millis(200))) continue;  // what it said before
  const uint64_t before = LastOf(ranks, "STEP");
  ranks[0]->Signal(SIGCONT);
  while (LastOf(ranks, "PROTECTED") <= before) ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 1));
  LoseNode(0);
  KillAll(ranks);
  const Rest rest = TrainToTheEnd({3 - holder}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED")) << cluster_->Logs();
  EXPECT_THAT(rest.sources, testing::ElementsAre(kReplica));
}

TEST_F(EndedCopies, ParityIsGivenUpLikeCopies) {
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["peers.parity"] = "1";
  settings["peers.data"] = "2";
  ASSERT_NO_FATAL_FAILURE(Make(3, settings));
  Ranks ranks = TrainUntilProtected({0, 1, 2});
  KillAll(ranks);
  ASSERT_FALSE(Held(0, "parity-").empty());
  Said freed;
  for (int i = 0; i < 50 && !freed.Has("given up with it: step "); ++i) {
    freed = cluster_->Ctl(0, "gc trainer --force");
    usleep(100'000);
  }
  EXPECT_TRUE(freed.Has("given up with it: step ")) << freed;
  EXPECT_THAT(Held(0, "parity-"), testing::IsEmpty());
  const Rest rest = TrainToTheEnd({0, 1, 2}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED")) << cluster_->Logs();
}

}  // namespace
}  // namespace ckptd::harness

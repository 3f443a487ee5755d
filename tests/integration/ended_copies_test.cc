// What nodes hold for each other of a job that has ended, and how it is given up by hand.
#include <gmock/gmock.h>

#include "tests/integration/copies_fixture.h"

namespace ckptd::harness {
namespace {

class EndedCopies : public CopiesTest {
 protected:
  std::vector<std::string> Held(size_t node) { return FilesWith(cluster_->node(node).region(), "peer-"); }
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

}  // namespace
}  // namespace ckptd::harness

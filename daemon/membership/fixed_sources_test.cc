#include "daemon/membership/fixed_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/membership.h"

namespace ckptd::membership {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Self kFixedSelf = {"n2", "", 9465, {{"rack", "own"}}, 17};

Environment With(const std::map<std::string, std::string>& variables) {
  return [variables](absl::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

// What a Membership over the source shows once it is started.
struct Shows {
  std::vector<std::string> members;
  Standing self;
  int told = 0;
};

Shows ShownBy(absl::StatusOr<std::unique_ptr<Source>> source) {
  Shows shows;
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return shows;
  FakeClock clock;
  Membership membership(clock, *std::move(source));
  membership.Watch([&shows](const std::shared_ptr<const View>& view) {
    ++shows.told;
    for (const Member& member : view->members) {
      std::string text = absl::StrCat(member.name, "@", member.address);
      for (const auto& [key, value] : member.domains) absl::StrAppend(&text, " ", key, "=", value);
      shows.members.push_back(text);
    }
  });
  EXPECT_TRUE(membership.Start().ok());
  shows.self = membership.self();
  return shows;
}

TEST(StaticSource, ThisNodesOwnLabelsCountWhereTheListHasNone) {
  EXPECT_THAT(ShownBy(MakeStaticSource(kFixedSelf, "n1; n2")).members,
              ElementsAre("n1@n1:9465", "n2@n2:9465 rack=own"));
  EXPECT_THAT(ShownBy(MakeStaticSource(kFixedSelf, "n1; n2 rack=r5")).members,
              ElementsAre("n1@n1:9465", "n2@n2:9465 rack=r5"));
}

TEST(StaticSource, NothingConfiguredIsThisNodeAlone) {
  const Shows shows = ShownBy(MakeStaticSource(kFixedSelf, ""));
  EXPECT_THAT(shows.members, ElementsAre("n2@n2:9465 rack=own"));
  EXPECT_EQ(shows.told, 1);
  EXPECT_EQ(shows.self.name, "n2");
  EXPECT_EQ(shows.self.generation, 17U);
  EXPECT_TRUE(shows.self.status.ok());
}

TEST(StaticSource, GroupsWithDomainsPortsAndAddresses) {
  const Shows shows =
      ShownBy(MakeStaticSource(kFixedSelf, "n[1-2] rack=r1 zone=a; n3 rack=r2 port=80 ; login address=[fd00::9]:7;"));
  EXPECT_THAT(shows.members, ElementsAre("login@[fd00::9]:7", "n1@n1:9465 rack=r1 zone=a", "n2@n2:9465 rack=r1 zone=a",
                                         "n3@n3:80 rack=r2"));
}

TEST(StaticSource, WrongListsAreRefusedWithWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"n[1,3]", "this node, n2, is not among the 2 of peers.members"},
      {"n[1-2]; n2", "node n2 is listed twice"},
      {"n[1-2] address=x:1", "has 2 nodes and one address"},
      {"n1 address=x:1; n2 address=x:1", "nodes n1 and n2 have one address, x:1"},
      {"n2 port=0", "port 1 to 65535"},
      {"n2 rack", "label \"rack\""},
      {"n2 rack=1 rack=2", "given twice"},
      {"n2 address=x", "node n2: address \"x\""},
      {"n2 n3", "label \"n3\""},
      {"n[2", "hostlist \"n[2\""},
      {"a/b", "node name \"a/b\""},
      {"n[1-10000]; m", "stands for more than"},
  };
  for (const auto& [text, wrong] : cases) {
    const absl::Status status = MakeStaticSource(kFixedSelf, text).status();
    EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT) << text;
    EXPECT_THAT(status.message(), HasSubstr(wrong)) << text;
  }
}

TEST(StaticSource, AdmitsTheNewestIncarnationOfAMember) {
  FakeClock clock;
  Membership membership(clock, *MakeStaticSource(kFixedSelf, "n[1-2]"));
  ASSERT_TRUE(membership.Start().ok());
  EXPECT_TRUE(membership.Admit("n1", 4).ok());
  EXPECT_TRUE(membership.Admit("n1", 5).ok());
  EXPECT_EQ(CodeOf(membership.Admit("n1", 4)), ErrorCode::FENCED);
  const absl::Status stranger = membership.Admit("n9", 1);
  EXPECT_EQ(CodeOf(stranger), ErrorCode::NOT_FOUND);
  EXPECT_THAT(stranger.message(), HasSubstr("node n9 is not a member in view 1 of 2"));
}

TEST(SlurmSource, TheNodesOfTheJob) {
  const Shows shows = ShownBy(MakeSlurmSource(
      kFixedSelf, With({{"SLURM_JOB_NODELIST", "n[1-3]"}, {"SLURM_JOB_NUM_NODES", "3"}, {"SLURMD_NODENAME", "n3"}})));
  EXPECT_THAT(shows.members, ElementsAre("n1@n1:9465", "n2@n2:9465", "n3@n3:9465 rack=own"));
  EXPECT_EQ(shows.self.name, "n3");
}

TEST(SlurmSource, WithoutItsNameTheNodeCounts) {
  EXPECT_EQ(ShownBy(MakeSlurmSource(kFixedSelf, With({{"SLURM_NODELIST", "b,a,c"}, {"SLURM_NODEID", "1"}}))).self.name,
            "a");
}

TEST(SlurmSource, VariablesThatDoNotFitAreNamed) {
  using Variables = std::map<std::string, std::string>;
  const std::pair<Variables, const char*> cases[] = {
      {{}, "SLURM_JOB_NODELIST is not set: start ckptd inside the job (srun)"},
      {{{"SLURM_JOB_NODELIST", "a,b"}}, "neither SLURMD_NODENAME nor SLURM_NODEID is set"},
      {{{"SLURM_JOB_NODELIST", "a,b"}, {"SLURMD_NODENAME", "c"}}, "SLURMD_NODENAME is c, which is not in"},
      {{{"SLURM_JOB_NODELIST", "a,b"}, {"SLURM_NODEID", "2"}}, "SLURM_NODEID is 2: expected 0 to 1"},
      {{{"SLURM_JOB_NODELIST", "a,b"}, {"SLURM_NODEID", "-1"}}, "SLURM_NODEID is -1"},
      {{{"SLURM_JOB_NODELIST", "a,b"}, {"SLURM_JOB_NUM_NODES", "3"}}, "SLURM_JOB_NUM_NODES is 3, and"},
      {{{"SLURM_JOB_NODELIST", "a,a"}, {"SLURM_NODEID", "0"}}, "node a is listed twice"},
      {{{"SLURM_JOB_NODELIST", "a["}, {"SLURM_NODEID", "0"}}, "hostlist \"a[\""},
  };
  for (const auto& [variables, wrong] : cases) {
    const absl::Status status = MakeSlurmSource(kFixedSelf, With(variables)).status();
    EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT) << wrong;
    EXPECT_THAT(status.message(), HasSubstr(wrong));
  }
}

}  // namespace
}  // namespace ckptd::membership

#include "daemon/config/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Reload, LiveKeysAreTakenOverRestartKeysAreNamed) {
  auto reloaded =
      ReloadConfig(Config(), "agent.log_level = \"debug\"\nretention.keep_last = 5\nregion.slots = 4", "f", Config());
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_THAT(reloaded->applied, ElementsAre("agent.log_level", "retention.keep_last"));
  EXPECT_THAT(reloaded->need_restart, ElementsAre("region.slots"));
  EXPECT_EQ(reloaded->config.retention.keep_last, 5U);
  EXPECT_EQ(reloaded->config.region.slots, 2U);
}

TEST(Reload, AnErrorAppliesNothing) {
  EXPECT_FALSE(ReloadConfig(Config(), "retention.keep_last = 5\nregion.slots = 99", "f", Config()).ok());
}

TEST(Reload, AKeyThatLeftTheFileReturnsToItsDefault) {
  Config running;
  running.retention.keep_last = 7;
  auto reloaded = ReloadConfig(running, "", "f", Config());
  ASSERT_TRUE(reloaded.ok());
  EXPECT_THAT(reloaded->applied, ElementsAre("retention.keep_last"));
  EXPECT_EQ(reloaded->config, Config());
}

TEST(Reload, UnchangedFileChangesNothing) {
  auto reloaded = ReloadConfig(Config(), "retention.keep_last = 2", "f", Config());
  ASSERT_TRUE(reloaded.ok());
  EXPECT_THAT(reloaded->applied, IsEmpty());
  EXPECT_THAT(reloaded->need_restart, IsEmpty());
}

TEST(Reload, RestartKeysAreCheckedTogetherAndWait) {
  const char* fits = "region.size = \"4 GiB\"\nregion.job_quota = \"2 GiB\"";
  auto reloaded = ReloadConfig(Config(), fits, "f", Config());
  ASSERT_TRUE(reloaded.ok()) << reloaded.status();
  EXPECT_THAT(reloaded->need_restart, ElementsAre("region.size", "region.job_quota"));
  EXPECT_EQ(reloaded->config, Config());
  EXPECT_FALSE(ReloadConfig(Config(), "region.size = \"1 GiB\"\nregion.job_quota = \"2 GiB\"", "f", Config()).ok());
}

}  // namespace
}  // namespace ckptd

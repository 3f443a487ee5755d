#include "daemon/format/paths.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(Paths, NamesOfTheContract) {
  EXPECT_EQ(AttemptPath("gpt", 3), "gpt/attempts/a0003.json");
  EXPECT_EQ(DecisionPath("gpt", 3), "gpt/attempts/a0003.decided.json");
  EXPECT_EQ(StepPath("gpt", {3, 1000}), "gpt/step-0000001000.a0003");
  EXPECT_EQ(ImageFileName(0, 8, 0), "rank-00000-of-00008.safetensors");
  EXPECT_EQ(ImageFileName(0, 8, 1), "rank-00000-of-00008.part-01.safetensors");
  EXPECT_EQ(SidecarFileName(0, 8), "rank-00000-of-00008.json");
}

TEST(Paths, RoundTripBeyondThePadding) {
  for (AttemptId attempt : {AttemptId{1}, AttemptId{9999}, AttemptId{10000}, AttemptId{123456789}}) {
    EXPECT_EQ(ParseAttemptFileName(AttemptFileName(attempt)), attempt);
    EXPECT_EQ(ParseDecisionFileName(DecisionFileName(attempt)), attempt);
    for (StepId step : {StepId{0}, StepId{1000}, StepId{99999999999}}) {
      SnapshotId id{attempt, step};
      EXPECT_EQ(ParseStepDirectoryName(StepDirectoryName(id)), id);
    }
  }
  for (uint32_t image : {0u, 1u, 99u, 100u}) {
    EXPECT_EQ(ParseRankFileName(ImageFileName(7, 65536, image)), (RankFile{7, 65536, image, false}));
  }
  EXPECT_EQ(ParseRankFileName(SidecarFileName(7, 8)), (RankFile{7, 8, 0, true}));
}

TEST(Paths, NothingElseIsOurs) {
  for (const char* name : {"", "a3.json", "a00003.json", "a0003.json.tmp", "a0000.json", "b0003.json", "a0003.decided",
                           "a-003.json", "A0003.json", ".a0003.json", "a99999999999999999999.json"}) {
    EXPECT_FALSE(ParseAttemptFileName(name)) << name;
  }
  for (const char* name : {"step-1000.a0003", "step-00000001000.a0003", "step-0000001000.a0000", "step-0000001000",
                           "step-0000001000.a0003/", "step-0000001000.a0003 ", "../step-0000001000.a0003"}) {
    EXPECT_FALSE(ParseStepDirectoryName(name)) << name;
  }
  for (const char* name :
       {"rank-00008-of-00008.json", "rank-0-of-8.json", "rank-00000-of-00008.part-00.safetensors",
        "rank-00000-of-00008.safetensors.tmp", "rank-00000-of-00008.part-1.safetensors", "manifest.json"}) {
    EXPECT_FALSE(ParseRankFileName(name)) << name;
  }
}

}  // namespace
}  // namespace ckptd

#include "client/src/path_choice.h"

#include <gtest/gtest.h>

#include <random>

namespace ckptd {
namespace {

using Path = PathChoice::Path;
using Verdict = PathChoice::Verdict;

constexpr uint64_t kStep = 1'000'000;

// Training with steps of about kStep, four between two saves, where a save of a path makes two steps longer together.
struct Training {
  PathChoice choice;
  std::mt19937 random{7};
  double noise = 0.005;  // of a step

  uint64_t Steps(uint64_t count, double lost) {
    std::normal_distribution<double> step(1.0, noise);
    double all = lost;
    for (uint64_t i = 0; i < count; ++i) all += step(random);
    return static_cast<uint64_t>(all * kStep);
  }

  void Run(int saves, double push_loss, double pull_loss) {
    for (int i = 0; i < saves; ++i) {
      for (int step = 0; step < 4; ++step) choice.Idle(Steps(1, 0));
      Path path = choice.Next();
      pulled += path == Path::kPull ? 1 : 0;
      choice.Saved(path, 2, Steps(2, path == Path::kPull ? pull_loss : push_loss));
    }
  }

  int pulled = 0;
};

TEST(PathChoice, AlternatesUntilItKnows) {
  Training training;
  training.Run(40, 0.5, 0.1);
  EXPECT_EQ(training.choice.verdict(), Verdict::kOpen) << "the first saves had too few steps to compare with";
  EXPECT_GE(training.pulled, 19);
  training.Run(10, 0.5, 0.1);
  EXPECT_EQ(training.choice.verdict(), Verdict::kPull);
}

TEST(PathChoice, PullNeedsTwoPercentOfAStep) {
  Training little;
  little.Run(200, 0.050, 0.040);
  EXPECT_EQ(little.choice.verdict(), Verdict::kPush);
  Training enough;
  enough.Run(200, 0.080, 0.040);
  EXPECT_EQ(enough.choice.verdict(), Verdict::kPull);
}

TEST(PathChoice, WorseIsPushed) {
  Training training;
  training.Run(60, 0.01, 0.30);
  EXPECT_EQ(training.choice.verdict(), Verdict::kPush);
  int pulled = training.pulled;
  training.Run(100, 0.01, 0.30);
  EXPECT_EQ(training.pulled, pulled) << "nothing is pulled any more";
}

TEST(PathChoice, ChosenItStaysUntilHalfOfTheGainIsGone) {
  Training training;
  training.noise = 0.001;
  training.Run(60, 0.10, 0.05);
  ASSERT_EQ(training.choice.verdict(), Verdict::kPull);
  int pulled = training.pulled;
  training.Run(1000, 0.065, 0.05);  // 1.5 %: not enough to be chosen, enough to stay
  EXPECT_EQ(training.choice.verdict(), Verdict::kPull);
  EXPECT_EQ(training.pulled - pulled, 900) << "each tenth is pushed, to compare";
  training.Run(1000, 0.05, 0.05);
  EXPECT_EQ(training.choice.verdict(), Verdict::kPush);
}

TEST(PathChoice, TellsWhatItSaw) {
  Training training;
  training.noise = 1e-9;
  training.Run(60, 0.25, 0.125);
  EXPECT_NEAR(static_cast<double>(training.choice.loss_ppm(Path::kPush)), 250'000, 10);
  EXPECT_NEAR(static_cast<double>(training.choice.loss_ppm(Path::kPull)), 125'000, 10);
  EXPECT_GE(training.choice.samples(), PathChoice::kSamples);
  EXPECT_EQ(PathChoice().loss_ppm(Path::kPull), 0);
}

}  // namespace
}  // namespace ckptd

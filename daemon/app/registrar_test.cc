#include "daemon/app/registrar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Registrar::Who kA{1, "gpt", 0};
const Registrar::Who kB{2, "gpt", 1};
const Registrar::Who kC{3, "gpt", 2};

class RegistrarTest : public ::testing::Test {
 protected:
  RegistrarTest() : loop_(*Loop::Create(clock_, 16)), registrar_(*loop_, clock_) {}

  void Ask(const Registrar::Who& who, const std::string& name) {
    registrar_.WhenFree(who, [this, name] { gone_.push_back(name); });
  }
  // What went since the last call.
  std::vector<std::string> Went() {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(loop_->RunOnce(Nanos(0)).ok());
    return std::exchange(gone_, {});
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_;
  Registrar registrar_;
  std::vector<std::string> gone_;
};

TEST_F(RegistrarTest, OneAfterTheOther) {
  Ask(kA, "a");
  Ask(kB, "b");
  Ask(kC, "c");
  EXPECT_THAT(Went(), ElementsAre("a"));
  EXPECT_TRUE(registrar_.Waits(kB));
  registrar_.EndTurn(kA);
  EXPECT_THAT(gone_, IsEmpty()) << "not in the middle of what ended the turn";
  EXPECT_THAT(Went(), ElementsAre("b"));
  registrar_.ProcessEnded(2);
  EXPECT_THAT(Went(), ElementsAre("c"));
}

TEST_F(RegistrarTest, WhoTakesTooLongIsOvertaken) {
  Ask(kA, "a");
  Ask(kB, "b");
  EXPECT_THAT(Went(), ElementsAre("a"));
  clock_.Advance(PinTurns::kLongest - Nanos(1));
  EXPECT_THAT(Went(), IsEmpty());
  clock_.Advance(Nanos(1));
  EXPECT_THAT(Went(), ElementsAre("b"));
}

TEST_F(RegistrarTest, OfSeveralRequestsTheLastCounts) {
  Ask(kA, "a");
  Ask(kB, "old");
  Ask(kB, "new");
  Ask(kA, "a again");
  EXPECT_THAT(Went(), ElementsAre("a", "a again"));
  registrar_.Leave(kA);
  EXPECT_THAT(Went(), ElementsAre("new"));
  registrar_.Leave(kB);
  EXPECT_THAT(Went(), IsEmpty());
}

// Its turn came, and it could not be told.
TEST_F(RegistrarTest, WhoLeavesWithinItsTurnMakesRoom) {
  Ask(kA, "a");
  registrar_.WhenFree(kB, [this] { registrar_.Leave(kB); });
  Ask(kC, "c");
  registrar_.EndTurn(kA);
  EXPECT_THAT(Went(), ElementsAre("a", "c"));
}

}  // namespace
}  // namespace ckptd

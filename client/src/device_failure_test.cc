// Memory runs out on the copy thread of a trainer on a GPU: training goes on, and what the GPU may still write to
// stays.
#include "client/src/test_allocations.h"
#include "client/src/test_device.h"

namespace ckptd {
namespace {

using DeviceFailureTest = DeviceTest;

// In a process of its own: what is left behind there ends with it.
TEST_F(DeviceFailureTest, WithoutTheCopyThreadTrainingGoesOn) {
  if (!kAllocationsAreSeen) GTEST_SKIP() << "the sanitizer has operator new";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto lose_the_copy_thread = [&] {
    TestTrainer other(agent.socket(), 300 * kMs);
    trainer->Close(0);
    trainer->handle = std::exchange(other.handle, nullptr);
    MakeTensors({kMiB});
    Register();
    agent.Grant(0);
    FailAllocationOf("ckpt-copy");
    bool good = trainer->Save(1) == 0 && Gate() == 0;
    good = Eventually([&] { return trainer->Info().broken != 0; }) && good;
    good = Gate() == 0 && trainer->Poll(1).code == CKPT_E_INTERNAL && trainer->Save(2) == CKPT_E_INTERNAL && good;
    _exit(trainer->Close(kLong) == CKPT_E_DEVICE && good ? 7 : 1);
  };
  EXPECT_EXIT(lose_the_copy_thread(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace ckptd

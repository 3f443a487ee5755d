// Trainers that pull, or push, killed at random moments, with an agent that lives on: each time all that the device
// lent comes back, at once, and in the end nothing has grown.
//
// CKPTD_SEED replays a run's choices; CKPTD_KILLS changes how many (tools/test --nightly: 1000).
#include <cuda.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "absl/strings/str_join.h"
#include "tests/crash/pull_cell.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMemory = uint64_t{1} << 30;
constexpr Millis kAtOnce{1000};
constexpr int kSlower = kSanitized ? 3 : 1;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

// Whether 0.9 of the device can be had now, beside what all processes map of it.
bool HasRoom() {
  CUdeviceptr memory = 0;
  if (cuMemAlloc(&memory, kMemory / 10 * 9) != CUDA_SUCCESS) return false;
  cuMemFree(memory);
  return true;
}

// What processes hold of files of this name, by descriptor or mapping; `but` is left out.
std::vector<std::string> Holders(const std::string& file, pid_t but) {
  std::vector<std::string> found;
  std::error_code gone;
  for (const char* kind : {"fd", "map_files"}) {
    for (const auto& process : fs::directory_iterator("/proc", gone)) {
      if (process.path().filename() == std::to_string(but)) continue;
      for (const auto& entry : fs::directory_iterator(process.path() / kind, gone)) {
        const std::string target = fs::read_symlink(entry.path(), gone).string();
        if (target.find(file) != target.npos) found.push_back(entry.path().string() + " " + target);
      }
    }
  }
  return found;
}

class GpuDeaths : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::string name = "deaths-" + std::to_string(getpid());
    setenv("FAKECUDA_SHARED", name.c_str(), 1);
    setenv("FAKECUDA_MEMORY", std::to_string(kMemory).c_str(), 1);
    setenv("FAKECUDA_RATE", "20", 1);
    CUcontext context = nullptr;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPushCurrent(context), CUDA_SUCCESS);
  }

  void SetUp() override {
    seed_ = FromEnvironment("CKPTD_SEED", std::random_device{}());
    random_.seed(seed_);
    ASSERT_TRUE(node_.StartAgent({"LD_LIBRARY_PATH=" + BinaryDirectory() + "/../lib/fakecuda"})) << node_.AgentLog();
  }

  [[nodiscard]] static std::string Variable() { return std::string("FAKECUDA_SHARED=") + getenv("FAKECUDA_SHARED"); }
  int Among(int most) { return std::uniform_int_distribution<int>(0, most)(random_); }

  // 0.3 of the device are this trainer's: what stays of one is missed.
  void KillOne() {
    const char* path = Among(3) == 0 ? "push" : "pull";
    const char* kind = Among(1) == 0 ? "legacy" : "vmm";
    std::vector<std::string> argv = {BinaryDirectory() + "/ckpt-device-trainer", "--socket", node_.socket()};
    const std::string line =
        std::string(" --durable-ms 20000 --every 2 --step-ms 2 --tensors 4 --words 16384 --ballast ") +
        std::to_string(kMemory / 10 * 3) + " --path " + path + " --kind " + kind;
    for (const std::string& word : Args(line)) argv.push_back(word);
    Child trainer(Child::Spec{std::move(argv), {}, node_.base() + "/device.log"});
    if (Among(9) < 8) {
      trainer.WaitFor("RESTORED");
      trainer.WaitFor("never", Millis(Among(120) * kSlower));
    } else {
      trainer.WaitFor("never", Millis(Among(60) * kSlower));  // perhaps before it has begun
    }
    if (++trainers_ % 25 == 0) MakeDurable(trainer);
    captured_ += trainer.Last("CAPTURED") > 0 ? 1 : 0;
    pulled_ += trainer.Last("PULLED") > 0 ? 1 : 0;
    const int ended = trainer.Kill();
    EXPECT_TRUE(ended == -SIGKILL || (ended == 0 && trainers_ % 25 == 0)) << ended << trainer.Errors();
    EXPECT_EQ(trainer.Errors(), "") << "seed " << seed_;
    AwaitRoom();
  }

  // As a real job's steps are from time to time: attempts since the last durable step are remembered.
  void MakeDurable(Child& trainer) {
    trainer.WaitFor("CAPTURED");
    trainer.Signal(SIGUSR1);
    const std::string closed = trainer.WaitFor("CLOSED").value_or("it ended");
    durable_ += closed == "CLOSED OK" ? 1 : 0;
    if (closed != "CLOSED OK") printf("not durable: %s\n", closed.c_str());
  }

  void AwaitRoom() {
    const auto begin = std::chrono::steady_clock::now();
    const auto since = [&] { return std::chrono::duration_cast<Millis>(std::chrono::steady_clock::now() - begin); };
    while (!HasRoom() && since() < kLong) std::this_thread::sleep_for(Millis(1));
    longest_ = std::max(longest_, since());
    EXPECT_LE(since(), kAtOnce * kSlower) << "the device's memory is not back, seed " << seed_ << node_.AgentLog();
  }

  // The agent's descriptors but for those of slots: how many slots there are changes while one is being replaced.
  [[nodiscard]] std::vector<std::string> Descriptors() const {
    return DescriptorsOf(node_.agent()->pid(), node_.region());
  }

  struct Held {
    Usage usage;
    std::vector<std::string> descriptors;
    size_t files = 0;
  };

  // Flushes under way hold descriptors: the least of a second without a trainer.
  Held AtRest() {
    Held least{UsageOf(node_.agent()->pid()), Descriptors(), ListFiles(node_.region()).size()};
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(Millis(50));
      std::vector<std::string> now = Descriptors();
      if (now.size() < least.descriptors.size()) least.descriptors = std::move(now);
    }
    return least;
  }

  void ExpectNothingHeld() {
    EXPECT_EQ(ProcessesWith("ckptd-copier", Variable()), std::vector<pid_t>());
    EXPECT_EQ(Holders(std::string("fakecuda-") + getenv("FAKECUDA_SHARED"), 0), std::vector<std::string>());
    EXPECT_EQ(Holders(node_.region(), node_.agent()->pid()), std::vector<std::string>()) << "of slots";
    const std::string agents = std::to_string(node_.agent()->pid());
    for (const char* file : {"gate page", "ckptd-plan"}) {
      for (const std::string& holder : Holders(file, 0))
        EXPECT_EQ(holder.find("/" + agents + "/"), holder.npos) << holder;
    }
  }

  Node node_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  Millis longest_{0};
  int trainers_ = 0;
  int durable_ = 0;
  int captured_ = 0;
  int pulled_ = 0;
};

TEST_F(GpuDeaths, LeaveNothing) {
  const uint64_t kills = FromEnvironment("CKPTD_KILLS", 100);
  const uint64_t warm = std::min<uint64_t>(50, kills / 2);
  Held early;
  for (uint64_t i = 0; i < kills && !HasFailure(); ++i) {
    KillOne();
    if (i + 1 == warm) early = AtRest();
  }
  const Held late = AtRest();
  printf(
      "seed %lu: %lu deaths, %d after a capture, %d after a pull; 0.9 of the device could be had after %ld ms at "
      "most\n",
      seed_, kills, captured_, pulled_, static_cast<long>(longest_.count()));
  printf("after %lu and all: %zu and %zu descriptors, %lu and %lu threads, %lu and %lu KiB, %zu and %zu region files\n",
         warm, early.descriptors.size(), late.descriptors.size(), early.usage.threads, late.usage.threads,
         early.usage.anonymous_kib, late.usage.anonymous_kib, early.files, late.files);
  EXPECT_GT(captured_, static_cast<int>(kills / 4)) << "killed too early to prove anything";
  EXPECT_GT(pulled_, static_cast<int>(kills / 10)) << "killed too early to prove anything";
  ExpectNothingHeld();
  EXPECT_LE(late.descriptors.size(), early.descriptors.size())
      << absl::StrJoin(early.descriptors, "\n") << "\n---- and then\n"
      << absl::StrJoin(late.descriptors, "\n");
  EXPECT_LE(late.usage.threads, early.usage.threads);
  EXPECT_LE(late.files, early.files + 2);  // a slot that is being replaced has two files
  EXPECT_TRUE(kSanitized ||
              late.usage.anonymous_kib <= early.usage.anonymous_kib + 4096);  // a sanitizer's own memory grows
  EXPECT_EQ(node_.StopAgent(), 0);
  ExpectNothingLeftBehind(node_);
}

}  // namespace
}  // namespace ckptd::harness

// A trainer that waits for each capture and saves again at once. The agent may tell it of a capture before its own copy
// thread has seen that the copier is done: here that thread is stopped most of the time.
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr uint64_t kSaves = 100;
constexpr Millis kStopped(120);
constexpr Millis kRuns(7);

pid_t ThreadOf(pid_t pid, const std::string& name) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::string comm;
    std::getline(std::ifstream(entry.path() / "comm"), comm);
    if (comm == name) return std::stoi(entry.path().filename());
  }
  return 0;
}

// Stops one thread of a process again and again, until the process ends.
void Hinder(pid_t thread) {
  ASSERT_EQ(ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0) << strerror(errno);
  while (ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0) {
    int status = 0;
    if (waitpid(thread, &status, __WALL) != thread || !WIFSTOPPED(status)) return;
    std::this_thread::sleep_for(kStopped);
    if (ptrace(PTRACE_CONT, thread, nullptr, nullptr) != 0) return;
    std::this_thread::sleep_for(kRuns);
  }
}

TEST(PullLockstep, WhoIsToldOfACaptureMaySaveAgain) {
  setenv("FAKECUDA_SHARED", ("lockstep-" + std::to_string(getpid())).c_str(), 1);
  Node node({.region = "", .storage = "", .settings = {}});
  ASSERT_TRUE(node.StartAgent({"LD_LIBRARY_PATH=" + BinaryDirectory() + "/../lib/fakecuda"})) << node.AgentLog();
  std::vector<std::string> argv = {BinaryDirectory() + "/ckpt-device-trainer", "--socket", node.socket()};
  for (const std::string& word : Args("--lockstep 1 --every 1 --step-ms 0 --steps " + std::to_string(kSaves))) {
    argv.push_back(word);
  }
  Child trainer(Child::Spec{std::move(argv), {}, node.base() + "/device.log"});
  ASSERT_TRUE(trainer.WaitFor("PULLED", Millis(30'000))) << trainer.Errors() << node.AgentLog();
  ASSERT_NO_FATAL_FAILURE(Hinder(ThreadOf(trainer.pid(), "ckpt-copy")));
  EXPECT_EQ(trainer.Wait(), 0) << trainer.Errors();
  for (const std::string& line : trainer.lines()) EXPECT_EQ(line.find("BUSY"), line.npos) << line;
  printf("%lu of %lu saves pulled\n", trainer.Last("PULLED"), kSaves);
  EXPECT_GE(trainer.Last("PULLED"), kSaves / 5);
}

}  // namespace
}  // namespace ckptd::harness

// Copiers as the agent runs them: as whom, with what, how long. In the place of ckptd-copier stands a program that
// tells what it was given.
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/integration/harness.h"
#include "tests/integration/http.h"
#include "tests/integration/raw_trainer.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kUser = 61234;
constexpr gid_t kGroup = 61235;
constexpr gid_t kOtherGroup = 61236;

void ExpectSays(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected \"" << part << "\" in: " << text;
}

std::string NameOf(pid_t pid) {
  std::string name;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
  return name;
}

UniqueFd OpenPid(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

// A trainer of its own process, which asks for copiers of GPUs 1 to `gpus` and stays until it is killed.
class ForkedTrainer {
 public:
  ForkedTrainer(const Node& node, const std::string& job, uint8_t gpus, bool other_user = false) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) Run(node, job, gpus, other_user, ends[1]);
    close(ends[1]);
    from_ = UniqueFd(ends[0]);
    for (uint8_t gpu = 0; gpu < gpus; ++gpu) {
      uint32_t size = 0;
      EXPECT_TRUE(Readable(from_.get()));
      EXPECT_EQ(read(from_.get(), &size, sizeof size), static_cast<ssize_t>(sizeof size));
      std::string told(size, '\0');
      EXPECT_EQ(read(from_.get(), told.data(), size), static_cast<ssize_t>(size));
      told_.push_back(told);
    }
  }
  ~ForkedTrainer() { Kill(); }
  ForkedTrainer(const ForkedTrainer&) = delete;
  ForkedTrainer& operator=(const ForkedTrainer&) = delete;

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // What each copier told of itself.
  [[nodiscard]] const std::vector<std::string>& told() const { return told_; }

 private:
  [[noreturn]] static void Run(const Node& node, const std::string& job, uint8_t gpus, bool other_user, int to) {
    const gid_t groups[] = {kOtherGroup};
    if (other_user &&
        (setgroups(1, groups) != 0 || setresgid(kGroup, kGroup, kGroup) != 0 || setresuid(kUser, kUser, kUser) != 0)) {
      _exit(1);
    }
    RawTrainer trainer(node.socket());
    trainer.Join(job);
    std::vector<RawTrainer::Copier> copiers;
    for (uint8_t gpu = 1; gpu <= gpus; ++gpu) {
      copiers.push_back(trainer.AskCopier(gpu));
      const std::string told = Told(copiers.back().socket.get());
      const auto size = static_cast<uint32_t>(told.size());
      if (write(to, &size, sizeof size) < 0 || write(to, told.data(), size) < 0) _exit(1);
    }
    for (;;) pause();
  }

  pid_t pid_ = 0;
  UniqueFd from_;
  std::vector<std::string> told_;
};

class CopierTest : public ::testing::Test {
 protected:
  void Start(const std::string& copier = "", const std::string& how = "", uint16_t port = 0) {
    NodeOptions options;
    options.settings["security.socket_mode"] = "\"0666\"";
    options.settings["gpu.copier"] = "\"" + (copier.empty() ? Program() : copier) + "\"";
    if (port != 0) options.settings["metrics.listen"] = "\"127.0.0.1:" + std::to_string(port) + "\"";
    node_.emplace(options);
    ASSERT_TRUE(StartAgain(how)) << node_->AgentLog();
  }
  bool StartAgain(const std::string& how = "") {
    return node_->StartAgent({"FAKECUDA_COPIER=" + how, "CUDA_TEST_VALUE=7", "SECRET=1", "LD_PRELOAD="});
  }
  // Where any user finds it, whatever the checkout's folder allows.
  std::string Program() {
    char name[] = "/tmp/ckptd-copier-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    chmod(name, 0755);
    fs::copy_file(BinaryDirectory() + "/ckpt-stand-in-copier", folder_ + "/stand-in");
    return folder_ + "/stand-in";
  }
  ~CopierTest() override {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }

  std::string folder_;
  std::optional<Node> node_;
};

TEST_F(CopierTest, RunsAsItsTrainerWithNothingOfTheAgents) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be started as another user";
  ASSERT_NO_FATAL_FAILURE(Start());
  ForkedTrainer trainer(*node_, "job", 1, /*other_user=*/true);
  const std::string& told = trainer.told().at(0);
  ExpectSays(told, "Uid:\t61234\t61234\t61234\t61234\n");
  ExpectSays(told, "Gid:\t61235\t61235\t61235\t61235\n");
  ExpectSays(told, "Groups:\t61236 \n");
  for (const char* set : {"CapPrm", "CapEff", "CapAmb"}) ExpectSays(told, std::string(set) + ":\t0000000000000000\n");
  ExpectSays(told, "NoNewPrivs:\t1\n");
  ExpectSays(told, "SigBlk:\t0000000000000000\n");
  ExpectSays(told, "core 0\n");
  ExpectSays(told, "fd 0 /dev/null\n");
  ExpectSays(told, "fd 1 /dev/null\n");
  ExpectSays(told, "fd 2 /dev/null\n");
  ExpectSays(told, "fd 3 socket:");
  for (int fd = 4; fd < 64; ++fd) EXPECT_EQ(told.find("fd " + std::to_string(fd) + " "), told.npos) << told;
  ExpectSays(told, "command\nckptd-copier\n--socket\n3\n--region\n");
  ExpectSays(told, "CUDA_TEST_VALUE=7\n");
  ExpectSays(told, "\nPATH=");
  const std::string environment = told.substr(told.find("environment\n"));
  for (const char* name : {"\nSECRET=", "\nLD_PRELOAD=", "\nNOTIFY_SOCKET=", "\nHOME="})
    EXPECT_EQ(environment.find(name), environment.npos) << environment;
}

TEST_F(CopierTest, EndsWithItsTrainer) {
  ASSERT_NO_FATAL_FAILURE(Start("", "deaf"));
  ForkedTrainer trainer(*node_, "job", 2);
  const UniqueFd first = OpenPid(PidIn(trainer.told().at(0)));
  const UniqueFd second = OpenPid(PidIn(trainer.told().at(1)));
  ASSERT_TRUE(first.valid() && second.valid()) << "one for each GPU";
  EXPECT_FALSE(Readable(first.get(), Millis(0)) || Readable(second.get(), Millis(0)));
  kill(PidIn(trainer.told()[1]), SIGSTOP);  // the SIGKILL ends it all the same
  trainer.Kill();
  EXPECT_TRUE(Readable(first.get()));
  EXPECT_TRUE(Readable(second.get()));
  RawTrainer next(node_->socket());  // the rank is free
  next.Join("job");
  EXPECT_EQ(next.AskCopier(1).reply.code, 0u);
}

TEST_F(CopierTest, EndsWithTheAgentAndTheNextOneStartsAnother) {
  ASSERT_NO_FATAL_FAILURE(Start("", "deaf"));
  ForkedTrainer trainer(*node_, "job", 1);
  const UniqueFd copier = OpenPid(PidIn(trainer.told().at(0)));
  ASSERT_TRUE(copier.valid());
  node_->KillAgent();
  EXPECT_TRUE(Readable(copier.get()));
  ASSERT_TRUE(StartAgain()) << node_->AgentLog();
  RawTrainer next(node_->socket());
  next.Join("other");
  EXPECT_EQ(next.AskCopier(1).reply.code, 0u);
}

// As the kernel's SIGKILL at the agent's end had not reached it: its next agent knows it by its region.
TEST_F(CopierTest, TheNextAgentEndsWhatIsLeft) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ForkedTrainer trainer(*node_, "job", 1);
  const std::string& told = trainer.told().at(0);
  const size_t flag = told.find("--region\n");
  ASSERT_NE(flag, told.npos);
  const std::string token = told.substr(flag + 9, told.find('\n', flag + 9) - flag - 9);
  const auto start = [this](const std::string& region) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("FAKECUDA_COPIER", "deaf", 1);
      dup2(open("/dev/null", O_RDWR), 3);
      execl((folder_ + "/stand-in").c_str(), "ckptd-copier", "--socket", "3", "--region", region.c_str(), nullptr);
      _exit(127);
    }
    for (int i = 0; i < 1000 && NameOf(pid) != "stand-in"; ++i) usleep(5'000);
    return pid;
  };
  const pid_t left = start(token);
  const pid_t foreign = start("0123456789abcdef");
  node_->KillAgent();
  ASSERT_TRUE(StartAgain()) << node_->AgentLog();
  int status = 0;
  EXPECT_EQ(waitpid(left, &status, 0), left);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(waitpid(foreign, &status, WNOHANG), 0) << "of another agent";
  kill(foreign, SIGKILL);
  waitpid(foreign, &status, 0);
}

TEST_F(CopierTest, ByeEndsIt) {
  ASSERT_NO_FATAL_FAILURE(Start("", "deaf"));
  RawTrainer trainer(node_->socket());
  trainer.Join("job");
  const auto copier = trainer.AskCopier(1);
  ASSERT_EQ(copier.reply.code, 0u) << copier.reply.sentence;
  ASSERT_NE(PidIn(Told(copier.socket.get())), 0);
  EXPECT_FALSE(Readable(copier.pidfd.get(), Millis(0)));
  trainer.Say(MessageType::kBye, ByeMessage{});
  EXPECT_TRUE(Readable(copier.pidfd.get()));
}

TEST_F(CopierTest, AskedAgainItIsReplacedButNotAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Start("", "deaf"));
  RawTrainer trainer(node_->socket());
  trainer.Join("job");
  const auto first = trainer.AskCopier(1);
  ASSERT_EQ(first.reply.code, 0u) << first.reply.sentence;
  const auto refused = trainer.AskCopier(1);
  EXPECT_NE(refused.reply.code, 0u);
  ExpectSays(refused.reply.sentence, "ask again in ");
  EXPECT_FALSE(Readable(first.pidfd.get(), Millis(0)));
  const auto other = trainer.AskCopier(2);  // another GPU has its own time
  EXPECT_EQ(other.reply.code, 0u) << other.reply.sentence;
  usleep(1'050'000);
  const auto second = trainer.AskCopier(1);
  ASSERT_EQ(second.reply.code, 0u) << second.reply.sentence;
  EXPECT_TRUE(Readable(first.pidfd.get()));
  EXPECT_FALSE(Readable(second.pidfd.get(), Millis(0)));
  EXPECT_FALSE(Readable(other.pidfd.get(), Millis(0)));
}

TEST_F(CopierTest, OneThatDiesIsNotStartedForEver) {
  ASSERT_NO_FATAL_FAILURE(Start("", "dies"));
  RawTrainer trainer(node_->socket());
  trainer.Join("job");
  for (int i = 0; i < 3; ++i) {
    const auto copier = trainer.AskCopier(1);
    ASSERT_EQ(copier.reply.code, 0u) << copier.reply.sentence;
    EXPECT_TRUE(Readable(copier.pidfd.get()));
    usleep(1'050'000);
  }
  ExpectSays(trainer.AskCopier(1).reply.sentence, "died 3 times within 1m00s; ask again in ");
  ExpectSays(node_->AgentLog(), "copier.died");
}

TEST_F(CopierTest, OffRefuses) {
  ASSERT_NO_FATAL_FAILURE(Start("off"));
  RawTrainer trainer(node_->socket());
  trainer.Join("job");
  ExpectSays(trainer.AskCopier(1).reply.sentence, "gpu.copier is off");
}

TEST_F(CopierTest, AMissingProgramIsNamedEachTime) {
  ASSERT_NO_FATAL_FAILURE(Start("/no/such/copier"));
  RawTrainer trainer(node_->socket());
  trainer.Join("job");
  for (int i = 0; i < 2; ++i) {
    ExpectSays(trainer.AskCopier(1).reply.sentence, "/no/such/copier: No such file");
    usleep(1'050'000);
  }
  EXPECT_TRUE(node_->agent()->running());
}

TEST_F(CopierTest, WithoutARankThereIsNone) {
  ASSERT_NO_FATAL_FAILURE(Start());
  RawTrainer trainer(node_->socket());
  HelloMessage hello{};
  hello.min_major = hello.max_major = 1;
  trainer.Say(MessageType::kHello, hello);
  ExpectSays(trainer.AskCopier(1).reply.sentence, "JOIN or RESUME comes first");
}

// ------------------------------------------------------------------------------------------------------ what is shown

TEST_F(CopierTest, StatusAndMetricsTellOfGpus) {
  const uint16_t port = FreePort();
  ASSERT_NO_FATAL_FAILURE(Start("", "", port));
  RawTrainer trainer(node_->socket());
  trainer.Join("job");
  const auto copier = trainer.AskCopier(0x42);
  const pid_t pid = PidIn(Told(copier.socket.get()));
  ASSERT_NE(pid, 0);
  DevicesMessage devices{};
  devices.pinned_bytes = 1 << 20;
  devices.longest_step_ns = 1'500'000'000;
  devices.device_count = 2;
  devices.devices[0].gpu[0] = 0x42;
  devices.devices[0].path = static_cast<uint32_t>(CapturePath::kPull);
  devices.devices[0].pull_loss_ppm = 2500;
  strcpy(devices.devices[0].why, "it costs less");
  trainer.Say(MessageType::kDevices, devices);
  EXPECT_NE(trainer.AskCopier(0x42).reply.code, 0u);  // too soon; DEVICES was read before
  const std::string status = Get(port, "/status.json").body;
  for (const char* part : {"\"uuid\": \"GPU-42000000-0000-0000-0000-000000000000\"", "\"path\": \"PULL\"",
                           "\"path\": \"PUSH\"", "\"why\": \"it costs less\"", "\"longest_step_seconds\": 1.5"})
    ExpectSays(status, part);
  ExpectSays(status, "\"copier_pid\": " + std::to_string(pid));
  const std::string metrics = Get(port, "/metrics").body;
  ExpectSays(metrics, "ckptd_pinned_bytes{training_job=\"job\"} 1048576\n");
  ExpectSays(metrics, "ckptd_gpus{training_job=\"job\",path=\"pull\"} 1\n");
  ExpectSays(metrics, "ckptd_gpus{training_job=\"job\",path=\"push\"} 1\n");
  ExpectSays(metrics, "ckptd_copiers 1\n");
  ExpectSays(metrics, "ckptd_copier_starts_total 1\n");
  ExpectSays(metrics, "ckptd_copier_deaths_total 0\n");
  kill(pid, SIGKILL);
  EXPECT_TRUE(Readable(copier.pidfd.get()));
  for (int i = 0; i < 100 && Get(port, "/metrics").body.find("ckptd_copiers 0\n") == std::string::npos; ++i)
    usleep(20'000);
  ExpectSays(Get(port, "/metrics").body, "ckptd_copier_deaths_total 1\n");
}

// --------------------------------------------------------------------------------------------------------- one by one

TEST_F(CopierTest, TrainersPinOneAfterTheOther) {
  ASSERT_NO_FATAL_FAILURE(Start());
  RawTrainer first(node_->socket());
  RawTrainer second(node_->socket());
  RawTrainer without(node_->socket());
  first.Join("first");
  second.Join("second");
  without.Join("without");
  first.Devices(1);
  first.Layout();
  EXPECT_TRUE(first.Next(MessageType::kLayoutReady)) << node_->AgentLog();
  second.Devices(1);
  second.Layout();
  without.Layout();
  EXPECT_TRUE(without.Next(MessageType::kLayoutReady)) << "nobody waits for GPUs but who has some";
  EXPECT_FALSE(second.Next(MessageType::kLayoutReady, Millis(500)));
  first.Devices(1);
  EXPECT_TRUE(second.Next(MessageType::kLayoutReady)) << node_->AgentLog();
}

TEST_F(CopierTest, ATurnEndsWithItsTrainer) {
  ASSERT_NO_FATAL_FAILURE(Start());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    RawTrainer first(node_->socket());
    first.Join("first");
    first.Devices(1);
    first.Layout();
    const bool ready = first.Next(MessageType::kLayoutReady).has_value();
    if (write(ends[1], &ready, 1) != 1) _exit(1);
    for (;;) pause();
  }
  bool ready = false;
  ASSERT_EQ(read(ends[0], &ready, 1), 1);
  EXPECT_TRUE(ready);
  RawTrainer second(node_->socket());
  second.Join("second");
  second.Devices(1);
  second.Layout();
  EXPECT_FALSE(second.Next(MessageType::kLayoutReady, Millis(300)));
  kill(trainer, SIGKILL);
  waitpid(trainer, nullptr, 0);
  EXPECT_TRUE(second.Next(MessageType::kLayoutReady)) << node_->AgentLog();
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace ckptd::harness

// Mixed faults, one after the other, on a real node with two jobs of several ranks: processes killed and stopped, the
// storage full, read-only or gone, bytes damaged in memory and on storage, steps removed, pinned and rolled back to,
// layouts changed. After each every job saves again; whatever is restored is judged by soak_job.h, and in the end all
// that is durable is restored without memory, step by step.
//
// CKPTD_SOAK_SECONDS says how long (60; by night 1800; fewer under a sanitizer), CKPTD_SEED replays a run's choices
// (not the kernel's scheduling), CKPTD_SOAK_FAULTS names the kinds of faults, with commas between; else all.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "tests/crash/soak_job.h"
#include "tests/integration/sanitized.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kRoom[] = "1g";          // what is pinned or off the lineage stays: 3 MB for every 15th fault
constexpr uint64_t kSlackFds = 16;      // flushes under way, queues of workers that had not written yet
constexpr uint64_t kSlackThreads = 16;  // gRPC's and the kernel's, made on demand
constexpr uint64_t kSlackKib = 8192;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

class Soak : public testing::Test {
 protected:
  Soak() : disk_(kRoom) {}

  void SetUp() override {
    if (!disk_.mounted()) GTEST_SKIP() << kNoMount;
    seed_ = FromEnvironment("CKPTD_SEED", std::random_device{}());
    random_.seed(seed_);
    printf("seed %lu\n", seed_);
    NodeOptions options;
    options.storage = disk_.path() + "/store";
    options.settings["retention.keep_last"] = "3";
#ifdef CKPTD_GRPC
    options.settings["agent.admin_socket"] = "\"" + disk_.path() + "-admin\"";
#endif
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
    jobs_.push_back(std::make_unique<SoakJob>(*node_, "alpha", 2));
    jobs_.push_back(std::make_unique<SoakJob>(*node_, "beta", 3));
    for (auto& job : jobs_) job->Start();
    for (auto& job : jobs_) ASSERT_NO_FATAL_FAILURE(job->AwaitProgress(/*durable=*/true));
  }
  void TearDown() override {
    jobs_.clear();
    node_.reset();
    fs::remove(disk_.path() + "-admin");
  }

  uint64_t Below(uint64_t end) { return std::uniform_int_distribution<uint64_t>(0, end - 1)(random_); }
  SoakJob& AnyJob() { return *jobs_[Below(jobs_.size())]; }
  void Pause(int most_ms) { std::this_thread::sleep_for(Millis(Below(static_cast<uint64_t>(most_ms)) + 1)); }

  // ---- faults. Each leaves the node in order again.
  void KillRank(SoakJob& job) {
    job.rank(Below(job.world())).Signal(SIGKILL);
    Pause(100);
    Restart(job);
  }
  void Restart(SoakJob& job, const std::string& want = "newest") {
    job.KillAll();
    job.Start(want);
  }
  void KillAgent() {
    ExpectNoGrowth();
    node_->KillAgent();
    Pause(200);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }
  void StopAgent() {
    ASSERT_EQ(node_->StopAgent(), 0) << node_->AgentLog();
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }
  void KillAgentAndJob(SoakJob& job) {
    node_->KillAgent();
    job.KillAll();
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
    job.Start();
  }
  // All at once, and what was in memory is gone.
  void Reboot() {
    PullPlug();
    PowerOn();
  }
  void PullPlug() {
    node_->KillAgent();
    for (auto& job : jobs_) job->KillAll();
    node_->LoseRegion();
  }
  void PowerOn() {
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
    for (auto& job : jobs_) job->MemoryLost();
    for (auto& job : jobs_) job->Start();
  }
  void Freeze(const Child& process) {
    process.Signal(SIGSTOP);
    Pause(2000);
    process.Signal(SIGCONT);
  }
  // While the storage is as it is; in some cases the power fails, too, and comes back behind `mend`.
  void Meanwhile(const std::function<void()>& mend) {
    Pause(1500);
    const bool plug = Below(3) == 0;
    if (plug) PullPlug();
    mend();
    if (plug) PowerOn();
  }
  // But for what a small file needs.
  void FullDisk() {
    const std::string rest = disk_.path() + "/rest";
    const int file = open(rest.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    off_t size = 0;
    for (off_t piece = 64 << 20; piece >= 64 << 10;) {
      const bool fits = fallocate(file, 0, size, piece) == 0;
      size += fits ? piece : 0;
      piece /= fits ? 1 : 2;
    }
    close(file);
    EXPECT_GT(size, 0);
    Meanwhile([&] { fs::remove(rest); });
  }
  // Refused while a file is open for writing: then this fault was none.
  bool ReadOnlyDisk() {
    bool on = false;
    for (int i = 0; i < 200 && !on; ++i) on = disk_.ReadOnly(true, kRoom);
    if (!on) return false;
    Meanwhile([&] { EXPECT_TRUE(disk_.ReadOnly(false, kRoom)); });
    return true;
  }
  bool MissingDisk() {
    const std::string away = disk_.path() + "/away";
    fs::rename(node_->storage(), away);
    std::error_code error;
    Meanwhile([&] { fs::rename(away, node_->storage(), error); });
    EXPECT_FALSE(error) << "the agent made a storage where there was none: " << error.message();
    return true;
  }
  bool DamageSlot(SoakJob& job) {
    const std::vector<std::string> slots = FilesWith(node_->region() + "/r/" + job.name(), "/slot-");
    if (slots.empty()) return false;
    const std::string file = node_->region() + "/r/" + job.name() + "/" + slots[Below(slots.size())];
    job.SlotDamaged();
    FlipByte(file, Below(60'000));
    Pause(200);
    Restart(job);
    return true;
  }
  // The newest durable one; with the node's memory lost in half of the cases, so that storage has to answer.
  bool DamageImage(SoakJob& job) {
    const std::vector<uint64_t> steps = job.Durables();
    if (steps.size() < 2 || job.damaged()) return false;
    std::vector<std::string> images = FilesWith(job.FolderOf(steps.back()), ".safetensors");
    if (images.empty()) return false;
    const std::string file = job.FolderOf(steps.back()) + "/" + images[Below(images.size())];
    job.KillAll();
    job.ImageDamaged(steps.back());
    if (!fs::exists(file)) return job.Start(), false;
    FlipByte(file, Below(fs::file_size(file)));
    if (Below(2) == 0) return Reboot(), true;
    job.Start();
    return true;
  }
  bool RollBack(SoakJob& job) {
    const std::vector<uint64_t> steps = job.Durables();
    if (steps.size() < 2 || job.damaged()) return false;
    job.KillAll();
    const std::vector<uint64_t> still = job.Durables();  // retention went on till now
    if (still.size() < 2) return job.Start(), false;
    job.Start(std::to_string(still[still.size() - 2]));
    return true;
  }
  bool Command([[maybe_unused]] SoakJob& job, [[maybe_unused]] const std::string& command) {
#ifdef CKPTD_GRPC
    const std::vector<uint64_t> steps = job.Durables();
    if (steps.size() < 2 || job.damaged()) return false;
    const uint64_t step = steps[Below(steps.size() - 1)];
    Child ran({{BinaryDirectory() + "/ckptctl", command, job.name() + "@" + std::to_string(step)},
               {"CKPTD_ADMIN_SOCKET=" + disk_.path() + "-admin"},
               node_->base() + "/ckptctl.err"});
    if (ran.Wait() == 0 && command == "rm") job.Removed(step);
    return true;
#else
    return false;
#endif
  }

  // What operators would see.
  [[nodiscard]] std::string Status() const {
    std::string text;
#ifdef CKPTD_GRPC
    Child ran({{BinaryDirectory() + "/ckptctl", "status", "-o", "json"},
               {"CKPTD_ADMIN_SOCKET=" + disk_.path() + "-admin"},
               node_->base() + "/ckptctl.err"});
    ran.Wait();
    for (const std::string& line : ran.lines()) text += line + "\n";
#endif
    return text;
  }

  // ---- judging
  void ExpectNoGrowth() {
    Usage now = UsageOf(node_->agent()->pid());
    for (int i = 0; i < 60 && now.fds > first_.fds + kSlackFds; ++i) {
      std::this_thread::sleep_for(Millis(50));
      now = UsageOf(node_->agent()->pid());
    }
    const size_t files = ListFiles(node_->region()).size();
    EXPECT_LE(now.fds, first_.fds + kSlackFds) << testing::PrintToString(DescriptorsOf(node_->agent()->pid(), "-"));
    EXPECT_LE(now.threads, first_.threads + kSlackThreads);
    EXPECT_LE(files, first_files_ + 5 * 3) << testing::PrintToString(ListFiles(node_->region()));  // old layouts
    if (kSanitized) return;  // its own memory grows
    EXPECT_LE(now.anonymous_kib, first_.anonymous_kib + kSlackKib);
  }
  // Without memory: every step that is durable and was not deleted, each restored and compared.
  void ExpectAllDurableRestorable() {
    Reboot();
    for (auto& job : jobs_) {
      job->KillAll();
      std::vector<uint64_t> steps = job->Durables();
      std::reverse(steps.begin(), steps.end());  // each is a roll-back behind the one before
      for (const uint64_t step : steps) {
        if (job->damaged() || job->FolderOf(step).empty()) continue;
        job->Start(std::to_string(step));
        job->KillAll();
        ++rechecked_;
      }
      job->Start();
    }
  }

  using Fault = std::pair<const char*, std::function<bool()>>;  // false: there was nothing to hit
  std::vector<Fault> Faults() {
    return {
        {"rank killed", [this] { return KillRank(AnyJob()), true; }},
        {"job killed", [this] { return Restart(AnyJob()), true; }},
        {"agent killed", [this] { return KillAgent(), true; }},
        {"agent ended", [this] { return StopAgent(), true; }},
        {"agent and job killed", [this] { return KillAgentAndJob(AnyJob()), true; }},
        {"node rebooted", [this] { return Reboot(), true; }},
        {"rank stopped",
         [this] {
           SoakJob& job = AnyJob();
           return Freeze(job.rank(Below(job.world()))), true;
         }},
        {"agent stopped", [this] { return Freeze(*node_->agent()), true; }},
        {"storage full", [this] { return FullDisk(), true; }},
        {"storage read-only", [this] { return ReadOnlyDisk(); }},
        {"storage gone", [this] { return MissingDisk(); }},
        {"slot damaged", [this] { return DamageSlot(AnyJob()); }},
        {"image damaged", [this] { return DamageImage(AnyJob()); }},
        {"rolled back", [this] { return RollBack(AnyJob()); }},
        {"step removed", [this] { return Command(AnyJob(), "rm"); }},
        {"step pinned", [this] { return Command(AnyJob(), "pin"); }},
        {"step unpinned", [this] { return Command(AnyJob(), "unpin"); }},
        {"layout changed",
         [this] {
           SoakJob& job = AnyJob();
           job.KillAll();
           job.Grows();
           return job.Start(), true;
         }},
    };
  }
  void Tell(uint64_t seconds) const {
    std::string kinds;
    int all = 0;
    uint64_t restores = 0;
    uint64_t fallbacks = 0;
    uint64_t noted = 0;
    for (const auto& [name, count] : done_) kinds += ", " + std::to_string(count) + " " + name;
    for (const auto& [name, count] : done_) all += count;
    for (const auto& job : jobs_) {
      restores += job->restores();
      fallbacks += job->fallbacks();
      noted += job->noted();
    }
    printf("soak seed %lu, %lu s: %d faults, %d wrong%s\n", seed_, seconds, all, HasFailure() ? 1 : 0, kinds.c_str());
    printf(
        "soak: %lu acknowledgements, %lu restores, %lu of an older step after damage and told, %lu durable steps "
        "restored without memory\n",
        noted, restores, fallbacks, rechecked_);
  }

  Tmpfs disk_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::unique_ptr<Node> node_;
  std::vector<std::unique_ptr<SoakJob>> jobs_;
  Usage first_;
  size_t first_files_ = 0;
  uint64_t rechecked_ = 0;
  std::map<std::string, int> done_;
};

TEST_F(Soak, MixedFaults) {
  first_ = UsageOf(node_->agent()->pid());
  first_files_ = ListFiles(node_->region()).size();
  std::vector<Fault> faults = Faults();
  if (const char* kinds = getenv("CKPTD_SOAK_FAULTS"); kinds != nullptr) {
    std::erase_if(faults,
                  [&](const Fault& fault) { return std::string(kinds).find(fault.first) == std::string::npos; });
  }
  ASSERT_FALSE(faults.empty()) << "CKPTD_SOAK_FAULTS names none";
  const char* nightly = getenv("CKPTD_NIGHTLY");
  const bool night = nightly != nullptr && *nightly != '\0';
  const uint64_t usual = night ? (kSanitized ? 300 : 1800) : (kSanitized ? 30 : 60);
  const uint64_t seconds = FromEnvironment("CKPTD_SOAK_SECONDS", usual);
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (Clock::now() < end && !HasFailure()) {
    const auto& [name, fault] = faults[Below(faults.size())];
    Pause(150);
    done_[name] += fault() ? 1 : 0;
    for (auto& job : jobs_) {
      if (!HasFailure()) job->AwaitProgress(Below(3) == 0);
    }
    if (HasFailure()) printf("seed %lu: it ended with: %s\n%s\n", seed_, name, Status().c_str());
  }
  if (!HasFailure()) ExpectNoGrowth();
  if (!HasFailure()) ExpectAllDurableRestorable();
  for (auto& job : jobs_) job->KillAll();
  Tell(seconds);
}

}  // namespace
}  // namespace ckptd::harness

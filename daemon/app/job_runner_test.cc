// A job whose storage is slow: what it reads back ends when nobody waits for it. And one that needs memory for a
// layout. Real files, and one thread for chores.
#include "daemon/app/job_runner.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/app/copier_runner.h"
#include "daemon/app/peer_links.h"
#include "daemon/app/peers.h"
#include "daemon/app/registrar.h"
#include "daemon/app/rescuer.h"
#include "daemon/app/storage_watch.h"
#include "daemon/base/mutex.h"
#include "daemon/format/paths.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/thread.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/protect/copy_keeper.h"
#include "daemon/region/peer_test_util.h"
#include "daemon/storage/posix_store.h"

namespace ckptd {
namespace {

constexpr uint64_t kImageBytes = 16 << 20;
constexpr uint64_t kPieceBytes = 1 << 20;

// Reads of images wait while it is shut, and are counted.
class ReadGate {
 public:
  void Set(bool open) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    open_ = open;
    changed_.NotifyAll();
  }
  void Pass() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++reads_;
    while (!open_) changed_.Wait(mutex_);
  }
  size_t reads() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return reads_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ CKPTD_GUARDED_BY(mutex_) = true;
  size_t reads_ CKPTD_GUARDED_BY(mutex_) = 0;
};

class GatedFile final : public FileAround {
 public:
  GatedFile(std::unique_ptr<File> inner, ReadGate& gate) : FileAround(std::move(inner)), gate_(gate) {}
  absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) override {
    gate_.Pass();
    return FileAround::PRead(offset, bytes);
  }

 private:
  ReadGate& gate_;
};

class GatedFiles final : public FilesAround {
 public:
  GatedFiles(Files& inner, ReadGate& gate) : FilesAround(inner), gate_(gate) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options) override {
    auto file = FilesAround::Open(path, options);
    if (!file.ok() || options.write || !absl::EndsWith(path, ".safetensors")) return file;
    return std::make_unique<GatedFile>(*std::move(file), gate_);
  }

 private:
  ReadGate& gate_;
};

class NoSessions final : public SessionHandler {
  void OnRequest(SessionId, const Peer&, Request, std::vector<UniqueFd>) override {}
  void OnDisconnected(SessionId) override {}
  void OnProcessDead(const ProcessId&) override {}
};

std::string MakeFolder() {
  char name[] = "/tmp/ckptd-runner-XXXXXX";
  return mkdtemp(name);
}

class AheadClock : public Clock {
 public:
  [[nodiscard]] Nanos Monotonic() const override { return SystemClock().Monotonic() + ahead; }
  [[nodiscard]] Nanos Wall() const override { return SystemClock().Wall(); }
  Nanos ahead{0};
};

// Steps 10, 20 and 30 of attempt 1 are on the storage, and one is kept: 30 is read back before the others go.
class JobRunnerTest : public ::testing::Test {
 protected:
  explicit JobRunnerTest(uint64_t region_size = 0) : dir_(MakeFolder()) {
    config_.retention.keep_last = 1;
    std::filesystem::create_directory(dir_ + "/store");
    region::RegionOptions region;
    region.dir = dir_ + "/region";
    region.uid = geteuid();
    region.size_limit = region_size;
    region_ = *region::Region::Open(PosixFiles(), region_clock_, region);
    PosixStoreOptions storage;
    storage.root = dir_ + "/store";
    storage.make_queue = [] { return MakeInlineIoQueue(1); };
    storage.direct = false;
    store_ = *OpenPosixStore(files_, storage);
    std::vector<TestSlot> slots;
    slots.emplace_back(std::vector<uint64_t>{kImageBytes}, kPieceBytes, 1);
    for (const StepId step : {10, 20, 30}) EXPECT_TRUE(SaveStep(*store_, SystemClock(), "gpt", {1, step}, slots).ok());
    peers_ = *Peers::Start(*loop_, SystemClock(), PosixFiles(), config_.peers, "n1");
    links_ = std::make_unique<PeerLinks>(*loop_, SystemClock(), PosixFiles(), config_.peers, peers_->membership(),
                                         PeerLinks::Self{"n1", 5}, PeerLinks::Handler{});
    keeper_ = std::make_unique<protect::CopyKeeper>(
        *loop_, SystemClock(), *region_, inline_,
        protect::CopyKeeper::Handler{[](const std::string&) { return nullptr; }, {}, [](const std::string&) {}, {}});
    flusher_ = std::make_unique<Flusher>(*store_, SystemClock(), inline_, [](const FlushOutcome&) {});
    watch_ = std::make_unique<StorageWatch>(*loop_, SystemClock(), *store_, calls_, inline_, config_.storage.timeout);
    services_.reset(new Services{config_,
                                 SystemClock(),
                                 *loop_,
                                 *region_,
                                 *store_,
                                 *store_,
                                 calls_,
                                 inline_,
                                 inline_,
                                 inline_,
                                 chores_,
                                 inline_,
                                 *flusher_,
                                 server_,
                                 claims_,
                                 *watch_,
                                 copiers_,
                                 registrar_,
                                 rescuer_,
                                 *links_,
                                 *keeper_,
                                 metrics_,
                                 "n1",
                                 5,
                                 std::make_shared<job::ReportNumbers>(),
                                 {},
                                 [](const std::string&) { return false; }});
    runner_ = std::make_unique<JobRunner>(*services_, **region_->OpenJob("gpt", geteuid()));
    runner_->Start(nullptr);
  }
  ~JobRunnerTest() override {
    gate_.Set(true);
    chores_.Stop();
    runner_.reset();
    std::filesystem::remove_all(dir_);
  }

  template <typename Done>
  bool Until(const Done& done) {
    const Nanos deadline = SystemClock().Monotonic() + std::chrono::seconds(30);
    while (!done() && SystemClock().Monotonic() < deadline)
      EXPECT_TRUE(loop_->RunOnce(std::chrono::milliseconds(5)).ok());
    return done();
  }
  void Report(v1::RankReport::Load load, Ticket ticket) {
    auto report = std::make_shared<v1::RankReport>();
    report->set_seen(runner_->view().seen);
    report->set_ticket(ticket);
    report->set_load(load);
    runner_->Post(job::RankChanged{report});
  }
  // Rank 0 of 1 calls restore(), and trains.
  void Train(Ticket ticket) {
    const AttemptId before = runner_->view().seen;
    job::Join join;
    join.ticket = join.process = ticket;
    join.world_size = 1;
    runner_->Post(join);
    ASSERT_TRUE(Until([&] { return runner_->view().seen > before; }));
    Report(v1::RankReport::WAIT, ticket);
    ASSERT_TRUE(Until([&] { return runner_->view().phase == job::Phase::kLoad; }));
    Report(v1::RankReport::LOADED, ticket);
    Report(v1::RankReport::RUN, ticket);
    ASSERT_EQ(runner_->view().phase, job::Phase::kRun);
  }
  [[nodiscard]] bool IsThere(StepId step) const {
    return std::filesystem::exists(dir_ + "/store/" + StepPath("gpt", {1, step}));
  }

  static constexpr size_t kReadsOfAStep = kImageBytes / kPieceBytes;

  const std::string dir_;
  Config config_;
  ReadGate gate_;
  GatedFiles files_{PosixFiles(), gate_};
  std::unique_ptr<Loop> loop_ = *Loop::Create(SystemClock(), 1024);
  AgentMetrics metrics_{"", ""};
  InlineExecutor inline_;
  AheadClock region_clock_;
  std::unique_ptr<region::Region> region_;
  std::unique_ptr<Store> store_;
  StoreCalls calls_{SystemClock(), ""};
  NoSessions sessions_;
  Server server_{*loop_, sessions_, inline_, ServerOptions()};
  Claims claims_;
  ThreadPool chores_{"chores", 1, 64};
  std::unique_ptr<Flusher> flusher_;
  std::unique_ptr<StorageWatch> watch_;
  CopierRunner copiers_{*loop_, SystemClock(), server_, metrics_, {"off", 0}, [](const ProcessId&) {}};
  Registrar registrar_{*loop_, SystemClock()};
  Rescuer rescuer_{*loop_, SystemClock(), metrics_, {}, ""};
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<PeerLinks> links_;
  std::unique_ptr<protect::CopyKeeper> keeper_;
  std::unique_ptr<Services> services_;
  std::unique_ptr<JobRunner> runner_;
};

// Two threads do the chores of all jobs: a job that restarts again and again must not take both.
TEST_F(JobRunnerTest, WhatIsReadBackEndsWhenTheJobBeginsAnew) {
  gate_.Set(false);
  ASSERT_NO_FATAL_FAILURE(Train(7));
  ASSERT_TRUE(Until([&] { return gate_.reads() == 1; }));
  runner_->Post(job::Reaped{0, 7});
  ASSERT_NO_FATAL_FAILURE(Train(8));
  gate_.Set(true);
  EXPECT_TRUE(Until([&] { return !IsThere(10) && !IsThere(20); })) << "behind the step that was read back then";
  EXPECT_TRUE(IsThere(30));
  EXPECT_EQ(gate_.reads(), 1 + kReadsOfAStep);
}

TEST_F(JobRunnerTest, WhatIsReadBackEndsWithTheJob) {
  gate_.Set(false);
  ASSERT_NO_FATAL_FAILURE(Train(7));
  ASSERT_TRUE(Until([&] { return gate_.reads() == 1; }));
  runner_->Stop();
  gate_.Set(true);
  chores_.Stop();
  EXPECT_EQ(gate_.reads(), 1u);
}

// Slots of 4 MiB, two of them, and copies of 2 MiB, as many.
class NewLayoutTest : public JobRunnerTest {
 protected:
  NewLayoutTest() : JobRunnerTest(12 << 20) {}

  void HoldCopiesOf(const std::string& job, const SnapshotId& durable) {
    region::PeerSpec spec = region::CopySpec();
    spec.layout.job = job;
    ASSERT_TRUE(region::Store(region_->peers(), spec, {1, 10}, region::Marks(1)).ok());
    region_->peers().MarkDurable(job, durable);
  }
  absl::Status Register() {
    region::RankRegion& rank = **(*region_->OpenJob("next", geteuid()))->OpenRank(0);
    LayoutIntake intake(
        *services_, rank, "next", geteuid(), [](bool) {}, [] { return region::Shrinkable(); });
    std::optional<absl::Status> done;
    LayoutIntake::Order order;
    order.world = 1;
    order.facts.images = {{0, 4 << 20, 4096}};
    order.done = [&](const absl::StatusOr<region::LayoutSet*>& set, bool) { done = set.status(); };
    intake.Take(std::move(order));
    EXPECT_TRUE(Until([&] { return done.has_value(); }));
    return done.value_or(absl::OkStatus());
  }
};

TEST_F(NewLayoutTest, ItTakesWhatIsHeldForOthersOfAJobThatHasEnded) {
  ASSERT_NO_FATAL_FAILURE(HoldCopiesOf("ended", {1, 10}));
  EXPECT_EQ(CodeOf(Register()), ErrorCode::QUOTA_EXCEEDED) << "somebody spoke of it just now";
  region_clock_.ahead = std::chrono::hours(2);
  const absl::Status made = Register();
  EXPECT_TRUE(made.ok()) << made;
  EXPECT_FALSE(region_->peers().Holds("ended"));
}

TEST_F(NewLayoutTest, WhatOnlyMemoryHoldsForOthersStays) {
  ASSERT_NO_FATAL_FAILURE(HoldCopiesOf("ended", {1, 9}));
  region_clock_.ahead = std::chrono::hours(2);
  EXPECT_EQ(CodeOf(Register()), ErrorCode::QUOTA_EXCEEDED);
  EXPECT_TRUE(region_->peers().Holds("ended"));
}

}  // namespace
}  // namespace ckptd

// What the watch takes from answers, silence and its own probes. Time stands still until a test moves it.
#include "daemon/app/storage_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = v1::StorageStatus;

absl::Status Unused() { return absl::UnimplementedError("a probe does not need this"); }

// What a probe asks of the storage, in order, and what the test lets it answer.
class ProbedStore final : public Store {
 public:
  absl::Status writable;
  std::vector<std::string> asked;
  [[nodiscard]] size_t probes() const { return static_cast<size_t>(std::count(asked.begin(), asked.end(), "open")); }

  absl::StatusOr<size_t> RemoveLeftovers(const std::string& directory) override {
    asked.push_back("remove leftovers" + directory);
    return 0;
  }
  absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string&, uint64_t size) override {
    asked.emplace_back("open");
    if (!writable.ok()) return writable;
    EXPECT_GT(size, 0u) << "reserves nothing: a full storage would take it";
    return std::make_unique<Part>(asked);
  }
  absl::StatusOr<SpaceInfo> Space() override {
    asked.emplace_back("space");
    return SpaceInfo{100, 42};
  }

  absl::Status Probe() override { return Unused(); }
  absl::Status CreateExclusive(const std::string&, absl::string_view) override { return Unused(); }
  absl::Status Confirm(const std::string&) override { return Unused(); }
  absl::StatusOr<std::string> ReadSmall(const std::string&, size_t) override { return Unused(); }
  absl::StatusOr<std::vector<DirEntry>> List(const std::string&) override { return Unused(); }
  absl::StatusOr<FileInfo> Stat(const std::string&) override { return Unused(); }
  absl::Status Delete(const std::string&) override { return Unused(); }
  absl::Status DeleteDirectory(const std::string&) override { return Unused(); }
  absl::StatusOr<size_t> RemoveTemporary(const std::string&, Nanos) override { return Unused(); }
  absl::StatusOr<std::unique_ptr<PartReader>> OpenForRead(const std::string&) override { return Unused(); }
  std::string Describe() const override { return ""; }
  bool IsDirect() const override { return false; }

 private:
  class Part final : public PartWriter {
   public:
    explicit Part(std::vector<std::string>& asked) : asked_(asked) {}
    ~Part() override { asked_.emplace_back("drop"); }
    absl::Status Write(uint64_t, std::span<const std::byte>) override { return Unused(); }
    absl::Status Sync() override { return Unused(); }
    absl::Status Finish() override {
      asked_.emplace_back("publish");
      return absl::OkStatus();
    }

   private:
    std::vector<std::string>& asked_;
  };
};

// Runs at once; or keeps the work, as a thread that a hung storage holds; or takes none.
class Chores final : public Executor {
 public:
  enum class Mode { kRun, kHold, kRefuse } mode = Mode::kRun;
  std::deque<std::function<void()>> held;

  bool Run(std::function<void()> work) override {
    if (mode == Mode::kRefuse) return false;
    held.push_back(std::move(work));
    if (mode == Mode::kRun) Release();
    return true;
  }
  void Release() {
    for (; !held.empty(); held.pop_front()) held.front()();
  }
};

class StorageWatchTest : public ::testing::Test {
 protected:
  // Time passes in steps that are shorter than what the watch does in it.
  void Pass(Nanos time) {
    for (; time.count() > 0; time -= seconds(1)) {
      clock_.Advance(std::min<Nanos>(time, seconds(1)));
      Settle();
    }
  }
  void Settle() {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(loop_->RunOnce(Nanos{0}).ok());
  }

  [[nodiscard]] v1::StorageStatus Status() const {
    v1::StorageStatus out;
    watch_.Fill(&out);
    return out;
  }
  [[nodiscard]] State::State state() const { return Status().state(); }

  void Flush(const std::string& job, const absl::Status& status, Rank rank = 0) {
    FlushOutcome outcome;
    outcome.key.job = job;
    outcome.key.rank = rank;
    outcome.status = status;
    outcome.bytes = status.ok() ? 1000 : 0;
    outcome.duration = seconds(2);
    watch_.Flushed(outcome);
  }

  const absl::Status full_ = Error(ErrorCode::STORAGE_FULL, "/data/job: no space");
  const absl::Status broken_ = Error(ErrorCode::STORAGE_IO, "/data/job: input/output error");

  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 16);
  ProbedStore store_;
  StoreCalls calls_{clock_, "/data"};
  Chores chores_;
  Nanos timeout_ = seconds(60);
  StorageWatch watch_{*loop_, clock_, store_, calls_, chores_, timeout_};
};

TEST_F(StorageWatchTest, UnknownUntilSomethingWasWritten) {
  EXPECT_TRUE(watch_.Health().ok());
  EXPECT_EQ(state(), State::UNKNOWN);
  watch_.Answered(absl::OkStatus(), /*wrote=*/false);
  EXPECT_EQ(state(), State::UNKNOWN);
  watch_.Answered(absl::OkStatus(), /*wrote=*/true);
  EXPECT_EQ(state(), State::OK);
}

TEST_F(StorageWatchTest, EachErrorOfTheStorageHasItsState) {
  const std::pair<ErrorCode, State::State> errors[] = {
      {ErrorCode::STORAGE_FULL, State::FULL},  {ErrorCode::STORAGE_READ_ONLY, State::READ_ONLY},
      {ErrorCode::STORAGE_IO, State::FAILING}, {ErrorCode::STORAGE_HUNG, State::HUNG},
      {ErrorCode::PERMISSION, State::FAILING},
  };
  for (const auto& [code, expected] : errors) {
    watch_.Answered(absl::OkStatus(), true);
    watch_.Answered(Error(code, "/data/job: what it said"), false);
    EXPECT_EQ(state(), expected) << InfoOf(code).name;
    EXPECT_EQ(Status().last_error(), "/data/job: what it said");
  }
  EXPECT_EQ(CodeOf(watch_.Health()), ErrorCode::STORAGE_IO) << "of a permission that the storage lacks";
}

TEST_F(StorageWatchTest, AnAnswerThatIsNotOfTheStorageLeavesItWell) {
  watch_.Answered(absl::OkStatus(), true);
  for (ErrorCode code : {ErrorCode::NOT_FOUND, ErrorCode::CORRUPT, ErrorCode::INTERNAL}) {
    watch_.Answered(Error(code, "no"), true);
    EXPECT_EQ(state(), State::OK) << InfoOf(code).name;
  }
  EXPECT_EQ(Status().last_error(), "");
  Pass(seconds(60));
  EXPECT_EQ(store_.probes(), 0u);
}

TEST_F(StorageWatchTest, AHealthyStorageIsNotAsked) {
  Flush("a", absl::OkStatus());
  Pass(seconds(600));
  EXPECT_EQ(store_.probes(), 0u);
}

TEST_F(StorageWatchTest, AFailingOneIsAskedUntilItIsWell) {
  store_.writable = broken_;
  watch_.Answered(broken_, true);
  EXPECT_EQ(store_.probes(), 0u) << "not at once: it has just said so";
  Pass(seconds(15));
  EXPECT_EQ(store_.probes(), 3u);
  EXPECT_EQ(state(), State::FAILING);
  store_.writable = absl::OkStatus();
  Pass(seconds(5));
  EXPECT_EQ(state(), State::OK);
  EXPECT_EQ(Status().last_error(), "/data/job: input/output error") << "kept for people";
  Pass(seconds(600));
  EXPECT_EQ(store_.probes(), 4u) << "still asked when it is well";
  watch_.Answered(full_, true);
  EXPECT_EQ(state(), State::FULL);
  Pass(seconds(5));
  EXPECT_EQ(store_.probes(), 5u) << "not asked the second time it fails";
}

TEST_F(StorageWatchTest, ManyErrorsAreOneProbeEachFiveSeconds) {
  store_.writable = broken_;
  for (int second = 0; second < 20; ++second) {
    for (int i = 0; i < 10; ++i) watch_.Answered(broken_, true);
    Pass(seconds(1));
  }
  EXPECT_EQ(store_.probes(), 4u);
}

TEST_F(StorageWatchTest, ReadingDoesNotShowThatItCanBeWritten) {
  watch_.Answered(Error(ErrorCode::STORAGE_READ_ONLY, "read only"), true);
  watch_.Answered(absl::OkStatus(), /*wrote=*/false);
  EXPECT_EQ(state(), State::READ_ONLY);
  watch_.Answered(Error(ErrorCode::NOT_FOUND, "no such step"), /*wrote=*/true);
  EXPECT_EQ(state(), State::READ_ONLY);
  watch_.Answered(absl::OkStatus(), /*wrote=*/true);
  EXPECT_EQ(state(), State::OK);
}

TEST_F(StorageWatchTest, AFullOneTakesAProbeAndNoSnapshot) {
  Flush("a", full_);
  Pass(seconds(20));
  EXPECT_EQ(store_.probes(), 4u);
  EXPECT_EQ(state(), State::FULL);
  Flush("b", absl::OkStatus());
  Flush("a", absl::OkStatus(), /*rank=*/1);
  EXPECT_EQ(state(), State::FULL) << "of others, smaller ones";
  Flush("a", absl::OkStatus());
  EXPECT_EQ(state(), State::OK);
}

TEST_F(StorageWatchTest, AFlushThatWasGivenUpSaysNothing) {
  Flush("a", absl::CancelledError("given up"));
  EXPECT_EQ(state(), State::UNKNOWN);
  Flush("a", full_);
  Pass(seconds(5));
  Flush("a", absl::CancelledError("given up"));
  EXPECT_EQ(state(), State::FULL);
}

// The job of that flush may be over: nobody would ever say that it went well.
TEST_F(StorageWatchTest, AFailedFlushIsForgotten) {
  Flush("a", full_);
  Pass(seconds(30));
  EXPECT_EQ(state(), State::FULL);
  clock_.Advance(Nanos{1});
  EXPECT_EQ(state(), State::OK);
  Pass(seconds(5));
  const size_t probes = store_.probes();
  Pass(seconds(600));
  EXPECT_EQ(store_.probes(), probes) << "still asked when it is well";
}

TEST_F(StorageWatchTest, SilenceBeyondTheTimeoutIsHung) {
  watch_.Answered(full_, true);
  const std::string name = "job/step";
  {
    StoreCalls::Call call(calls_, /*awaited=*/false, "open", name);
    clock_.Advance(timeout_);
    EXPECT_EQ(state(), State::FULL);
    clock_.Advance(Nanos{1});
    EXPECT_EQ(state(), State::HUNG) << "and not what was said before";
    EXPECT_EQ(CodeOf(watch_.Health()), ErrorCode::STORAGE_HUNG);
    EXPECT_THAT(Status().last_error(), HasSubstr("/data/job/step"));
    timeout_ = seconds(90);
    EXPECT_EQ(state(), State::FULL) << "the timeout changes live";
    timeout_ = seconds(60);
    call.Heard();
    EXPECT_EQ(state(), State::FULL);
    clock_.Advance(timeout_ + Nanos{1});
    EXPECT_EQ(state(), State::HUNG);
  }
  EXPECT_EQ(state(), State::FULL) << "the call ended";
}

TEST_F(StorageWatchTest, AProbeReservesPublishesNothingAndAsksForTheSpace) {
  watch_.Probe();
  EXPECT_EQ(state(), State::UNKNOWN) << "it has not answered yet";
  Settle();
  EXPECT_THAT(store_.asked, ElementsAre("remove leftovers", "open", "drop", "space"));
  EXPECT_EQ(state(), State::OK);
  EXPECT_EQ(Status().free_bytes(), 42u);
}

// Each would take one more thread with it.
TEST_F(StorageWatchTest, AProbeThatHangsIsTheOnlyOne) {
  chores_.mode = Chores::Mode::kHold;
  watch_.Answered(broken_, true);
  Pass(seconds(60));
  EXPECT_EQ(chores_.held.size(), 1u);
  chores_.mode = Chores::Mode::kRun;
  chores_.Release();
  Settle();
  EXPECT_EQ(state(), State::OK);
  watch_.Answered(broken_, true);
  Pass(seconds(5));
  EXPECT_EQ(store_.probes(), 2u) << "none after the one that hung";
}

TEST_F(StorageWatchTest, NoThreadForAProbeIsAHungStorage) {
  chores_.mode = Chores::Mode::kRefuse;
  watch_.Probe();
  Settle();
  EXPECT_EQ(state(), State::HUNG);
  chores_.mode = Chores::Mode::kRun;
  Pass(seconds(5));
  EXPECT_EQ(state(), State::OK);
}

TEST_F(StorageWatchTest, SpeedIsOfTheLastFlushThatWentWell) {
  Flush("a", absl::OkStatus());
  EXPECT_EQ(Status().write_bytes_per_second(), 500);
  Flush("a", broken_);
  EXPECT_EQ(Status().write_bytes_per_second(), 500);
}

}  // namespace
}  // namespace ckptd

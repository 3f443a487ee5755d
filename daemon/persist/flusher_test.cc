// Slots to storage: streamed or at once, with failures, lost power and somebody else's files in the way.
#include "daemon/persist/flusher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <deque>

#include "daemon/base/errors.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/os/thread.h"
#include "daemon/persist/testing/saved_step.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/step_files.h"
#include "daemon/storage/testing/hooked_store.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kChunk = 64 << 10;
constexpr char kJob[] = "gpt";
constexpr SnapshotId kId{3, 1000};
const FlushKey kKey{kJob, 0, 1, 0, 7};

// Chunk 1 spans the images.
TestSlot MakeSlot(uint32_t seed) { return TestSlot({kChunk + 9 * 4096, kChunk + 4096}, kChunk, seed); }

std::unique_ptr<Store> OpenStore(Files& files, const std::string& root) {
  PosixStoreOptions options;
  options.root = root;
  options.make_queue = [] { return MakeInlineIoQueue(2); };
  return *OpenPosixStore(files, options);
}

// Keeps what it is given until Step(); refuses beyond its capacity.
class ManualExecutor final : public Executor {
 public:
  explicit ManualExecutor(size_t capacity = 100) : capacity_(capacity) {}
  bool Run(std::function<void()> work) override {
    if (work_.size() >= capacity_) return false;
    work_.push_back(std::move(work));
    return true;
  }
  void Step() {
    while (!work_.empty()) {
      auto work = std::move(work_.front());
      work_.pop_front();
      work();
    }
  }

 private:
  size_t capacity_;
  std::deque<std::function<void()>> work_;
};

// A flusher over a real directory, and one over the simulator.
struct RealWorld {
  RealWorld() : store(OpenStore(PosixFiles(), dir.path())) {}
  TempDir dir;
  std::unique_ptr<Store> store;
};

struct SimWorld {
  SimWorld() {
    EXPECT_TRUE(files.Mkdir("/store", 0755).ok());
    EXPECT_TRUE(files.SyncDir("/").ok());
    store = OpenStore(files, "/store");
  }
  SimFiles files;
  std::unique_ptr<Store> store;
};

struct Harness {
  explicit Harness(Store& store) : Harness(store, inline_executor) {}
  Harness(Store& store, Executor& executor)
      : flusher(store, SystemClock(), executor, [this](FlushOutcome outcome) { ended.push_back(std::move(outcome)); }) {
  }
  InlineExecutor inline_executor;
  std::vector<FlushOutcome> ended;
  Flusher flusher;
};

bool HoldsSlot(Store& store, TestSlot& slot) {
  auto sidecar = ReadSidecar(store, kJob, kId, 0, 1);
  if (!sidecar.ok()) return false;
  std::vector<uint32_t> crcs(sidecar->chunk_crc32c().begin(), sidecar->chunk_crc32c().end());
  return crcs == slot.ChunkCrcs() && ReadChecked(store, ToStoredRank(kJob, *sidecar), {}).ok();
}

std::vector<std::string> NamesIn(Files& files, const std::string& root) {
  std::vector<std::string> names;
  auto entries = files.ReadDir(root + "/" + StepPath(kJob, kId), 100);
  if (entries.ok()) {
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
  }
  return names;
}

TEST(Flusher, StreamsChunksThenSeals) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  Harness run(*world.store);
  run.flusher.Begin(kKey, SourceOf(kJob, 0, 1, kId, slot));
  run.flusher.Captured(kKey, 1);
  EXPECT_EQ(NamesIn(PosixFiles(), world.dir.path()).size(), 1u) << "the first image is begun";
  run.flusher.Captured(kKey, 2);
  run.flusher.Captured(kKey, 1);  // a hint may come late
  EXPECT_EQ(NamesIn(PosixFiles(), world.dir.path()).size(), 2u) << "and the second";
  EXPECT_THAT(*world.store->List(StepPath(kJob, kId)), IsEmpty()) << "nothing has a name before the seal";
  run.flusher.Seal(kKey, SealOf(slot));
  ASSERT_EQ(run.ended.size(), 1u);
  EXPECT_TRUE(run.ended[0].status.ok()) << run.ended[0].status;
  EXPECT_EQ(run.ended[0].id, kId);
  EXPECT_EQ(run.ended[0].bytes, slot.bytes().size());
  auto sidecar = ReadSidecar(*world.store, kJob, kId, 0, 1);
  ASSERT_TRUE(sidecar.ok()) << sidecar.status();
  EXPECT_EQ(sidecar->trace_id(), 0x1234u);
  EXPECT_EQ(sidecar->parent_step(), 10u);
  EXPECT_EQ(run.flusher.active(), 0u);
  EXPECT_TRUE(HoldsSlot(*world.store, slot));
  EXPECT_THAT(NamesIn(PosixFiles(), world.dir.path()),
              ElementsAre("rank-00000-of-00001.json", "rank-00000-of-00001.part-01.safetensors",
                          "rank-00000-of-00001.safetensors"));
}

TEST(Flusher, WorksOnOwnedThreads) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  Mutex mutex;
  absl::Status status = absl::UnknownError("no outcome");
  {
    ThreadPool pool("flush-test", 2, 16);
    Flusher flusher(*world.store, SystemClock(), pool, [&](const FlushOutcome& outcome) {
      MutexLock lock(mutex);
      status = outcome.status;
    });
    flusher.Begin(kKey, SourceOf(kJob, 0, 1, kId, slot));
    for (uint32_t chunks : {1, 2, 3}) flusher.Captured(kKey, chunks);
    flusher.Seal(kKey, SealOf(slot));
    pool.Stop();  // what was taken is worked off
  }
  MutexLock lock(mutex);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(HoldsSlot(*world.store, slot));
}

TEST(Flusher, AFillThatIsDiscardedLeavesNothing) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  Harness run(*world.store);
  run.flusher.Begin(kKey, SourceOf(kJob, 0, 1, kId, slot));
  run.flusher.Captured(kKey, 2);
  EXPECT_FALSE(NamesIn(PosixFiles(), world.dir.path()).empty()) << "temporary files";
  run.flusher.Discard(kKey);
  EXPECT_THAT(run.ended, IsEmpty()) << "nothing was promised";
  EXPECT_EQ(run.flusher.active(), 0u);
  EXPECT_THAT(NamesIn(PosixFiles(), world.dir.path()), IsEmpty());
  run.flusher.Seal(kKey, SealOf(slot));
  EXPECT_THAT(run.ended, IsEmpty()) << "unknown by now";
}

TEST(Flusher, ASealedFlushThatIsDiscardedSaysCancelled) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  ManualExecutor executor;
  Harness run(*world.store, executor);
  run.flusher.FlushSealed(kKey, SourceOf(kJob, 0, 1, kId, slot), SealOf(slot));
  run.flusher.Discard(kKey);
  executor.Step();
  ASSERT_EQ(run.ended.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(run.ended[0].status)) << run.ended[0].status;
  EXPECT_THAT(NamesIn(PosixFiles(), world.dir.path()), IsEmpty());
}

// Given up just before the `number`-th `call` of a flush over a storage that may hold the images already.
struct GivenUp {
  GivenUp(Store& inner, TestSlot& slot, const std::string& call, size_t number)
      : store(inner, [this, call, number](absl::string_view now, const std::string&) {
          if (now == call && ++calls == number) flusher->Discard(kKey);
          after += calls >= number ? 1 : 0;
          return absl::OkStatus();
        }) {
    Harness run(store);
    flusher = &run.flusher;
    run.flusher.FlushSealed(kKey, SourceOf(kJob, 0, 1, kId, slot), SealOf(slot));
    EXPECT_EQ(run.flusher.active(), 0u);
    EXPECT_EQ(run.ended.size(), 1u);
    if (!run.ended.empty()) status = run.ended[0].status;
  }
  Flusher* flusher = nullptr;
  size_t calls = 0;
  size_t after = 0;  // calls of any kind from the discard on
  absl::Status status;
  HookedStore store;
};

TEST(Flusher, ADiscardEndsAFlushThatIsBeingWritten) {
  TestSlot slot = MakeSlot(1);
  for (size_t write = 1; write <= 4; ++write) {  // one of chunk 0 and of chunk 2, two of chunk 1
    RealWorld world;
    const GivenUp flush(*world.store, slot, "write", write);
    EXPECT_TRUE(absl::IsCancelled(flush.status)) << "write " << write << ": " << flush.status;
    EXPECT_LE(flush.after, 3u) << "write " << write << ": not beyond the chunk that was begun";
    EXPECT_THAT(NamesIn(PosixFiles(), world.dir.path()), IsEmpty()) << "write " << write;
  }
}

TEST(Flusher, ADiscardEndsAFlushThatIsBeingFinished) {
  TestSlot slot = MakeSlot(1);
  RealWorld world;
  const GivenUp flush(*world.store, slot, "finish", 1);
  EXPECT_TRUE(absl::IsCancelled(flush.status)) << flush.status;
  EXPECT_THAT(NamesIn(PosixFiles(), world.dir.path()), ElementsAre("rank-00000-of-00001.safetensors"))
      << "what had its name by then, and no temporary file";
}

TEST(Flusher, ADiscardEndsTheCheckOfWhatWasThere) {
  TestSlot slot = MakeSlot(1);
  RealWorld world;
  ASSERT_TRUE(SaveRank(*world.store, SystemClock(), SourceOf(kJob, 0, 1, kId, slot), slot).ok());
  const GivenUp flush(*world.store, slot, "read", 1);
  EXPECT_TRUE(absl::IsCancelled(flush.status)) << flush.status;
}

TEST(Flusher, AQueueThatIsFullFailsTheSealNotTheStream) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  ManualExecutor full(0);
  Harness run(*world.store, full);
  run.flusher.Begin(kKey, SourceOf(kJob, 0, 1, kId, slot));
  run.flusher.Captured(kKey, 1);
  EXPECT_EQ(run.flusher.active(), 1u);
  run.flusher.Seal(kKey, SealOf(slot));
  ASSERT_EQ(run.ended.size(), 1u);
  EXPECT_EQ(CodeOf(run.ended[0].status), ErrorCode::STORAGE_HUNG);
  EXPECT_EQ(run.flusher.active(), 0u);
}

// An agent that was killed after publishing does the same again.
TEST(Flusher, TheSameContentThereBeforeIsSuccess) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  for (const char* missing : {"", "rank-00000-of-00001.json", "rank-00000-of-00001.safetensors"}) {
    Harness run(*world.store);
    if (*missing != '\0') {
      ASSERT_TRUE(world.store->Delete(InStep(kJob, kId, missing)).ok());
    }
    run.flusher.FlushSealed(kKey, SourceOf(kJob, 0, 1, kId, slot), SealOf(slot));
    ASSERT_EQ(run.ended.size(), 1u);
    EXPECT_TRUE(run.ended[0].status.ok()) << missing << run.ended[0].status;
    EXPECT_TRUE(HoldsSlot(*world.store, slot));
    EXPECT_EQ(NamesIn(PosixFiles(), world.dir.path()).size(), 3u) << "no temporary file stays";
  }
}

TEST(Flusher, OtherContentUnderOurNameIsCorruptAndStays) {
  RealWorld world;
  TestSlot slot = MakeSlot(1);
  TestSlot other = MakeSlot(2);
  ASSERT_TRUE(SaveRank(*world.store, SystemClock(), SourceOf(kJob, 0, 1, kId, other), other).ok());
  Harness run(*world.store);
  run.flusher.FlushSealed(kKey, SourceOf(kJob, 0, 1, kId, slot), SealOf(slot));
  ASSERT_EQ(run.ended.size(), 1u);
  EXPECT_EQ(CodeOf(run.ended[0].status), ErrorCode::CORRUPT) << run.ended[0].status;
  EXPECT_TRUE(HoldsSlot(*world.store, other)) << "never replaced";

  // Images like ours, another sidecar beside them.
  const std::string name = InStep(kJob, kId, SidecarFileName(0, 1));
  std::string text = *world.store->ReadSmall(name, kMaxSidecarBytes);
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(world.store->Delete(InStep(kJob, kId, ImageFileName(0, 1, i))).ok());
  run.flusher.FlushSealed(kKey, SourceOf(kJob, 0, 1, kId, slot), SealOf(slot));
  ASSERT_EQ(run.ended.size(), 2u);
  EXPECT_EQ(CodeOf(run.ended[1].status), ErrorCode::CORRUPT) << run.ended[1].status;
  EXPECT_EQ(*world.store->ReadSmall(name, kMaxSidecarBytes), text);
}

// What was streamed did not go well: the images that the storage holds are not written for the second time.
TEST(Flusher, WhereTheStreamFailedWhatIsThereIsLookedFor) {
  TestSlot slot = MakeSlot(1);
  for (bool streamed : {false, true}) {
    SimWorld world;
    ASSERT_TRUE(SaveRank(*world.store, SystemClock(), SourceOf(kJob, 0, 1, kId, slot), slot).ok());
    ASSERT_TRUE(world.store->Delete(InStep(kJob, kId, SidecarFileName(0, 1))).ok());
    world.files.SetFree(32 << 10);  // for the sidecar, and for no image
    Harness run(*world.store);
    run.flusher.Begin(kKey, SourceOf(kJob, 0, 1, kId, slot));
    if (streamed) run.flusher.Captured(kKey, 1);
    run.flusher.Seal(kKey, SealOf(slot));
    ASSERT_EQ(run.ended.size(), 1u);
    EXPECT_EQ(CodeOf(run.ended[0].status), streamed ? ErrorCode::OK : ErrorCode::STORAGE_FULL) << run.ended[0].status;
    EXPECT_EQ(HoldsSlot(*world.store, slot), streamed);
  }
}

// Streams, seals; when that failed, flushes again, as the snapshot machine does.
absl::Status FlushWithRetry(Store& store, TestSlot& slot, bool* failed) {
  Harness run(store);
  run.flusher.Begin(kKey, SourceOf(kJob, 0, 1, kId, slot));
  run.flusher.Captured(kKey, 1);
  run.flusher.Captured(kKey, 2);
  run.flusher.Seal(kKey, SealOf(slot));
  EXPECT_EQ(run.ended.size(), 1u);
  *failed = !run.ended.at(0).status.ok();
  if (!*failed) return absl::OkStatus();
  run.flusher.FlushSealed(kKey, SourceOf(kJob, 0, 1, kId, slot), SealOf(slot));
  EXPECT_EQ(run.ended.size(), 2u);
  return run.ended.at(1).status;
}

// One error at every call. What is said to be flushed survives the loss of power, although a second fsync of a file
// that failed once lies: it was written anew under another name.
TEST(Flusher, ErrorsAtEveryCall) {
  TestSlot slot = MakeSlot(1);
  bool failed = false;
  size_t calls = 0;
  {
    SimWorld world;
    const size_t before = world.files.CallCount();
    ASSERT_TRUE(FlushWithRetry(*world.store, slot, &failed).ok());
    calls = world.files.CallCount() - before;
  }
  size_t failures = 0;
  size_t not_healed = 0;
  for (int error : {EIO, ENOSPC}) {
    for (size_t call = 0; call < calls; ++call) {
      SimWorld world;
      world.files.FailCall(call, error);
      absl::Status status = FlushWithRetry(*world.store, slot, &failed);
      failures += failed ? 1 : 0;
      EXPECT_EQ(world.files.OpenFiles(), 0u) << "call " << call;
      if (!status.ok()) {
        EXPECT_EQ(CodeOf(status), ErrorCode::STORAGE_IO) << "call " << call << ": " << status;
        ++not_healed;  // a directory whose fsync failed is not trusted again: that costs this step
        const SnapshotId next{kId.attempt, kId.step + 1};
        const FlushSource source = SourceOf(kJob, 0, 1, next, slot);
        EXPECT_TRUE(SaveRank(*world.store, SystemClock(), source, slot).ok()) << "call " << call;
        continue;
      }
      for (uint64_t seed = 0; seed < 4; ++seed) {
        SimFiles image = world.files.CrashImage(world.files.OpCount(), seed);
        EXPECT_TRUE(HoldsSlot(*OpenStore(image, "/store"), slot)) << "call " << call << " seed " << seed;
      }
    }
  }
  EXPECT_GT(failures, calls / 2) << "most calls matter";
  EXPECT_LT(not_healed, failures / 2);
  std::printf("calls: %zu, failures: %zu, refused after a failed directory: %zu\n", calls, failures, not_healed);
}

// Who finds the sidecar finds the images, whenever the power fails.
size_t SidecarsWithoutImages(const SimFiles& files, TestSlot& slot) {
  size_t bad = 0;
  for (size_t op = 0; op <= files.OpCount(); ++op) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      SimFiles image = files.CrashImage(op, seed);
      if (!Exists(image, "/store").value()) continue;
      auto store = OpenStore(image, "/store");
      bool sidecar = store->Stat(InStep(kJob, kId, SidecarFileName(0, 1))).ok();
      bad += sidecar && !HoldsSlot(*store, slot) ? 1 : 0;
    }
  }
  return bad;
}

TEST(Flusher, ASidecarNeverStandsWithoutItsImages) {
  TestSlot slot = MakeSlot(1);
  size_t syncs = 0;
  {
    SimWorld world;
    const size_t before = world.files.SyncCount();
    ASSERT_TRUE(SaveRank(*world.store, SystemClock(), SourceOf(kJob, 0, 1, kId, slot), slot).ok());
    syncs = world.files.SyncCount() - before;
    EXPECT_EQ(SidecarsWithoutImages(world.files, slot), 0u);
  }
  // The check of the check: without the fsync of an image it is caught.
  size_t caught = 0;
  for (size_t dropped = 0; dropped < syncs; ++dropped) {
    SimWorld world;
    world.files.DropSync(dropped);
    ASSERT_TRUE(SaveRank(*world.store, SystemClock(), SourceOf(kJob, 0, 1, kId, slot), slot).ok());
    caught += SidecarsWithoutImages(world.files, slot) > 0 ? 1 : 0;
  }
  EXPECT_GE(caught, 3u) << "two images and the sidecar itself, at least";
}

}  // namespace
}  // namespace ckptd

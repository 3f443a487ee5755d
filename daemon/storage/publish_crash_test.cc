// Power failures, lying disks and errors at every operation of the publish protocol, over the crash simulator.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <functional>
#include <set>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/storage/posix_store.h"
#include "daemon/storage/publish.h"

namespace ckptd {
namespace {

constexpr uint64_t kSeeds = 100;
constexpr uint64_t kFewSeeds = 20;  // where there are many logs
constexpr size_t kPublishChunk = 8192;
constexpr char kRoot[] = "/store";
constexpr char kName[] = "job/step/rank.safetensors";

// What every published file of these tests holds; aligned for direct I/O.
alignas(kDirectAlignment) const std::array<char, 3 * kPublishChunk> kContent = [] {
  std::array<char, 3 * kPublishChunk> content{};
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>('a' + i % 23);
  return content;
}();
absl::string_view Content() { return {kContent.data(), kContent.size()}; }

using Act = std::function<absl::Status(Store&)>;

absl::Status PublishRecord(Store& store) { return store.CreateExclusive(kName, Content()); }

absl::Status PublishPart(Store& store) {
  auto part = store.OpenForWrite(kName, kContent.size());
  if (!part.ok()) return part.status();
  for (size_t offset : {kPublishChunk, size_t{0}, 2 * kPublishChunk}) {
    absl::Status status = (*part)->Write(offset, std::as_bytes(std::span(kContent)).subspan(offset, kPublishChunk));
    if (!status.ok()) return status;
  }
  return (*part)->Finish();
}

struct World {
  World() {
    EXPECT_TRUE(files.Mkdir(kRoot, 0755).ok());
    EXPECT_TRUE(files.SyncDir("/").ok());
    store = OpenOn(files);
  }
  static std::unique_ptr<Store> OpenOn(Files& files) {
    return *OpenPosixStore(files, {.root = kRoot, .make_queue = [] { return MakeInlineIoQueue(2); }, .io_bytes = 4096});
  }
  SimFiles files;
  std::unique_ptr<Store> store;
};

enum class Found { kAbsent, kWhole, kTorn };

Found Look(SimFiles& files) {
  auto content = ReadSmall(files, std::string(kRoot) + "/" + kName, 1 << 20);
  if (!content.ok()) return Found::kAbsent;
  return *content == Content() ? Found::kWhole : Found::kTorn;
}

struct Tally {
  size_t states = 0;
  size_t torn = 0;
  size_t lost = 0;  // acknowledged, and not there
};

// Every operation boundary, `seeds` disks each. `acknowledged`: the operation count when the store said OK.
Tally CrashEverywhere(const SimFiles& files, size_t acknowledged, uint64_t seeds = kSeeds) {
  Tally tally;
  for (size_t op = 0; op <= files.OpCount(); ++op) {
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      SimFiles image = files.CrashImage(op, seed);
      Found found = Look(image);
      ++tally.states;
      tally.torn += found == Found::kTorn ? 1 : 0;
      tally.lost += op >= acknowledged && found != Found::kWhole ? 1 : 0;
    }
  }
  return tally;
}

struct Scenario {
  std::string name;
  Act act;
  std::function<void(SimFiles&)> prepare = [](SimFiles&) {};
};

// Another agent has made the directories and has not come to its fsyncs yet.
void OthersMadeTheDirectories(SimFiles& files) {
  ASSERT_TRUE(files.Mkdir("/store/job", 0755).ok());
  ASSERT_TRUE(files.Mkdir("/store/job/step", 0755).ok());
}

void NoHardLinks(SimFiles& files) { files.DisableLinks(); }

std::vector<Scenario> Scenarios() {
  return {{"record", PublishRecord},
          {"part", PublishPart},
          {"record_in_others_directories", PublishRecord, OthersMadeTheDirectories},
          {"part_without_hard_links", PublishPart, NoHardLinks}};
}

size_t CallsWithoutError(const Scenario& scenario) {
  World world;
  scenario.prepare(world.files);
  const size_t before = world.files.CallCount();
  EXPECT_TRUE(scenario.act(*world.store).ok());
  return world.files.CallCount() - before;
}

class PublishCrashTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(PublishCrashTest, IsAtomicAndDurable) {
  World world;
  GetParam().prepare(world.files);
  ASSERT_TRUE(GetParam().act(*world.store).ok());
  Tally tally = CrashEverywhere(world.files, world.files.OpCount());
  EXPECT_EQ(tally.torn, 0u);
  EXPECT_EQ(tally.lost, 0u);
  EXPECT_EQ(world.files.OpenFiles(), 0u);
  std::printf("states: %zu (%zu operations x %zu disks)\n", tally.states, world.files.OpCount(), size_t{kSeeds});
}

// The check of the check: without any one of its fsyncs the protocol is caught.
TEST_P(PublishCrashTest, EveryFsyncIsNeeded) {
  size_t syncs = 0;
  for (size_t dropped = 0; dropped == 0 || dropped < syncs; ++dropped) {
    World world;
    GetParam().prepare(world.files);
    const size_t before = world.files.SyncCount();
    world.files.DropSync(dropped);
    ASSERT_TRUE(GetParam().act(*world.store).ok());
    syncs = world.files.SyncCount() - before;
    Tally tally = CrashEverywhere(world.files, world.files.OpCount());
    EXPECT_GT(tally.torn + tally.lost, 0u) << "fsync " << dropped << " of " << syncs << " can go unnoticed";
  }
  EXPECT_EQ(syncs, 4u) << "two directories made, the file, its directory";
  std::printf("mutants killed: %zu of %zu\n", syncs, syncs);
}

// One error at every call. The answer is typed; nothing torn is ever visible; a retry that says OK (or that the name is
// there) is durable, although the failed fsync's successor may lie; nothing leaks.
TEST_P(PublishCrashTest, ErrorsAtEveryCall) {
  const size_t calls = CallsWithoutError(GetParam());
  EXPECT_GE(calls, 10u);
  for (int error : {EIO, ENOSPC, EDQUOT}) {
    for (size_t call = 0; call < calls; ++call) {
      SCOPED_TRACE("call " + std::to_string(call) + " fails with " + std::to_string(error));
      World world;
      GetParam().prepare(world.files);
      world.files.FailCall(call, error);
      absl::Status status = GetParam().act(*world.store);
      EXPECT_EQ(world.files.OpenFiles(), 0u);
      if (!status.ok()) {
        EXPECT_EQ(CodeOf(status), error == EIO ? ErrorCode::STORAGE_IO : ErrorCode::STORAGE_FULL) << status;
        EXPECT_NE(Look(world.files), Found::kTorn);
        status = GetParam().act(*world.store);
      }
      const bool settled = status.ok() || absl::IsAlreadyExists(status);
      EXPECT_TRUE(settled || CodeOf(status) == ErrorCode::STORAGE_IO) << status;
      Tally tally = CrashEverywhere(world.files, settled ? world.files.OpCount() : SIZE_MAX, kFewSeeds);
      EXPECT_EQ(tally.torn, 0u);
      EXPECT_EQ(tally.lost, 0u);
    }
  }
}

TEST_P(PublishCrashTest, WhatACrashLeavesCanBeCleanedAndDoneAgain) {
  World world;
  GetParam().prepare(world.files);
  ASSERT_TRUE(GetParam().act(*world.store).ok());
  for (size_t op = 0; op <= world.files.OpCount(); ++op) {
    for (uint64_t seed = 0; seed < kFewSeeds; ++seed) {
      SimFiles image = world.files.CrashImage(op, seed);
      if (!Exists(image, kRoot).value()) continue;  // the crash came before the test began
      auto store = World::OpenOn(image);
      ASSERT_TRUE(store->RemoveTemporary("job/step", Nanos(0)).ok());
      absl::Status again = GetParam().act(*store);
      EXPECT_TRUE(again.ok() || absl::IsAlreadyExists(again)) << again;
      EXPECT_EQ(Look(image), Found::kWhole);
      EXPECT_EQ(image.ReadDir("/store/job/step", 10)->size(), 1u) << "no temporary name stays";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublishCrashTest, ::testing::ValuesIn(Scenarios()),
                         [](const auto& info) { return info.param.name; });

// The loser goes on to rely on the winner's file: it must not be told before that file is durable.
TEST(Publish, TheLoserMakesTheWinnersNameDurable) {
  for (bool drop_last : {false, true}) {
    World world;
    ASSERT_TRUE(PublishRecord(*world.store).ok());
    ASSERT_TRUE(world.store->Delete(kName).ok());
    // The winner: complete, linked, not yet come to its fsync of the directory.
    {
      auto winner = world.files.Open("/store/job/step/.tmp-1", {.write = true, .create = true});
      ASSERT_TRUE((*winner)->PWrite(0, std::as_bytes(std::span(kContent))).ok());
      ASSERT_TRUE((*winner)->Sync().ok());
      ASSERT_TRUE(world.files.Link("/store/job/step/.tmp-1", "/store/job/step/rank.safetensors").ok());
    }
    constexpr size_t kLastSync = 3;
    if (drop_last) world.files.DropSync(kLastSync);
    ASSERT_TRUE(absl::IsAlreadyExists(PublishRecord(*world.store)));
    size_t lost = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      SimFiles image = world.files.CrashImage(world.files.OpCount(), seed);
      lost += Look(image) == Found::kWhole ? 0 : 1;
    }
    EXPECT_EQ(lost > 0, drop_last);
  }
}

// Whoever goes on from a record that a killed process left makes its name durable.
TEST(Publish, AConfirmedNameIsDurable) {
  for (bool confirmed : {false, true}) {
    World world;
    ASSERT_TRUE(world.store->CreateExclusive("job/step/other", "x").ok());  // the directories exist
    constexpr size_t kLastSync = 3;
    world.files.DropSync(kLastSync);
    ASSERT_TRUE(PublishRecord(*world.store).ok());
    if (confirmed) {
      ASSERT_TRUE(world.store->Confirm(kName).ok());
    }
    size_t lost = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      SimFiles image = world.files.CrashImage(world.files.OpCount(), seed);
      lost += Look(image) == Found::kWhole ? 0 : 1;
    }
    EXPECT_EQ(lost == 0, confirmed);
    EXPECT_TRUE(world.store->Confirm("no/such/name").ok());
  }
}

// NFS: the server made the link, its reply was lost, the repeated request finds the name.
TEST(Publish, ALinkWhoseReplyWasLostIsOurs) {
  World world;
  world.files.LoseReplyOfNextLink();
  EXPECT_TRUE(PublishRecord(*world.store).ok());
  EXPECT_EQ(Look(world.files), Found::kWhole);
  EXPECT_TRUE(absl::IsAlreadyExists(PublishRecord(*world.store)));
}

TEST(Publish, AFileWhoseFsyncFailedIsNeverNamed) {
  World world;
  ASSERT_TRUE(world.store->CreateExclusive("job/step/other", "x").ok());  // the directories exist
  // mkdir, fsync, mkdir, fsync, open, write, then the fsync of the file.
  world.files.FailCall(6, EIO);
  EXPECT_FALSE(PublishRecord(*world.store).ok());
  EXPECT_EQ(Look(world.files), Found::kAbsent);
  EXPECT_TRUE(PublishRecord(*world.store).ok()) << "a new file, written anew";
}

TEST(Publish, ADirectoryWhoseFsyncFailedIsNotTrustedAgain) {
  World world;
  ASSERT_TRUE(PublishRecord(*world.store).ok());
  world.files.FailCall(1, EIO);  // after unlink
  EXPECT_EQ(CodeOf(world.store->Delete(kName)), ErrorCode::STORAGE_IO);
  EXPECT_EQ(CodeOf(world.store->Delete(kName)), ErrorCode::STORAGE_IO) << "the kernel would say OK now";
}

// Disks of which a name is missing when the power fails now.
size_t DisksWithout(const SimFiles& files, const std::string& path) {
  size_t lost = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SimFiles image = files.CrashImage(files.OpCount(), seed);
    lost += Exists(image, path).value() ? 0 : 1;
  }
  return lost;
}

// One error at every call of a save. It costs that step at most: the names above it were durable before.
TEST(Publish, AnErrorOfOneStepDoesNotRefuseTheNext) {
  for (size_t call = 0;; ++call) {
    SCOPED_TRACE("call " + std::to_string(call));
    World world;
    ASSERT_TRUE(world.store->CreateExclusive("job/step-1/rank", "x").ok());
    const size_t end = world.files.CallCount() + call;
    world.files.FailCall(call, EIO);
    (void)world.store->CreateExclusive("job/step-2/rank", "x");
    if (world.files.CallCount() <= end) return;  // it has no more calls
    const absl::Status third = world.store->CreateExclusive("job/step-3/rank", "x");
    EXPECT_TRUE(third.ok()) << third;
    EXPECT_EQ(DisksWithout(world.files, "/store/job/step-3/rank"), 0u);
    const absl::Status again = world.store->CreateExclusive("job/step-2/rank", "x");
    if (again.ok() || absl::IsAlreadyExists(again)) {
      EXPECT_EQ(DisksWithout(world.files, "/store/job/step-2/rank"), 0u);
    }
  }
}

// What was there when an fsync failed may be lost with it, whoever made it. What came later is known by the next one.
TEST(Publish, OfAFailedDirectoryOnlyWhatCameLaterIsTrusted) {
  World world;
  ASSERT_TRUE(world.store->CreateExclusive("job/step-1/rank", "x").ok());
  ASSERT_TRUE(world.files.Mkdir("/store/job/step-2", 0755).ok());  // another agent's, not synced yet
  world.files.FailCall(4, EIO);  // after mkdir, fsync, mkdir and stat: the fsync of the job's directory
  EXPECT_EQ(CodeOf(world.store->CreateExclusive("job/step-3/rank", "x")), ErrorCode::STORAGE_IO);
  ASSERT_TRUE(world.files.Mkdir("/store/job/step-4", 0755).ok());
  EXPECT_EQ(CodeOf(world.store->CreateExclusive("job/step-2/rank", "x")), ErrorCode::STORAGE_IO);
  for (const char* sure : {"job/step-1/other", "job/step-3/rank", "job/step-4/rank", "job/step-5/rank"}) {
    EXPECT_TRUE(world.store->CreateExclusive(sure, "x").ok()) << sure;
    EXPECT_EQ(DisksWithout(world.files, std::string("/store/") + sure), 0u) << sure;
  }
}

// What was durable before an fsync failed stays so, however many steps come before and after it.
TEST(Publish, WhatWasDurableBeforeAFailureIsNotInDoubtLater) {
  constexpr int kManySteps = 300;  // more than are remembered
  World world;
  const auto save = [&](int first) {
    for (int step = first; step < first + kManySteps; ++step) {
      ASSERT_TRUE(world.store->OpenForWrite("job/step-" + std::to_string(step) + "/rank", 0).ok()) << step;
    }
  };
  save(0);
  world.files.FailCall(2, EIO);  // after mkdir and stat: the fsync of the root
  EXPECT_FALSE(world.store->CreateExclusive("other/step-1/rank", "x").ok());
  save(kManySteps);
}

// The storage may still be away when the directory is looked at: then all that is found is in doubt.
TEST(Publish, AFailedDirectoryThatCannotBeListedIsListedLater) {
  World world;
  ASSERT_TRUE(world.store->CreateExclusive("job/step-1/rank", "x").ok());
  world.files.KillAt(world.files.OpCount() + 3);  // an fsync, mkdir and its failed fsync; nothing answers then
  world.files.FailCall(4, EIO);
  EXPECT_FALSE(world.store->CreateExclusive("job/step-2/rank", "x").ok());
  world.files.Revive();
  EXPECT_EQ(CodeOf(world.store->CreateExclusive("job/step-2/rank", "x")), ErrorCode::STORAGE_IO);
  for (const char* sure : {"job/step-1/other", "job/step-4/rank"}) {
    EXPECT_TRUE(world.store->CreateExclusive(sure, "x").ok()) << sure;
    EXPECT_EQ(DisksWithout(world.files, std::string("/store/") + sure), 0u) << sure;
  }
}

// Somebody removed a directory that this process knew to be durable, and somebody else made it anew.
TEST(Publish, ADirectoryThatOthersMadeAnewIsInDoubt) {
  World world;
  ASSERT_TRUE(PublishRecord(*world.store).ok());
  ASSERT_TRUE(world.files.Unlink("/store/job/step/rank.safetensors").ok());
  ASSERT_TRUE(world.files.Rmdir("/store/job/step").ok());
  ASSERT_TRUE(world.files.Rmdir("/store/job").ok());
  ASSERT_TRUE(world.files.Mkdir("/store/job", 0755).ok());
  world.files.FailCall(1, EIO);  // after mkdir: the fsync of the root
  EXPECT_EQ(CodeOf(PublishRecord(*world.store)), ErrorCode::STORAGE_IO);
  EXPECT_EQ(CodeOf(PublishRecord(*world.store)), ErrorCode::STORAGE_IO) << "the kernel would say OK now";
}

// Has another thread come in just before the next fsync of one directory.
class Interrupted final : public FilesAround {
 public:
  using FilesAround::FilesAround;
  absl::Status SyncDir(const std::string& path) override {
    if (path == "/store/job" && other) std::exchange(other, nullptr)();
    return FilesAround::SyncDir(path);
  }
  std::function<void()> other;
};

// Its fsync failed between this one's mkdir and fsync, and may have lost that name, too.
TEST(Publish, AnotherThreadsFailureIsNotOverlooked) {
  World world;
  Interrupted files(world.files);
  const std::unique_ptr<Store> store = World::OpenOn(files);
  ASSERT_TRUE(store->CreateExclusive("job/step-1/rank", "x").ok());
  files.other = [&] {
    world.files.FailCall(4, EIO);  // after mkdir, fsync, mkdir and stat
    EXPECT_EQ(CodeOf(store->CreateExclusive("job/step-3/rank", "x")), ErrorCode::STORAGE_IO);
  };
  EXPECT_EQ(CodeOf(store->CreateExclusive("job/step-2/rank", "x")), ErrorCode::STORAGE_IO);
  for (const char* sure : {"job/step-2/rank", "job/step-3/rank"}) {
    EXPECT_TRUE(store->CreateExclusive(sure, "x").ok()) << sure;
    EXPECT_EQ(DisksWithout(world.files, std::string("/store/") + sure), 0u) << sure;
  }
}

TEST(Publish, AFileSystemWithNeitherLinkNorRenameIsRefused) {
  World world;
  world.files.DisableLinks();
  world.files.DisableRenames();
  EXPECT_EQ(CodeOf(PublishRecord(*world.store)), ErrorCode::REFUSED);
  EXPECT_EQ(Look(world.files), Found::kAbsent);
}

// Steps that are deleted share their job's directory: an error of one must not leave the others undeleted for ever.
TEST(Delete, AnErrorOfOneDirectoryDoesNotRefuseTheNext) {
  World world;
  for (const char* step : {"job/step-1/rank", "job/step-2/rank"}) {
    ASSERT_TRUE(world.store->CreateExclusive(step, "x").ok());
    ASSERT_TRUE(world.store->Delete(step).ok());
  }
  world.files.FailCall(1, EIO);  // after rmdir
  EXPECT_EQ(CodeOf(world.store->DeleteDirectory("job/step-1")), ErrorCode::STORAGE_IO);
  EXPECT_EQ(CodeOf(world.store->DeleteDirectory("job/step-1")), ErrorCode::STORAGE_IO) << "it may come back";
  EXPECT_TRUE(world.store->DeleteDirectory("job/step-2").ok());
  EXPECT_EQ(DisksWithout(world.files, "/store/job/step-2"), size_t{kSeeds});
}

TEST(Delete, IsDurable) {
  World world;
  ASSERT_TRUE(PublishRecord(*world.store).ok());
  ASSERT_TRUE(world.store->Delete(kName).ok());
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SimFiles image = world.files.CrashImage(world.files.OpCount(), seed);
    EXPECT_EQ(Look(image), Found::kAbsent);
  }
}

}  // namespace
}  // namespace ckptd

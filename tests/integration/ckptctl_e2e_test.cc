// ckptctl against a real agent, on jobs that a real trainer saved. Every exit code at least once.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/integration/ctl_fixture.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

TEST_F(CkptctlTest, SeesWhatWasSaved) {
  Said empty = Run("status");
  EXPECT_EQ(empty.code, 0) << empty;
  EXPECT_TRUE(empty.Has("no jobs")) << empty;
  Train("gpt");
  Said status = Run("status gpt");
  EXPECT_EQ(status.code, 0) << status;
  EXPECT_TRUE(status.Has("captured  step 20")) << status;
  EXPECT_TRUE(status.Has("durable   step 20")) << status;
  Said json = Run("status -o json");
  EXPECT_TRUE(json.Has("\"watermark_step\": 20")) << json;
  Said list = Run("list gpt");
  EXPECT_EQ(list.code, 0) << list;
  EXPECT_TRUE(list.Has("gpt  20    1        durable  region+storage")) << list;
  Said tensors = Run("inspect gpt@20");
  EXPECT_EQ(tensors.code, 0) << tensors;
  EXPECT_TRUE(tensors.Has("I64")) << tensors;
  EXPECT_TRUE(tensors.Has("(from region, step 20 of attempt 1)")) << tensors;
  Said stored = Run("inspect " + Older("gpt") + " -o json");
  EXPECT_TRUE(stored.Has("\"source\": \"storage\"")) << stored;
  Said trace = Run("trace gpt@20");
  EXPECT_EQ(trace.code, 0) << trace;
  EXPECT_TRUE(trace.Has("save.captured")) << trace;
  EXPECT_TRUE(trace.Has("flush.done")) << trace;
  Said version = Run("version");
  EXPECT_EQ(version.code, 0) << version;
  EXPECT_TRUE(version.Has("ckptd    0.1.0")) << version;
}

// Each flush takes longer than some saves: most find both slots taken.
TEST_F(CkptctlTest, StatusTellsWhatWasDropped) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
#endif
  node_ = std::make_unique<Node>(Settings());
  ASSERT_TRUE(node_->StartAgent({"CKPTD_FAILPOINTS=flush.before_finish=sleep:2500"})) << node_->AgentLog();
  auto trainer = node_->Train(Args("--job gpt --every 2 --step-ms 20 --steps 1000000"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE ")) << node_->AgentLog();
  ASSERT_TRUE(trainer->WaitFor("DROPPED ")) << node_->AgentLog();
  Said status = Await(0, "status gpt");
  EXPECT_TRUE(status.Has("NO_FREE_SLOT at ")) << status;
  EXPECT_TRUE(status.Has("  dropped   ")) << status;
  Said json = Run("status gpt -o json");
  EXPECT_TRUE(json.Has("\"last_drop\": \"NO_FREE_SLOT\"")) << json;
  EXPECT_TRUE(json.Has("\"NO_FREE_SLOT\": ")) << json;
  EXPECT_TRUE(json.Has("\"on_lineage\": true")) << json;
  EXPECT_FALSE(json.Has("\"on_lineage\": false")) << json;
  EXPECT_TRUE(json.Has("\"capture_seconds\": ")) << json;
  EXPECT_EQ(json.Has("\"direct\": true"), json.Has(", direct\",")) << json;
  trainer->Kill();
}

TEST_F(CkptctlTest, StatusTellsWhatARollBackLeftBehind) {
  Train("gpt");
  Said before = Run("status gpt -o json");
  EXPECT_TRUE(before.Has("\"on_lineage\": true")) << before;
  EXPECT_FALSE(before.Has("\"on_lineage\": false")) << before;
  auto trainer =
      node_->Train(Args("--job gpt --steps 1000000 --every 1000 --step-ms 20 --want " + std::to_string(older_)));
  ASSERT_TRUE(trainer->WaitFor("STEP")) << trainer->Errors() << node_->AgentLog();
  Said after = Run("status gpt -o json");
  EXPECT_TRUE(after.Has("\"on_lineage\": true")) << after;
  EXPECT_TRUE(after.Has("\"on_lineage\": false")) << after;
  trainer->Kill();
}

TEST_F(CkptctlTest, FlushAndDrainTellWhatIsDurable) {
  Said unknown = Run("flush nobody");
  EXPECT_EQ(unknown.code, 4) << unknown;
  Train("gpt");
  Said flush = Run("flush gpt --wait");
  EXPECT_EQ(flush.code, 0) << flush;
  EXPECT_TRUE(flush.Has("step 20 (attempt 1) is durable")) << flush;
  Said drain = Run("drain");
  EXPECT_EQ(drain.code, 0) << drain;
  EXPECT_TRUE(Run("status").Has("DRAINING"));
  auto later = node_->Train(Args("--job later --steps 20 --every 5 --step-ms 40"));
  EXPECT_TRUE(later->WaitFor("STEP 20")) << later->Errors();
  EXPECT_EQ(later->Last("CAPTURED"), 0u) << "a job that comes after the drain";
}

TEST_F(CkptctlTest, RestoresTheSameBytesFromMemoryAndFromStorage) {
  Train("gpt");
  const std::string saved = Content(Image(StepDir("gpt", 20)));
  ASSERT_FALSE(saved.empty());
  Said memory = Run("restore gpt --to " + dir_ + "/out/m");
  EXPECT_EQ(memory.code, 0) << memory;
  EXPECT_TRUE(memory.Has("step 20 of attempt 1 from region")) << memory;
  EXPECT_TRUE(Content(Image(dir_ + "/out/m")) == saved);
  Said storage = Run("restore " + Older("gpt") + " --to " + dir_ + "/out/s");
  EXPECT_EQ(storage.code, 0) << storage;
  EXPECT_TRUE(storage.Has("from storage")) << storage;
  EXPECT_TRUE(Content(Image(dir_ + "/out/s")) == Content(Image(StepDir("gpt", older_))));
  Said again = Run("restore gpt --to " + dir_ + "/out/m");
  EXPECT_EQ(again.code, 6) << again;  // nothing is overwritten
  EXPECT_EQ(Run("restore gpt@7 --to " + dir_ + "/out/n").code, 4);
  EXPECT_FALSE(fs::exists(dir_ + "/out/n"));
  EXPECT_EQ(ListFiles(dir_ + "/out").size(), 2u);  // no temporary files
}

TEST_F(CkptctlTest, NamesWhatIsDamagedOnStorage) {
  Train("gpt");
  Said good = Run("verify " + Older("gpt"));
  EXPECT_EQ(good.code, 0) << good;
  EXPECT_TRUE(good.Has("good")) << good;
  FlipByte(Image(StepDir("gpt", older_)), 20000);
  Said bad = Run("verify " + Older("gpt"));
  EXPECT_EQ(bad.code, 1) << bad;
  EXPECT_TRUE(bad.Has("rank-00000-of-00001.safetensors")) << bad;
  EXPECT_TRUE(bad.Has("storage: rank 0")) << bad;
  EXPECT_EQ(Run("verify " + StepDir("gpt", older_)).code, 1);
  EXPECT_EQ(Run("verify " + StepDir("gpt", 20)).code, 0);
  Said restore = Run("restore " + Older("gpt") + " --to " + dir_ + "/out");
  EXPECT_EQ(restore.code, 5) << restore;
  EXPECT_TRUE(ListFiles(dir_ + "/out").empty());
  FlipByte(Image(StepDir("gpt", older_)), 9);  // the header
  EXPECT_EQ(Run("inspect " + Image(StepDir("gpt", older_))).code, 5);
}

TEST_F(CkptctlTest, VerifyOfAPathWantsACommittedStep) {
  Train("gpt");
  const std::string step = dir_ + "/step";
  fs::copy(StepDir("gpt", 20), step);
  for (const char* path : {".", "../step", "./rank-00000-of-00001.safetensors", "rank-00000-of-00001.safetensors"}) {
    Said good = Run(std::string("verify ") + path, {"env", "-C", step});
    EXPECT_EQ(good.code, 0) << good;
    EXPECT_TRUE(good.Has(": good, ")) << good;
  }
  fs::remove(step + "/manifest.json");
  Said half = Run("verify .", {"env", "-C", step});
  EXPECT_EQ(half.code, 1) << half;
  EXPECT_TRUE(half.Has("manifest.json: missing: the step was never committed, and no restore takes it")) << half;
  EXPECT_TRUE(half.Has(": NOT COMMITTED, ")) << half;
  FlipByte(Image(step), 20000);
  Said bad = Run("verify " + step);
  EXPECT_EQ(bad.code, 1) << bad;
  EXPECT_TRUE(bad.Has("DAMAGED in 2 places")) << bad;
}

// Rank 1 is in its first step as long as this takes.
TEST_F(CkptctlTest, VerifyOfAStepThatIsWholeNowhereNamesTheRanksWithoutIt) {
  auto zero = node_->Train(Args("--job gpt --world 2 --rank 0 --steps 5 --every 5"));
  auto one = node_->Train(Args("--job gpt --world 2 --rank 1 --steps 5 --every 5 --step-ms 600000"));
  for (int i = 0; i < 150 && !Run("status gpt").Has("sealed 5"); ++i) usleep(100'000);
  Said half = Run("verify gpt@5");
  EXPECT_EQ(half.code, 1) << half;
  EXPECT_TRUE(half.Has("manifest.json: missing: the step is not committed; no slot with it is here of ranks 1"))
      << half;
  EXPECT_TRUE(half.Has("gpt@5: step 5 of attempt 1: NOT COMMITTED, ")) << half;
  for (const std::string& slot : FilesWith(node_->region(), "/slot-")) FlipByte(node_->region() + "/" + slot, 20000);
  Said bad = Run("verify gpt@5");
  EXPECT_EQ(bad.code, 1) << bad;
  EXPECT_TRUE(bad.Has("DAMAGED in 2 places")) << bad;
  one->Kill();
  zero->Kill();
}

TEST_F(CkptctlTest, VerifyOfAStepThatIsInMemoryOnlySaysSo) {
  NodeOptions options = Settings();
  options.settings["durability.flush_every"] = "1000000";
  node_ = std::make_unique<Node>(options);
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  auto trainer = node_->Train(Args("--job gpt --steps 1000000 --every 5 --step-ms 20"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node_->AgentLog();
  Said good = Run("verify gpt");
  EXPECT_EQ(good.code, 0) << good;
  EXPECT_TRUE(good.Has(" of attempt 1: good, ")) << good;
  EXPECT_TRUE(good.Has("note: the step is not committed: it is whole in the memory of this node, and not on storage"))
      << good;
  trainer->Kill();
}

TEST_F(CkptctlTest, ADamagedSlotIsPassedOverAndStorageServes) {
  Train("gpt");
  const std::string saved = Content(Image(StepDir("gpt", 20)));
  for (const std::string& slot : FilesWith(node_->region(), "/slot-")) FlipByte(node_->region() + "/" + slot, 20000);
  Said restore = Run("restore gpt@20 --to " + dir_ + "/out");
  EXPECT_EQ(restore.code, 0) << restore;
  EXPECT_TRUE(restore.Has("passed over: ")) << restore;
  EXPECT_TRUE(restore.Has("from storage")) << restore;
  EXPECT_TRUE(Content(Image(dir_ + "/out")) == saved);
}

TEST_F(CkptctlTest, VerifyFindsADamagedSlot) {
  Train("gpt");
  for (const std::string& slot : FilesWith(node_->region(), "/slot-")) FlipByte(node_->region() + "/" + slot, 20000);
  Said bad = Run("verify gpt@20 -o json");
  EXPECT_EQ(bad.code, 1) << bad;
  EXPECT_TRUE(bad.Has("\"source\": \"region\"")) << bad;
  Said again = Run("verify gpt@20");  // the slot is quarantined, storage is good
  EXPECT_EQ(again.code, 0) << again;
}

TEST_F(CkptctlTest, PinnedStepsStayAndUnpinnedOnesGo) {
  auto trainer = node_->Train(Args("--job gpt --steps 2000 --every 5 --step-ms 20"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE "));
  const uint64_t step = trainer->Last("DURABLE");
  const std::string name = "gpt@" + std::to_string(step);
  Said pin = Run("pin " + name);
  ASSERT_EQ(pin.code, 0) << pin;
  for (int newer = 0; newer < 8; ++newer) ASSERT_TRUE(trainer->WaitFor("DURABLE "));
  Said refused = Run("rm " + name);
  EXPECT_EQ(refused.code, 6) << refused;
  EXPECT_TRUE(refused.ErrorHas("pinned")) << refused;
  EXPECT_TRUE(fs::exists(StepDir("gpt", step) + "/manifest.json"));  // it is older than the last 4
  EXPECT_TRUE(Run("list gpt").Has("yes"));
  Said dry = Run("gc gpt --dry-run");
  EXPECT_EQ(dry.code, 0) << dry;
  EXPECT_TRUE(dry.Has("pinned")) << dry;
  Said unpin = Run("unpin " + name);
  EXPECT_EQ(unpin.code, 0) << unpin;
  EXPECT_TRUE(unpin.Has("no longer pinned")) << unpin;
  Said removed = Run("rm " + name);  // unless retention was faster
  EXPECT_TRUE(removed.code == 0 || removed.code == 4) << removed;
  EXPECT_FALSE(fs::exists(StepDir("gpt", step) + "/manifest.json"));
  trainer->Kill();
}

TEST_F(CkptctlTest, TheNewestStepIsNeverRemoved) {
  Train("gpt");
  Said newest = Run("rm gpt@20");
  EXPECT_EQ(newest.code, 6) << newest;
  EXPECT_TRUE(fs::exists(StepDir("gpt", 20) + "/manifest.json"));
  EXPECT_EQ(Run("rm gpt@999").code, 4);
}

TEST_F(CkptctlTest, GcGivesBackTheMemoryOfANamedIdleJob) {
  Train("gpt");
  Said kept = Run("gc");
  EXPECT_EQ(kept.code, 0) << kept;
  EXPECT_FALSE(FilesWith(node_->region(), "/slot-").empty());
  Said freed = Run("gc gpt");
  EXPECT_EQ(freed.code, 0) << freed;
  EXPECT_TRUE(FilesWith(node_->region(), "/slot-").empty()) << freed;
  Said list = Run("list gpt");
  EXPECT_TRUE(list.Has("durable  storage")) << list;
}

// Of 100 GB it takes the kernel seconds: nobody else waits for that.
TEST_F(CkptctlTest, TheAgentAnswersWhileMemoryIsFreed) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  ASSERT_EQ(node_->StopAgent(), 0);
  ASSERT_TRUE(node_->StartAgent({"CKPTD_FAILPOINTS=region.slot.free=sleep:20000"}));
  Train("gpt");
  const auto begin = std::chrono::steady_clock::now();
  Said freed = Run("gc gpt");
  EXPECT_EQ(freed.code, 0) << freed;
  EXPECT_TRUE(FilesWith(node_->region(), "/slot-").empty()) << freed;
  Said status = Run("status");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15)) << status;
  node_->KillAgent();
}

// How old a file is, the storage tells by a file more, and here is room for none.
TEST_F(CkptctlTest, GcWithoutRoomForAFileSaysWhatToDo) {
  Train("gpt");
  const std::string attempts = node_->storage() + "/gpt/attempts";
  Tmpfs full("1m,nr_inodes=2", attempts);
  if (!full.mounted()) GTEST_SKIP() << kNoMount;
  const std::string left = attempts + "/" + ".tmp-0-0-0";
  std::ofstream(left) << "x";
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(2));
  Said gc = Run("gc");
  EXPECT_EQ(gc.code, 0) << gc;
  EXPECT_TRUE(gc.Has("temporary files of writers that died: ")) << gc;
  EXPECT_TRUE(gc.Has("make room with ckptctl rm, then ckptctl gc again")) << gc;
  EXPECT_TRUE(fs::exists(left)) << gc;
}

// Neither may end well where what only storage has is left out. A name that is no folder fails for root too.
TEST_F(CkptctlTest, ListAndGcSayThatTheStorageCannotBeRead) {
  Train("gpt");
  const auto damage = [&](const std::string& job) {
    fs::create_directories(node_->storage() + "/" + job);
    std::error_code none;
    fs::rename(node_->storage() + "/" + job + "/attempts", dir_ + "/attempts-of-" + job, none);
    std::ofstream(node_->storage() + "/" + job + "/attempts") << "x";
  };
  damage("old");
  Said other = Run("list");
  EXPECT_EQ(other.code, 1) << other;
  EXPECT_TRUE(other.Has("gpt  20    1        durable  region+storage")) << other;
  EXPECT_TRUE(other.ErrorHas("ckptctl: job old: what storage has of it cannot be read: ")) << other;
  EXPECT_EQ(Run("list gpt").code, 0);
  EXPECT_EQ(Run("list old").code, 6) << Run("list old");
  damage("gpt");
  for (const char* line : {"list", "list gpt"}) {
    Said list = Run(line);
    EXPECT_EQ(list.code, 1) << list;
    EXPECT_TRUE(list.Has("gpt  20    1        captured  region")) << list;
    EXPECT_TRUE(list.ErrorHas("ckptctl: job gpt: what storage has of it cannot be read: ")) << list;
    EXPECT_TRUE(list.ErrorHas(node_->storage() + "/gpt/attempts")) << list;
  }
  Said json = Run("list gpt -o json");
  EXPECT_EQ(json.code, 1) << json;
  EXPECT_TRUE(json.Has("\"errors\": [\"job gpt: what storage has of it cannot be read: ")) << json;
  Said gc = Run("gc --dry-run");
  EXPECT_EQ(gc.code, 1) << gc;
  EXPECT_TRUE(gc.ErrorHas("ckptctl: job gpt: what storage has of it cannot be read: ")) << gc;
  EXPECT_TRUE(gc.ErrorHas("ckptctl: job old: what storage has of it cannot be read: ")) << gc;
  EXPECT_FALSE(gc.Has("nothing to look at")) << gc;
  EXPECT_EQ(Run("gc gpt --dry-run").code, 6) << Run("gc gpt --dry-run");
  fs::rename(node_->storage(), dir_ + "/elsewhere");
  Said gone = Run("list");
  EXPECT_EQ(gone.code, 1) << gone;
  EXPECT_TRUE(gone.Has("gpt  20 ")) << gone;
  EXPECT_TRUE(gone.ErrorHas("ckptctl: jobs that only storage has are left out: ")) << gone;
  EXPECT_TRUE(gone.ErrorHas("; ckptctl status tells how the storage is")) << gone;
}

TEST_F(CkptctlTest, SalvageNeedsNoAgent) {
  Train("gpt");
  const std::string saved = Content(Image(StepDir("gpt", 20)));
  node_->KillAgent();
  Said salvage = Run("salvage " + node_->region() + "/r --to " + dir_ + "/out");
  EXPECT_EQ(salvage.code, 0) << salvage;
  EXPECT_TRUE(Content(Image(dir_ + "/out/gpt/step-0000000020.a0001")) == saved) << salvage;
  EXPECT_EQ(Run("salvage " + node_->region() + "/r other --to " + dir_ + "/none").code, 4);
  for (const std::string& slot : FilesWith(node_->region(), "/slot-")) FlipByte(node_->region() + "/" + slot, 20000);
  Said damaged = Run("salvage " + node_->region() + "/r --to " + dir_ + "/bad");
  EXPECT_EQ(damaged.code, 5) << damaged;
  EXPECT_TRUE(ListFiles(dir_ + "/bad").empty());
}

TEST_F(CkptctlTest, PlanNeedsNoAgent) {
  node_->KillAgent();
  Said pairs = Run("plan --scheme mixed --nodes 16 --copies 2 --lost 2 --bytes 75GiB");
  EXPECT_EQ(pairs.code, 0) << pairs;
  EXPECT_TRUE(pairs.Has("mixed, 2 copies, 16 nodes in 8 groups of 2\n")) << pairs;
  EXPECT_TRUE(pairs.Has("2           93.3333 %        15.0\n")) << pairs;
  EXPECT_TRUE(pairs.Has("memory     300.0 GiB  4 in 2 versions\n")) << pairs;
  Said json = Run("plan --scheme ring --nodes 16 --copies 2 --lost 2 --bytes 75GiB -o json");
  EXPECT_EQ(json.code, 0) << json;
  EXPECT_TRUE(json.Has("\"survival\": 0.8666666666666667,")) << json;
  EXPECT_TRUE(json.Has("\"memory_bytes_per_node\": 322122547200,")) << json;
  EXPECT_TRUE(json.Has("\"traffic_bytes_per_save\": 80530636800,")) << json;
  Said bad = Run("plan --scheme group --nodes 16 --copies 3 --lost 2");
  EXPECT_EQ(bad.code, 2) << bad;
  EXPECT_TRUE(bad.ErrorHas("the scheme mixed takes any number")) << bad;
  EXPECT_TRUE(bad.out.empty()) << bad;
}

TEST_F(CkptctlTest, NoAgentIsThreeAndAnUnknownJobIsFour) {
  for (const char* line : {"status x", "list x", "inspect x", "verify x@1", "trace x@1", "pin x@1", "rm x@1", "gc x"}) {
    EXPECT_EQ(Run(line).code, 4) << Run(line);
  }
  node_->KillAgent();
  Said gone = Run("status");
  EXPECT_EQ(gone.code, 3) << gone;
  EXPECT_TRUE(gone.ErrorHas("next: start the agent")) << gone;
  ASSERT_TRUE(node_->StartAgent());  // the socket that the dead agent left is replaced
  EXPECT_EQ(Run("status").code, 0);
}

TEST_F(CkptctlTest, AnotherUserIsRefusedByTheSocketsMode) {
  if (geteuid() != 0) GTEST_SKIP() << "reason: needs root to become another user";
  Said other = Run("status", {"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"});
  EXPECT_EQ(other.code, 6) << other;
  EXPECT_TRUE(other.ErrorHas("may not connect")) << other;
}

TEST_F(CkptctlTest, AnAgentThatStopsEndsTheCallsItHolds) {
  auto trainer = node_->Train(Args("--job gpt --steps 1000000 --every 1 --step-ms 1"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED"));
  Child watch({{BinaryDirectory() + "/ckptctl", "status", "-w"}, {"CKPTD_ADMIN_SOCKET=" + admin()}, dir_ + "/stderr"});
  ASSERT_TRUE(watch.WaitFor("agent"));
  EXPECT_EQ(node_->StopAgent(), 0) << node_->AgentLog();
  EXPECT_FALSE(fs::exists(admin()));
  ASSERT_TRUE(watch.WaitFor("ckptctl: "));  // it goes on asking
  watch.Kill();
  trainer->Kill();
}

}  // namespace
}  // namespace ckptd::harness

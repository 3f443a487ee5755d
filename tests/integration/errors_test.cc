// Bad surroundings and bad input: each gives its sentence, and nothing that was saved is lost.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/harness.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

void ExpectSameEnd(Node& node, Child& trainer, const std::string& line) {
  EXPECT_EQ(trainer.Wait(), 0) << trainer.Errors() << node.AgentLog();
  EXPECT_EQ(trainer.lines().back(), node.ExpectedDigest(Args(line)));
}

void ExpectSays(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected \"" << part << "\" in: " << text;
}

TEST(Errors, NoAgentAtSave) {
  Node node;
  std::string line = "--steps 20 --every 5 --no-restore --close-ms 200";
  auto trainer = node.Train(Args(line));
  EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors();
  EXPECT_EQ(trainer->lines().back(), node.ExpectedDigest(Args("--steps 20")));
  EXPECT_EQ(std::count(trainer->lines().begin(), trainer->lines().end(), "DROPPED 5 AGENT_UNREACHABLE"), 1)
      << testing::PrintToString(trainer->lines());
}

TEST(Errors, NoAgentAtRestore) {
  Node node;
  auto trainer = node.Train(Args("--steps 20 --restore-ms 1000"));
  EXPECT_EQ(trainer->Wait(), 1);
  ExpectSays(trainer->Errors(), node.socket());
}

TEST(Errors, SocketOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "skipped: needs root, to become another user";
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 5 --restore-ms 1000"), AsUser("65534", "65534"));
  EXPECT_EQ(trainer->Wait(), 1);
  ExpectSays(trainer->Errors(), "no permission to connect to " + node.socket());
}

TEST(Errors, JobOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "skipped: needs root, to become another user";
  Node node({.region = "", .storage = "", .settings = {{"security.socket_mode", "\"0666\""}}});
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  auto mine = node.Train(Args("--steps 10 --every 5 --step-ms 5"));
  ASSERT_EQ(mine->Wait(), 0) << mine->Errors();
  auto theirs = node.Train(Args("--steps 5 --restore-ms 1000"), AsUser("65534", "65534"));
  EXPECT_EQ(theirs->Wait(), 1);
  ExpectSays(theirs->Errors(), "belongs to uid 0, this process runs as uid 65534");
}

// Anybody can make the folder under /tmp where a user's own agent is looked for.
TEST(Errors, AnotherUsersAgentInTheFolderOfMine) {
  const std::string uid = std::to_string(100'000 + getpid());  // nobody's: tests may run side by side
  const std::string folder = "/tmp/ckptd-" + uid;
  ASSERT_TRUE(fs::create_directory(folder));
  Node node({.region = "",
             .storage = "",
             .settings = {{"agent.socket", "\"" + folder + "/s\""}, {"security.socket_mode", "\"0666\""}}});
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  auto theirs = node.Train(Args("--socket " + folder + "/s --steps 5 --restore-ms 5000"), AsUser(uid, "65534"));
  EXPECT_EQ(theirs->Wait(), 1);
  ExpectSays(theirs->Errors(), "PERMISSION: no permission to connect to " + folder);
  fs::remove_all(folder);
}

TEST(Errors, UnknownConfigKey) {
  Node node({.region = "", .storage = "", .settings = {{"region.slotz", "3"}}});
  EXPECT_FALSE(node.StartAgent());
  EXPECT_GT(node.agent()->Wait(), 0);
  ExpectSays(node.AgentLog(), "slotz");
  ExpectSays(node.AgentLog(), "next: ");
}

TEST(Errors, SecondAgentOnTheSameRegion) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  Node second({.region = "", .storage = "", .settings = {{"region.dir", "\"" + node.region() + "/r\""}}});
  EXPECT_FALSE(second.StartAgent());
  EXPECT_GT(second.agent()->Wait(), 0);
  ExpectSays(second.AgentLog(), std::to_string(node.agent()->pid()));
  auto trainer = node.Train(Args("--steps 10 --every 5 --step-ms 5"));
  ExpectSameEnd(node, *trainer, "--steps 10");
}

TEST(Errors, FullRegion) {
  Tmpfs tmpfs("8m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = tmpfs.path(), .storage = "", .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--bytes 16000000 --steps 60 --every 5 --step-ms 5 --close-ms 200"));
  EXPECT_EQ(trainer->Wait(), 0) << "a full region ended training: " << trainer->Errors();
  EXPECT_EQ(trainer->lines().back(), node.ExpectedDigest(Args("--bytes 16000000 --steps 60")));
  ExpectSays(node.AgentLog(), "REGION_FULL");
  EXPECT_EQ(trainer->Last("CAPTURED"), 0u);
  auto small = node.Train(Args("--job small --bytes 1000000 --steps 20 --every 5 --step-ms 5"));
  ExpectSameEnd(node, *small, "--bytes 1000000 --steps 20");
  EXPECT_GT(small->Last("CAPTURED"), 0u) << "the refused layout kept its memory";
}

// Saves go on in memory, the flush reports it, and goes on by itself when there is room again.
TEST(Errors, FullStorageGetsRoomAgain) {
  Tmpfs tmpfs("2m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = "", .storage = tmpfs.path(), .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--bytes 4000000 --steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << node.AgentLog();
  EXPECT_FALSE(trainer->WaitFor("DURABLE", Millis(1000)).has_value());
  ExpectSays(node.AgentLog(), "STORAGE_FULL");
  ASSERT_TRUE(tmpfs.Resize("200m"));
  EXPECT_TRUE(trainer->WaitFor("DURABLE")) << "flushing did not go on by itself: " << node.AgentLog();
  trainer->Kill();
  auto again = node.Train(Args("--bytes 4000000 --steps 100000 --every 5 --step-ms 5"));
  EXPECT_GE(NumberField(Restored(*again), "step"), trainer->Last("CAPTURED"));
}

// The record of an attempt needs room as well.
TEST(Errors, FullStorageAtRestore) {
  Tmpfs tmpfs("2m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = "", .storage = tmpfs.path(), .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--steps 10 --every 5 --step-ms 5"));
  ASSERT_EQ(first->Wait(), 0);
  {
    std::ofstream file(tmpfs.path() + "/foreign", std::ios::binary);
    file << std::string(4 << 20, 'x');
  }
  auto refused = node.Train(Args("--steps 20 --restore-ms 2000"));
  EXPECT_EQ(refused->Wait(), 1);
  ExpectSays(refused->Errors(), "STORAGE_FULL");
  fs::remove(tmpfs.path() + "/foreign");
  auto again = node.Train(Args("--steps 20 --every 5 --step-ms 5"));
  EXPECT_EQ(NumberField(Restored(*again), "step"), 10u);
}

// EIO of a transfer, and of the fsync of image, sidecar and manifest: each is told, written anew, and durable in the
// end.
TEST(Errors, BrokenStorageAtEveryPlaceOfASave) {
  // The first fsyncs are of attempt record and decision.
  for (const char* failing :
       {"io_queue.transfer=error:5@1", "publish.sync=error:5@3", "publish.sync=error:5@4", "publish.sync=error:5@5"}) {
    Node node;
    ASSERT_TRUE(node.StartAgent({std::string("CKPTD_FAILPOINTS=") + failing}));
    // Its only save must find the memory ready, also on a busy machine.
    auto trainer = node.Train(Args("--steps 5 --every 5 --step-ms 100"));
    ExpectSameEnd(node, *trainer, "--steps 5");
    EXPECT_EQ(trainer->Last("DURABLE"), 5u) << failing << node.AgentLog();
    if (node.AgentLog().find("Input/output error") == std::string::npos) {
      GTEST_SKIP() << "skipped: built without failpoints";
    }
  }
}

// EIO of the attempt's record or of what is written next ends the restore with its sentence (a commit that was late may
// be in between, and is only tried again); the next one works.
TEST(Errors, BrokenStorageAtRestore) {
  for (int failing : {1, 2}) {
    Node node;
    ASSERT_TRUE(node.StartAgent());
    auto first = node.Train(Args("--steps 10 --every 5 --step-ms 5"));
    ASSERT_EQ(first->Wait(), 0);
    node.KillAgent();
    ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=publish.sync=error:5@" + std::to_string(failing)}));
    auto trainer = node.Train(Args("--steps 20 --every 5 --step-ms 5 --restore-ms 10000"));
    const int ended = trainer->Wait();
    if (node.AgentLog().find("Input/output error") == std::string::npos) {
      GTEST_SKIP() << "skipped: built without failpoints";
    }
    EXPECT_TRUE(ended == 1 || failing != 1) << "the record of the attempt was not written, and nobody was told";
    if (ended != 0) {
      ExpectSays(trainer->Errors(), "STORAGE_IO");
      trainer = node.Train(Args("--steps 20 --every 5 --step-ms 5"));
    }
    EXPECT_EQ(NumberField(Restored(*trainer), "step"), 10u) << failing;
  }
}

// EIO of the fsync of the storage root or of the job's directory costs what was new in it: the same agent saves the
// same step again, and every later one.
TEST(Errors, ADirectoryWhoseFsyncFailsAboveAStep) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  // For each file the root, the job and the file's own directory. The first six are of attempt record and decision.
  for (int failing : {7, 8, 10, 11, 13, 14}) {
    Node node;
    ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=publish.syncdir=error:5@" + std::to_string(failing)}));
    auto first = node.Train(Args("--steps 5 --every 5 --step-ms 100"));
    EXPECT_EQ(first->Wait(), 0) << first->Errors();
    EXPECT_EQ(first->Last("DURABLE"), 5u) << failing << node.AgentLog();
    // What is written ahead of the seal is only a head start, of which nothing is told.
    if (failing > 8) ExpectSays(node.AgentLog(), "Input/output error");
    auto second = node.Train(Args("--steps 10 --every 5 --step-ms 100"));
    ExpectSameEnd(node, *second, "--steps 10");
    EXPECT_EQ(second->Last("DURABLE"), 10u) << failing << node.AgentLog();
  }
}

// The sidecar fails after its image has its name: the retry must not need room for the image again.
TEST(Errors, AStorageWithRoomForOneImageOnly) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Tmpfs tmpfs("12m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = "", .storage = tmpfs.path(), .settings = {}});
  // The first three fsyncs are of attempt record, decision and image.
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=publish.sync=error:28@4"}));
  auto trainer = node.Train(Args("--steps 5 --every 5 --step-ms 100 --bytes 8000000"));
  ExpectSameEnd(node, *trainer, "--steps 5 --bytes 8000000");
  ExpectSays(node.AgentLog(), "No space left on device");
  EXPECT_EQ(trainer->Last("DURABLE"), 5u) << node.AgentLog();
}

// The first fsyncs are of the root, for the job, and of the job's directory, for its attempts.
TEST(Errors, ADirectoryWhoseFsyncFailsAtRestore) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  for (int failing : {1, 2}) {
    Node node;
    ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=publish.syncdir=error:5@" + std::to_string(failing)}));
    auto refused = node.Train(Args("--steps 5 --restore-ms 10000"));
    EXPECT_EQ(refused->Wait(), 1) << failing << node.AgentLog();
    ExpectSays(refused->Errors(), "STORAGE_IO");
    auto trainer = node.Train(Args("--steps 5 --every 5 --step-ms 100"));
    ExpectSameEnd(node, *trainer, "--steps 5");
    EXPECT_EQ(trainer->Last("DURABLE"), 5u) << failing << node.AgentLog();
  }
}

// As after a reboot, from storage: a read that fails once costs no step. Where all of them fail, that is told.
TEST(Errors, AReadThatFailsAtRestore) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  for (auto [failing, step] : {std::pair("fetch.begin=error:5@1", 10u), {"fetch.begin=error:5", 0u}}) {
    Node node;
    ASSERT_TRUE(node.StartAgent());
    ASSERT_EQ(node.Train(Args("--steps 10 --every 5 --step-ms 5"))->Wait(), 0);
    ASSERT_EQ(node.StopAgent(), 0) << "not all is durable";
    std::filesystem::remove_all(node.region());
    ASSERT_TRUE(node.StartAgent({std::string("CKPTD_FAILPOINTS=") + failing}));
    auto trainer = node.Train(Args("--steps 20 --every 5 --step-ms 5 --restore-ms 10000"));
    const int ended = trainer->Wait();
    ExpectSays(node.AgentLog(), "op=fetch.again ");
    EXPECT_EQ(ended == 0, step != 0) << node.AgentLog();
    if (ended != 0) {
      ExpectSays(trainer->Errors(), "Input/output error");
    } else {
      EXPECT_EQ(NumberField(Restored(*trainer), "step"), step) << node.AgentLog();
    }
  }
}

// The timeout is for the decision. What was decided is read for as long as it takes, as long as it goes on.
TEST(Errors, AStateThatTakesLongerToReadThanTheTimeout) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node;
  ASSERT_TRUE(node.StartAgent());
  ASSERT_EQ(node.Train(Args("--steps 10 --every 5 --step-ms 5"))->Wait(), 0);
  ASSERT_EQ(node.StopAgent(), 0) << "not all is durable";
  std::filesystem::remove_all(node.region());
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=fetch.end=sleep:8000"}));
  auto trainer = node.Train(Args("--steps 20 --every 5 --step-ms 5 --restore-ms 2000"));
  EXPECT_EQ(NumberField(Restored(*trainer), "step"), 10u) << trainer->Errors() << node.AgentLog();
  ExpectSameEnd(node, *trainer, "--steps 20");
}

TEST(Errors, ReadOnlyStorage) {
  Tmpfs tmpfs("200m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = "", .storage = tmpfs.path(), .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE"));
  node.agent()->Signal(SIGSTOP);
  bool remounted = tmpfs.ReadOnly(true, "200m");  // refused while a file is open for writing
  node.agent()->Signal(SIGCONT);
  if (!remounted) GTEST_SKIP() << "skipped: the tmpfs was busy";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(trainer->WaitFor("STEP")) << "training stopped";
  trainer->WaitFor("never", Millis(500));
  ExpectSays(node.AgentLog(), "STORAGE_READ_ONLY");
  ASSERT_TRUE(tmpfs.ReadOnly(false, "200m"));
  uint64_t before = trainer->Last("DURABLE");
  ASSERT_TRUE(trainer->WaitFor("DURABLE")) << node.AgentLog();
  EXPECT_GT(trainer->Last("DURABLE"), before);
}

// A restore without the store of records is an error, never a fresh start.
TEST(Errors, ReadOnlyStorageAtRestore) {
  Tmpfs tmpfs("200m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = "", .storage = tmpfs.path(), .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--steps 10 --every 5 --step-ms 5"));
  ASSERT_EQ(first->Wait(), 0);
  node.KillAgent();
  ASSERT_TRUE(tmpfs.ReadOnly(true, "200m"));
  ASSERT_TRUE(node.StartAgent()) << "an agent must start on a read-only storage: " << node.AgentLog();
  auto refused = node.Train(Args("--steps 20 --restore-ms 2000"));
  EXPECT_EQ(refused->Wait(), 1);
  ExpectSays(refused->Errors(), "Read-only file system");
  ASSERT_TRUE(tmpfs.ReadOnly(false, "200m"));
  auto again = node.Train(Args("--steps 20 --every 5 --step-ms 5"));
  EXPECT_EQ(NumberField(Restored(*again), "step"), 10u);
}

// What the trainer's user can write is believed by nobody: the agent lives, other jobs are not touched, and what was on
// storage is restored.
TEST(Errors, GarbageInTheRegionFilesOfALiveTrainer) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto other = node.Train(Args("--job other --steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(other->WaitFor("CAPTURED"));
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE"));
  // What is flushed from here on may be garbage: told by its checksums, and never a reason to delete what was good.
  const uint64_t durable = trainer->Last("DURABLE");
  for (const std::string& file : FilesWith(node.region(), "/trainer/rank-00000/")) {
    FillWithGarbage(node.region() + "/" + file, 11);
  }
  trainer->WaitFor("never", Millis(100));
  EXPECT_TRUE(node.agent()->running());
  trainer->Kill();
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  auto again = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  EXPECT_GE(NumberField(Restored(*again), "step"), durable) << node.AgentLog();
  EXPECT_TRUE(again->WaitFor("CAPTURED")) << node.AgentLog();
  EXPECT_TRUE(other->WaitFor("CAPTURED")) << "another job was disturbed";
}

TEST(Errors, SlotFilesCutByTheTrainersUser) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--steps 20 --every 5 --step-ms 5"));
  ASSERT_EQ(first->Wait(), 0);
  for (const std::string& file : FilesWith(node.region(), "/slot-")) fs::resize_file(node.region() + "/" + file, 100);
  auto again = node.Train(Args("--steps 40 --every 5 --step-ms 5"));
  EXPECT_GE(NumberField(Restored(*again), "step"), first->Last("DURABLE")) << node.AgentLog();
  ExpectSameEnd(node, *again, "--steps 40");
  EXPECT_GT(again->Last("CAPTURED"), 20u);
  EXPECT_TRUE(node.agent()->running());
}

TEST(Errors, BytesThatAreNoMessage) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED"));
  for (int i = 0; i < 20; ++i) {
    Child stranger(Child::Spec{{"python3", "-c",
                                "import socket,os\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n"
                                "s.connect('" +
                                    node.socket() +
                                    "')\n"
                                    "[s.send(os.urandom(1+97*i)) for i in range(8)]"},
                               {},
                               node.base() + "/stranger.log"});
    stranger.Wait();
  }
  EXPECT_TRUE(node.agent()->running());
  EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << "a stranger disturbed a trainer";
}

}  // namespace
}  // namespace ckptd::harness

// io_uring, which strace cannot see: every completion of flush, verification and restore says an error once, or moves
// half of what was asked; or the ring does not take the request. Over the real queue, in this process.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "daemon/base/log.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/fault_ring.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/os/uring_queue.h"
#include "tests/integration/sanitized.h"
#include "tests/syscalls/ack_file.h"
#include "tests/syscalls/lives.h"
#include "tests/syscalls/look.h"

namespace ckptd::syscalls {
namespace {

namespace fs = std::filesystem;

constexpr auto kSilent = static_cast<LogLevel>(0);
constexpr size_t kDepth = 2;
constexpr uint64_t kStride = harness::kSanitized ? 4 : 1;
constexpr int kErrors[] = {EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, ECANCELED, 0 /* short */};

size_t OpenFds() {
  return static_cast<size_t>(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()));
}

std::unique_ptr<Ring> InnerRing() {
  auto ring = MakeRing(kDepth);
  return ring.ok() ? *std::move(ring) : MakePlainRing();
}

struct Outcome {
  uint64_t started = 0;  // requests that the ring was given
  StepId durable = 0;
  std::string wrong;
};

// One life over FOLDER/store, then what it left.
Outcome Live(const Life& life, const std::string& folder, const RingFault& fault) {
  Outcome outcome;
  AckFile acks(folder + "/acks");
  const size_t fds = OpenFds();
  {
    const std::unique_ptr<Files> storage = MakeFilesBelow(folder + crash::kRoot);
    FilesAround files(*storage, folder);
    crash::NodeOptions options = life.options;
    options.make_queue = [&] { return MakeRingQueue(kDepth, MakeFaultRing(InnerRing(), fault, outcome.started)); };
    crash::Memory memory;
    crash::Node node(files, memory, options, &acks);
    life.script(node);
    outcome.durable = node.durable().step;
    outcome.wrong = node.wrong();
  }
  if (outcome.wrong.empty() && OpenFds() != fds) outcome.wrong = "leaks: a descriptor is left";
  crash::Promise promise;
  promise.may_skip = true;
  const Told told = ReadAcks(folder + "/acks", promise);
  if (outcome.wrong.empty()) outcome.wrong = WrongBelow(folder, life.options, told.promise);
  return outcome;
}

// A script that restores what it saved, so that reads are swept too.
Life WithRestore(Life life) {
  life.script = [script = life.script](crash::Node& node) {
    script(node);
    (void)node.Restore();
    node.Drain();
  };
  return life;
}

class UringErrno : public ::testing::Test {
 protected:
  UringErrno() { SetLogLevel(kSilent); }

  Outcome Try(const Life& life, const RingFault& fault) {
    const TempDir folder("/dev/shm");
    fs::create_directory(folder.path() + crash::kRoot);
    return Live(life, folder.path(), fault);
  }
};

TEST_F(UringErrno, AtEveryCompletionIsAnErrorAndNothingWorse) {
  uint64_t passes = 0, points = 0, violations = 0;
  for (const char* name : {"publish", "roll-back", "retention"}) {
    const Life life = WithRestore(*FindLife(name));
    const Outcome whole = Try(life, {});
    ASSERT_EQ(whole.wrong, "") << name;
    ASSERT_GT(whole.started, 20u) << name;
    for (const int error : kErrors) {
      for (const bool submit : {false, true}) {
        if (submit && error == 0) continue;
        ++passes;
        // A sanitizer looks at what an error runs, and at another fourth for each.
        for (uint64_t at = 1 + passes % kStride; at <= whole.started; at += kStride) {
          const Outcome outcome = Try(life, {.at = at, .error = error, .submit = submit});
          std::string wrong = outcome.wrong;
          if (wrong.empty() && outcome.durable < whole.durable) wrong = absl::StrCat("durable: ", outcome.durable);
          EXPECT_EQ(wrong, "") << name << ", request " << at << ", " << strerror(error) << (submit ? ", submit" : "");
          ++points;
          violations += wrong.empty() ? 0 : 1;
        }
      }
    }
  }
  std::printf("io_uring: %lu completions and submissions, %lu wrong acknowledgements, crashes, hangs or leaks\n",
              points, violations);
}

// The check proves itself: a write of which half is taken for all leaves a wrong step. (A read of the kind is noticed
// by the agent, and nothing is wrong.)
TEST_F(UringErrno, AResultThatIsTakenForMoreThanItWasIsNoticed) {
  const Life life = *FindLife("roll-back");
  const uint64_t requests = Try(life, {}).started;
  uint64_t noticed = 0;
  for (uint64_t at = 1; at <= requests; ++at) {
    const Outcome outcome = Try(life, {.at = at, .lies = true});
    noticed += outcome.wrong.empty() ? 0 : 1;
  }
  std::printf("io_uring: half a write taken for all of it: noticed %lu of %lu\n", noticed, requests);
  EXPECT_GT(noticed, requests / 2);
}

}  // namespace
}  // namespace ckptd::syscalls

// What a save costs once its layout is warm: page faults, memory, system calls and bytes moved of the agent's threads
// and of libckpt's, counted over many saves by processes that do nothing else. None depends on the machine's speed.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/integration/count_malloc.h"
#include "tests/integration/harness.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

// The sum over the threads of `pid` whose name begins with `name`: minor and major page faults.
uint64_t FaultsOf(pid_t pid, const std::string& name) {
  uint64_t faults = 0;
  for (int tid = pid; tid < pid + 64; ++tid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(tid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    size_t open = text.find('(');
    size_t close = text.rfind(')');
    if (open == text.npos || text.compare(open + 1, name.size(), name) != 0) continue;
    std::istringstream fields(text.substr(close + 2));
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};  // words[0] is field 3
    faults += strtoull(words[7].c_str(), nullptr, 10) + strtoull(words[9].c_str(), nullptr, 10);
  }
  return faults;
}

// Counts what comes until `saves` more steps were captured.
uint64_t Saves(Child& trainer, int captures) {
  auto before = static_cast<uint64_t>(std::count_if(trainer.lines().begin(), trainer.lines().end(),
                                                    [](const auto& line) { return line.rfind("SAVE", 0) == 0; }));
  for (int i = 0; i < captures; ++i) EXPECT_TRUE(trainer.WaitFor("CAPTURED"));
  auto after = static_cast<uint64_t>(std::count_if(trainer.lines().begin(), trainer.lines().end(),
                                                   [](const auto& line) { return line.rfind("SAVE", 0) == 0; }));
  return std::max<uint64_t>(1, after - before);
}

constexpr char kRun[] = "--bytes 4000000 --steps 1000000 --every 4 --step-ms 5 --tensors ";
constexpr int kWarm = 20;  // saves until both slots were used, every worker had its turn, and a step was deleted

// Minor and major faults of every thread: capture in the trainer; sealing, flushing, committing, reading back and
// deleting in the agent.
TEST(HotPath, NoPageFaults) {
  if (kSanitized) GTEST_SKIP() << "skipped: a sanitizer's shadow memory faults in pages of its own";
  if (getenv("LLVM_PROFILE_FILE") != nullptr) {
    GTEST_SKIP() << "skipped: lines are counted in a file, whose pages fault again when they have been written back";
  }
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun + std::string("100")));
  Saves(*trainer, kWarm);
  uint64_t copy = FaultsOf(trainer->pid(), "ckpt-copy");
  uint64_t session = FaultsOf(trainer->pid(), "ckpt-session");
  uint64_t agent = UsageOf(node.agent()->pid()).minor_faults;
  uint64_t saves = Saves(*trainer, 200);
  copy = FaultsOf(trainer->pid(), "ckpt-copy") - copy;
  session = FaultsOf(trainer->pid(), "ckpt-session") - session;
  agent = UsageOf(node.agent()->pid()).minor_faults - agent;
  printf("%lu saves of 4 MB (976 pages): page faults of copy thread %lu, session thread %lu, agent %lu\n", saves, copy,
         session, agent);
  EXPECT_EQ(copy, 0u);
  EXPECT_EQ(session, 0u);
  EXPECT_EQ(agent, 0u);
}

// The counts of count_malloc.cc, which lie in a file.
class Allocations {
 public:
  explicit Allocations(std::string path) : path_(std::move(path)) {
    int fd = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(ftruncate(fd, sizeof(AllocationTable)), 0);
    void* mapped = mmap(nullptr, sizeof(AllocationTable), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    table_ = static_cast<AllocationTable*>(mapped);
  }
  ~Allocations() { munmap(table_, sizeof(AllocationTable)); }
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;

  [[nodiscard]] std::vector<std::string> Environment() const {
    return {"LD_PRELOAD=" + BinaryDirectory() + "/libckpt-count-malloc.so", kCountMallocVariable + ("=" + path_)};
  }

  struct Sum {
    uint64_t calls = 0;
    uint64_t large = 0;
    int64_t alive = 0;
    uint64_t ns = 0;
  };
  // Of the threads whose name begins with `name` (at most eight letters).
  [[nodiscard]] Sum Of(const std::string& name) const {
    Sum sum;
    for (const AllocationCount& entry : table_->threads) {
      const uint64_t word = entry.name;
      if (memcmp(&word, name.data(), name.size()) != 0) continue;
      sum.calls += entry.calls;
      sum.large += entry.large;
      sum.alive += entry.alive;
      sum.ns += entry.ns;
    }
    return sum;
  }

 private:
  const std::string path_;
  AllocationTable* table_ = nullptr;
};

struct AllocationsPerSave {
  double control = 0;  // the agent's thread that knows everything and does no I/O
  double records = 0;  // its threads that read and write small files: commit, and the check of the newest attempt
  double chores = 0;   // its threads that verify and delete
  double flush = 0;    // its threads that write the bytes
  double agent = 0;    // all of them
  double agent_us = 0;
  uint64_t agent_large = 0;  // in all saves together
  uint64_t libckpt = 0;      // likewise
  int64_t agent_kept = 0;    // likewise, and not freed
};

// What the agent's threads had allocated, one count for each member of AllocationsPerSave.
struct AgentCounts {
  explicit AgentCounts(const Allocations& agent)
      : control(agent.Of(std::string("ckptd\0\0\0", 8))),
        records(agent.Of("ckptd-re")),
        chores(agent.Of("ckptd-ch")),
        flush(agent.Of("ckptd-fl")),
        all(agent.Of("ckptd")) {}
  Allocations::Sum control, records, chores, flush, all;
};

AllocationsPerSave CountAllocations(const std::string& trainer_arguments, int captures = 40) {
  Node node;
  Allocations agent(node.base() + "/agent.malloc");
  Allocations trainer(node.base() + "/trainer.malloc");
  EXPECT_TRUE(node.StartAgent(agent.Environment()));
  std::vector<std::string> prefix = trainer.Environment();
  prefix.insert(prefix.begin(), "env");
  auto training = node.Train(Args("--steps 1000000 --every 4 --step-ms 5 " + trainer_arguments), prefix);
  Saves(*training, kWarm);
  const AgentCounts before(agent);
  const uint64_t own = trainer.Of("ckpt-cop").calls + trainer.Of("ckpt-ses").calls;
  EXPECT_GT(own, 0u) << "nothing is counted";
  const auto saves = static_cast<double>(Saves(*training, captures));
  const AgentCounts after(agent);
  const auto calls = [&](Allocations::Sum AgentCounts::*thread) {
    return static_cast<double>((after.*thread).calls - (before.*thread).calls) / saves;
  };
  AllocationsPerSave out;
  out.control = calls(&AgentCounts::control);
  out.records = calls(&AgentCounts::records);
  out.chores = calls(&AgentCounts::chores);
  out.flush = calls(&AgentCounts::flush);
  out.agent = calls(&AgentCounts::all);
  out.agent_us = static_cast<double>(after.all.ns - before.all.ns) / 1000 / saves;
  out.agent_large = after.all.large - before.all.large;
  out.agent_kept = after.all.alive - before.all.alive;
  out.libckpt = trainer.Of("ckpt-cop").calls + trainer.Of("ckpt-ses").calls - own;
  return out;
}

void Print(const char* what, const AllocationsPerSave& each) {
  printf("%s: %.0f allocations for each save (control %.0f, records %.0f, chores %.0f, flush %.0f), %.0f us of CPU\n",
         what, each.agent, each.control, each.records, each.chores, each.flush, each.agent_us);
}

// The agent makes small things for each save: messages, records and their text, names of files. How many of them does
// not depend on tensors, bytes or chunks (4, 4 and 31 here), none is large, and libckpt's threads make none.
TEST(HotPath, AllocationsDoNotGrowWithTensorsOrBytes) {
  if (kSanitized) GTEST_SKIP() << "skipped: a sanitizer has an allocator of its own";
  constexpr int kMany = 300;  // what the saves under way at both ends hold is little against it
  AllocationsPerSave few = CountAllocations("--tensors 10 --bytes 4000000", kMany);
  AllocationsPerSave many = CountAllocations("--tensors 2000 --bytes 4000000");
  AllocationsPerSave large = CountAllocations("--tensors 10 --bytes 32000000");
  printf("%ld allocations more are alive after %d saves\n", few.agent_kept, kMany);
  EXPECT_LT(few.agent_kept, kMany / 2) << "something is kept of each save";
  Print("10 tensors", few);
  Print("2000 tensors", many);
  Print("eight times the bytes", large);
  for (const AllocationsPerSave& each : {few, many, large}) {
    EXPECT_LT(each.control, 350);  // 160 where nothing else runs; more hints, more messages
    EXPECT_LT(each.records, 90);
    EXPECT_LT(each.chores, 90);
    EXPECT_LT(each.flush, 44);
    EXPECT_EQ(each.agent_large, 0u) << "a buffer is made anew for each save";
    EXPECT_EQ(each.libckpt, 0u);
  }
}

struct Calls {
  double futex = 0;
  double others = 0;
};

// System calls of `traced` (all threads) for each save while `captures` steps are captured, by strace.
Calls SystemCalls(Node& node, Child& traced, Child& trainer, int captures) {
  std::string out = node.base() + "/strace.txt";
  Child strace(Child::Spec{
      {"strace", "-f", "-c", "-U", "calls,name", "-o", out, "-p", std::to_string(traced.pid())}, {}, out + ".log"});
  EXPECT_TRUE(trainer.WaitFor("CAPTURED"));
  const auto saves = static_cast<double>(Saves(trainer, captures));
  strace.Signal(SIGINT);
  strace.Wait();
  std::ifstream file(out);
  Calls sum;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    double calls = 0;
    std::string name;
    if (!(words >> calls >> name) || name == "total") continue;
    (name == "futex" ? sum.futex : sum.others) += calls / saves;
  }
  return sum;
}

struct PerSave {
  Calls agent;
  Calls trainer;
};

PerSave CallsPerSave(int tensors) {
  Node node;
  EXPECT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun + std::to_string(tensors)));
  Saves(*trainer, kWarm);
  PerSave out;
  out.agent = SystemCalls(node, *node.agent(), *trainer, 30);
  out.trainer = SystemCalls(node, *trainer, *trainer, 30);
  return out;
}

// One call a tensor would be 2000. A save is about ten files and names that are opened, written, synced, linked, read
// back and removed, some 200 calls, and each directory on the way there is opened by itself (places.h): some 200 more.
// Futex calls are how threads wake each other: how often depends on who runs when (tens with io_uring; a hundred with
// I/O by threads, of which each transfer wakes one and its waiter), so they are bounded apart.
TEST(HotPath, NoSystemCallPerTensor) {
  if (geteuid() != 0 || access("/usr/bin/strace", X_OK) != 0) GTEST_SKIP() << "skipped: needs root and strace";
  for (int tensors : {10, 2000}) {
    PerSave calls = CallsPerSave(tensors);
    printf("system calls for each save of %d tensors: agent %.0f and %.0f futex, trainer %.0f and %.0f futex\n",
           tensors, calls.agent.others, calls.agent.futex, calls.trainer.others, calls.trainer.futex);
    ASSERT_GT(calls.agent.others, 0) << "strace counted nothing";
    EXPECT_LT(calls.agent.others, 600);
    EXPECT_LT(calls.agent.futex, 350);
    EXPECT_LT(calls.trainer.others, 100);
    EXPECT_LT(calls.trainer.futex, 100);
  }
}

struct Moved {
  uint64_t read = 0;
  uint64_t written = 0;
};

// What `pid` had the disks read and write, in bytes.
Moved DiskBytesOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  Moved moved;
  std::string name;
  for (uint64_t bytes = 0; file >> name >> bytes;) {
    if (name == "read_bytes:") moved.read = bytes;
    if (name == "write_bytes:") moved.written = bytes;
  }
  return moved;
}

constexpr double kState = 4'000'000;  // bytes, as kRun says

// A snapshot goes to the disk once, with some KiB of records beside it. It is read back at most once, before older ones
// are deleted.
TEST(HotPath, TheDiskWritesEachByteOnce) {
  constexpr int kSaves = 100;  // what is under way at both ends is little against them
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun + std::string("100")));
  Saves(*trainer, kWarm);
  ASSERT_TRUE(trainer->WaitFor("DURABLE"));
  const Moved before = DiskBytesOf(node.agent()->pid());
  for (int i = 0; i < kSaves; ++i) ASSERT_TRUE(trainer->WaitFor("DURABLE"));
  const Moved after = DiskBytesOf(node.agent()->pid());
  const double written = static_cast<double>(after.written - before.written) / kSaves / kState;
  const double read = static_cast<double>(after.read - before.read) / kSaves / kState;
  printf("of each save the disk wrote %.3f of the state's bytes and read %.3f\n", written, read);
  if (written == 0) GTEST_SKIP() << "skipped: the storage's file system does not count what it writes";
  EXPECT_GT(written, 0.95);
  EXPECT_LT(written, 1.25);
  EXPECT_LT(read, 1.1);
}

// What the trainer's copy moves by system calls, for each save.
double CopiedPerSave(Node& node, Child& trainer, int captures) {
  const std::string out = node.base() + "/strace.txt";
  Child strace(Child::Spec{
      {"strace", "-f", "-e", "trace=process_vm_readv,pwritev", "-o", out, "-p", std::to_string(trainer.pid())},
      {},
      out + ".log"});
  EXPECT_TRUE(trainer.WaitFor("CAPTURED"));
  const auto saves = static_cast<double>(Saves(trainer, captures));
  strace.Signal(SIGINT);
  strace.Wait();
  std::ifstream file(out);
  double bytes = 0;
  for (std::string line; std::getline(file, line);) {
    const size_t result = line.rfind(") = ");
    if (result != std::string::npos) bytes += std::max(0.0, strtod(line.c_str() + result + 4, nullptr));
  }
  return bytes / saves;
}

TEST(HotPath, TheTrainerCopiesEachByteOnce) {
  if (geteuid() != 0 || access("/usr/bin/strace", X_OK) != 0) GTEST_SKIP() << "skipped: needs root and strace";
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun + std::string("100")));
  Saves(*trainer, kWarm);
  const double copied = CopiedPerSave(node, *trainer, 60) / kState;
  printf("of each save libckpt copied %.3f of the state's bytes\n", copied);
  EXPECT_GT(copied, 0.9);
  EXPECT_LT(copied, 1.1);
}

}  // namespace
}  // namespace ckptd::harness

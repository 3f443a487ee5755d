// What belongs to one user, and another one who wants it, destroys what they share with the agent, or tries to be heard
// where others read.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "client/core/copy/crc32c.h"
#include "proto/local/bell.h"
#include "tests/integration/hostile.h"
#include "tests/integration/raw_holder.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

class Strangers : public Hostile {};

// ------------------------------------------------------------------------------------------------------ others' jobs

TEST_F(Strangers, GetNothingOfAnothersJob) {
  ExpectHears("JOIN", "job neighbour belongs to uid 65534, this process runs as uid 61234", [socket = socket_] {
    RawTrainer trainer(socket);
    trainer.Join("neighbour");
    return trainer.NextError();
  });
  ExpectHears("RESUME", "job neighbour belongs to uid 65534", [socket = socket_] {
    RawHolder own(socket, "enemy");
    if (!own.good()) return std::string("no layout");
    RawTrainer trainer(socket);
    trainer.Hello();
    ResumeMessage resume{};
    std::string("neighbour").copy(resume.job, sizeof resume.job);
    resume.world = 1;
    resume.ticket = 77;
    resume.attempt = 1;
    resume.region_id = own.ready.region_id;
    resume.layout = 1;
    trainer.Say(MessageType::kResume, resume, {own.bell()});
    return trainer.NextError();
  });
  for (const std::string& path : {node_->region() + "/r", node_->region() + "/r/neighbour"}) {
    ExpectHears(path, "Permission denied", [path] {
      const int fd = open(path.c_str(), O_RDONLY);
      return std::string(fd < 0 ? strerror(errno) : "opened");
    });
  }
  EndAndCount(nullptr);
}

// The node forgets who it was when its memory is lost; the storage must not.
TEST_F(Strangers, GetNothingOfAnothersJobAfterAReboot) {
  ASSERT_TRUE(neighbour_->WaitFor("DURABLE"));
  neighbour_->Kill();
  node_->KillAgent();
  node_->LoseRegion();
  memory_lost_ = true;
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  ++tried_;
  Intruder intruder([socket = socket_] {
    RawTrainer trainer(socket);
    trainer.Join("neighbour");
    return trainer.NextError();
  });
  const std::string heard = intruder.Said();
  const bool refused = heard.find("job neighbour belongs to uid 65534 on the storage") != heard.npos;
  EXPECT_TRUE(refused) << heard << node_->AgentLog();
  wrong_ += refused ? 0 : 1;
  intruder.End();  // TearDown: and the owner has it again
}

// ----------------------------------------------------------------------------------------------- memory that is shared

TEST_F(Strangers, CutPunchAndGrowTheirSlotsWhileTheAgentReads) {
  for (const char* how : {"cut", "punch", "grow"}) {
    Try(how, [socket = socket_, how = std::string(how)] {
      RawHolder own(socket, "enemy" + how);
      if (!own.good()) return std::string("no layout");
      std::atomic<bool> stop{false};
      std::thread worker([&] {
        while (!stop) {
          for (uint32_t slot = 0; slot < own.ready.slot_count; ++slot) {
            const auto whole = static_cast<off_t>(2 << 20);
            if (how == "cut") (void)!(ftruncate(own.slot(slot), 0) + ftruncate(own.slot(slot), whole));
            if (how == "punch") (void)!fallocate(own.slot(slot), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, whole);
            if (how == "grow") (void)!(ftruncate(own.slot(slot), whole * 4) + ftruncate(own.slot(slot), whole));
          }
        }
      });
      int saved = 0;
      for (uint64_t step = 1; step <= 20 && own.Save(step); ++step) ++saved;
      stop = true;
      worker.join();
      return "saved " + std::to_string(saved);
    });
  }
  EndAndCount(nullptr);
}

// It harms nobody else, and itself no longer than it goes on: each slot that it cut gets a file again, and is lent.
TEST_F(Strangers, WhoCutItsSlotsSavesAgain) {
  ExpectHears("cut once sealed", "saved 6, into new files", [socket = socket_] {
    RawHolder own(socket, "enemy");
    if (!own.good()) return std::string("no layout");
    int saved = 0;
    for (uint64_t step = 1; step <= 6 && own.Save(step); ++step) {
      ++saved;
      const uint32_t slot = own.grant.slot;
      if (!own.AwaitCaptured(step)) return "step " + std::to_string(step) + " was not captured";
      if (ftruncate(own.slot(slot), 0) != 0) return std::string(strerror(errno));
    }
    return "saved " + std::to_string(saved) + (own.fresh_slots >= 4 ? ", into new files" : "");
  });
  EndAndCount(nullptr);
}

TEST_F(Strangers, RewriteTheBellWhileTheAgentReadsIt) {
  ExpectHears("bell", "rewritten", [socket = socket_] {
    RawHolder own(socket, "enemy");
    struct stat info {};
    if (!own.good() || fstat(own.bell(), &info) != 0) return std::string("no layout");
    const auto bytes = static_cast<size_t>(info.st_size);
    auto* words =
        static_cast<std::atomic<uint64_t>*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own.bell(), 0));
    std::atomic<bool> stop{false};
    std::thread worker([&] {
      for (uint64_t seed = 1; !stop; seed = seed * 6364136223846793005 + 1442695040888963407) {
        words[(seed >> 33) % (bytes / 8)] = seed >> 62 == 0 ? seed >> 48 : seed;
        if ((seed & 1023) == 0)
          (void)!fallocate(own.bell(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, info.st_size);
      }
    });
    for (int i = 0; i < 20'000; ++i) own.Ring();
    stop = true;
    worker.join();
    return std::string("rewritten");
  });
  EndAndCount(nullptr);
}

// Both ends of an eventfd are one file: who clears O_NONBLOCK clears it for the agent, and may empty it between the
// agent's look at it and its read.
std::string StealHints(const std::string& socket) {
  RawHolder own(socket, "enemy");
  if (!own.good()) return "no layout";
  fcntl(own.hint(), F_SETFL, 0);
  for (int round = 0; round < 1000; ++round) {
    own.Ring();
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(round % 100);
    while (std::chrono::steady_clock::now() < until) {
    }
    uint64_t count = 0;
    const iovec part{&count, sizeof count};
    (void)!preadv2(own.hint(), &part, 1, -1, RWF_NOWAIT);
    RawTrainer probe(socket);
    probe.Hello();
    if (!probe.Next(MessageType::kHelloReply, Millis(5000)))
      return "the agent sleeps since round " + std::to_string(round);
  }
  return "stolen";
}

TEST_F(Strangers, MakeTheHintBlock) {
  ExpectHears("hint", "stolen", [socket = socket_] { return StealHints(socket); });
  EndAndCount(nullptr);
}

// Slots are new memory, never another's.
TEST_F(Strangers, FindNothingInTheirSlots) {
  ExpectHears("slots", "zero", [socket = socket_] {
    for (int job = 0; job < 8; ++job) {
      RawHolder own(socket, "enemy" + std::to_string(job));
      if (!own.good()) return std::string("no layout");
      for (uint32_t slot = 0; slot < own.ready.slot_count; ++slot) {
        std::string bytes(own.ready.slot_bytes, 'x');
        if (pread(own.slot(slot), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
          return std::string("short");
        if (bytes.find_first_not_of('\0') != bytes.npos) return std::string("something");
      }
    }
    return std::string("zero");
  });
}

// ------------------------------------------------------------------------------------------------------ being heard

// A tensor's name is any text, and what the agent says of it stands in the log that an operator reads in a terminal.
TEST_F(Strangers, ForgeNoLineOfTheLog) {
  const std::string marker = "<3>op=forged";
  const std::string name = R"(\u001b[2Jx\n)" + marker + R"( \u202e\u2066\u0085y)";
  std::string json = R"({"NAME":{"dtype":"F7","shape":[4],"data_offsets":[0,4]}})";
  json.replace(json.find("NAME"), 4, name);
  json.resize(4096 - 8, ' ');
  ExpectHears("a name", "unknown dtype", [socket = socket_, json] {
    RawTrainer trainer(socket);
    HelloMessage hello{};
    hello.min_major = hello.max_major = 1;
    strcpy(hello.library, "1\n<3>op=forged\x1b[2J");
    trainer.Say(MessageType::kHello, hello);
    trainer.Join("enemy");
    const uint64_t length = json.size();
    const std::string header = std::string(reinterpret_cast<const char*>(&length), 8) + json;
    const UniqueFd memory(memfd_create("headers", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    (void)!write(memory.get(), header.data(), header.size());
    fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
    LayoutMessage layout{};
    layout.ticket = 77;
    layout.header_bytes = header.size();
    layout.image_count = 1;
    layout.header_crc = Crc32c(0, header.data(), header.size());
    trainer.Say(MessageType::kLayout, layout, {memory.get()});
    return trainer.NextError();
  });
  Try("a reason", [socket = socket_] {
    RawTrainer trainer(socket);
    trainer.Join("enemy");
    LoadedMessage loaded{};
    loaded.attempt = 1;
    loaded.ticket = 77;
    loaded.code = 4;
    strcpy(loaded.reason, "\n<3>op=forged \x1b]0;x\a\xe2\x80\xae\xc2\x85");
    trainer.Say(MessageType::kLoaded, loaded);
    trainer.NextError(Millis(200));
    return std::string();
  });
  const std::string log = node_->AgentLog();
  EXPECT_NE(log.find("op=forged"), log.npos) << "nothing was told: " << log;
  for (const char* bad : {"\n<3>op=forged", "\x1b", "\a", "\xe2\x80\xae", "\xe2\x81\xa6", "\xc2\x85"}) {
    const bool clean = log.find(bad) == log.npos;
    EXPECT_TRUE(clean) << testing::PrintToString(std::string(bad)) << " in " << testing::PrintToString(log);
    wrong_ += clean ? 0 : 1;
  }
  EndAndCount(nullptr);
}

}  // namespace
}  // namespace ckptd::harness

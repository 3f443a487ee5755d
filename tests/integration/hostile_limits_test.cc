// What another user may have of everything: at the limit it works, one above it is refused with a sentence, and a
// thousand times as much takes nothing from anybody.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "client/core/copy/crc32c.h"
#include "tests/integration/hostile.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

constexpr size_t kConnections = 512;  // of a user
constexpr size_t kJobs = 1024;
constexpr size_t kRanks = 4096;
constexpr uint64_t kSlackKib = 8192;

void SayJoin(RawTrainer& trainer, const std::string& job, uint32_t rank = 0, uint32_t world = 1) {
  JoinMessage join{};
  job.copy(join.job, sizeof join.job);
  join.rank = rank;
  join.world = world;
  join.ticket = 77;
  join.timeout_ms = 30'000;
  trainer.Say(MessageType::kJoin, join);
}

// "joined", or why not.
std::string JoinOnce(const std::string& socket, const std::string& job, uint32_t rank, uint32_t world) {
  RawTrainer trainer(socket);
  trainer.Hello();
  SayJoin(trainer, job, rank, world);
  Packet packet;
  for (const TimePoint end = std::chrono::steady_clock::now() + kLong; std::chrono::steady_clock::now() < end;) {
    if (!Readable(trainer.fd()) || ReceivePacket(trainer.fd(), Wait::kNo, &packet) != 0) return "ended";
    MessageHead head{};
    std::memcpy(&head, packet.bytes.data(), sizeof head);
    if (head.type == static_cast<uint16_t>(MessageType::kLoad)) return "joined";
    ErrorMessage error{};
    if (head.type != static_cast<uint16_t>(MessageType::kError) || packet.bytes.size() < sizeof error) continue;
    std::memcpy(&error, packet.bytes.data(), sizeof error);
    return error.sentence;
  }
  return "silence";
}

int ConnectTo(const std::string& socket) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket.copy(address.sun_path, sizeof address.sun_path - 1);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// So many connections that stay, and how many of them were told that there are too many.
std::string ConnectMany(const std::string& socket, size_t count) {
  std::vector<int> fds;
  size_t refused = 0;
  for (size_t i = 0; i < count; ++i) fds.push_back(ConnectTo(socket));
  Readable(fds.back(), Millis(2000));  // the last one is answered last
  for (const int fd : fds) {
    ErrorMessage error{};
    const bool told = fd >= 0 && recv(fd, &error, sizeof error, MSG_DONTWAIT) == sizeof error &&
                      std::strstr(error.sentence, "as many as one user may have") != nullptr;
    refused += told ? 1 : 0;
  }
  const size_t failed = static_cast<size_t>(std::count(fds.begin(), fds.end(), -1));
  return std::to_string(refused) + " refused, " + std::to_string(failed) + " failed";
}

class LimitsOfOthers : public Hostile {
 protected:
  // The test's own limit is that of the intruders, which hold thousands.
  static void SetUpTestSuite() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  void ExpectAnotherUserJoins() {
    Intruder other([socket = socket_] { return JoinOnce(socket, "mine", 0, 1); }, Intruder::kUser + 1);
    const std::string said = other.Said();
    EXPECT_EQ(said, "joined") << "another user finds no room";
    wrong_ += said == "joined" ? 0 : 1;
  }
  void ExpectBoundedMemory() {
    Held full = AtRest();
    for (int i = 0; i < 20 && full.descriptors > before_.descriptors; ++i) full = AtRest();
    printf("%zu jobs and %zu ranks of one user: %lu KiB of the agent's memory\n", kJobs, kRanks,
           full.usage.anonymous_kib - before_.usage.anonymous_kib);
    EXPECT_LE(full.descriptors, before_.descriptors) << testing::PrintToString(NotOfRegion());
  }
  [[nodiscard]] size_t FoldersInRegion() const {
    const std::filesystem::directory_iterator all(node_->region() + "/r");
    return static_cast<size_t>(
        std::count_if(begin(all), end(all), [](const auto& each) { return each.is_directory(); }));
  }
  void ExpectAtMost(uint64_t kib) {
    if (kSanitized) return;  // its own memory grows
    EXPECT_LE(AtRest().usage.anonymous_kib, kib) << "something stays of each name or visit";
  }
  void ExpectRefusal(const std::string& job, uint32_t rank, uint32_t world, const std::string& sentence) {
    ExpectHears(testing::PrintToString(job), sentence,
                [socket = socket_, job, rank, world] { return JoinOnce(socket, job, rank, world); });
  }
};

TEST_F(LimitsOfOthers, NamesOfJobs) {
  ExpectRefusal(std::string(128, 'x'), 0, 1, "joined");
  const std::string bad = "job name must be 1 to 128 characters";
  for (const std::string& name :
       {std::string(129, 'x'), std::string(), std::string("."), std::string(".."), std::string("../neighbour"),
        std::string("/etc"), std::string("a/../../b"), std::string("-rf"), std::string(".hidden"), std::string("a b"),
        std::string("a\nb"), std::string("a\x1b[2Jb"), std::string("\xe2\x80\xaegpt"), std::string("gpt\xe2\x80\x8f"),
        std::string("\xff\xfe"), std::string("a\\b"), std::string("a%2fb"), std::string("gp\xc3\xbc"),
        std::string("\0neighbour", 10)}) {
    ExpectRefusal(name, 0, 1, bad);
  }
  ExpectRefusal(std::string(136, 'x'), 0, 1, "job has no end");
  ExpectRefusal(std::string("neighbour\0x", 11), 0, 1, "job neighbour belongs to uid");
  ExpectRefusal("CON", 0, 1, "joined");
  EXPECT_FALSE(std::filesystem::exists(node_->storage() + "/../etc"));
  EndAndCount(nullptr);
}

TEST_F(LimitsOfOthers, RanksAndWorlds) {
  ExpectRefusal("a", 0, 0, "world size 0 is not within 1 to 65536");
  ExpectRefusal("a", 0, kMaxRanks + 1, "world size 65537 is not within 1 to 65536");
  ExpectRefusal("a", 0, UINT32_MAX, "is not within 1 to 65536");
  ExpectRefusal("a", 8, 8, "rank 8 is not below the world size 8");
  ExpectRefusal("a", UINT32_MAX, 8, "is not below the world size 8");
  EndAndCount(nullptr);
}

TEST_F(LimitsOfOthers, ConnectionsAtTheLimitAboveItAndTenThousand) {
  for (const size_t count : {kConnections, kConnections + 1, size_t{10'000}}) {
    std::string said;
    const auto act = [socket = socket_, count] { return ConnectMany(socket, count); };
    auto intruder = Begin(std::to_string(count) + " connections", act, &said);
    const std::string expected = std::to_string(count - kConnections) + " refused, 0 failed";
    EXPECT_EQ(said, expected);
    wrong_ += said == expected ? 0 : 1;
    ExpectAnotherUserJoins();
    tried_ += count - 1;
    EndAndCount(std::move(intruder));
  }
}

// Held by a process that lives.
TEST_F(LimitsOfOthers, JobsAndRanks) {
  ExpectHears("jobs",
              "job one: uid 61234 has 1024 jobs on this node, as many as one user may have: 1024 in use; stop one",
              [socket = socket_] {
                RawTrainer trainer(socket);
                trainer.Hello();
                for (size_t i = 0; i < kJobs; ++i) trainer.Enter("enemy" + std::to_string(i), 1, 2);
                trainer.Enter("one", 1, 2);
                return trainer.NextError();
              });
  ExpectHears("ranks",
              "job held rank 65000: uid 61234 has had 4096 ranks on this node, as many as one user may have: 1 in use",
              [socket = socket_] {
                RawTrainer trainer(socket);
                trainer.Hello();
                for (uint32_t i = 1; i <= kRanks; ++i) trainer.Enter("held", i, kMaxRanks);
                trainer.Enter("held", 65'000, kMaxRanks);
                return trainer.NextError();
              });
  tried_ += kJobs + kRanks;
  ExpectAnotherUserJoins();
  ExpectBoundedMemory();
}

// A name that was only visited is forgotten when another is named: no number of them is too high, nor costs anything.
TEST_F(LimitsOfOthers, NamesThatAreLeftAgain) {
  const auto visit = [socket = socket_](size_t count) {
    RawTrainer trainer(socket);
    trainer.Hello();
    for (size_t i = 0; i < count; ++i) trainer.Visit("enemy" + std::to_string(i), 1 + i % 4, 8);
    return JoinOnce(socket, "one", 0, 1);
  };
  ExpectHears("as many as there may be", "joined", [visit] { return visit(kJobs); });
  const uint64_t full = AtRest().usage.anonymous_kib;
  constexpr size_t kTimes = kSanitized ? 1 : 4;
  ExpectHears("many times as many", "joined", [visit] { return visit(kTimes * kJobs); });
  tried_ += (1 + kTimes) * kJobs;
  ExpectAnotherUserJoins();
  ExpectBoundedMemory();
  EXPECT_LE(FoldersInRegion(), kJobs + 2);  // the neighbour's, and the other user's
  ExpectAtMost(full + kSlackKib);
}

// Each JOIN asks to be told in ten minutes that nobody else came.
TEST_F(LimitsOfOthers, OneRankAgainAndAgain) {
  constexpr size_t kVisits = kSanitized ? 2'000 : 20'000;
  const auto visit = [socket = socket_] {
    RawTrainer trainer(socket);
    trainer.Hello();
    for (size_t i = 0; i < kVisits; ++i) trainer.Visit("enemy", 1, 8);
    return JoinOnce(socket, "one", 0, 1);
  };
  ExpectHears("the first time", "joined", visit);
  const uint64_t once = AtRest().usage.anonymous_kib;
  ExpectHears("again", "joined", visit);
  tried_ += 2 * kVisits;
  ExpectAtMost(once + 1024);
  EndAndCount(nullptr);
}

// ----------------------------------------------------------------------------------------------------------- headers

std::string Image(std::string json) {
  json.resize((8 + json.size() + 4095) / 4096 * 4096 - 8, ' ');
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json;
}

std::string OneTensor(const std::string& name, const std::string& shape, uint64_t bytes) {
  return Image("{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":" + shape + ",\"data_offsets\":[0," +
               std::to_string(bytes) + "]}}");
}

std::string Many(size_t tensors) {
  std::string json = "{";
  for (size_t i = 0; i < tensors; ++i) {
    const std::string at = std::to_string(i * 4096);
    json += "\"t" + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[4096],\"data_offsets\":[" + at + "," +
            std::to_string(i * 4096 + 4096) + "]},";
  }
  json.back() = '}';
  return Image(json);
}

std::string Repeat(const std::string& text, size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

void SayLayout(RawTrainer& trainer, const std::string& header) {
  const UniqueFd memory(memfd_create("headers", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (write(memory.get(), header.data(), header.size()) != static_cast<ssize_t>(header.size())) return;
  fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  LayoutMessage layout{};
  layout.ticket = 77;
  layout.header_bytes = header.size();
  layout.image_count = 1;
  layout.header_crc = Crc32c(0, header.data(), header.size());
  layout.head = {kMessageMagic, static_cast<uint16_t>(MessageType::kLayout), 1, sizeof layout, 0, 0};
  (void)trainer.Raw({reinterpret_cast<const uint8_t*>(&layout), sizeof layout}, {memory.get()});  // while there is room
}

// "ready", or why not.
std::string Register(const std::string& socket, const std::string& header) {
  RawTrainer trainer(socket);
  trainer.Join("enemy");
  SayLayout(trainer, header);
  Packet packet;
  while (Readable(trainer.fd()) && ReceivePacket(trainer.fd(), Wait::kNo, &packet) == 0) {
    MessageHead head{};
    std::memcpy(&head, packet.bytes.data(), sizeof head);
    if (head.type == static_cast<uint16_t>(MessageType::kLayoutReady)) return "ready";
    ErrorMessage error{};
    if (head.type != static_cast<uint16_t>(MessageType::kError) || packet.bytes.size() < sizeof error) continue;
    std::memcpy(&error, packet.bytes.data(), sizeof error);
    return error.sentence;
  }
  return "silence";
}

TEST_F(LimitsOfOthers, Headers) {
  const auto expect = [this](const std::string& name, const std::string& header, const std::string& sentence) {
    ExpectHears(name, sentence, [socket = socket_, header] { return Register(socket, header); });
  };
  expect("a name of 1024", OneTensor(std::string(1024, 'n'), "[4096]", 4096), "ready");
  expect("a name of 1025", OneTensor(std::string(1025, 'n'), "[4096]", 4096), "layout: ");
  expect("a name of a million", OneTensor(std::string(1'024'000, 'n'), "[4096]", 4096), "layout: ");
  expect("16 dimensions", OneTensor("d", "[4096" + Repeat(",1", 15) + "]", 4096), "ready");
  expect("17 dimensions", OneTensor("d", "[4096" + Repeat(",1", 16) + "]", 4096), "layout: ");
  expect("16,000 dimensions", OneTensor("d", "[4096" + Repeat(",1", 15'999) + "]", 4096), "layout: ");
  expect("an overflow", OneTensor("d", "[4294967296,4294967296]", 4096), "layout: ");
  expect("more than there is", OneTensor("d", "[1000000000000000]", 1'000'000'000'000'000), "layout: ");
  expect("depth of a million", Image(Repeat("[", 1'000'000)), "layout: ");
  expect("depth within", Image("{\"a\":" + Repeat("{\"b\":", 1'000'000)), "layout: ");
  expect("2^20 tensors and one", Many((1 << 20) + 1).substr(0, (64 << 20) + 4096), "layout: ");
  std::string announces_more(4096, ' ');
  const uint64_t length = uint64_t{1} << 62;
  std::memcpy(announces_more.data(), &length, sizeof length);
  expect("announces 2^62", announces_more, "layout: ");
  EndAndCount(nullptr);
}

TEST_F(LimitsOfOthers, LayoutsOfOneRank) {
  ExpectHears("one after the other", "16 ready, job enemy rank 0 has 16 layouts already", [socket = socket_] {
    int ready = 0;
    std::string said = "ready";
    for (; ready < 1000 && said == "ready"; ready += said == "ready" ? 1 : 0)
      said = Register(socket, OneTensor("t" + std::to_string(ready), "[4096]", 4096));
    return std::to_string(ready) + " ready, " + said;
  });
  ExpectHears("a thousand at once", "layouts of this rank are being prepared", [socket = socket_] {
    RawTrainer trainer(socket);
    trainer.Join("enemy2");
    for (int i = 0; i < 1000; ++i) SayLayout(trainer, OneTensor("t" + std::to_string(i), "[4096]", 4096));
    return trainer.NextError();
  });
  EndAndCount(nullptr);
}

}  // namespace
}  // namespace ckptd::harness

// The two machines over a wire that loses, doubles, reorders and damages what is sent, ends at any moment and delivers
// late what was sent before; memory is written in halves by writers that may outlive their connection. Whatever
// happens, the transfer ends with the exact bytes or a typed error. Then each rule is switched off, and must be missed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/transport/transfer_receiver.h"
#include "daemon/transport/transfer_sender.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kChunk = kMinChunkBytes;
constexpr int kMaxSteps = 60000;
constexpr int kSeeds = 2000;  // of each weather

struct Weather {
  const char* name;
  double drop = 0, twice = 0, damage = 0, cut = 0;
  bool always_damaged = false;  // one chunk never matches
  bool deaf = false;            // nothing comes back from the receiver
  bool idle = false;            // nothing ever becomes ready
  bool must_complete = true;
  int most_cuts = 1000000;
  bool silence_is_wrong = false;  // nothing is lost: no connection may be given up
  Nanos rest = Nanos::max();      // then a connection is given back
  seconds deadline{100000};
};

constexpr Weather kWeathers[] = {
    {.name = "reordered", .silence_is_wrong = true},
    {.name = "cut", .cut = 0.02, .most_cuts = 4, .silence_is_wrong = true},
    {.name = "lossy", .drop = 0.05, .twice = 0.1, .cut = 0.002},
    {.name = "damaged", .drop = 0.02, .twice = 0.1, .damage = 0.2, .cut = 0.005, .must_complete = false},
    {.name = "broken memory", .cut = 0.001, .always_damaged = true, .must_complete = false},
    {.name = "rests", .drop = 0.01, .rest = milliseconds(1)},
    {.name = "deaf", .deaf = true, .must_complete = false},
    {.name = "idle", .idle = true, .must_complete = false, .deadline = seconds(60)},
};

struct Packet {
  ConnectionId connection = 0;
  std::optional<ChunkHeader> header;  // a chunk, with `payload`
  std::string payload;
  std::optional<TransferMessage> message;  // from the receiver; a Stop also from the sender
  bool to_receiver = false;
};

struct Writer {
  ConnectionId connection = 0;
  ChunkHeader header;
  std::string payload;
  int halves = 0;
};

class Simulation {
 public:
  Simulation(int seed, const Weather& weather, Rules rules)
      : random_(static_cast<uint64_t>(seed)),
        weather_(weather),
        image_(Bytes()),
        place_(image_.size(), '~'),
        shape_(*TransferShape::Make(image_.size(), kChunk)),
        sender_(Name(), shape_, Sending(), rules),
        receiver_(Name(), shape_, Receiving(), now_, rules) {
    for (uint32_t i = 0; i < shape_.chunks(); ++i) unready_.push_back(i);
    std::shuffle(unready_.begin(), unready_.end(), random_);
  }

  // What was violated first; empty = nothing.
  std::string Run() {
    int steps = 0;
    while (wrong_.empty() && !Ended() && ++steps < kMaxSteps) Step();
    if (wrong_.empty() && !Ended()) wrong_ = "never ended";
    for (int i = 0; wrong_.empty() && i < 200; ++i) Deliver();  // late packets and writers change nothing
    for (int i = 0; wrong_.empty() && i < 200; ++i) Write();
    if (wrong_.empty()) Judge();
    return wrong_;
  }
  [[nodiscard]] bool complete() const { return sender_.state() == TransferState::kComplete; }
  [[nodiscard]] ErrorCode code() const { return CodeOf(sender_.status()); }
  [[nodiscard]] uint64_t connections() const { return last_connection_; }

 private:
  static TransferName Name() { return {"n2", "gpt", 3, {1, 1000}, 1}; }
  SenderLimits Sending() const {
    return {.deadline = weather_.deadline, .silence = seconds(10), .vain_connections = 40, .idle = weather_.rest};
  }
  ReceiverLimits Receiving() const {
    return {.deadline = weather_.deadline, .alone = seconds(500), .window = 3 * kChunk};
  }
  uint64_t Below(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }
  bool Chance(double p) { return p > 0 && std::bernoulli_distribution(p)(random_); }
  std::string Bytes() {
    std::string bytes(Below(12 * kChunk), 0);
    if (Below(10) == 0) bytes.clear();
    for (size_t i = 0; i < bytes.size(); i += 64) bytes[i] = static_cast<char>(Below(256));
    return bytes;
  }
  [[nodiscard]] bool Ended() const {
    return sender_.state() != TransferState::kRunning && receiver_.state() != TransferState::kRunning;
  }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }
  uint32_t CrcOf(const std::string& bytes) { return Crc32c(0, bytes.data(), bytes.size()); }
  std::string Chunk(const std::string& from, uint32_t chunk) {
    return from.substr(shape_.Offset(chunk), shape_.Length(chunk));
  }

  void Step() {
    const uint64_t dice = Below(100);
    if (dice < 10) {
      MakeReady();
    } else if (dice < 50) {
      Deliver();
    } else if (dice < 85) {
      Write();
    } else if (dice < 88) {
      receiver_.Grant(Below(4) * kChunk + (Below(8) == 0 ? 0 : kChunk));
    } else {
      Pass();
    }
    if (cuts_ < weather_.most_cuts && Chance(weather_.cut)) Cut();
    Pump();
  }

  void MakeReady() {
    if (weather_.idle || unready_.empty()) return;
    const uint32_t chunk = unready_.back();
    unready_.pop_back();
    if (!sender_.ChunkReady(chunk, CrcOf(Chunk(image_, chunk))).ok()) Wrong("a ready chunk is refused");
  }

  // Where answers are lost silence has to pass; where none is lost it never comes so far.
  void Pass() {
    now_ += milliseconds(Below(weather_.silence_is_wrong ? 20 : 1000));
    sender_.Tick(now_);
    receiver_.Tick(now_);
    if (now_ > weather_.deadline + seconds(5) && !Ended()) Wrong("the deadline has passed");
    if (sender_.state() == TransferState::kRunning && sender_.hang_up() && weather_.silence_is_wrong)
      Wrong("silence where nothing was lost");
  }

  void Cut() {
    if (connection_ == 0) return;
    ++cuts_;
    std::erase_if(wire_, [&](const Packet&) { return Below(4) != 0; });  // what stays comes late
    sender_.Lost(connection_, now_);
    receiver_.Lost(connection_, now_);
    connection_ = 0;
  }

  void Connect() {
    if (Below(4) != 0) return;
    const absl::Status connected = receiver_.Connected(last_connection_ + 1, now_);
    if (CodeOf(connected) == ErrorCode::BUSY) return;
    connection_ = ++last_connection_;
    unanswered_ = 0;
    newest_window_ = {};
    welcomed_.assign(shape_.chunks(), false);
    sent_.assign(shape_.chunks(), 0);
    sender_.Connected(connection_, now_);
    if (!connected.ok()) Cut();  // it is hung up on
  }

  void Pump() {
    if (connection_ == 0 && sender_.state() == TransferState::kRunning) Connect();
    while (auto header = sender_.Next(now_)) Send(*header);
    if (auto stop = sender_.TakeStop()) wire_.push_back({connection_, {}, {}, *stop, true});
    for (TransferMessage& message : receiver_.TakeMessages())
      wire_.push_back({connection_, {}, {}, std::move(message), false});
    if (sender_.hang_up() && Below(4) == 0) Cut();
    if (receiver_.hang_up() && Below(16) == 0) Cut();
  }

  void Send(const ChunkHeader& header) {
    if (welcomed_[header.chunk]) Wrong("sent what the receiver had welcomed");
    if (header.attempt > kMaxAttempts) Wrong("too many attempts");
    if ((unanswered_ += header.bytes) > newest_window_.bytes) Wrong("more than the window");
    sent_[header.chunk] = header.attempt;
    std::string payload = Chunk(image_, header.chunk);
    if (Chance(weather_.damage) || (weather_.always_damaged && header.chunk == 0))
      payload[Below(payload.size())] ^= 0x40;
    wire_.push_back({connection_, header, std::move(payload), {}, true});
  }

  void Deliver() {
    if (wire_.empty()) return;
    const size_t index = Below(wire_.size());
    Packet packet = wire_[index];
    if (!Chance(weather_.twice)) {
      wire_[index] = wire_.back();
      wire_.pop_back();
    }
    if (Chance(weather_.drop) || (weather_.deaf && !packet.to_receiver)) return;
    if (packet.header.has_value()) return Begin(std::move(packet));
    if (packet.to_receiver) return receiver_.Heard(packet.connection, *packet.message);
    if (packet.connection == connection_) Note(*packet.message);
    sender_.Heard(packet.connection, *packet.message, now_);
  }

  // What the sender has been told, kept apart from what it makes of it.
  void Note(const TransferMessage& message) {
    if (const auto* window = std::get_if<Window>(&message); window != nullptr) {
      if (window->sequence > newest_window_.sequence) newest_window_ = *window;
    } else if (const auto* welcome = std::get_if<Welcome>(&message); welcome != nullptr) {
      welcomed_ = welcome->have;
    } else if (const auto* verified = std::get_if<Verified>(&message); verified != nullptr) {
      Answered(verified->chunk);
    } else if (const auto* damaged = std::get_if<Damaged>(&message); damaged != nullptr) {
      if (damaged->attempt == sent_[damaged->chunk]) Answered(damaged->chunk);
    }
  }
  void Answered(uint32_t chunk) {
    if (std::exchange(sent_[chunk], 0) != 0) unanswered_ -= shape_.Length(chunk);
  }

  void Begin(Packet packet) {
    const auto placement = receiver_.Header(packet.connection, *packet.header, now_);
    if (!placement.ok()) return Wrong(std::string(placement.status().message()));
    if (*placement == Placement::kInto)
      writers_.push_back({packet.connection, *packet.header, std::move(packet.payload)});
  }

  void Write() {
    if (writers_.empty()) return;
    const size_t index = Below(writers_.size());
    Writer& writer = writers_[index];
    if (writer.connection != connection_ && Chance(0.3)) {
      receiver_.Broken(writer.header);
      return Remove(index);
    }
    const size_t half = writer.payload.size() / 2;
    const size_t begin = writer.halves == 0 ? 0 : half;
    const size_t end = writer.halves == 0 ? half : writer.payload.size();
    if (writer.halves < 2)
      std::copy(writer.payload.begin() + static_cast<ptrdiff_t>(begin),
                writer.payload.begin() + static_cast<ptrdiff_t>(end),
                place_.begin() + static_cast<ptrdiff_t>(shape_.Offset(writer.header.chunk) + begin));
    if (++writer.halves < 3) return;
    receiver_.Settled(writer.header, CrcOf(Chunk(place_, writer.header.chunk)), now_);
    Remove(index);
    if (receiver_.state() == TransferState::kComplete && place_ != image_) Wrong("complete with other bytes");
  }
  void Remove(size_t index) {
    writers_[index] = writers_.back();
    writers_.pop_back();
  }

  void Judge() {
    const bool whole = receiver_.state() == TransferState::kComplete;
    if (complete() && !whole) Wrong("the sender is complete, the receiver is not");
    if (whole && place_ != image_) Wrong("other bytes");
    if (weather_.must_complete && !complete())
      Wrong(absl::StrCat("failed: ", sender_.status().ToString(), " ", receiver_.status().ToString()));
    for (const absl::Status* status : {&sender_.status(), &receiver_.status()}) {
      const ErrorCode code = CodeOf(*status);
      if (code != ErrorCode::OK && code != ErrorCode::CORRUPT && code != ErrorCode::TIMEOUT)
        Wrong(absl::StrCat("ended with ", status->ToString()));
      if (!status->ok() && !absl::StrContains(status->message(), "job gpt, rank 3, step 1000.a1"))
        Wrong("names nothing");
    }
    if (weather_.always_damaged && shape_.chunks() > 0 && code() != ErrorCode::CORRUPT && whole) Wrong("believed");
  }

  std::mt19937_64 random_;
  const Weather weather_;
  Nanos now_{1};
  const std::string image_;
  std::string place_;
  const TransferShape shape_;
  TransferSender sender_;
  TransferReceiver receiver_;
  std::vector<uint32_t> unready_;
  std::vector<Packet> wire_;
  std::vector<Writer> writers_;
  ConnectionId connection_ = 0, last_connection_ = 0;
  int cuts_ = 0;
  uint64_t unanswered_ = 0;
  Window newest_window_;
  std::vector<bool> welcomed_;
  std::vector<uint32_t> sent_;  // attempt in flight of each chunk
  std::string wrong_;
};

TEST(TransferSimulation, EndsWithTheExactBytesOrATypedError) {
  for (const Weather& weather : kWeathers) {
    int complete = 0, corrupt = 0, timeout = 0;
    uint64_t connections = 0;
    for (int seed = 0; seed < kSeeds; ++seed) {
      Simulation simulation(seed, weather, {});
      ASSERT_EQ(simulation.Run(), "") << weather.name << ", seed " << seed;
      complete += simulation.complete() ? 1 : 0;
      corrupt += simulation.code() == ErrorCode::CORRUPT ? 1 : 0;
      timeout += simulation.code() == ErrorCode::TIMEOUT ? 1 : 0;
      connections += simulation.connections();
    }
    std::printf("%s: %d complete, %d CORRUPT, %d TIMEOUT, %d connections\n", weather.name, complete, corrupt, timeout,
                static_cast<int>(connections));
    EXPECT_EQ(complete + corrupt + timeout, kSeeds);
    EXPECT_TRUE(!weather.must_complete || complete == kSeeds);
  }
}

TEST(TransferSimulation, EachRuleIsMissed) {
  for (uint32_t i = 0; i < kRuleCount; ++i) {
    const Rule rule{uint32_t{1} << i};
    std::string found;
    uint64_t runs = 0;
    for (int seed = 0; found.empty() && seed < kSeeds; ++seed) {
      for (const Weather& weather : kWeathers) {
        ++runs;
        if (found.empty()) found = Simulation(seed, weather, Rules::AllBut(rule)).Run();
      }
    }
    std::printf("without rule %u: %s (%d runs)\n", i, found.c_str(), static_cast<int>(runs));
    EXPECT_NE(found, "") << "nobody missed rule " << i;
  }
}

}  // namespace
}  // namespace ckptd::transport

// The bytes of a bulk connection, from a peer that keeps no rule: frames, messages and chunks, into both ends of a
// transfer at once (daemon/transport/transfer_receiver.h, transfer_sender.h), with cuts, delays and other chunks
// becoming ready between them.
//
// What is accepted must be what its printer makes. Whatever comes: a chunk's place is written by one writer at a time,
// chunks count only when they matched, and once, and what is sent is what is ready.
//
// An input: u8 chunks (odd: to a receiver that may lose what it had), then steps: u8 which, and what it takes. Of a
// frame: u16 length, and so many bytes.
#include <map>
#include <set>
#include <utility>

#include "daemon/transport/move_frame.h"
#include "daemon/transport/transfer_messages.h"
#include "daemon/transport/transfer_receiver.h"
#include "daemon/transport/transfer_sender.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// Each chunk that is ready, each answer: a queue's node.
const Allowed kAllowed = {1 << 18, 512};

namespace {

using namespace transport;  // NOLINT(google-build-using-namespace): nothing else is spoken of here

constexpr uint64_t kChunk = kMinChunkBytes;
constexpr size_t kMostSteps = 400;

absl::string_view Text(Input bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

TransferShape ShapeOf(uint8_t chunks) {
  const uint64_t whole = chunks % 40;
  auto shape = TransferShape::Make(whole * kChunk + (chunks > 128 ? 1 : 0), kChunk);
  FUZZ_CHECK(shape.ok());
  return *shape;
}

class Ends {
 public:
  // `forgetful`: the receiver may lose what it had.
  Ends(const TransferShape& shape, bool forgetful)
      : receiver_({"peer", "gpt", 1, {1, 10}, 1}, shape, {.window = 2 * kMaxChunkBytes}, now_),
        sender_({"peer", "gpt", 1, {1, 10}, 1}, shape, {.forgetful = forgetful}) {}

  void Step(Reader& in) {
    switch (in.Take<uint8_t>() % 8) {
      case 0:
        return Connect();
      case 1:
        return Disconnect();
      case 2:
        return Ready(in.Take<uint8_t>(), in.Take<uint32_t>());
      case 3:
        return Tick(in.Take<uint16_t>());
      case 4:
        return Land(in.Take<uint8_t>());
      default:
        return Frame(Text(in.Bytes(in.Take<uint16_t>())));
    }
  }

  void Check() {
    for (const TransferMessage& message : receiver_.TakeMessages()) FUZZ_CHECK(DecodeMessage(Encode(message)).ok());
    while (const auto header = sender_.Next(now_)) CheckSent(*header);
    const uint32_t chunks = receiver_.shape().chunks();
    FUZZ_CHECK(receiver_.verified() == landed_.size() && receiver_.busy() == !under_way_.empty());
    FUZZ_CHECK(receiver_.state() != TransferState::kComplete || receiver_.verified() == chunks);
    FUZZ_CHECK(sender_.state() != TransferState::kComplete || sender_.verified() == chunks);
    FUZZ_CHECK((receiver_.state() == TransferState::kFailed) == !receiver_.status().ok());
    FUZZ_CHECK((sender_.state() == TransferState::kFailed) == !sender_.status().ok());
  }

 private:
  void Connect() {
    Disconnect();
    const ConnectionId next = ++connection_;
    if (receiver_.Connected(next, now_).ok()) at_receiver_ = next;
    sender_.Connected(next, now_);
    sent_.clear();
  }
  void Disconnect() {
    for (const auto& [chunk, header] : under_way_) receiver_.Broken(header);
    under_way_.clear();
    if (at_receiver_ != 0) receiver_.Lost(at_receiver_, now_);
    if (connection_ != 0) sender_.Lost(connection_, now_);
    at_receiver_ = 0;
  }
  void Ready(uint32_t chunk, uint32_t crc) {
    const bool is = chunk < sender_.shape().chunks();
    const bool first = ready_.try_emplace(chunk, crc).second;
    FUZZ_CHECK(sender_.ChunkReady(chunk, crc).ok() == (is && (first || ready_[chunk] == crc)));
  }
  void Tick(uint16_t milliseconds) {
    now_ += std::chrono::milliseconds(milliseconds);
    receiver_.Tick(now_);
    sender_.Tick(now_);
  }
  // The writer of one of the chunks under way is done: odd, with other bytes than was said.
  void Land(uint8_t which) {
    if (under_way_.empty()) return;
    auto at = std::next(under_way_.begin(), which / 2 % static_cast<int>(under_way_.size()));
    const ChunkHeader header = at->second;
    under_way_.erase(at);
    const bool right = which % 2 == 0;
    const uint32_t before = receiver_.verified();
    receiver_.Settled(header, right ? header.crc : ~header.crc, now_);
    FUZZ_CHECK(right || receiver_.verified() == before);
    if (receiver_.verified() == before) return;
    FUZZ_CHECK(landed_.emplace(header.chunk, header.crc).second && receiver_.crc(header.chunk) == header.crc);
  }
  void Frame(absl::string_view bytes) {
    const auto start = ParseFrameHead(bytes.substr(0, kMaxFrameHead), bytes.size());
    if (!start.ok()) return;
    FUZZ_CHECK(start->head <= bytes.size() && bytes.size() - start->head <= MostOf(start->kind));
    const absl::string_view body = bytes.substr(start->head);
    switch (start->kind) {
      case FrameKind::kHello:
        return Greet(body);
      case FrameKind::kMessage:
        return Hear(body);
      case FrameKind::kChunk:
        return Begin(body);
      case FrameKind::kData:
        return;
    }
  }
  static void Greet(absl::string_view body) {
    const auto hello = DecodeHello(body);
    FUZZ_CHECK(!hello.ok() || EncodeHello(*hello) == body);
  }
  void Hear(absl::string_view body) {
    const auto message = DecodeMessage(body);
    if (!message.ok()) return;
    FUZZ_CHECK(Encode(*message) == body);
    receiver_.Heard(at_receiver_, *message);
    sender_.Heard(connection_, *message, now_);
    if (const auto stop = sender_.TakeStop()) FUZZ_CHECK(DecodeMessage(Encode(*stop)).ok());
  }
  void Begin(absl::string_view body) {
    const auto header = DecodeChunk(body);
    if (!header.ok() || at_receiver_ == 0) return;
    const auto placed = receiver_.Header(at_receiver_, *header, now_);
    if (!placed.ok() || *placed != Placement::kInto) return;
    FUZZ_CHECK(header->chunk < receiver_.shape().chunks() && landed_.count(header->chunk) == 0);
    FUZZ_CHECK(header->bytes == receiver_.shape().Length(header->chunk));
    FUZZ_CHECK(under_way_.emplace(header->chunk, *header).second);
  }
  void CheckSent(const ChunkHeader& header) {
    FUZZ_CHECK(ready_.count(header.chunk) != 0 && ready_[header.chunk] == header.crc);
    FUZZ_CHECK(header.bytes == sender_.shape().Length(header.chunk) && header.attempt <= kMaxAttempts);
    const auto decoded = DecodeChunk(EncodeChunk(header));
    FUZZ_CHECK(decoded.ok() && *decoded == header);
    FUZZ_CHECK(sent_.emplace(header.chunk, header.attempt).second);  // once on one connection
  }

  Nanos now_ = std::chrono::seconds(1000);
  TransferReceiver receiver_;
  TransferSender sender_;
  ConnectionId connection_ = 0;   // the sender's
  ConnectionId at_receiver_ = 0;  // which may have refused it
  std::map<uint32_t, uint32_t> ready_;
  std::set<std::pair<uint32_t, uint32_t>> sent_;
  std::map<uint32_t, ChunkHeader> under_way_;
  std::map<uint32_t, uint32_t> landed_;
};

}  // namespace

void Run(Input input) {
  Reader in(input);
  const auto chunks = in.Take<uint8_t>();
  Ends ends(ShapeOf(chunks), /*forgetful=*/chunks % 2 == 1);
  for (size_t step = 0; step < kMostSteps && !in.done(); ++step) {
    ends.Step(in);
    ends.Check();
  }
}

}  // namespace ckptd::fuzz

// The bytes that come over a socket of peers.bulk, cut into frames (daemon/transport/sockets/frame_reader.h): they come
// in pieces of any size, and what is data goes to a place of any size, or nowhere.
//
// Whatever comes: no body is longer than its kind may have, no byte is taken twice or left out, nothing is written
// behind a place, and of how the bytes came nothing is to be seen in what they are.
//
// An input: u8 how they come, u8 where data goes, and the bytes.
#include <algorithm>
#include <string>
#include <utility>

#include "client/core/copy/crc32c.h"
#include "daemon/transport/bulk_stream.h"
#include "daemon/transport/sockets/frame_reader.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// A body, which is as long as its head says before it has come.
const Allowed kAllowed = {1 << 18, 8};

namespace {

using namespace transport;  // NOLINT(google-build-using-namespace): nothing else is spoken of here

// `step` bytes at a time, and none every other time; 0: as many as are wanted.
class Source {
 public:
  Source(Input bytes, size_t step) : bytes_(bytes), step_(step) {}
  size_t operator()(std::span<std::byte> into) {
    if (step_ != 0 && (pause_ = !pause_)) return 0;
    const size_t got = std::min({into.size(), step_ != 0 ? step_ : SIZE_MAX, bytes_.size() - at_});
    if (got != 0) std::memcpy(into.data(), bytes_.data() + at_, got);
    at_ += got;
    return got;
  }
  [[nodiscard]] bool dry() const { return at_ == bytes_.size(); }

 private:
  const Input bytes_;
  const size_t step_;
  size_t at_ = 0;
  bool pause_ = false;
};

// What the frames were: kinds, bodies, and data that was placed; then whether they ended in nonsense.
struct Told {
  std::string text;
  bool nonsense = false;
};

class Taker {
 public:
  Taker(Input bytes, size_t step, uint8_t places)
      : source_(bytes, step), reader_([this](std::span<std::byte> into) { return source_(into); }), places_(places) {}

  Told All() {
    for (int idle = 0; idle < 3;) {
      auto whole = reader_.Take();
      if (!whole.ok()) return {std::move(told_), true};
      if (!*whole && source_.dry()) ++idle;
      if (*whole) One(**whole);
    }
    return {std::move(told_), false};
  }

 private:
  void One(const FrameReader::Whole& frame) {
    if (frame.placed != 0) {
      FUZZ_CHECK(frame.placed == place_.size());
      return Placed(frame.crc);
    }
    told_ += static_cast<char>('0' + static_cast<int>(frame.kind));
    if (frame.data == 0) {
      FUZZ_CHECK(!frame.body.empty() && frame.body.size() <= MostOf(frame.kind));
      told_ += frame.body;
      return;
    }
    FUZZ_CHECK(frame.data <= kMaxPiece && frame.kind == FrameKind::kData);
    if (places_ % 2 == 0) return;  // nobody wants it
    place_.assign(std::min<size_t>(frame.data, size_t{places_} * 16), '~');
    if (const auto crc = reader_.Place(std::as_writable_bytes(std::span(place_)))) Placed(*crc);
  }
  void Placed(uint32_t crc) {
    FUZZ_CHECK(crc == Crc32c(0, place_.data(), place_.size()));
    told_ += place_;
  }

  Source source_;
  FrameReader reader_;
  const uint8_t places_;
  std::string place_;
  std::string told_;
};

}  // namespace

void Run(Input input) {
  Reader in(input);
  const size_t step = 1 + in.Take<uint8_t>();
  const auto places = in.Take<uint8_t>();
  const Input bytes = in.Bytes(input.size());
  const Told whole = Taker(bytes, 0, places).All();
  const Told pieces = Taker(bytes, step, places).All();
  FUZZ_CHECK(whole.text == pieces.text && whole.nonsense == pieces.nonsense);
}

}  // namespace ckptd::fuzz

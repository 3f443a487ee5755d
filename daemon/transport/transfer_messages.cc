#include "daemon/transport/transfer_messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/wire_bytes.h"

namespace ckptd::transport {
namespace {

enum Kind : uint8_t { kWelcome = 1, kWindow = 2, kVerified = 3, kDamaged = 4, kStop = 5 };

struct Encoder {
  std::string* out;

  void operator()(const Welcome& one) const {
    PutNumber<uint8_t>(out, kWelcome);
    PutNumber(out, static_cast<uint32_t>(one.have.size()));
    const size_t begin = out->size();
    out->resize(begin + (one.have.size() + 7) / 8);
    for (size_t i = 0; i < one.have.size(); ++i) {
      if (one.have[i]) (*out)[begin + i / 8] = static_cast<char>((*out)[begin + i / 8] | 1 << i % 8);
    }
  }
  void operator()(const Window& one) const {
    PutNumber<uint8_t>(out, kWindow);
    PutNumber(out, one.sequence);
    PutNumber(out, one.bytes);
  }
  void operator()(const Verified& one) const { Answer(kVerified, one.chunk, one.attempt); }
  void operator()(const Damaged& one) const { Answer(kDamaged, one.chunk, one.attempt); }
  void operator()(const Stop& one) const {
    const absl::string_view text = absl::string_view(one.text).substr(0, kMaxStopText);
    PutNumber<uint8_t>(out, kStop);
    PutNumber(out, one.code);
    PutNumber(out, static_cast<uint16_t>(text.size()));
    absl::StrAppend(out, text);
  }

 private:
  void Answer(Kind kind, uint32_t chunk, uint32_t attempt) const {
    PutNumber<uint8_t>(out, kind);
    PutNumber(out, chunk);
    PutNumber(out, attempt);
  }
};

absl::Status Malformed(absl::string_view what) {
  return Error(ErrorCode::PROTOCOL, absl::StrCat("a transfer's ", what, " is malformed"));
}

absl::StatusOr<TransferMessage> DecodeWelcome(WireReader& reader) {
  const uint32_t chunks = reader.Take<uint32_t>();
  const size_t bytes = (size_t{chunks} + 7) / 8;
  if (chunks > kMaxChunks || reader.left() != bytes) return Malformed("Welcome");
  const absl::string_view bits = reader.TakeBytes(bytes);
  Welcome welcome{std::vector<bool>(chunks)};
  for (uint32_t i = 0; i < bytes * 8; ++i) {
    const bool bit = (static_cast<unsigned char>(bits[i / 8]) >> i % 8 & 1) != 0;
    if (bit && i >= chunks) return Malformed("Welcome");
    if (i < chunks) welcome.have[i] = bit;
  }
  return welcome;
}

absl::StatusOr<TransferMessage> DecodeStop(WireReader& reader) {
  Stop stop;
  stop.code = reader.Take<uint32_t>();
  const uint16_t length = reader.Take<uint16_t>();
  if (length > kMaxStopText) return Malformed("Stop");
  stop.text = std::string(reader.TakeBytes(length));
  return stop;
}

template <typename Answer>
TransferMessage DecodeAnswer(WireReader& reader) {
  Answer answer;
  answer.chunk = reader.Take<uint32_t>();
  answer.attempt = reader.Take<uint32_t>();
  return answer;
}

TransferMessage DecodeWindow(WireReader& reader) {
  Window window;
  window.sequence = reader.Take<uint32_t>();
  window.bytes = reader.Take<uint64_t>();
  return window;
}

absl::StatusOr<TransferMessage> DecodeFields(uint8_t kind, WireReader& reader) {
  switch (kind) {
    case kWelcome:
      return DecodeWelcome(reader);
    case kWindow:
      return DecodeWindow(reader);
    case kVerified:
      return DecodeAnswer<Verified>(reader);
    case kDamaged:
      return DecodeAnswer<Damaged>(reader);
    case kStop:
      return DecodeStop(reader);
    default:
      return Error(ErrorCode::PROTOCOL, absl::StrCat("a transfer's message of the unknown kind ", kind));
  }
}

}  // namespace

std::string Encode(const TransferMessage& message) {
  std::string bytes;
  std::visit(Encoder{&bytes}, message);
  return bytes;
}

absl::StatusOr<TransferMessage> DecodeMessage(absl::string_view bytes) {
  if (bytes.size() > kMaxMessage) return Malformed("message");
  WireReader reader(bytes);
  const uint8_t kind = reader.Take<uint8_t>();
  absl::StatusOr<TransferMessage> message = DecodeFields(kind, reader);
  if (message.ok() && !reader.Exact()) return Malformed("message");
  return message;
}

absl::Status ErrorOf(const Stop& stop, const TransferName& name) {
  const absl::Status said = ErrorOf(stop);
  return Error(CodeOf(said), absl::StrCat(ToString(name), ": ", said.message()));
}

absl::Status ErrorOf(const Stop& stop) {
  std::string text = stop.text;
  for (char& c : text) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  const ErrorCode code = stop.code == 0 ? ErrorCode::INTERNAL : InfoOf(static_cast<ErrorCode>(stop.code)).code;
  return Error(code, absl::StrCat("the other end stopped: ", text));
}

Stop StopOf(const absl::Status& status) {
  return {static_cast<uint32_t>(CodeOf(status)), std::string(status.message().substr(0, kMaxStopText))};
}

std::string EncodeHello(const Hello& hello) {
  std::string out(hello.token.begin(), hello.token.end());
  PutNumber(&out, hello.name.rank);
  PutNumber(&out, hello.name.snapshot.attempt);
  PutNumber(&out, hello.name.snapshot.step);
  PutNumber(&out, hello.name.slot);
  PutNumber(&out, hello.image_bytes);
  PutNumber(&out, hello.chunk_bytes);
  for (const std::string* text : {&hello.name.peer, &hello.name.job}) {
    PutNumber(&out, static_cast<uint16_t>(text->size()));
    absl::StrAppend(&out, *text);
  }
  return out;
}

absl::StatusOr<Hello> DecodeHello(absl::string_view bytes) {
  if (bytes.size() > kMaxHello) return Malformed("greeting");
  WireReader reader(bytes);
  Hello hello;
  const absl::string_view token = reader.TakeBytes(hello.token.size());
  std::copy(token.begin(), token.end(), hello.token.begin());
  hello.name.rank = reader.Take<uint32_t>();
  hello.name.snapshot.attempt = reader.Take<uint64_t>();
  hello.name.snapshot.step = reader.Take<uint64_t>();
  hello.name.slot = reader.Take<uint32_t>();
  hello.image_bytes = reader.Take<uint64_t>();
  hello.chunk_bytes = reader.Take<uint64_t>();
  for (std::string* text : {&hello.name.peer, &hello.name.job}) {
    const uint16_t length = reader.Take<uint16_t>();
    *text = std::string(reader.TakeBytes(length));
  }
  if (!reader.Exact() || !CheckTransferName(hello.name).ok()) return Malformed("greeting");
  if (!TransferShape::Make(hello.image_bytes, hello.chunk_bytes).ok()) return Malformed("greeting");
  return hello;
}

}  // namespace ckptd::transport

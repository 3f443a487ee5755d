#include "daemon/session/requests.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/core/image/text.h"
#include "daemon/base/status_macros.h"
#include "proto/local/rescue.h"

namespace ckptd {
namespace {

constexpr Nanos kLongestTimeout = std::chrono::hours(24 * 7);

absl::Status Bad(absl::string_view what) { return Error(ErrorCode::PROTOCOL, absl::StrCat("trainer message: ", what)); }

// A longer packet comes from a newer peer: fields at the end that we do not know.
template <typename Message>
absl::StatusOr<Message> Copy(std::span<const std::byte> packet) {
  if (packet.size() < sizeof(Message)) return Bad(absl::StrCat("shorter than its type: ", packet.size(), " bytes"));
  Message message;
  std::memcpy(&message, packet.data(), sizeof(message));
  return message;
}

template <size_t kSize>
absl::StatusOr<std::string> Text(const char (&field)[kSize], absl::string_view name) {
  const char* end = std::find(field, field + kSize, '\0');
  if (end == field + kSize) return Bad(absl::StrCat(name, " has no end"));
  return std::string(field, end);
}

// Text that is shown, and sent on in messages that nobody can read when it is not UTF-8: what is not is replaced.
template <size_t kSize>
std::string ShownText(const char (&field)[kSize]) {
  std::string text(field, std::find(field, field + kSize, '\0'));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  size_t good = ValidUtf8Prefix(text);
  while (good < text.size()) {
    text[good] = '?';
    good += ValidUtf8Prefix(std::string_view(text).substr(good));
  }
  return text;
}

ErrorCode CheckedCode(uint32_t code) {
  auto typed = static_cast<ErrorCode>(code);
  return InfoOf(typed).code;
}

absl::Status CheckRank(uint32_t rank, uint32_t world) {
  if (world == 0 || world > kMaxRanks) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("world size ", world, " is not within 1 to ", kMaxRanks));
  }
  if (rank >= world) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("rank ", rank, " is not below the world size ", world));
  }
  return absl::OkStatus();
}

absl::StatusOr<Request> DecodeHello(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<HelloMessage>(packet));
  if (raw.min_major > raw.max_major) return Bad("HELLO with an empty range of versions");
  return HelloRequest{raw.min_major, raw.max_major, ShownText(raw.library)};
}

absl::StatusOr<Request> DecodeJoin(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<JoinMessage>(packet));
  JoinRequest join;
  CKPTD_ASSIGN_OR_RETURN(join.job, Text(raw.job, "job"));
  CKPTD_RETURN_IF_ERROR(CheckJobName(join.job));
  CKPTD_RETURN_IF_ERROR(CheckRank(raw.rank, raw.world));
  if (raw.ticket == 0) return Bad("JOIN without a ticket");
  if (raw.want > static_cast<uint32_t>(Want::kFresh)) return Bad(absl::StrCat("JOIN wants ", raw.want));
  join.rank = raw.rank;
  join.world = raw.world;
  join.ticket = raw.ticket;
  join.want = static_cast<Want>(raw.want);
  join.want_step = raw.want_step;
  join.implicit = raw.implicit != 0;
  join.timeout =
      std::min<Nanos>(std::chrono::milliseconds(std::min<uint64_t>(raw.timeout_ms, 1u << 30)), kLongestTimeout);
  return join;
}

absl::StatusOr<Request> DecodeResume(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<ResumeMessage>(packet));
  ResumeRequest resume;
  CKPTD_ASSIGN_OR_RETURN(resume.job, Text(raw.job, "job"));
  CKPTD_RETURN_IF_ERROR(CheckJobName(resume.job));
  CKPTD_RETURN_IF_ERROR(CheckRank(raw.rank, raw.world));
  if (raw.ticket == 0) return Bad("RESUME without a ticket");
  resume.rank = raw.rank;
  resume.world = raw.world;
  resume.ticket = raw.ticket;
  resume.attempt = raw.attempt;
  resume.region_id = raw.region_id;
  resume.bell_id = raw.bell_id;
  resume.layout = raw.layout;
  resume.header_crc = raw.header_crc;
  return resume;
}

absl::StatusOr<Request> DecodeLoaded(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<LoadedMessage>(packet));
  return LoadedRequest{raw.attempt, raw.ticket, CheckedCode(raw.code), raw.bytes, ShownText(raw.reason)};
}

absl::StatusOr<Request> DecodeLoading(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<LoadingMessage>(packet));
  return LoadingRequest{raw.attempt, raw.ticket};
}

absl::StatusOr<Request> DecodeLayout(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<LayoutMessage>(packet));
  if (raw.image_count == 0 || raw.image_count > kMaxImages) {
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("a layout of ", raw.image_count, " images; at most ", kMaxImages));
  }
  return LayoutRequest{raw.attempt, raw.ticket, raw.header_bytes, raw.image_count, raw.header_crc};
}

absl::StatusOr<Request> DecodeCapture(std::span<const std::byte> packet, MessageType type) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<CaptureMessage>(packet));
  if (raw.slot >= kMaxSlots || raw.epoch > kMaxEpoch) return Bad("slot or epoch out of range");
  return CaptureRequest{type, raw.attempt, raw.step, raw.epoch, raw.layout, raw.slot, CheckedCode(raw.code)};
}

// The same in ASCII.
template <size_t kSize>
std::string PlainText(const char (&field)[kSize]) {
  std::string text = ShownText(field);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return text;
}

Nanos Duration(uint64_t nanoseconds) {
  return std::min<Nanos>(Nanos(static_cast<int64_t>(std::min<uint64_t>(nanoseconds, INT64_MAX))), kLongestTimeout);
}

absl::StatusOr<GpuReport> ToReport(const DeviceReport& raw) {
  if (raw.path > static_cast<uint32_t>(CapturePath::kPull)) return Bad(absl::StrCat("DEVICES with path ", raw.path));
  GpuReport report;
  std::copy(std::begin(raw.gpu), std::end(raw.gpu), report.gpu.begin());
  report.path = static_cast<CapturePath>(raw.path);
  report.samples = raw.samples;
  report.bytes = raw.bytes;
  report.push_loss_ppm = raw.push_loss_ppm;
  report.pull_loss_ppm = raw.pull_loss_ppm;
  report.why = PlainText(raw.why);
  return report;
}

absl::StatusOr<Request> DecodeCopier(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<CopierMessage>(packet));
  CopierRequest copier;
  std::copy(std::begin(raw.gpu), std::end(raw.gpu), copier.gpu.begin());
  return copier;
}

absl::StatusOr<Request> DecodeDevices(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<DevicesMessage>(packet));
  if (raw.device_count > kMaxDevices) return Bad(absl::StrCat("DEVICES of ", raw.device_count, " GPUs"));
  DevicesRequest devices;
  devices.pinned_bytes = raw.pinned_bytes;
  devices.pin_time = Duration(raw.pin_ns);
  devices.longest_step = Duration(raw.longest_step_ns);
  devices.pin_error = PlainText(raw.pin_error);
  for (uint32_t i = 0; i < raw.device_count; ++i) {
    CKPTD_ASSIGN_OR_RETURN(GpuReport report, ToReport(raw.devices[i]));
    devices.gpus.push_back(std::move(report));
  }
  return devices;
}

absl::StatusOr<Request> DecodeRescue(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto raw, Copy<RescueMessage>(packet));
  return RescueRequest{Duration(std::min(raw.hold_ns, kMostHoldNs)), PlainText(raw.why)};
}

}  // namespace

std::string ToString(const GpuId& gpu) {
  const std::string hex =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(gpu.data()), gpu.size()));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4),
                      "-", hex.substr(20));
}

absl::StatusOr<Request> Decode(std::span<const std::byte> packet) {
  CKPTD_ASSIGN_OR_RETURN(auto head, Copy<MessageHead>(packet));
  if (head.magic != kMessageMagic) return Bad("not from libckpt");
  if (head.size != packet.size()) return Bad("its length field does not agree with its length");
  switch (static_cast<MessageType>(head.type)) {
    case MessageType::kHello:
      return DecodeHello(packet);
    case MessageType::kJoin:
      return DecodeJoin(packet);
    case MessageType::kResume:
      return DecodeResume(packet);
    case MessageType::kLoaded:
      return DecodeLoaded(packet);
    case MessageType::kLoading:
      return DecodeLoading(packet);
    case MessageType::kLayout:
      return DecodeLayout(packet);
    case MessageType::kSave:
    case MessageType::kDone:
    case MessageType::kDrop:
      return DecodeCapture(packet, static_cast<MessageType>(head.type));
    case MessageType::kBye:
      return ByeRequest{};
    case MessageType::kCopier:
      return DecodeCopier(packet);
    case MessageType::kDevices:
      return DecodeDevices(packet);
    case MessageType::kRescue:
      return DecodeRescue(packet);
    default:
      return Bad(absl::StrCat("type ", head.type, " is not one a trainer sends"));
  }
}

}  // namespace ckptd

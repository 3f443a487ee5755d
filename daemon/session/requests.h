// What trainers ask, decoded and bounds-checked: values only. proto/local/messages.h describes the dialogue.
#ifndef CKPTD_DAEMON_SESSION_REQUESTS_H_
#define CKPTD_DAEMON_SESSION_REQUESTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "proto/local/bell.h"
#include "proto/local/messages.h"

namespace ckptd {

struct HelloRequest {
  uint16_t min_major = 0;
  uint16_t max_major = 0;
  std::string library;
};

struct JoinRequest {
  std::string job;
  Rank rank = 0;
  uint32_t world = 0;
  Ticket ticket = 0;
  Want want = Want::kNewest;
  StepId want_step = 0;
  bool implicit = false;
  Nanos timeout{0};
};

struct ResumeRequest {
  std::string job;
  Rank rank = 0;
  uint32_t world = 0;
  Ticket ticket = 0;
  AttemptId attempt = 0;
  uint64_t region_id = 0;
  uint64_t bell_id = 0;
  uint32_t layout = 0;
  uint32_t header_crc = 0;
};

struct LoadedRequest {
  AttemptId attempt = 0;
  Ticket ticket = 0;
  ErrorCode code = ErrorCode::OK;
  uint64_t bytes = 0;
  std::string reason;
};

struct LoadingRequest {
  AttemptId attempt = 0;
  Ticket ticket = 0;
};

struct LayoutRequest {
  AttemptId attempt = 0;
  Ticket ticket = 0;
  uint64_t header_bytes = 0;
  uint32_t image_count = 0;
  uint32_t header_crc = 0;
};

// SAVE, DONE and DROP: hints.
struct CaptureRequest {
  MessageType type = MessageType::kSave;
  AttemptId attempt = 0;
  StepId step = 0;
  Epoch epoch = 0;
  uint32_t layout = 0;
  uint32_t slot = 0;
  ErrorCode code = ErrorCode::OK;
};

struct ByeRequest {};

using GpuId = std::array<uint8_t, kGpuUuidBytes>;

// "GPU-00112233-4455-6677-8899-aabbccddeeff", as nvidia-smi -L prints it.
[[nodiscard]] std::string ToString(const GpuId& gpu);

struct CopierRequest {
  GpuId gpu{};
};

// Text is printable ASCII; what is not was replaced.
struct GpuReport {
  GpuId gpu{};
  CapturePath path = CapturePath::kPush;
  uint32_t samples = 0;
  uint64_t bytes = 0;
  int64_t push_loss_ppm = 0;
  int64_t pull_loss_ppm = 0;
  std::string why;
};
struct DevicesRequest {
  uint64_t pinned_bytes = 0;
  Nanos pin_time{0};
  Nanos longest_step{0};
  std::string pin_error;
  std::vector<GpuReport> gpus;
};

// Of its process, until the next one.
struct RescueRequest {
  Nanos hold{0};    // at most kMostHoldNs
  std::string why;  // printable ASCII
};

using Request = std::variant<HelloRequest, JoinRequest, ResumeRequest, LoadedRequest, LayoutRequest, CaptureRequest,
                             ByeRequest, CopierRequest, DevicesRequest, RescueRequest, LoadingRequest>;

// PROTOCOL or INVALID_ARGUMENT with the field's name. `packet` is private memory.
[[nodiscard]] absl::StatusOr<Request> Decode(std::span<const std::byte> packet);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_REQUESTS_H_

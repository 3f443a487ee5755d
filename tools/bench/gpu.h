// The first GPU as a trainer has it: its primary context is current on the thread that made this, for as long as it
// lives. The driver is found at run time (client/core/device); what only a measurement needs of it is found here.
#ifndef CKPTD_TOOLS_BENCH_GPU_H_
#define CKPTD_TOOLS_BENCH_GPU_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/core/device/device.h"

namespace ckptd::bench {

// What a line says of figures that the host device gave (client/core/device/testing).
inline constexpr char kHostDevice[] = "host device: no figure of a GPU";

[[nodiscard]] absl::Status StatusOf(const DeviceError& error);

class Gpu {
 public:
  // Why no GPU can be measured here; OK: one can. Makes no context.
  [[nodiscard]] static absl::Status Found();

  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Gpu>> Open();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const std::string& name() const { return name_; }  // "NVIDIA H200, driver 12.8", or kHostDevice
  [[nodiscard]] bool is_host_device() const { return name_ == kHostDevice; }
  [[nodiscard]] absl::StatusOr<uint64_t> FreeBytes() const;

  // What a stream takes from one mark to the other, told once it has passed both.
  [[nodiscard]] absl::Status MarkBegin(DeviceStream stream) const;
  [[nodiscard]] absl::Status MarkEnd(DeviceStream stream) const;
  [[nodiscard]] absl::StatusOr<double> Seconds() const;

 private:
  Gpu();
  [[nodiscard]] absl::Status FindFunctions();

  std::unique_ptr<Device> device_;
  std::optional<ContextScope> current_;
  std::string name_;
  DeviceEvent begin_;
  DeviceEvent end_;
  struct Functions;  // the driver's, whose types stay in gpu.cc
  std::unique_ptr<Functions> functions_;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_GPU_H_

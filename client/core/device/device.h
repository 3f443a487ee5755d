// One GPU as this process uses it: its primary context, streams, events, copies, waits, and pinned host memory. Over
// the CUDA driver API (see driver.h), without its types.
//
// Threads: every call needs the device's context current on the calling thread: hold a ContextScope. Any thread; a
// stream's work is done in the order of the calls, an event belongs to one thread at a time.
#ifndef CKPTD_CLIENT_CORE_DEVICE_DEVICE_H_
#define CKPTD_CLIENT_CORE_DEVICE_DEVICE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "client/core/device/error.h"

namespace ckptd {

struct Driver;

using DeviceAddress = uint64_t;  // CUdeviceptr

struct DeviceStream {
  void* handle = nullptr;  // CUstream; null is the legacy default stream
};

struct DeviceEvent {
  void* handle = nullptr;
};

// Asked of the driver, never assumed.
struct DeviceFacts {
  std::string name;
  std::string pci;  // "0000:1b:00.0"
  std::array<uint8_t, 16> uuid = {};
  uint64_t memory_bytes = 0;
  int driver_version = 0;          // 12040 is 12.4
  bool exclusive_process = false;  // a second process gets no context
  bool host_register = false;
  bool wait_value64 = false;
  bool posix_fd = false;  // memory of cuMemCreate can be exported as a descriptor
  bool fabric = false;
};

class Device {
 public:
  // The number of GPUs this process sees. kNoDriver where there is no driver.
  static DeviceError Count(int* count);

  // What a GPU says of itself. Makes no context.
  static DeviceError Ask(int ordinal, DeviceFacts* out);

  // The GPU whose primary context this process already uses. Never makes a context: one costs the trainer hundreds of
  // MiB of GPU memory. kRefused where there is none.
  static DeviceError Attach(int ordinal, std::unique_ptr<Device>* out);

  // The same, and makes the context: for the copier.
  static DeviceError Create(int ordinal, std::unique_ptr<Device>* out);

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const DeviceFacts& facts() const { return facts_; }

  // A stream of the lowest priority that never waits for the legacy default stream.
  DeviceError CreateStream(DeviceStream* out) const;
  DeviceError DestroyStream(DeviceStream stream) const;
  DeviceError Synchronize(DeviceStream stream) const;
  DeviceError IsCapturing(DeviceStream stream, bool* capturing) const;  // into a CUDA graph

  // Without timing; waiting for one sleeps.
  DeviceError CreateEvent(DeviceEvent* out) const;
  DeviceError DestroyEvent(DeviceEvent event) const;
  DeviceError Record(DeviceEvent event, DeviceStream stream) const;
  DeviceError Wait(DeviceStream stream, DeviceEvent event) const;  // the stream waits, the caller does not
  DeviceError Query(DeviceEvent event) const;                      // kNotReady: not yet
  DeviceError Synchronize(DeviceEvent event) const;

  // Enqueued; from and to unpinned host memory the call may return only when the copy is done.
  DeviceError CopyOut(void* to, DeviceAddress from, uint64_t bytes, DeviceStream stream) const;
  DeviceError CopyIn(DeviceAddress to, const void* from, uint64_t bytes, DeviceStream stream) const;
  DeviceError CopyWithin(DeviceAddress to, DeviceAddress from, uint64_t bytes, DeviceStream stream) const;

  // Words in pinned host memory: `address` is what PinnedAddress gave.
  DeviceError WriteValue(DeviceStream stream, DeviceAddress address, uint64_t value) const;
  DeviceError WaitValue(DeviceStream stream, DeviceAddress address, uint64_t value) const;  // until equal

  DeviceError Allocate(uint64_t bytes, DeviceAddress* out) const;
  DeviceError Free(DeviceAddress address) const;
  DeviceError AllocatePinned(uint64_t bytes, void** out) const;
  DeviceError FreePinned(void* address) const;

  // Pins memory that exists, for all contexts of this process. Whole pages.
  DeviceError Pin(void* address, uint64_t bytes) const;
  DeviceError Unpin(void* address) const;
  DeviceError PinnedAddress(void* host, DeviceAddress* out) const;

 private:
  friend class ContextScope;
  Device(const Driver& driver, int ordinal, void* context) : driver_(driver), ordinal_(ordinal), context_(context) {}
  static DeviceError Retain(int ordinal, bool make, std::unique_ptr<Device>* out);

  const Driver& driver_;
  const int ordinal_;
  void* const context_;
  DeviceFacts facts_;
};

// The device's context is current on this thread while it lives, and what this thread does breaks no graph that another
// one captures: without that, asking for an event would.
class ContextScope {
 public:
  explicit ContextScope(const Device& device);
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope();

  [[nodiscard]] const DeviceError& error() const { return error_; }

 private:
  const Driver& driver_;
  DeviceError error_;
  int capture_mode_ = 0;  // of the thread before
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_DEVICE_DEVICE_H_

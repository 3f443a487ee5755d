#include "client/src/stream_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

namespace ckptd {
namespace {

constexpr uint64_t kPage = 4096;

// A stream that was let go on a moment ago has not said so yet.
bool PassesSoon(const Device& device, DeviceEvent event) {
  constexpr timespec kLook = {0, 1'000'000};
  for (int looks = 0; looks < 100; ++looks) {
    DeviceError error = device.Query(event);
    if (error.fault != DeviceFault::kNotReady) return error.ok();
    nanosleep(&kLook, nullptr);
  }
  return false;
}

bool Say(std::string* why, const char* name, const char* error) {
  *why = std::string(name) + ": " + error;
  return false;
}

}  // namespace

// An operation that a stream has not come to yet would find its memory gone: then the page is left behind.
StreamPage::~StreamPage() {
  if (device_ == nullptr) return;
  ContextScope scope(*device_);
  bool passed = scope.error().ok();
  for (const Used& used : used_) {
    passed = passed && PassesSoon(*device_, used.passed);
    if (scope.error().ok()) (void)device_->DestroyEvent(used.passed);
  }
  if (passed) return;
  (void)pinned_.release();
  memory_.Leave();
}

bool StreamPage::Make(std::shared_ptr<Device> device, const char* name, uint64_t bytes, std::string* why) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  file_ = UniqueFd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int fd = file_.get();
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Say(why, name, strerror(errno));
  }
  int error = SharedMapping::Map(fd, bytes, Access::kReadWrite, &memory_);
  if (error == 0) error = memory_.Populate(Access::kReadWrite);
  if (error != 0) return Say(why, name, strerror(error));
  DeviceError pinned = PinnedMemory::Pin(device, memory_.data(), bytes, &pinned_);
  device_ = std::move(device);
  ContextScope scope(*device_);
  if (pinned.ok()) pinned = scope.error();
  if (pinned.ok()) pinned = device_->PinnedAddress(memory_.data(), &address_);
  return pinned.ok() || Say(why, name, Sentence(pinned).c_str());
}

DeviceError StreamPage::Write(DeviceStream stream, const std::atomic<uint64_t>& word, uint64_t value) {
  return Enqueue(&Device::WriteValue, stream, word, value);
}

DeviceError StreamPage::Wait(DeviceStream stream, const std::atomic<uint64_t>& word, uint64_t value) {
  return Enqueue(&Device::WaitValue, stream, word, value);
}

DeviceError StreamPage::Enqueue(Operation operation, DeviceStream stream, const std::atomic<uint64_t>& word,
                                uint64_t value) {
  const auto offset = static_cast<uint64_t>(reinterpret_cast<const char*>(&word) - memory_.data());
  MutexLock lock(mutex_);
  DeviceEvent passed;
  if (DeviceError error = EventOf(stream, &passed); !error.ok()) return error;
  DeviceError error = (*device_.*operation)(stream, address_ + offset, value);
  return error.ok() ? device_->Record(passed, stream) : error;
}

DeviceError StreamPage::EventOf(DeviceStream stream, DeviceEvent* out) {
  for (const Used& used : used_) {
    if (used.stream.handle != stream.handle) continue;
    *out = used.passed;
    return {};
  }
  DeviceError error = device_->CreateEvent(out);
  if (error.ok()) used_.push_back({stream, *out});
  return error;
}

}  // namespace ckptd

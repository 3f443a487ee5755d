// Shared memory whose words streams of the trainer write and wait for: pinned, and kept while any stream has not come
// past its last operation here.
//
// Threads: any.
#ifndef CKPTD_CLIENT_SRC_STREAM_PAGE_H_
#define CKPTD_CLIENT_SRC_STREAM_PAGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/device/pinned_memory.h"
#include "client/core/threads/sync.h"
#include "client/core/wire/fds.h"
#include "client/core/wire/mapping.h"

namespace ckptd {

class StreamPage {
 public:
  StreamPage() = default;
  StreamPage(const StreamPage&) = delete;
  StreamPage& operator=(const StreamPage&) = delete;
  ~StreamPage();

  // A memfd sealed against shrinking and growing, of zeros. Once. False: `why`.
  bool Make(std::shared_ptr<Device> device, const char* name, uint64_t bytes, std::string* why);

  [[nodiscard]] const std::shared_ptr<Device>& device() const { return device_; }
  [[nodiscard]] char* data() const { return memory_.data(); }
  [[nodiscard]] int file() const { return file_.get(); }

  // Enqueued; `word` lies in the page. With a ContextScope.
  DeviceError Write(DeviceStream stream, const std::atomic<uint64_t>& word, uint64_t value);
  DeviceError Wait(DeviceStream stream, const std::atomic<uint64_t>& word, uint64_t value);  // until equal

 private:
  using Operation = DeviceError (Device::*)(DeviceStream, DeviceAddress, uint64_t) const;
  struct Used {
    DeviceStream stream;
    DeviceEvent passed;  // behind its last operation
  };

  DeviceError Enqueue(Operation operation, DeviceStream stream, const std::atomic<uint64_t>& word, uint64_t value);
  DeviceError EventOf(DeviceStream stream, DeviceEvent* out);

  std::shared_ptr<Device> device_;
  UniqueFd file_;
  SharedMapping memory_;
  std::unique_ptr<PinnedMemory> pinned_;
  DeviceAddress address_ = 0;
  Mutex mutex_;
  std::vector<Used> used_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_STREAM_PAGE_H_

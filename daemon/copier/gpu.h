// The GPU that this copier copies from, and the trainer's allocations on it.
#ifndef CKPTD_DAEMON_COPIER_GPU_H_
#define CKPTD_DAEMON_COPIER_GPU_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/core/device/allocation.h"
#include "client/core/device/copy_stream.h"
#include "client/core/wire/fds.h"
#include "daemon/copier/outcome.h"
#include "proto/local/copier.h"

namespace ckptd {

struct Gpu {
  std::shared_ptr<Device> device;
  std::unique_ptr<ContextScope> scope;  // this process has one thread and one GPU: its context stays current
  std::unique_ptr<CopyStream> stream;
};

// Found by its UUID, without a context on any other. Refused where a second process gets none.
Outcome OpenGpu(const uint8_t (&uuid)[16], Gpu* out);

// Numbered as they come, from 0.
class Imports {
 public:
  // All of the batch or none of it. `fds`: one per handle of kind kPosixFd, in their order.
  Outcome Add(const Device& device, const CopierImport& batch, std::span<const UniqueFd> fds);

  // Forgets them all, whatever the driver says of each.
  Outcome CloseAll();

  [[nodiscard]] std::span<const ImportedAllocation> all() const { return all_; }

 private:
  std::vector<ImportedAllocation> all_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_GPU_H_

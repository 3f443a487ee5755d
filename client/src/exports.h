// The allocations behind a registration's tensors on its GPU, as a copier needs them, and what it copies from where.
//
// Threads: one. With a ContextScope for Batch.
#ifndef CKPTD_CLIENT_SRC_EXPORTS_H_
#define CKPTD_CLIENT_SRC_EXPORTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/core/device/allocation.h"
#include "client/core/wire/fds.h"
#include "client/src/layout.h"
#include "proto/local/copier.h"

namespace ckptd {

class Exports {
 public:
  // False: `why` another process cannot reach all of them.
  bool Find(const Registration& registration, std::string* why);

  [[nodiscard]] const std::vector<DeviceAllocation>& allocations() const { return allocations_; }
  [[nodiscard]] uint64_t pieces() const { return pieces_.size(); }

  // IMPORT of up to kImportBatch allocations, with the descriptors that go with it.
  bool Batch(size_t first, CopierImport* out, std::vector<UniqueFd>* files, std::string* why) const;

  // The memfd of PLAN.
  bool PlanFile(UniqueFd* out, std::string* why) const;

 private:
  bool Add(const Piece& piece, std::string* why);
  bool Obtain(DeviceAddress address, uint32_t* index, std::string* why);

  std::vector<DeviceAllocation> allocations_;
  std::vector<CopierPiece> pieces_;
};

// True while each is the allocation that it was: an address may be given to another one.
[[nodiscard]] bool StillThere(const std::vector<DeviceAllocation>& allocations);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_EXPORTS_H_

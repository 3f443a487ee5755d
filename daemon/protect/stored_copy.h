// A rank's committed snapshot on storage, as one more source of a restore from other agents' memory (shared_fetch.h).
// Room protect knows no storage: app implements it.
//
// On the loop's thread, but for `came`. Destroying it ends `told` and `done`; a read that the storage keeps hangs on
// behind it.
#ifndef CKPTD_DAEMON_PROTECT_STORED_COPY_H_
#define CKPTD_DAEMON_PROTECT_STORED_COPY_H_

#include <cstddef>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::protect {

class StoredCopy {
 public:
  using Told = std::function<void(const absl::StatusOr<v1::CopyRecord>&)>;
  // On a thread that reads: chunk `chunk` of the image, which is what the record says. Not OK: the read ends with it.
  using Came = std::function<absl::Status(size_t chunk, std::span<const std::byte> bytes)>;
  using Done = std::function<void(const absl::Status&)>;

  virtual ~StoredCopy() = default;

  // NOT_FOUND when it is not committed. Both answers come once, never within the call.
  virtual void Describe(Told told) = 0;
  // `chunks` from the first one on, in order. After Describe, one read at a time.
  virtual void Read(size_t first_chunk, size_t chunks, Came came, Done done) = 0;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_STORED_COPY_H_

// A committed snapshot of one rank as a source of a restore beside other agents (stored_copy.h). Control thread; the
// storage is read on Services::beside_work.
#ifndef CKPTD_DAEMON_APP_STORAGE_COPY_H_
#define CKPTD_DAEMON_APP_STORAGE_COPY_H_

#include <memory>
#include <string>

#include "daemon/app/services.h"
#include "daemon/base/callback_scope.h"
#include "daemon/base/ids.h"
#include "daemon/protect/stored_copy.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

class StorageCopy final : public protect::StoredCopy {
 public:
  StorageCopy(Services& services, std::string job, Rank rank, const SnapshotId& id)
      : services_(services), job_(std::move(job)), rank_(rank), id_(id) {}

  void Describe(Told told) override;
  void Read(size_t first_chunk, size_t chunks, Came came, Done done) override;

 private:
  Services& services_;
  const std::string job_;
  const Rank rank_;
  const SnapshotId id_;
  std::shared_ptr<const v1::Sidecar> sidecar_;  // since it was told
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_STORAGE_COPY_H_

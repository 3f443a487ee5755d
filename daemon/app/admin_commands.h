// The admin commands that block, each as one plain function on a worker thread: ask the control thread through the
// gate, read storage, answer. One file per idea: admin_list.cc, admin_read.cc, admin_verify.cc, admin_keep.cc,
// admin_copies.cc, admin_remove.cc.
#ifndef CKPTD_DAEMON_APP_ADMIN_COMMANDS_H_
#define CKPTD_DAEMON_APP_ADMIN_COMMANDS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/app/admin_catalog.h"
#include "daemon/rpc/admin_backend.h"

namespace ckptd {

[[nodiscard]] absl::StatusOr<v1::ListResponse> ListSteps(AdminContext& context, const AdminCall& call,
                                                         const v1::ListRequest& request);
[[nodiscard]] absl::StatusOr<v1::TraceResponse> TraceStep(AdminContext& context, const AdminCall& call,
                                                          const v1::TraceRequest& request);

[[nodiscard]] absl::Status InspectStep(AdminContext& context, AdminStream<v1::InspectResponse>& stream,
                                       const v1::InspectRequest& request);
[[nodiscard]] absl::Status VerifyStep(AdminContext& context, AdminStream<v1::VerifyProgress>& stream,
                                      const v1::VerifyRequest& request);
[[nodiscard]] absl::Status RestoreStep(AdminContext& context, AdminStream<v1::RestoreResponse>& stream,
                                       const v1::RestoreRequest& request);

[[nodiscard]] absl::StatusOr<v1::PinResponse> PinStep(AdminContext& context, const AdminCall& call,
                                                      const v1::PinRequest& request);
[[nodiscard]] absl::StatusOr<v1::UnpinResponse> UnpinStep(AdminContext& context, const AdminCall& call,
                                                          const v1::UnpinRequest& request);
[[nodiscard]] absl::StatusOr<v1::RemoveResponse> RemoveStep(AdminContext& context, const AdminCall& call,
                                                            const v1::RemoveRequest& request);
[[nodiscard]] absl::StatusOr<v1::GcResponse> CollectGarbage(AdminContext& context, const AdminCall& call,
                                                            const v1::GcRequest& request);

// What [retention] says of each committed or unfinished step, newest first. Pure.
struct RetentionVerdict {
  const CatalogStep* step = nullptr;
  bool goes = false;
  std::string reason;  // sentence
};
[[nodiscard]] std::vector<RetentionVerdict> ApplyRetention(const Catalog& catalog, const RetentionConfig& retention);

// What this node holds for others of the job, as request.job and request.force let it go.
void ReclaimCopies(AdminContext& context, const Catalog& catalog, const v1::GcRequest& request,
                   v1::GcResponse& response);

// Deletes committed or unfinished steps, by the coordinator when it lives here, else by an attempt of our own that is
// never decided; with `take_over` also when another agent coordinates the job's newest attempt. The outcome of each.
[[nodiscard]] std::map<SnapshotId, absl::Status> DeleteSteps(AdminContext& context, const AdminCall& call,
                                                             const std::string& job,
                                                             const std::vector<SnapshotId>& steps, bool take_over);

// What the storage says of their pins, to the coordinator when it lives here: another node's ckptctl tells the storage
// only.
[[nodiscard]] absl::Status TellPin(AdminContext& context, const std::string& job, const std::vector<SnapshotId>& steps,
                                   bool pinned);

[[nodiscard]] v1::RemovedEntry ToEntry(const std::string& job, const CatalogStep& step, std::string reason);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_COMMANDS_H_

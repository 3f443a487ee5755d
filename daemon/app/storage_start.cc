#include "daemon/app/storage_start.h"

#include <chrono>
#include <memory>
#include <optional>

#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr Nanos kFirstAnswer = std::chrono::seconds(3);  // how long the start waits for it

absl::Status MakeDirectory(Files& files, const std::string& path, uint32_t mode) {
  absl::Status status = files.Mkdir(path, mode);
  return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

}  // namespace

absl::Status MakePath(Files& files, const std::string& path, uint32_t mode) {
  if (path.empty() || path == "/") return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(bool there, Exists(files, path));
  if (there) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(MakePath(files, ParentOf(path), mode));
  return MakeDirectory(files, path, mode);
}

absl::Status LookAtStorage(Files& files, Store& store, const std::string& root, Executor& workers) {
  struct Answer {
    Mutex mutex;
    CondVar came;
    std::optional<absl::Status> status CKPTD_GUARDED_BY(mutex);
  };
  auto answer = std::make_shared<Answer>();
  bool taken = workers.Run([&files, &store, root, answer] {
    absl::Status status = MakePath(files, root, 0700);
    if (status.ok()) status = store.Probe();
    if (!status.ok()) Log(kError, "storage.open").Error(status);
    MutexLock lock(answer->mutex);
    answer->status = status;
    answer->came.NotifyOne();
  });
  if (!taken) return Error(ErrorCode::INTERNAL, "no worker for the storage");
  const auto deadline = std::chrono::steady_clock::now() + kFirstAnswer;
  MutexLock lock(answer->mutex);
  while (!answer->status) {
    if (!answer->came.WaitUntil(answer->mutex, deadline)) break;
  }
  if (answer->status) return *answer->status;
  Log(kWarning, "storage.silent").Field("storage", root).Field("text", "started without its answer");
  return absl::OkStatus();
}

}  // namespace ckptd

#include "daemon/app/storage_copy.h"

#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/os/run_async.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

v1::CopyRecord RecordOf(const v1::Sidecar& sidecar) {
  v1::CopyRecord record;
  SetRef({sidecar.attempt(), sidecar.step()}, record.mutable_snapshot());
  SetRef({sidecar.parent_attempt(), sidecar.parent_step()}, record.mutable_parent());
  record.set_trace(sidecar.trace_id());
  record.set_captured_unix_ns(static_cast<uint64_t>(sidecar.captured_unix_ns()));
  record.mutable_chunk_crc()->Assign(sidecar.chunk_crc32c().begin(), sidecar.chunk_crc32c().end());
  return record;
}

}  // namespace

// Through the store that restore() is not said to wait for: when it hangs, others bring the bytes.
void StorageCopy::Describe(Told told) {
  using Result = absl::StatusOr<v1::Sidecar>;
  RunAsync<Result>(
      services_.loop, services_.beside_work,
      [&store = services_.store, job = job_, id = id_, rank = rank_] { return CommittedSidecar(store, job, id, rank); },
      scope_.Bind([this, told = std::move(told)](const Result& sidecar) {
        if (!sidecar.ok()) return told(sidecar.status());
        sidecar_ = std::make_shared<const v1::Sidecar>(*sidecar);
        told(RecordOf(*sidecar_));
      }));
}

void StorageCopy::Read(size_t first_chunk, size_t chunks, Came came, Done done) {
  RunAsync<absl::Status>(
      services_.loop, services_.beside_work,
      [&store = services_.store, job = job_, sidecar = sidecar_, first_chunk, chunks, came = std::move(came)] {
        CheckedReadOptions options;
        options.first_chunk = first_chunk;
        options.chunks = chunks;
        options.chunk_sink = came;
        return ReadChecked(store, ToStoredRank(job, *sidecar), options);
      },
      scope_.Bind([done = std::move(done)](const absl::Status& status) { done(status); }));
}

}  // namespace ckptd

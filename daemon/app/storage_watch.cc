#include "daemon/app/storage_watch.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/app/services.h"

namespace ckptd {
namespace {

constexpr Nanos kProbeEvery = std::chrono::seconds(5);
// A flush that failed is begun again after seconds, and says so again. One that says nothing for longer has nothing to
// flush any more, or is writing.
constexpr Nanos kForgetFlush = std::chrono::seconds(30);

// What an error says of the storage; OK: it answered, whatever it answered.
absl::Status OfStorage(const absl::Status& status) {
  switch (CodeOf(status)) {
    case ErrorCode::STORAGE_FULL:
    case ErrorCode::STORAGE_READ_ONLY:
    case ErrorCode::STORAGE_IO:
    case ErrorCode::STORAGE_HUNG:
      return status;
    case ErrorCode::PERMISSION:
      return Error(ErrorCode::STORAGE_IO, status.message());
    default:
      return absl::OkStatus();
  }
}

v1::StorageStatus::State ToState(const absl::Status& health) {
  switch (CodeOf(health)) {
    case ErrorCode::STORAGE_FULL:
      return v1::StorageStatus::FULL;
    case ErrorCode::STORAGE_READ_ONLY:
      return v1::StorageStatus::READ_ONLY;
    case ErrorCode::STORAGE_HUNG:
      return v1::StorageStatus::HUNG;
    default:
      return health.ok() ? v1::StorageStatus::OK : v1::StorageStatus::FAILING;
  }
}

constexpr uint64_t kProbeBytes = 4096;

struct Probed {
  absl::Status writable;
  uint64_t free_bytes = 0;
};

}  // namespace

void StorageWatch::Probe() {
  if (probing_) return;
  probing_ = true;
  RunAsync<absl::StatusOr<Probed>>(
      loop_, chores_,
      [&store = store_]() -> absl::StatusOr<Probed> {
        (void)store.RemoveLeftovers("");  // of a probe that was killed
        Probed probed;
        probed.writable = store.OpenForWrite("probe", kProbeBytes).status();  // reserved, and never published
        if (auto space = store.Space(); space.ok()) probed.free_bytes = space->available;
        return probed;
      },
      [this](const absl::StatusOr<Probed>& probed) {
        probing_ = false;
        if (probed.ok()) free_bytes_ = probed->free_bytes;
        Answered(probed.ok() ? probed->writable : probed.status(), /*wrote=*/true);
      });
}

void StorageWatch::Flushed(const FlushOutcome& outcome) {
  if (absl::IsCancelled(outcome.status)) return;  // given up by us: that says nothing of the storage
  const auto rank = std::make_pair(outcome.key.job, outcome.key.rank);
  if (outcome.status.ok()) {
    const double seconds = static_cast<double>(outcome.duration.count()) / 1e9;
    bytes_per_second_ = seconds > 0 ? static_cast<double>(outcome.bytes) / seconds : 0;
  }
  failed_flushes_.erase(rank);
  if (absl::Status said = OfStorage(outcome.status); !said.ok()) failed_flushes_[rank] = {said, clock_.Monotonic()};
  Answered(outcome.status, /*wrote=*/true);
}

void StorageWatch::Answered(const absl::Status& status, bool wrote) {
  const absl::Status said = OfStorage(status);
  if (!said.ok()) {
    last_error_ = std::string(said.message());
    last_ = said;
    ProbeAgain();
  } else if (status.ok() && wrote) {
    last_ = absl::OkStatus();
    written_ = true;
  }
}

void StorageWatch::ProbeAgain() {
  if (timer_) return;
  timer_ = true;
  loop_.After(kProbeEvery, [this] {
    timer_ = false;
    std::erase_if(failed_flushes_, [this](const auto& flush) { return Forgotten(flush.second); });
    if (last_.ok() && failed_flushes_.empty()) return;
    Probe();
    ProbeAgain();
  });
}

bool StorageWatch::Forgotten(const FailedFlush& flush) const { return clock_.Monotonic() - flush.when > kForgetFlush; }

absl::Status StorageWatch::Health() const {
  auto longest = calls_.Longest();
  if (longest && longest->since > timeout_) {
    return Error(ErrorCode::STORAGE_HUNG, absl::StrCat("hung: ", longest->ToString()));
  }
  // A full storage takes a small file and no snapshot, so what a flush said stands beside what a probe says.
  for (const auto& [rank, flush] : failed_flushes_) {
    if (!Forgotten(flush)) return flush.status;
  }
  return last_;
}

void StorageWatch::Fill(v1::StorageStatus* out) const {
  const absl::Status health = Health();
  out->set_state(ToState(health));
  if (health.ok() && !written_) out->set_state(v1::StorageStatus::UNKNOWN);
  out->set_last_error(health.ok() ? last_error_ : std::string(health.message()));
  out->set_free_bytes(free_bytes_);
  out->set_write_bytes_per_second(bytes_per_second_);
}

}  // namespace ckptd

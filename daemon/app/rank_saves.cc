#include "daemon/app/rank_saves.h"

#include <algorithm>

#include "daemon/base/clock.h"

namespace ckptd {

void RankSaves::Captured(const RecordHead& record, uint64_t bytes) {
  ++captured_;
  last_save_ = record;
  last_bytes_ = bytes;
}

void RankSaves::Dropped(StepId step, ErrorCode code) {
  ++dropped_[code];
  last_drop_ = code;
  last_drop_step_ = step;
}

void RankSaves::AddTo(v1::SaveCounters* job) const {
  job->set_captured(job->captured() + captured_);
  for (const auto& [code, count] : dropped_) {
    job->set_dropped(job->dropped() + count);
    (*job->mutable_dropped_because())[InfoOf(code).name] += count;
  }
}

void RankSaves::Fill(AttemptId seen, v1::RankStatus* out) const {
  if (last_drop_) {
    out->set_last_drop(InfoOf(*last_drop_).name);
    out->set_last_drop_step(last_drop_step_);
  }
  if (last_save_.attempt == 0 || last_save_.attempt < seen) return;
  v1::SaveStatus* save = out->mutable_last_save();
  // The trainer wrote both times.
  const uint64_t end = std::max(last_save_.begin_unix_ns, last_save_.captured_unix_ns);
  const double seconds = Seconds(Nanos(end - last_save_.begin_unix_ns));
  save->set_step(last_save_.step);
  save->set_blocked_seconds(Seconds(Nanos(last_save_.blocked_ns)));
  save->set_capture_seconds(seconds);
  if (seconds > 0) save->set_capture_bytes_per_second(static_cast<double>(last_bytes_) / seconds);
  save->set_trace_id(last_save_.trace);
}

}  // namespace ckptd

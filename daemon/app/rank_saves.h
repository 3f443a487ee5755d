// What became of one rank's saves since the agent started, as status tells it. Control thread only.
#ifndef CKPTD_DAEMON_APP_RANK_SAVES_H_
#define CKPTD_DAEMON_APP_RANK_SAVES_H_

#include <cstdint>
#include <map>
#include <optional>

#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "proto/ckptd/v1/status.pb.h"
#include "proto/local/region.h"

namespace ckptd {

class RankSaves {
 public:
  void Captured(const RecordHead& record, uint64_t bytes);
  // As its trainer says.
  void Dropped(StepId step, ErrorCode code);

  // Adds to what the job's other ranks counted.
  void AddTo(v1::SaveCounters* job) const;
  // A save of an attempt before `seen` is not its last one.
  void Fill(AttemptId seen, v1::RankStatus* out) const;

 private:
  uint64_t captured_ = 0;
  std::map<ErrorCode, uint64_t> dropped_;
  RecordHead last_save_{};
  uint64_t last_bytes_ = 0;
  std::optional<ErrorCode> last_drop_;
  StepId last_drop_step_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_RANK_SAVES_H_

// Numbers the Reports of one agent, of all jobs together. A coordinator takes none that is not above the last one that
// it had of the same incarnation, whichever part of the agent wrote that: who only answered for a job of which there
// was nothing here (bystander.h), or a member that was forgotten since.
#ifndef CKPTD_DAEMON_JOB_REPORT_NUMBERS_H_
#define CKPTD_DAEMON_JOB_REPORT_NUMBERS_H_

#include <cstdint>

namespace ckptd::job {

// One thread.
class ReportNumbers {
 public:
  uint64_t Next() { return ++last_; }

 private:
  uint64_t last_ = 0;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_REPORT_NUMBERS_H_

// `<job>/job`: who owns a job on this node, the highest attempt seen, the marks of protection that were told or heard
// last, and up to which attempt this memory may have lost snapshots. Mapped words on tmpfs: they survive the agent, not
// the node, which is all the protocol asks (a new region id tells the others). One thread.
//
// `lost` keeps a proof honest. A rank without a part of a step shows that the step was never captured, as long as parts
// do not vanish; when an agent finds at its start that one did (a file cut by its trainer, a record that does not
// check), it says so here, and for steps of these attempts an absence proves nothing any more.
#ifndef CKPTD_DAEMON_REGION_JOB_JOURNAL_H_
#define CKPTD_DAEMON_REGION_JOB_JOURNAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/ids.h"
#include "daemon/base/marks.h"
#include "daemon/os/files.h"
#include "daemon/os/mapping.h"
#include "proto/local/region.h"

namespace ckptd::region {

struct JournalContent {
  uint32_t uid = 0;
  AttemptId seen = 0;
  AttemptId lost = 0;    // 0: nothing
  KeptMarks marks = {};  // none where they do not check: no promise is better than a wrong one
};

// `file`: the whole file, copied out. CORRUPT unless it is the journal of `job` in this region; NEWER_VERSION for a
// newer major.
[[nodiscard]] absl::StatusOr<JournalContent> ParseJournal(std::span<const std::byte> file, absl::string_view job,
                                                          uint64_t region_id);

class JobJournal {
 public:
  // Made complete under a temporary name, then linked.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<JobJournal>> Create(Files& files, const std::string& job_dir,
                                                                          absl::string_view job, uint64_t region_id,
                                                                          const JournalContent& content);
  // One that ParseJournal accepted; `content.lost` and `content.marks` may be more than what it says, and are written.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<JobJournal>> Open(Files& files, const std::string& job_dir,
                                                                        const JournalContent& content);

  [[nodiscard]] AttemptId seen() const { return content_.seen; }
  [[nodiscard]] AttemptId lost() const { return content_.lost; }
  [[nodiscard]] const KeptMarks& marks() const { return content_.marks; }
  [[nodiscard]] uint32_t uid() const { return content_.uid; }
  // When this returns a successor agent will read `attempt`. Lower ones are ignored.
  void SetSeen(AttemptId attempt);
  // The same of marks.
  void Raise(const KeptMarks& told);

 private:
  explicit JobJournal(const JournalContent& content) : content_(content) {}

  void WriteMarks();
  [[nodiscard]] ckptd::JobJournal* words() const { return reinterpret_cast<ckptd::JobJournal*>(mapping_.data()); }

  JournalContent content_;
  Mapping mapping_;
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_JOB_JOURNAL_H_

#include "daemon/region/job_journal.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/region/scan.h"

namespace ckptd::region {
namespace {

// JobJournal as plain bytes: its atomic cannot be copied.
struct PlainJournal {
  uint64_t magic;
  uint16_t major;
  uint16_t minor;
  uint32_t uid;
  uint64_t region_id;
  char job[kJobNameBytes];
  uint64_t seen;
  uint64_t lost;
  uint64_t marks_at;
  JournalMarks marks[2];
};
static_assert(sizeof(PlainJournal) == sizeof(ckptd::JobJournal) && offsetof(PlainJournal, seen) == 160);
constexpr size_t kMinor0Bytes = offsetof(PlainJournal, lost);

absl::Status Bad(absl::string_view job, absl::string_view what) {
  return Error(ErrorCode::CORRUPT, absl::StrCat("job ", job, ": journal: ", what));
}

absl::Status WriteTemporary(Files& files, const std::string& path, const PlainJournal& journal) {
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path, {.write = true, .create = true}));
  CKPTD_RETURN_IF_ERROR(file->PWrite(0, std::as_bytes(std::span(&journal, 1))));
  return file->Close();
}

// A journal of minor 0 ends before `lost`, one of minor 1 before the marks. Nobody else writes it.
absl::Status Extend(File& file) {
  CKPTD_ASSIGN_OR_RETURN(FileInfo info, file.Stat());
  if (info.size >= sizeof(PlainJournal)) return absl::OkStatus();
  const std::string zeros(sizeof(PlainJournal) - info.size, '\0');
  return file.PWrite(info.size, std::as_bytes(std::span(zeros)));
}

uint32_t CrcOf(const JournalMarks& marks) { return Crc32c(0, &marks, offsetof(JournalMarks, crc)); }

JournalMarks ToJournal(const KeptMarks& kept) {
  const ProtectionMarks& of = kept.marks;
  JournalMarks marks{kept.attempt,
                     of.complete.attempt,
                     of.complete.step,
                     of.target.attempt,
                     of.target.step,
                     of.given_up.attempt,
                     of.given_up.step,
                     of.turns,
                     0,
                     0};
  marks.crc = CrcOf(marks);
  return marks;
}

KeptMarks FromJournal(const PlainJournal& journal) {
  const JournalMarks& marks = journal.marks[journal.marks_at % 2];
  if (marks.attempt == 0 || marks.crc != CrcOf(marks)) return {};
  return {marks.attempt,
          {{marks.complete_attempt, marks.complete_step},
           {marks.target_attempt, marks.target_step},
           {marks.given_up_attempt, marks.given_up_step},
           marks.turns}};
}

}  // namespace

absl::StatusOr<JournalContent> ParseJournal(std::span<const std::byte> file, absl::string_view job,
                                            uint64_t region_id) {
  PlainJournal journal{};
  if (file.size() < kMinor0Bytes) return Bad(job, "too short");
  std::memcpy(&journal, file.data(), std::min(file.size(), sizeof(journal)));
  if (journal.magic != kJobJournalMagic) return Bad(job, "no journal");
  if (journal.major > kRegionMajor)
    return Error(ErrorCode::NEWER_VERSION, absl::StrCat("job ", job, ": journal of region major ", journal.major));
  if (journal.major < kRegionMajorMin) return Bad(job, "of an older major");
  if (journal.region_id != region_id) return Bad(job, "of another region");
  if (std::memchr(journal.job, 0, sizeof(journal.job)) == nullptr || job != journal.job)
    return Bad(job, "of another job");
  return JournalContent{journal.uid, journal.seen, journal.lost, FromJournal(journal)};
}

absl::StatusOr<std::unique_ptr<JobJournal>> JobJournal::Create(Files& files, const std::string& job_dir,
                                                               absl::string_view job, uint64_t region_id,
                                                               const JournalContent& content) {
  CKPTD_RETURN_IF_ERROR(CheckJobName(job));
  PlainJournal journal{.magic = kJobJournalMagic,
                       .major = kRegionMajor,
                       .minor = kRegionMinor,
                       .uid = content.uid,
                       .region_id = region_id,
                       .job = {},
                       .seen = content.seen,
                       .lost = content.lost,
                       .marks_at = 0,
                       .marks = {ToJournal(content.marks), {}}};
  std::memcpy(journal.job, job.data(), job.size());
  const std::string temporary = absl::StrCat(job_dir, "/", kTemporaryPrefix, kJournalName);
  absl::Status status = WriteTemporary(files, temporary, journal);
  CKPTD_FP("region.journal.before_link");
  if (status.ok()) status = files.Link(temporary, absl::StrCat(job_dir, "/", kJournalName));
  absl::Status removed = files.Unlink(temporary);
  CKPTD_RETURN_IF_ERROR(status);
  CKPTD_RETURN_IF_ERROR(removed);
  return Open(files, job_dir, content);
}

absl::StatusOr<std::unique_ptr<JobJournal>> JobJournal::Open(Files& files, const std::string& job_dir,
                                                             const JournalContent& content) {
  std::unique_ptr<JobJournal> journal(new JobJournal(content));
  CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(absl::StrCat(job_dir, "/", kJournalName), {.write = true}));
  CKPTD_RETURN_IF_ERROR(Extend(*file));
  CKPTD_ASSIGN_OR_RETURN(journal->mapping_, Mapping::Map(file->fd(), sizeof(ckptd::JobJournal), MapAccess::kReadWrite));
  journal->words()->lost.store(content.lost, std::memory_order_release);
  if (content.marks.attempt != 0) journal->WriteMarks();
  return journal;
}

void JobJournal::SetSeen(AttemptId attempt) {
  if (attempt <= content_.seen) return;
  content_.seen = attempt;
  words()->seen.store(attempt, std::memory_order_release);
}

void JobJournal::Raise(const KeptMarks& told) {
  const KeptMarks before = content_.marks;
  content_.marks.Raise(told);
  if (content_.marks != before) WriteMarks();
}

// Killed in between, it has left the others in force.
void JobJournal::WriteMarks() {
  ckptd::JobJournal* journal = words();
  const uint64_t next = journal->marks_at.load(std::memory_order_relaxed) + 1;
  journal->marks[next % 2] = ToJournal(content_.marks);
  journal->marks_at.store(next, std::memory_order_release);
}

}  // namespace ckptd::region

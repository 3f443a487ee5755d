// Verify: every chunk of every copy, and exactly which of them are bad.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/app/admin_commands.h"
#include "daemon/app/admin_source.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/recover/step_check.h"

namespace ckptd {
namespace {

constexpr uint64_t kReportEvery = 64 << 20;  // bytes
constexpr int kDamagePerMessage = 1000;
constexpr size_t kRanksNamed = 16;

// What the client is told, and how far we are. Not more often than it can be of use.
class Reporter {
 public:
  Reporter(AdminStream<v1::VerifyProgress>& stream, const SnapshotId& id) : stream_(stream) {
    message_.set_attempt(id.attempt);
    message_.set_step(id.step);
  }

  void AddWork(uint64_t bytes) { message_.set_bytes_total(message_.bytes_total() + bytes); }
  // Of the copy that is being read.
  void Progress(uint64_t done) {
    message_.set_bytes_done(before_ + done);
    if (before_ + done >= sent_ + kReportEvery) Send();
  }
  void EndCopy(uint64_t bytes) {
    before_ += bytes;
    message_.set_bytes_done(before_);
  }
  void Bad(const char* source, Rank rank, const std::string& file, uint64_t offset, uint64_t bytes,
           const std::string& reason) {
    v1::Damage* damage = message_.add_damage();
    damage->set_source(source);
    damage->set_rank(rank);
    damage->set_file(file);
    damage->set_offset(offset);
    damage->set_bytes(bytes);
    damage->set_reason(reason);
    if (message_.damage_size() >= kDamagePerMessage) Send();
  }
  void Uncommitted(const std::string& manifest, const std::string& reason) {
    message_.set_uncommitted(true);
    Bad(kStorageSource, 0, manifest, 0, 0, reason);
  }
  void Note(const std::string& sentence) { message_.set_note(sentence); }
  absl::Status End() {
    message_.set_done(true);
    Send();
    return stream_.cancelled() ? Error(ErrorCode::CANCELLED, "nobody waits for it") : absl::OkStatus();
  }

 private:
  void Send() {
    sent_ = message_.bytes_done();
    (void)stream_.Write(message_);  // a client that has gone is noticed by the reader's cancel flag
    message_.clear_damage();
  }

  AdminStream<v1::VerifyProgress>& stream_;
  v1::VerifyProgress message_;
  uint64_t before_ = 0;
  uint64_t sent_ = 0;
};

void Quarantine(AdminContext& context, const std::string& job, const RegionCopy& copy) {
  (void)context.gate.Run([&] {
    if (JobRunner* runner = context.agent.FindJob(job)) {
      runner->PostToRank(copy.rank, snapshot::DamageFound{copy.slot, copy.id});
    }
  });
}

absl::Status VerifyCopy(AdminContext& context, const std::string& job, const RegionCopy& copy, Reporter& report,
                        const std::atomic<bool>& cancel) {
  RankSource source = FromRegion(copy);
  bool bad = false;
  OrderedRead read;
  read.cancel = &cancel;
  read.progress = [&](uint64_t done) { report.Progress(done); };
  read.on_bad = [&](uint64_t offset, uint64_t bytes, const std::string& reason) {
    bad = true;
    report.Bad(kRegionSource, copy.rank, copy.file->path(), offset, bytes, reason);
  };
  absl::Status status = ReadInOrder(source, read);
  if (CodeOf(status) == ErrorCode::CORRUPT) {
    bad = true;
    report.Bad(kRegionSource, copy.rank, copy.file->path(), 0, source.bytes, std::string(status.message()));
    status = absl::OkStatus();
  }
  report.EndCopy(source.bytes);
  // From now on nobody is offered this slot; a restore takes another source.
  if (bad) Quarantine(context, job, copy);
  return status;
}

Rank RankOfPart(const std::string& name) {
  auto file = ParseRankFileName(name.substr(name.rfind('/') + 1));
  return file ? file->rank : 0;
}

absl::Status VerifyStored(AdminContext& context, const std::string& job, const StepListing& stored, Reporter& report,
                          const std::atomic<bool>& cancel) {
  CheckedReadOptions options;
  options.cancel = &cancel;
  options.progress = [&](uint64_t done) { report.Progress(done); };
  options.on_bad = [&](const BadChunk& bad) {
    report.Bad(kStorageSource, RankOfPart(bad.part), bad.part, bad.offset, bad.bytes, bad.reason);
  };
  absl::Status status = CheckStep(context.store, job, stored.id, options);
  ErrorCode code = CodeOf(status);
  if (code == ErrorCode::CORRUPT || code == ErrorCode::NOT_FOUND) {
    report.Bad(kStorageSource, 0, InStep(job, stored.id, kManifestName), 0, 0, std::string(status.message()));
    status = absl::OkStatus();
  }
  report.EndCopy(stored.bytes);
  return status;
}

// "; no slot with it is here of ranks 1, 3", or empty.
std::string RanksWithoutCopy(const CatalogStep& step) {
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < step.world && missing.size() < kRanksNamed; ++rank) {
    if (step.CopyOf(rank) == nullptr) missing.push_back(rank);
  }
  if (missing.empty()) return "";
  const size_t more = step.world - step.copies.size() - missing.size();
  return absl::StrCat("; no slot with it is here of ranks ", absl::StrJoin(missing, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, " more"));
}

// Of a step that has copies here, and no manifest.
void SayUncommitted(const std::string& job, const CatalogStep& step, Reporter& report) {
  if (step.in_region()) {
    return report.Note("the step is not committed: it is whole in the memory of this node, and not on storage");
  }
  report.Uncommitted(InStep(job, step.id, kManifestName),
                     absl::StrCat("missing: the step is not committed", RanksWithoutCopy(step)));
}

}  // namespace

absl::Status VerifyStep(AdminContext& context, AdminStream<v1::VerifyProgress>& stream,
                        const v1::VerifyRequest& request) {
  const std::string& job = request.target().job();
  Pins pins(context.agent, job);
  CKPTD_ASSIGN_OR_RETURN(Catalog catalog, ReadCatalog(context, stream, job, &pins));
  CKPTD_ASSIGN_OR_RETURN(const CatalogStep* step, FindStep(catalog, request.target()));
  pins.KeepOnly(step->id);
  CKPTD_RETURN_IF_ERROR(catalog.storage);  // "all copies are good" cannot be said without it
  const bool damaged = !step->committed() && step->stored && !step->stored->damage.empty();
  if (!step->committed() && !damaged && step->copies.empty()) {
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("job ", job, ": step ", step->id.step, " is whole nowhere"));
  }
  Reporter report(stream, step->id);
  if (!step->committed() && !damaged) SayUncommitted(job, *step, report);
  for (const RegionCopy& copy : step->copies) report.AddWork(copy.record->slot_bytes);
  if (step->committed()) report.AddWork(step->stored->bytes);
  for (const RegionCopy& copy : step->copies) {
    CKPTD_RETURN_IF_ERROR(VerifyCopy(context, job, copy, report, stream.cancel_flag()));
  }
  if (step->committed()) {
    CKPTD_RETURN_IF_ERROR(VerifyStored(context, job, *step->stored, report, stream.cancel_flag()));
  } else if (damaged) {
    report.Bad(kStorageSource, 0, InStep(job, step->id, kManifestName), 0, 0, step->stored->damage);
  }
  return report.End();
}

}  // namespace ckptd

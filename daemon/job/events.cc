#include "daemon/job/events.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ckptd::job {
namespace {

struct Printer {
  std::string operator()(const Started& e) const { return absl::StrCat("Started seen ", e.seen); }
  std::string operator()(const Join& e) const {
    return absl::StrCat("Join rank ", e.rank, " ticket ", e.ticket, " process ", e.process, " world ", e.world_size,
                        " want ", e.want.ShortDebugString());
  }
  std::string operator()(const Withdrawn& e) const {
    return absl::StrCat("Withdrawn rank ", e.rank, " ticket ", e.ticket);
  }
  std::string operator()(const Reaped& e) const { return absl::StrCat("Reaped rank ", e.rank, " process ", e.process); }
  std::string operator()(const Resumed& e) const {
    return absl::StrCat("Resumed rank ", e.rank, " process ", e.process, " attempt ", e.attempt);
  }
  std::string operator()(const StateReceived& e) const {
    return absl::StrCat("StateReceived ", e.state->ShortDebugString());
  }
  std::string operator()(const ReportReceived& e) const {
    return absl::StrCat("ReportReceived ", e.report->ShortDebugString());
  }
  std::string operator()(const StorageHangs& e) const {
    return absl::StrCat("StorageHangs ticket ", e.ticket, " ", e.call);
  }
  std::string operator()(const RankChanged& e) const {
    return absl::StrCat("RankChanged ", e.report->ShortDebugString());
  }
  std::string operator()(const CopiesChanged& e) const {
    return absl::StrCat("CopiesChanged seen ", e.seen,
                        absl::StrJoin(e.copies, "", [](std::string* out, const v1::HeldCopies& held) {
                          absl::StrAppend(out, "; ", held.ShortDebugString());
                        }));
  }
  std::string operator()(const CopyRefused& e) const { return absl::StrCat("CopyRefused ", ToString(e.id)); }
  std::string operator()(const MembersChanged& e) const {
    return absl::StrCat("MembersChanged ", absl::StrJoin(e.members, ","));
  }
  std::string operator()(const TimerFired& e) const {
    return absl::StrCat("TimerFired ", static_cast<int>(e.kind), " key ", e.key);
  }
  std::string operator()(const NewestRead& e) const {
    return Answer("NewestRead", e.op, e.status, absl::StrCat(e.record.ShortDebugString(), e.decided ? " decided" : ""));
  }
  std::string operator()(const AttemptCreated& e) const { return Answer("AttemptCreated", e.op, e.status, ""); }
  std::string operator()(const Listed& e) const {
    return Answer("Listed", e.op, e.status, absl::StrCat(e.decisions.size(), " decisions, ", e.steps.size(), " steps"));
  }
  std::string operator()(const DecisionCreated& e) const {
    return Answer("DecisionCreated", e.op, e.status, e.decision.ShortDebugString());
  }
  std::string operator()(const ManifestCreated& e) const { return Answer("ManifestCreated", e.op, e.status, ""); }
  std::string operator()(const NewestChecked& e) const {
    return Answer("NewestChecked", e.op, e.status, absl::StrCat("a", e.newest));
  }
  std::string operator()(const StepVerified& e) const { return Answer("StepVerified", e.op, e.status, ""); }
  std::string operator()(const RankVerified& e) const { return Answer("RankVerified", e.op, e.status, ""); }
  std::string operator()(const MarkerPut& e) const {
    return Answer("MarkerPut", e.op, e.status, e.pinned ? " pinned" : e.whole != 0 ? " whole" : "");
  }
  std::string operator()(const StepDeleted& e) const { return Answer("StepDeleted", e.op, e.status, ""); }
  std::string operator()(const PinLooked& e) const {
    return Answer("PinLooked", e.op, e.status, e.pinned ? " pinned" : "");
  }
  std::string operator()(const RecordsPruned& e) const {
    return Answer("RecordsPruned", e.op, e.status, absl::StrCat("a", e.newest));
  }
  std::string operator()(const PinChanged& e) const {
    return absl::StrCat("PinChanged ", ToString(e.id), e.pinned ? " pinned" : " unpinned");
  }
  std::string operator()(const DeleteRequested& e) const { return absl::StrCat("DeleteRequested ", ToString(e.id)); }
  std::string operator()(const RetentionChanged& e) const {
    return absl::StrCat("RetentionChanged last ", e.retention.keep_last, " every ", e.retention.keep_every);
  }

  std::string operator()(const PersistSeen& e) const { return absl::StrCat("PersistSeen a", e.attempt); }
  std::string operator()(const PersistMarks& e) const {
    const ProtectionMarks& marks = e.marks.marks;
    return absl::StrCat("PersistMarks a", e.marks.attempt, " protected ", ToString(marks.complete), " protecting ",
                        ToString(marks.target), " unprotected ", ToString(marks.given_up), " turns ", marks.turns);
  }
  std::string operator()(const ForwardState& e) const {
    return absl::StrCat("ForwardState ", e.state->ShortDebugString());
  }
  std::string operator()(const SendState& e) const {
    return absl::StrCat("SendState to ", e.agent, " ", e.state->ShortDebugString());
  }
  std::string operator()(const SendReport& e) const {
    return absl::StrCat("SendReport to ", e.agent, " ", e.report->ShortDebugString());
  }
  std::string operator()(const Refuse& e) const {
    return absl::StrCat("Refuse rank ", e.rank, " ticket ", e.ticket, " ", InfoOf(e.code).name, " ", e.message);
  }
  std::string operator()(const KeepWaiting& e) const {
    return absl::StrCat("KeepWaiting rank ", e.rank, " ticket ", e.ticket);
  }
  std::string operator()(const AcceptJoin& e) const {
    return absl::StrCat("AcceptJoin rank ", e.rank, " ticket ", e.ticket, " process ", e.process);
  }
  std::string operator()(const StartTimer& e) const {
    return absl::StrCat("StartTimer ", static_cast<int>(e.kind), " key ", e.key);
  }
  std::string operator()(const ReadNewest& e) const { return absl::StrCat("ReadNewest #", e.op); }
  std::string operator()(const CreateAttempt& e) const {
    return absl::StrCat("CreateAttempt #", e.op, " ", e.record.ShortDebugString());
  }
  std::string operator()(const List& e) const { return absl::StrCat("List #", e.op); }
  std::string operator()(const CreateDecision& e) const {
    return absl::StrCat("CreateDecision #", e.op, " ", e.decision.ShortDebugString());
  }
  std::string operator()(const CreateManifest& e) const {
    return absl::StrCat("CreateManifest #", e.op, " ", ToString(e.id), " of ", e.world_size);
  }
  std::string operator()(const CheckNewest& e) const { return absl::StrCat("CheckNewest #", e.op); }
  std::string operator()(const VerifyStep& e) const { return absl::StrCat("VerifyStep #", e.op, " ", ToString(e.id)); }
  std::string operator()(const VerifyRank& e) const {
    return absl::StrCat("VerifyRank #", e.op, " ", ToString(e.id), " rank ", e.rank, " of ", e.world_size);
  }
  std::string operator()(const EndVerification&) const { return "EndVerification"; }
  std::string operator()(const PutMarker& e) const {
    return absl::StrCat("PutMarker #", e.op, " ", ToString(e.id), " by a", e.attempt, e.remains ? " remains" : "");
  }
  std::string operator()(const DeleteStep& e) const { return absl::StrCat("DeleteStep #", e.op, " ", ToString(e.id)); }
  std::string operator()(const LookAtPin& e) const { return absl::StrCat("LookAtPin #", e.op, " ", ToString(e.id)); }
  std::string operator()(const PruneRecords& e) const {
    return absl::StrCat("PruneRecords #", e.op, " below a", e.attempt, ", decisions ", absl::StrJoin(e.decisions, ","));
  }
  std::string operator()(const DeleteEnded& e) const {
    return absl::StrCat("DeleteEnded ", e.request, " ", e.status.ToString());
  }

 private:
  static std::string Answer(const char* name, OpId op, const absl::Status& status, const std::string& rest) {
    return absl::StrCat(name, " #", op, " ", status.ToString(), " ", rest);
  }
};

}  // namespace

std::string ToString(const Event& event) { return std::visit(Printer{}, event); }
std::string ToString(const Effect& effect) { return std::visit(Printer{}, effect); }

}  // namespace ckptd::job

#include "daemon/snapshot/events.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/snapshot/table.h"

namespace ckptd::snapshot {
namespace {

constexpr const char* kWordNames[] = {"NONE", "OPEN", "COMPLETE", "ABANDONED"};

std::string Text(const Owner& owner) {
  return absl::StrCat("a", owner.attempt, " ticket ", owner.ticket, " process ", owner.process);
}

std::string From(const Sources& sources) {
  if (sources.empty()) return "";
  return sources.agents.empty() ? " from parity" : " from " + absl::StrJoin(sources.agents, ",");
}

struct Printer {
  std::string operator()(const Adopted& e) const {
    return absl::StrCat("Adopted seen ", e.seen, " ",
                        absl::StrJoin(e.slots, ", ", [](std::string* out, const AdoptedSlot& slot) {
                          absl::StrAppend(out, ToString(slot.id), " ", Name(slot.state), " ", ToString(slot.snapshot));
                        }));
  }
  std::string operator()(const LayoutAdded& e) const { return absl::StrCat("LayoutAdded ", e.layout, " x", e.count); }
  std::string operator()(const LayoutChosen& e) const {
    return absl::StrCat("LayoutChosen ", e.layout, " process ", e.process);
  }
  std::string operator()(const RoomNeeded& e) const { return e.on ? "RoomNeeded on" : "RoomNeeded off"; }
  std::string operator()(const OthersNeedRoom& e) const { return e.on ? "OthersNeedRoom on" : "OthersNeedRoom off"; }
  std::string operator()(const JobState& e) const { return absl::StrCat("JobState ", e.state->ShortDebugString()); }
  std::string operator()(const Attached& e) const {
    return absl::StrCat("Attached process ", e.process, " ticket ", e.ticket, " running ", e.running);
  }
  std::string operator()(const Died& e) const { return absl::StrCat("Died process ", e.process); }
  std::string operator()(const Reaped& e) const { return absl::StrCat("Reaped process ", e.process); }
  std::string operator()(const Withdrawn& e) const { return absl::StrCat("Withdrawn ticket ", e.ticket); }
  std::string operator()(const BellRead& e) const {
    return absl::StrCat("BellRead process ", e.process, " pos ", e.pos, " of a", e.pos_attempt, " ",
                        absl::StrJoin(e.words, ", ", [](std::string* out, const BellWord& word) {
                          absl::StrAppend(out, ToString(word.slot), " epoch ", word.epoch, " ",
                                          kWordNames[static_cast<int>(word.state)], " step ", word.step, " ack ",
                                          word.ack, word.crcs_valid ? " valid" : "", word.rescued ? " rescued" : "");
                        }));
  }
  std::string operator()(const Loaded& e) const { return absl::StrCat("Loaded a", e.attempt, " ticket ", e.ticket); }
  std::string operator()(const LoadFailed& e) const {
    return absl::StrCat("LoadFailed a", e.attempt, " ticket ", e.ticket, " ", InfoOf(e.code).name, " ", e.reason);
  }
  std::string operator()(const LoadGoesOn& e) const {
    return absl::StrCat("LoadGoesOn a", e.attempt, " ticket ", e.ticket);
  }
  std::string operator()(const LayoutFound& e) const {
    return absl::StrCat("LayoutFound ", ToString(e.snapshot), " layout ", e.layout, " ", e.status.ToString());
  }
  std::string operator()(const Fetched& e) const {
    return absl::StrCat("Fetched ", ToString(e.slot), " ", ToString(e.snapshot), " ", e.status.ToString());
  }
  std::string operator()(const FlushEnded& e) const {
    return absl::StrCat("FlushEnded ", ToString(e.slot), " ", ToString(e.snapshot), " ", e.status.ToString());
  }
  std::string operator()(const FileReplaced& e) const {
    return absl::StrCat("FileReplaced ", ToString(e.slot), " ", e.status.ToString());
  }
  std::string operator()(const ReadPinned& e) const {
    return absl::StrCat("ReadPinned ", ToString(e.slot), " ", ToString(e.snapshot));
  }
  std::string operator()(const ReadUnpinned& e) const {
    return absl::StrCat("ReadUnpinned ", ToString(e.slot), " ", ToString(e.snapshot));
  }
  std::string operator()(const DamageFound& e) const {
    return absl::StrCat("DamageFound ", ToString(e.slot), " ", ToString(e.snapshot));
  }
  std::string operator()(const Checked& e) const {
    return absl::StrCat("Checked ", ToString(e.slot), " ", ToString(e.snapshot));
  }
  std::string operator()(const RetryTimer&) const { return "RetryTimer"; }
  std::string operator()(const FlushNewest&) const { return "FlushNewest"; }
  std::string operator()(const Draining& e) const { return e.on ? "Draining on" : "Draining off"; }

  std::string operator()(const OpenGrant& e) const {
    return absl::StrCat("OpenGrant ", ToString(e.slot), " epoch ", e.epoch, " floor ", e.floor, " ", Text(e.owner));
  }
  std::string operator()(const MoveFloor& e) const {
    return absl::StrCat("MoveFloor ", ToString(e.slot), " epoch ", e.epoch, " floor ", e.floor);
  }
  std::string operator()(const AbandonWord& e) const {
    return absl::StrCat("AbandonWord ", ToString(e.slot), " epoch ", e.epoch, " process ", e.process);
  }
  std::string operator()(const SealSlot& e) const {
    return absl::StrCat("SealSlot ", ToString(e.slot), " epoch ", e.epoch, " ", ToString(e.snapshot),
                        e.source == Source::kRescued ? " rescued" : "");
  }
  std::string operator()(const SetSlotState& e) const {
    return absl::StrCat("SetSlotState ", ToString(e.slot), " ", Name(e.state));
  }
  std::string operator()(const SetPersisted& e) const { return absl::StrCat("SetPersisted ", ToString(e.slot)); }
  std::string operator()(const DropFile& e) const { return absl::StrCat("DropFile ", ToString(e.slot)); }
  std::string operator()(const RemoveLayout& e) const { return absl::StrCat("RemoveLayout ", e.layout); }
  std::string operator()(const ReplaceFile& e) const { return absl::StrCat("ReplaceFile ", ToString(e.slot)); }
  std::string operator()(const FindLayout& e) const {
    return absl::StrCat("FindLayout ", ToString(e.snapshot), From(e.sources));
  }
  std::string operator()(const Fetch& e) const {
    return absl::StrCat("Fetch ", ToString(e.slot), " ", ToString(e.snapshot), From(e.sources));
  }
  std::string operator()(const StartFlush& e) const {
    return absl::StrCat("StartFlush ", ToString(e.slot), " ", ToString(e.snapshot));
  }
  std::string operator()(const CancelFlush& e) const {
    return absl::StrCat("CancelFlush ", ToString(e.slot), " ", ToString(e.snapshot));
  }
  std::string operator()(const Superseded& e) const { return absl::StrCat("Superseded ", ToString(e.snapshot)); }
  std::string operator()(const RetryAt& e) const { return e.soon ? "RetryAt soon" : "RetryAt"; }
  std::string operator()(const SendLoad& e) const {
    return absl::StrCat("SendLoad a", e.attempt, " ticket ", e.ticket, " ", ToString(e.snapshot), " from ",
                        ToString(e.slot));
  }
  std::string operator()(const SendGo& e) const {
    return absl::StrCat("SendGo a", e.attempt, " ticket ", e.ticket, " start ", e.start);
  }
  std::string operator()(const SendNews& e) const {
    std::string text = absl::StrCat("SendNews a", e.attempt, " captured ", e.captured, " protected ", e.protected_step,
                                    " durable ", e.durable, " fenced by ", e.fenced_by);
    for (const StepOutcome& outcome : e.outcomes)
      absl::StrAppend(&text, " ", outcome.step, " is ", outcome.flags, "/", outcome.code);
    return text;
  }
  std::string operator()(const ReportChanged& e) const {
    return absl::StrCat("ReportChanged ", e.report->ShortDebugString());
  }
};

}  // namespace

std::string ToString(const Event& event) { return std::visit(Printer{}, event); }
std::string ToString(const Effect& effect) { return std::visit(Printer{}, effect); }
std::string ToString(const SlotId& slot) { return absl::StrCat(slot.layout, "/", slot.index); }

}  // namespace ckptd::snapshot

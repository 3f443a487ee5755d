#include "daemon/app/trainer_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

SkippedStep WireSkipped(const v1::SkippedStep& step) {
  return {step.snapshot().attempt(), step.snapshot().step(), step.code(), step.has_rank() ? step.rank() : UINT32_MAX};
}

Source WireSource(snapshot::Source source) {
  switch (source) {
    case snapshot::Source::kRegion:
      return Source::kRegion;
    case snapshot::Source::kStorage:
      return Source::kStorage;
    case snapshot::Source::kRescued:
      return Source::kRescued;
    case snapshot::Source::kReplica:
      return Source::kReplica;
    case snapshot::Source::kParity:
      return Source::kParity;
    case snapshot::Source::kNone:
      break;
  }
  return Source::kNone;
}

}  // namespace

SessionId TrainerChannel::SessionOf(snapshot::ProcessId process) const {
  auto found = sessions_.find(process);
  return found == sessions_.end() ? 0 : found->second;
}

void TrainerChannel::Disconnect(SessionId session) {
  for (auto& [process, current] : sessions_) {
    if (current == session) current = 0;
  }
}

void TrainerChannel::Skipped(SessionId session, const v1::DecisionRecord& decision, LoadMessage* load) {
  for (const v1::SkippedStep& step : decision.skipped()) {
    if (load->skipped_count == kMaxSkipped) return;
    SkippedMessage message{};
    message.attempt = load->attempt;
    message.step = load->skipped[load->skipped_count++] = WireSkipped(step);
    SetText(message.why, step.reason());
    services_.server.Hint(session, MessageType::kSkipped, message);
  }
}

absl::Status TrainerChannel::Load(const snapshot::SendLoad& load, const region::LayoutSet* set) {
  LoadMessage message{};
  message.attempt = load.attempt;
  SessionId session = SessionOf(load.process);
  Skipped(session, load.state->decision(), &message);
  if (set == nullptr) {
    services_.server.Send(session, MessageType::kLoad, message);
    return absl::OkStatus();
  }
  CKPTD_ASSIGN_OR_RETURN(auto descriptors, set->DescriptorsForRestore(load.slot.index));
  message.snapshot_attempt = load.snapshot.attempt;
  message.snapshot_step = load.snapshot.step;
  message.source = static_cast<uint32_t>(WireSource(load.source));
  message.slot = load.slot.index;
  message.layout = load.slot.layout;
  message.verified = (set->Slot(load.slot.index).flags & kSlotVerified) != 0;
  message.slot_bytes = set->head().block.slot_bytes;
  const int fds[] = {descriptors.slot, descriptors.ctl};
  services_.server.Send(session, MessageType::kLoad, message, fds);
  return absl::OkStatus();
}

void TrainerChannel::Go(const snapshot::SendGo& go) {
  GoMessage message{};
  message.attempt = go.attempt;
  message.start_step = go.start;
  message.durable_step = go.state->durable().step();
  services_.server.Send(SessionOf(go.process), MessageType::kGo, message);
}

void TrainerChannel::Grant(const snapshot::Owner& owner, const snapshot::SlotId& slot, Epoch epoch, StepId floor) {
  GrantMessage message{};
  message.attempt = owner.attempt;
  message.epoch = epoch;
  message.floor = floor;
  message.layout = slot.layout;
  message.slot = slot.index;
  services_.server.Hint(SessionOf(owner.process), MessageType::kGrant, message);
}

void TrainerChannel::NoteProblem(const absl::Status& status) { last_problem_ = status; }

void TrainerChannel::News(const snapshot::SendNews& news) {
  NewsMessage message{};
  message.attempt = news.attempt;
  message.fenced_by = news.fenced_by;
  message.captured_step = news.captured;
  message.protected_step = news.protected_step;
  message.durable_step = news.durable;
  for (const StepOutcome& outcome : news.outcomes) message.outcomes[message.outcome_count++] = outcome;
  if (!last_problem_.ok()) {
    message.last_error = static_cast<uint32_t>(CodeOf(last_problem_));
    SetText(message.last_sentence, last_problem_.message());
  }
  services_.server.Hint(SessionOf(news.process), MessageType::kNews, message);
}

void TrainerChannel::Refuse(snapshot::ProcessId process, MessageType answers, const absl::Status& error) {
  Log(kWarning, "session.refuse").Job(job_).Rank(rank_).Error(error);
  services_.server.SendError(SessionOf(process), answers, error);
}

void TrainerChannel::LayoutProgress(snapshot::ProcessId process, const LayoutStateMessage& progress) {
  services_.server.Hint(SessionOf(process), MessageType::kLayoutState, progress);
}

void TrainerChannel::LayoutReady(snapshot::ProcessId process, AttemptId attempt, const region::LayoutSet& set,
                                 const region::Bell& bell, uint64_t region_id) {
  auto descriptors = set.DescriptorsForSaving();
  if (!descriptors.ok()) return Refuse(process, MessageType::kLayout, descriptors.status());
  const Superblock& block = set.head().block;
  LayoutReadyMessage message{};
  message.attempt = attempt;
  message.layout = block.layout;
  message.header_crc = block.header_crc;
  message.slot_count = block.slot_count;
  message.chunk_count = block.chunk_count;
  message.chunk_bytes = block.chunk_bytes;
  message.slot_bytes = block.slot_bytes;
  message.region_id = region_id;
  message.bell_id = block.bell_id;
  std::vector<int> fds = {descriptors->ctl, bell.fd(), bell.hint_fd()};
  for (uint32_t slot = 0; slot < block.slot_count; ++slot) {
    message.file_id[slot] = set.Slot(slot).file_id;
    fds.push_back(descriptors->slots[slot]);
  }
  services_.server.Send(SessionOf(process), MessageType::kLayoutReady, message, fds);
}

void TrainerChannel::ResumeRefused(snapshot::ProcessId process, const ResumeRefusedMessage& message) {
  services_.server.Send(SessionOf(process), MessageType::kResumeRefused, message);
}

void TrainerChannel::FreshSlot(snapshot::ProcessId process, const snapshot::SlotId& slot,
                               const region::SlotFile& file) {
  SlotMessage message{};
  message.layout = slot.layout;
  message.slot = slot.index;
  message.file_id = file.file_id();
  const int fds[] = {file.write_fd()};
  services_.server.Send(SessionOf(process), MessageType::kSlot, message, fds);
}

}  // namespace ckptd

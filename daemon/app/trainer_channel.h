// What the agent says to the trainers of one rank: machine effects as messages of proto/local/messages.h.
#ifndef CKPTD_DAEMON_APP_TRAINER_CHANNEL_H_
#define CKPTD_DAEMON_APP_TRAINER_CHANNEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/app/services.h"
#include "daemon/region/layout_set.h"
#include "daemon/snapshot/events.h"

namespace ckptd {

// On the control thread.
class TrainerChannel {
 public:
  TrainerChannel(Services& services, std::string job, Rank rank)
      : services_(services), job_(std::move(job)), rank_(rank) {}

  // The connection over which a process speaks now; 0 = none.
  void SetSession(snapshot::ProcessId process, SessionId session) { sessions_[process] = session; }
  void Disconnect(SessionId session);
  void Forget(snapshot::ProcessId process) { sessions_.erase(process); }
  [[nodiscard]] bool Connected(snapshot::ProcessId process) const { return SessionOf(process) != 0; }

  // `set` is null for a fresh start. CORRUPT when the slot's file was destroyed: nothing was sent.
  [[nodiscard]] absl::Status Load(const snapshot::SendLoad& load, const region::LayoutSet* set);
  void Go(const snapshot::SendGo& go);
  void Grant(const snapshot::Owner& owner, const snapshot::SlotId& slot, Epoch epoch, StepId floor);
  void News(const snapshot::SendNews& news);
  void Refuse(snapshot::ProcessId process, MessageType answers, const absl::Status& error);
  void LayoutProgress(snapshot::ProcessId process, const LayoutStateMessage& progress);
  void LayoutReady(snapshot::ProcessId process, AttemptId attempt, const region::LayoutSet& set,
                   const region::Bell& bell, uint64_t region_id);
  void ResumeRefused(snapshot::ProcessId process, const ResumeRefusedMessage& message);
  void FreshSlot(snapshot::ProcessId process, const snapshot::SlotId& slot, const region::SlotFile& file);

  // NEWS repeats it until it is OK.
  void NoteProblem(const absl::Status& status);

 private:
  [[nodiscard]] SessionId SessionOf(snapshot::ProcessId process) const;
  void Skipped(SessionId session, const v1::DecisionRecord& decision, LoadMessage* load);

  Services& services_;
  const std::string job_;
  const Rank rank_;
  std::map<snapshot::ProcessId, SessionId> sessions_;
  absl::Status last_problem_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_TRAINER_CHANNEL_H_

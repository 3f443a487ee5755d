// The slots of one rank (daemon/snapshot) as its trainers move them: what is fed is what a message or a bell may say,
// each effect is looked at, and what takes time is answered later, well or badly.
//
// A grant is of a new epoch, and no slot is lent or loaded before its last writer has said that it has ended, or is
// reaped, or has another file. A slot is sealed only for a grant that is out, as the owner's bell told it last:
// complete, with all its checksums.
#ifndef CKPTD_TESTS_FUZZ_SLOTS_H_
#define CKPTD_TESTS_FUZZ_SLOTS_H_

#include <deque>
#include <map>
#include <set>

#include "daemon/session/requests.h"
#include "daemon/snapshot/machine.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

class Slots {
 public:
  Slots() : machine_({"gpt", 0, {}, "here"}) {}

  void Join(snapshot::ProcessId process, Ticket ticket) { Feed(snapshot::Attached{process, ticket, 0}); }
  void Resume(snapshot::ProcessId process, const ResumeRequest& resume);
  void Layout(snapshot::ProcessId process);
  void Loaded(const LoadedRequest& loaded);
  void Loading(const LoadingRequest& loading) { Feed(snapshot::LoadGoesOn{loading.attempt, loading.ticket}); }
  void Bye(Ticket ticket) { Feed(snapshot::Withdrawn{ticket}); }
  void Died(snapshot::ProcessId process) { Feed(snapshot::Died{process}); }
  void Reaped(snapshot::ProcessId process);

  // What a process may have written into its bell.
  void Bell(snapshot::ProcessId process, Reader& in);
  // What the coordinator says: made of `in`, but whole.
  void Coordinator(Reader& in);
  // The oldest thing that was started has ended.
  void Answer(bool well);

 private:
  // The last one of a slot.
  struct Grant {
    snapshot::OpenGrant order;
    bool ended = false;  // its writer writes the slot no more
  };

  void Feed(const snapshot::Event& event);
  void CheckReusable(const snapshot::SlotId& slot);
  void On(const snapshot::OpenGrant& grant);
  void On(const snapshot::SealSlot& seal);
  void On(const snapshot::FindLayout& find);
  void On(const snapshot::Fetch& fetch);
  void On(const snapshot::StartFlush& flush);
  void On(const snapshot::ReplaceFile& replace);
  void On(const snapshot::SendLoad& load);
  template <typename Other>
  void On(const Other& /*effect*/) {}

  snapshot::Machine machine_;
  std::map<snapshot::SlotId, Grant> grants_;
  std::set<snapshot::SlotId> fetched_;  // from storage, and not sealed yet
  std::map<snapshot::ProcessId, snapshot::BellRead> told_;
  std::deque<snapshot::Event> pending_;  // as it ends when it ends well
  Ticket ticket_ = 0;                    // the newest
  Epoch last_epoch_ = 0;
};

}  // namespace ckptd::fuzz

#endif  // CKPTD_TESTS_FUZZ_SLOTS_H_

// Answers the requests of one trainer: see proto/local/copier.h.
//
// Threads: one, which also makes and ends it; the process then ends by _exit, which gives back what the GPU holds.
#ifndef CKPTD_DAEMON_COPIER_SERVICE_H_
#define CKPTD_DAEMON_COPIER_SERVICE_H_

#include <memory>
#include <vector>

#include "client/core/threads/cores.h"
#include "client/core/wire/mapping.h"
#include "daemon/copier/channel.h"
#include "daemon/copier/gpu.h"
#include "daemon/copier/memory.h"
#include "daemon/copier/outcome.h"
#include "daemon/copier/plan.h"
#include "daemon/copier/rescue.h"

namespace ckptd {

class Service {
 public:
  explicit Service(int socket) : channel_(socket) {}
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Until the trainer closes or the context breaks; then what it left is captured, where it asked for that. The exit
  // code.
  int Run();

 private:
  int ServeAll();
  void Rescue();
  int Serve(Packet& packet);
  Outcome Do(Packet& packet, uint64_t* pinned_bytes);
  Outcome Start(const Packet& packet);
  Outcome Slots(const Packet& packet, uint64_t* pinned_bytes);
  Outcome Plan(const Packet& packet);
  Outcome Release();
  Outcome Watch(Packet& packet);
  Outcome CheckCopy(const CopierCopy& copy) const;
  Outcome Copy(const CopierCopy& copy);
  int Answer(const Packet& packet, const Outcome& outcome, uint64_t pinned_bytes);

  Channel channel_;
  SharedMapping gate_;
  Gpu gpu_;
  std::unique_ptr<SlotSet> slots_;
  Imports imports_;
  std::vector<CopierPiece> plan_;
  std::unique_ptr<Estate> estate_;  // of these slots and this plan
  SumTeam team_{SumTeam::HelpersFor(UsableCores())};
  uint64_t last_copy_ = 0;  // its serial
  int exit_ = -1;           // behind the answer; -1: goes on
  bool silent_ = false;     // there is nothing to answer
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_SERVICE_H_

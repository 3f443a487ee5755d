// Prepares the copier and keeps it prepared: asks the agent for one, hands over slots, exports the allocations behind
// the tensors, and does it again when slots or tensors are others. Saves are pushed meanwhile: nothing is imported,
// registered or allocated while one is pulled. Exists only where ckpt_options ask for pulls.
#ifndef CKPTD_CLIENT_SRC_PULL_THREAD_H_
#define CKPTD_CLIENT_SRC_PULL_THREAD_H_

#include <memory>
#include <string>
#include <vector>

#include "client/core/threads/sync.h"
#include "client/src/state.h"

namespace ckptd {

class PullThread {
 public:
  explicit PullThread(State& state) : state_(state) {}

  [[nodiscard]] bool Start();
  // After state.stopping is set.
  void Join();

 private:
  // What the copier is to be prepared for.
  struct Goal {
    std::shared_ptr<const Registration> registration;
    std::shared_ptr<Attachment> attachment;
    std::vector<std::shared_ptr<const SlotFile>> slots;
    std::vector<uint64_t> file_ids;
  };

  static void Run(void* self);
  static void Broke(void* self, const char* why) noexcept;
  void TurnOff(const char* why);
  bool AwaitGoal(Goal* goal);
  bool Prepare(const Goal& goal, std::string* why);
  bool ObtainCopier(const Device& device, std::string* why);
  bool AwaitReply(std::string* why);
  bool HandOverSlots(const Goal& goal, std::string* why);
  bool Export(const Goal& goal, std::string* why);
  void Watch(const Goal& goal);
  bool Close(std::string* why);
  void CloseNow();
  void LoseEnded();
  void Done(const Goal& goal);
  void LetGo();
  void Failed(const std::string& why);

  State& state_;
  Thread thread_;
  std::shared_ptr<CopierLink> link_;  // as in state.pull; this thread's while the stage is kBusy
};

// With the mutex held, after CopierLink::End: the copier is of no use any more. Tried again later, after enough
// failures not at all.
void LosePull(State& state, const std::string& why);

// The body of ckpt_unexport.
int32_t Unexport(State& state, uint64_t timeout_ns);

// A training step ends and the next one begins. With the mutex held, before a save of the new step.
void NoteStep(State& state, uint64_t now_ns);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_PULL_THREAD_H_

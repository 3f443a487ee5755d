// Flush and Drain: answers that come later, when storage holds what memory holds.
#ifndef CKPTD_DAEMON_APP_ADMIN_FLUSH_H_
#define CKPTD_DAEMON_APP_ADMIN_FLUSH_H_

#include <functional>
#include <list>

#include "daemon/app/agent.h"
#include "daemon/rpc/admin_backend.h"

namespace ckptd {

// What is durable holds the steps before it of its own attempt, and what that one began with. Another attempt's step
// that nobody went on from is lost, unless storage has it.
[[nodiscard]] bool IsCommitted(const job::View& view, const SnapshotId& id);

// How far the job's newest captured step is; step 0 when nothing is captured.
struct FlushLook {
  v1::FlushResponse flush;
  bool ended = false;  // not durable, and nothing on this node makes it so before the next restore()
};
// Control thread.
[[nodiscard]] FlushLook LookAtFlush(JobRunner& job);

// Calls that wait for the job or the agent to come somewhere. Control thread.
class FlushWaits {
 public:
  explicit FlushWaits(Agent& agent) : agent_(agent) {}
  ~FlushWaits();

  void Flush(AdminCallPtr call, const v1::FlushRequest& request, const AdminBackend::Done<v1::FlushResponse>& done);
  void Drain(AdminCallPtr call, const AdminBackend::Done<v1::DrainResponse>& done);
  // All are answered now.
  void Close();

 private:
  // True when the call was answered; with `last` it must answer.
  using Look = std::function<bool(bool last)>;
  struct Wait {
    AdminCallPtr call;
    Nanos until{0};
    Look look;
  };

  void Add(AdminCallPtr call, Look look);
  void Tick();

  Agent& agent_;
  std::list<Wait> waits_;
  Loop::TimerId timer_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_FLUSH_H_

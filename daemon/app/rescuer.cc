#include "daemon/app/rescuer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_join.h"
#include "daemon/base/log.h"

namespace ckptd {
namespace {

constexpr size_t kRecordsAtOnce = 256;  // a storm of them holds nobody up
constexpr Nanos kShortestTimeout = std::chrono::milliseconds(1);

uint64_t PidOf(const ProcessId& process) { return static_cast<uint64_t>(process.pid); }

}  // namespace

Rescuer::Rescuer(Loop& loop, const Clock& clock, AgentMetrics& metrics, Hooks hooks, const std::string& kernel_log)
    : loop_(loop), clock_(clock), metrics_(metrics), hooks_(std::move(hooks)), kernel_log_(kernel_log) {
  if (kernel_log_.fd() < 0) {
    Log(kInfo, "rescue.kernel_log").Field("path", kernel_log).Field("text", "not readable: errors of GPUs go unseen");
    return;
  }
  // What cannot be watched is read when somebody dies.
  (void)loop_.Watch(kernel_log_.fd(), EPOLLIN, [this](uint32_t) { OnKernelLog(); });
}

Rescuer::~Rescuer() {
  if (timer_ != 0) loop_.CancelTimer(timer_);
  if (kernel_log_.fd() >= 0) loop_.Unwatch(kernel_log_.fd());
}

void Rescuer::OnKernelLog() {
  if (!kernel_log_.Read(kRecordsAtOnce)) loop_.Unwatch(kernel_log_.fd());
}

void Rescuer::Tell(const ProcessId& process, const RescueRequest& request) {
  rescues_.Tell(process, {request.hold, request.why});
}

bool Rescuer::ProcessDied(const ProcessId& process, const std::set<std::string>& jobs) {
  std::erase_if(waiting_, [&](const WaitingJoin& each) { return each.peer.process == process; });
  const Rescues::Told* told = rescues_.Find(process);
  const bool refused = told == nullptr || Refused(process, *told);
  if (!rescues_.Begin(process, jobs, refused, clock_.Monotonic())) return false;
  const Rescues::Rescue& rescue = *rescues_.FindRescue(process);
  Log(kInfo, "rescue.begin")
      .Field("pid", PidOf(process))
      .Job(absl::StrJoin(jobs, ","))
      .Field("hold_seconds", Seconds(rescue.deadline - rescue.begun));
  ArmTimer();
  return true;
}

bool Rescuer::Refused(const ProcessId& process, const Rescues::Told& told) {
  std::string why = told.why;
  if (told.hold > Nanos(0)) {
    const std::optional<std::string> error = kernel_log_.GpuErrorSince(SinceBoot(process.start_time));
    if (!error && hooks_.has_copiers(process)) return false;
    metrics_.rescues.With({error ? "xid" : "none"}).Add();
    why = error ? "the kernel's log has an error of a GPU: " + *error : "no copier of it runs";
  }
  if (!why.empty()) Log(kWarning, "rescue.refused").Field("pid", PidOf(process)).Field("why", why);
  return true;
}

void Rescuer::Reaped(const ProcessId& process) {
  const std::optional<Rescues::Rescue> rescue = rescues_.End(process);
  if (!rescue || rescue->over) return;  // told when it was over
  Done(process, *rescue, "none");
  ArmTimer();
  LetJoinsGo();
}

// A copier that had just completed its fill is not late, and one that is killed may take its time in the kernel: JOINs
// do not wait for that.
void Rescuer::OnDeadline() {
  timer_ = 0;
  for (const ProcessId& process : rescues_.TakeOverdue(clock_.Monotonic())) {
    hooks_.read_bells(process);
    hooks_.kill_copiers(process);
    Done(process, *rescues_.FindRescue(process), "late");
  }
  ArmTimer();
  LetJoinsGo();
}

void Rescuer::Done(const ProcessId& process, const Rescues::Rescue& rescue, const char* nothing) {
  const bool captured = !rescue.newest.none();
  const char* outcome = captured ? "captured" : nothing;
  metrics_.rescues.With({outcome}).Add();
  Log line(captured ? kInfo : kWarning, "rescue.done");
  line.Field("pid", PidOf(process)).Job(absl::StrJoin(rescue.jobs, ",")).Field("outcome", outcome);
  if (captured) line.Snapshot(rescue.newest);
  line.Field("seconds", Seconds(clock_.Monotonic() - rescue.begun));
}

void Rescuer::ArmTimer() {
  if (timer_ != 0) loop_.CancelTimer(std::exchange(timer_, 0));
  if (const auto deadline = rescues_.deadline()) timer_ = loop_.At(*deadline, [this] { OnDeadline(); });
}

bool Rescuer::Delay(SessionId session, const Peer& peer, const JoinRequest& join) {
  if (!rescues_.Delays(join.job)) return false;
  DropJoins(session);
  waiting_.push_back({session, peer, join, clock_.Monotonic()});
  Log(kInfo, "rescue.join_waits").Job(join.job).Rank(join.rank);
  return true;
}

void Rescuer::DropJoins(SessionId session) {
  std::erase_if(waiting_, [session](const WaitingJoin& each) { return each.session == session; });
}

// Its patience is measured from when it asked.
void Rescuer::LetJoinsGo() {
  std::list<WaitingJoin> go;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto next = std::next(it);
    if (!rescues_.Delays(it->join.job)) go.splice(go.end(), waiting_, it);
    it = next;
  }
  for (WaitingJoin& each : go) {
    const Nanos left = each.join.timeout - (clock_.Monotonic() - each.since);
    if (each.join.timeout > Nanos(0)) each.join.timeout = std::max(left, kShortestTimeout);
    hooks_.join(each.session, each.peer, each.join);
  }
}

}  // namespace ckptd

#include "daemon/app/control_gate.h"

#include <chrono>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

absl::Status Stopping() { return Error(ErrorCode::CANCELLED, "the agent is stopping"); }

}  // namespace

absl::Status ControlGate::Run(std::function<void()> call) {
  auto task = std::make_shared<Task>();
  task->call = std::move(call);
  bool posted = loop_.Post([task, shared = shared_] {
    std::function<void()> mine;
    {
      MutexLock lock(shared->mutex);
      mine = std::exchange(task->call, nullptr);
    }
    if (!mine) return;
    mine();  // Close() is called on this thread, so nobody gives up meanwhile
    MutexLock lock(shared->mutex);
    task->done = true;
    shared->changed.NotifyAll();
  });
  if (!posted) return Stopping();
  MutexLock lock(shared_->mutex);
  while (!task->done && !shared_->closed) shared_->changed.Wait(shared_->mutex);
  if (task->done) return absl::OkStatus();
  task->call = nullptr;
  return Stopping();
}

absl::Status ControlGate::RunAsync(std::function<void(Done)> start, Nanos timeout) {
  auto answer = std::make_shared<Answer>();
  Done done = [answer, shared = shared_](const absl::Status& status) {
    MutexLock lock(shared->mutex);
    if (!answer->status) answer->status = status;
    shared->changed.NotifyAll();
  };
  if (absl::Status status = Run([&] { start(done); }); !status.ok()) return status;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(shared_->mutex);
  while (!answer->status && !shared_->closed) {
    if (!shared_->changed.WaitUntil(shared_->mutex, deadline)) break;
  }
  if (answer->status) return *answer->status;
  return shared_->closed ? Stopping() : Error(ErrorCode::TIMEOUT, "no answer yet; it goes on in the background");
}

std::function<void()> ControlGate::TakeRefusal(Shared& shared, uint64_t post) {
  MutexLock lock(shared.mutex);
  auto found = shared.refusals.find(post);
  if (found == shared.refusals.end()) return nullptr;
  std::function<void()> refused = std::move(found->second);
  shared.refusals.erase(found);
  return refused;
}

void ControlGate::Post(std::function<void()> work, const std::function<void()>& refused) {
  uint64_t post = 0;
  {
    MutexLock lock(shared_->mutex);
    if (!shared_->closed) shared_->refusals[post = ++shared_->last_post] = refused;
  }
  if (post == 0) return refused();
  bool posted = loop_.Post([shared = shared_, post, work = std::move(work)] {
    if (TakeRefusal(*shared, post)) work();
  });
  if (posted) return;
  if (auto mine = TakeRefusal(*shared_, post)) mine();
}

void ControlGate::Close() {
  std::map<uint64_t, std::function<void()>> refusals;
  {
    MutexLock lock(shared_->mutex);
    shared_->closed = true;
    refusals.swap(shared_->refusals);
    shared_->changed.NotifyAll();
  }
  for (auto& [post, refused] : refusals) refused();
}

}  // namespace ckptd

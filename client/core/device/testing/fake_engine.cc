#include "client/core/device/testing/fake_engine.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace ckptd::fake {
namespace {

constexpr int kContexts = 16;

bool OneQueue() {
  const char* connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return connections != nullptr && strcmp(connections, "1") == 0;
}

}  // namespace

Engine::Engine() : one_queue_(OneQueue()), legacy_(kContexts), broken_(kContexts) {}

Engine& Engine::Get() {
  static auto* engine = new Engine();
  return *engine;
}

// The trainer's signals are none of its business.
void Engine::Start(const std::shared_ptr<FakeStream>& stream) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this, stream] { Run(stream); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::shared_ptr<FakeStream> Engine::CreateStream(int context, bool blocking) {
  auto stream = std::make_shared<FakeStream>();
  stream->context = context;
  stream->blocking = blocking;
  {
    std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }
  Start(stream);
  return stream;
}

std::shared_ptr<FakeStream> Engine::Legacy(int context) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<FakeStream>& legacy = legacy_[static_cast<size_t>(context)];
  if (legacy == nullptr) {
    legacy = std::make_shared<FakeStream>();
    legacy->context = context;
    legacy->blocking = true;
    Start(legacy);
  }
  return legacy;
}

void Engine::EndStream(const std::shared_ptr<FakeStream>& stream) {
  std::lock_guard lock(mutex_);
  stream->ended = true;
  std::erase(streams_, stream);
  changed_.notify_all();
}

Mark Engine::Enqueue(const std::shared_ptr<FakeStream>& stream, Work work, std::vector<Mark> after) {
  std::lock_guard lock(mutex_);
  if (stream->capturing) return {stream, stream->enqueued};
  const auto context = static_cast<size_t>(stream->context);
  if (stream == legacy_[context]) {
    for (const auto& other : streams_) {
      if (other->blocking && other->context == stream->context) after.push_back({other, other->enqueued});
    }
  } else if (stream->blocking && legacy_[context] != nullptr) {
    after.push_back({legacy_[context], legacy_[context]->enqueued});
  }
  stream->ops.push_back({std::move(work), std::move(after), issued_++});
  stream->enqueued += 1;
  pending_ += 1;
  changed_.notify_all();
  return {stream, stream->enqueued};
}

Mark Engine::Here(const std::shared_ptr<FakeStream>& stream) {
  return Enqueue(stream, [] { return 0; });
}

bool Engine::MayStart(const Op& op) const {
  if (one_queue_ && op.issue != started_) return false;
  for (const Mark& mark : op.after) {
    if (mark.stream != nullptr && mark.stream->done < mark.sequence) return false;
  }
  return true;
}

void Engine::Run(const std::shared_ptr<FakeStream>& stream) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return (stream->ops.empty() && stream->ended) || (!stream->ops.empty() && MayStart(stream->ops.front()));
    });
    if (stream->ops.empty()) return;
    Op op = std::move(stream->ops.front());
    stream->ops.pop_front();
    started_ += 1;
    int& broken = broken_[static_cast<size_t>(stream->context)];
    bool run = broken == 0;
    changed_.notify_all();
    lock.unlock();
    int result = run ? op.work() : 0;
    op = {};
    lock.lock();
    if (result != 0 && broken == 0) broken = result;
    stream->done += 1;
    pending_ -= 1;
    changed_.notify_all();
  }
}

bool Engine::Reached(const Mark& mark) {
  std::lock_guard lock(mutex_);
  return mark.stream == nullptr || mark.stream->done >= mark.sequence;
}

void Engine::Await(const Mark& mark) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return mark.stream == nullptr || mark.stream->done >= mark.sequence; });
}

int Engine::Broken(int context) {
  std::lock_guard lock(mutex_);
  return broken_[static_cast<size_t>(context)];
}

// A real context never becomes whole again. Here it does for the next test, once nothing of the last one is left.
void Engine::Break(int context, int code) {
  std::unique_lock lock(mutex_);
  if (code == 0) changed_.wait(lock, [&] { return pending_ == 0; });
  broken_[static_cast<size_t>(context)] = code;
}

void Engine::Hang(bool on) {
  std::lock_guard lock(mutex_);
  hanging_ = on;
}

bool Engine::Hanging() {
  std::lock_guard lock(mutex_);
  return hanging_;
}

uint64_t Engine::streams() {
  std::lock_guard lock(mutex_);
  return streams_.size();
}

}  // namespace ckptd::fake

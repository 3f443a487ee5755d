#include "client/core/threads/sync.h"

#include <csignal>
#include <ctime>
#include <new>

namespace ckptd {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

}  // namespace

uint64_t MonotonicNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecond + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t DeadlineAfter(uint64_t timeout_ns) {
  uint64_t now = MonotonicNs();
  return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

CondVar::CondVar() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&cond_, &attributes);
  pthread_condattr_destroy(&attributes);
}

bool CondVar::WaitUntil(Mutex& mutex, uint64_t deadline_ns) {
  timespec at = {};
  at.tv_sec = static_cast<time_t>(deadline_ns / kSecond);
  at.tv_nsec = static_cast<long>(deadline_ns % kSecond);
  return pthread_cond_timedwait(&cond_, &mutex.mutex_, &at) == 0;
}

const char* Thrown() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (...) {
    return "unexpected exception";
  }
}

void* Thread::Run(void* self) {
  auto* thread = static_cast<Thread*>(self);
  try {
    thread->body_(thread->argument_);
  } catch (...) {
    thread->broke_(thread->argument_, Thrown());
  }
  return nullptr;
}

bool Thread::Start(const char* name, Body body, Broke broke, void* argument) {
  body_ = body;
  broke_ = broke;
  argument_ = argument;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  started_ = pthread_create(&thread_, nullptr, &Thread::Run, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started_) pthread_setname_np(thread_, name);
  return started_;
}

void Thread::Join() {
  if (started_) pthread_join(thread_, nullptr);
  started_ = false;
}

}  // namespace ckptd

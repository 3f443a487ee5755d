#include "client/src/fork.h"

#include <pthread.h>

#include <atomic>

namespace ckptd {
namespace {

std::atomic<uint64_t> generation{0};

void CountChild() { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

uint64_t ForkGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, &CountChild);
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace ckptd

// What the parts of job::Machine share during one Step().
#ifndef CKPTD_DAEMON_JOB_CONTEXT_H_
#define CKPTD_DAEMON_JOB_CONTEXT_H_

#include <utility>

#include "daemon/job/events.h"
#include "daemon/job/machine.h"

namespace ckptd::job {

struct Context {
  Config config;
  Effects* effects = nullptr;  // of the present Step
  OpId last_op = 0;

  // Emits a request to the store and returns the number its answer will carry.
  template <typename T>
  OpId Request(T effect) {
    effect.op = ++last_op;
    effects->push_back(std::move(effect));
    return last_op;
  }
  template <typename T>
  void Emit(T effect) {
    effects->push_back(std::move(effect));
  }
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_CONTEXT_H_

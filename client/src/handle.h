// What stands behind `ckpt*`.
#ifndef CKPTD_CLIENT_SRC_HANDLE_H_
#define CKPTD_CLIENT_SRC_HANDLE_H_

#include <cstdint>

#include "client/include/ckpt/ckpt.h"
#include "client/src/copy_thread.h"
#include "client/src/pull_thread.h"
#include "client/src/restore.h"
#include "client/src/session.h"
#include "client/src/state.h"

struct ckpt {
  uint64_t fork_generation = 0;  // another one: this is a forked child, and nothing here may be touched
  ckptd::State state;
  ckptd::Restore restore{state};
  ckptd::CopyThread copy_thread{state};
  ckptd::PullThread pull_thread{state};
  ckptd::Session session{state};
};

namespace ckptd {

// The bodies of the entry points, for checked arguments. Each returns 0, CKPT_RELOAD or a negative code.
int32_t OpenHandle(const ckpt_options& options, ckpt** out);
int32_t RegisterTable(ckpt& handle, const ckpt_table& table);
int32_t PollStep(State& state, uint64_t step, ckpt_step_state* out);
int32_t WaitForStep(State& state, uint64_t step, uint32_t level, bool still, uint64_t timeout_ns);
void FillInfo(State& state, ckpt_info_view* out);
int32_t CloseHandle(ckpt* handle, uint64_t timeout_ns);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_HANDLE_H_

#include "daemon/job/brief.h"

#include <memory>

namespace ckptd::job {

StatePtr Brief(const v1::State& state, uint64_t as_in) {
  auto brief = std::make_shared<v1::State>(state);
  brief->clear_decision();
  brief->clear_groups();
  brief->clear_sources();
  brief->set_as_in(as_in);
  return brief;
}

StatePtr Whole(const StatePtr& state, const StatePtr& known) {
  if (state->as_in() == 0) return state;
  const bool has = known != nullptr && known->attempt() == state->attempt() &&
                   known->incarnation() == state->incarnation() && known->version() >= state->as_in() &&
                   known->has_decision();
  if (!has) return nullptr;
  auto whole = std::make_shared<v1::State>(*state);
  whole->clear_as_in();
  *whole->mutable_decision() = known->decision();
  *whole->mutable_groups() = known->groups();
  if (state->phase() == v1::State::LOAD) *whole->mutable_sources() = known->sources();
  return whole;
}

}  // namespace ckptd::job

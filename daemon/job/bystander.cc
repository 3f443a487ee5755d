#include "daemon/job/bystander.h"

#include <iterator>
#include <memory>

#include "daemon/job/brief.h"

namespace ckptd::job {

ReportPtr NothingHere(const v1::State& state, const ReporterId& self, uint64_t seq) {
  auto report = std::make_shared<v1::Report>();
  report->set_job(state.job());
  report->set_agent(self.agent);
  report->set_seen(state.attempt());
  report->set_region_id(self.region_id);
  report->set_incarnation(self.incarnation);
  report->set_seq(seq);
  report->set_answers(state.incarnation());
  report->set_heard(state.version());
  return report;
}

ReportPtr AskForWhole(const v1::State& state, const ReporterId& self, AttemptId seen, uint64_t seq) {
  auto report = std::make_shared<v1::Report>();
  report->set_job(state.job());
  report->set_agent(self.agent);
  report->set_seen(seen);
  report->set_incarnation(self.incarnation);
  report->set_seq(seq);
  report->set_answers(state.incarnation());
  report->set_lacks(state.as_in());
  return report;
}

ReportPtr Bystander::Heard(const StatePtr& state) {
  const auto known = known_.find(state->job());
  const bool same_user = known != known_.end() && known->second.state->user() == state->user();
  const bool older = same_user && known->second.state->attempt() > state->attempt();
  const bool intruder = same_user && known->second.state->attempt() == state->attempt() &&
                        known->second.state->coordinator() != state->coordinator();  // of an attempt there is one
  if (older || intruder) return NothingHere(*known->second.state, self_, numbers_->Next());
  const StatePtr whole = Whole(state, known == known_.end() ? nullptr : known->second.state);
  if (whole == nullptr) return AskForWhole(*state, self_, state->attempt(), numbers_->Next());
  Remember(whole);
  const ReportPtr nothing = NothingHere(*state, self_, numbers_->Next());
  auto report = std::make_shared<v1::Report>(*nothing);
  report->set_completes(true);
  return report;
}

StatePtr Bystander::Take(const std::string& job) {
  const auto known = known_.find(job);
  if (known == known_.end()) return nullptr;
  StatePtr state = known->second.state;
  Forget(known);
  return state;
}

void Bystander::Remember(const StatePtr& state) {
  if (const auto known = known_.find(state->job()); known != known_.end()) Forget(known);
  const size_t bytes = state->ByteSizeLong();
  by_age_.push_back(state->job());
  known_[state->job()] = {state, bytes, std::prev(by_age_.end())};
  bytes_ += bytes;
  while (bytes_ > max_bytes_ || known_.size() > max_jobs_) Forget(known_.find(by_age_.front()));
}

void Bystander::Forget(std::map<std::string, Known>::iterator known) {
  bytes_ -= known->second.bytes;
  by_age_.erase(known->second.place);
  known_.erase(known);
}

}  // namespace ckptd::job

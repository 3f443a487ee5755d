#include "daemon/app/health.h"

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

absl::Status StorageHealth(Agent& agent) {
  Services& services = agent.services();
  absl::Status health = services.storage_watch.Health();
  if (health.ok()) return health;
  return Error(CodeOf(health), absl::StrCat("storage ", agent.config().storage.root, ": ", health.message()));
}

void AddRegion(Agent& agent, std::vector<Problem>& problems) {
  region::Region& region = agent.services().region;
  if (auto usage = region.Usage(); !usage.ok()) problems.push_back({usage.status(), ""});
  for (const std::string& path : region.adopted().untouched) {
    problems.push_back(
        {Error(ErrorCode::NEWER_VERSION,
               absl::StrCat(path, ": was left by a newer ckptd; it is not touched, and its job is refused")),
         ""});
  }
}

void AddRank(RankRunner& rank, const std::string& job, std::vector<Problem>& problems) {
  const std::string name = absl::StrCat("job ", job, " rank ", rank.options().rank, ": ");
  const snapshot::View view = rank.view();
  if (view.process != 0 && !rank.layout_problem().ok()) problems.push_back({rank.layout_problem(), job});
  for (const snapshot::SlotView& slot : view.slots) {
    if (slot.state != SlotStateCode::kQuarantined) continue;
    problems.push_back(
        {Error(ErrorCode::CORRUPT, absl::StrCat(name, "slot ", slot.id.index, " held step ", slot.snapshot.step,
                                                ", and its bytes went bad in memory; it is not restored "
                                                "from")),
         job});
  }
}

// The groups stay where too few are left: who comes back finds its seat.
bool TooFewHold(const v1::State& state, size_t members) {
  return state.groups().empty() || members < state.copies() || members <= state.parity();
}

void AddCopies(const JobRunner& job, size_t members, std::vector<Problem>& problems) {
  constexpr char kNext[] = "training goes on unprotected; correct what is named, it is tried again every few seconds";
  constexpr char kNextTooFew[] =
      "let more nodes be members ([peers]), or set peers.copies or peers.parity lower on all of them: 1 and 0 are "
      "neither";
  const absl::Status& failed = job.sender().plan().last_error();
  if (!failed.ok())
    problems.push_back(
        {Error(CodeOf(failed), absl::StrCat("copies of job ", job.name(), ": ", failed.message())), job.name(), kNext});
  const job::StatePtr& state = job.last_state();
  if (state == nullptr || state->phase() != v1::State::RUN || !TooFewHold(*state, members)) return;
  if (state->copies() < 2 && state->parity() == 0) return;
  const std::string wanted = state->parity() != 0
                                 ? absl::StrCat("peers.parity is ", state->parity(), ", and there are no more")
                                 : absl::StrCat("peers.copies is ", state->copies(), ", and there are fewer");
  problems.push_back({Error(ErrorCode::REFUSED, absl::StrCat("copies of job ", job.name(), ": ", wanted, " nodes")),
                      job.name(), kNextTooFew});
}

void AddTrouble(const JobRunner& job, std::vector<Problem>& problems) {
  constexpr char kNext[] = "correct what is named; other steps go on meanwhile, and this is tried again by itself";
  const absl::Status trouble = job.view().trouble;
  if (trouble.ok()) return;
  const bool damage = CodeOf(trouble) == ErrorCode::CORRUPT;  // which has its own next step
  problems.push_back(damage ? Problem{trouble, job.name()} : Problem{trouble, job.name(), kNext});
}

void AddPages(const Agent& agent, std::vector<Problem>& problems) {
  constexpr char kNext[] =
      "checkpoints go on without /metrics; end the process that has this port (ss -ltnp names it), or give "
      "metrics.listen another one and restart the agent; it is tried again every 5 s";
  const absl::Status& why = agent.no_pages();
  if (why.ok()) return;
  problems.push_back({Error(ErrorCode::REFUSED, absl::StrCat("metrics.listen: no pages: ", why.message())), "", kNext});
}

}  // namespace

std::vector<Problem> ProblemsOf(Agent& agent) {
  std::vector<Problem> problems;
  if (absl::Status storage = StorageHealth(agent); !storage.ok()) problems.push_back({storage, ""});
  AddRegion(agent, problems);
  for (const Peers::Problem& each : agent.peers().Problems()) problems.push_back({each.what, "", each.next});
  for (const Peers::Problem& each : agent.links().Problems()) problems.push_back({each.what, "", each.next});
  for (const Peers::Problem& each : agent.certificates().Problems()) problems.push_back({each.what, "", each.next});
  AddPages(agent, problems);
  for (const auto& [item, damage] : agent.scrubber().damage()) problems.push_back({damage, item.job});
  for (const auto& [name, job] : agent.jobs()) {
    for (const auto& [number, rank] : job->ranks()) AddRank(*rank, name, problems);
    AddCopies(*job, agent.links().members().size(), problems);
    AddTrouble(*job, problems);
  }
  return problems;
}

// A full storage is no reason to restart the agent.
absl::Status HealthOf(Agent& agent) {
  if (agent.draining()) return Error(ErrorCode::DRAINING, "the agent is draining");
  absl::Status storage = StorageHealth(agent);
  return CodeOf(storage) == ErrorCode::STORAGE_HUNG ? storage : absl::OkStatus();
}

std::string StatusLine(Agent& agent) {
  Services& services = agent.services();
  const size_t problems = ProblemsOf(agent).size();
  return absl::StrCat(agent.draining() ? "draining, saves are refused" : "running", "; jobs: ", agent.jobs().size(),
                      ", connected trainers: ", services.server.sessions(), ", flushes: ", services.flusher.active(),
                      problems == 0 ? "" : absl::StrCat("; problems: ", problems, ", see ckptctl status"));
}

}  // namespace ckptd

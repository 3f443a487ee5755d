// Of Gc: what this node holds for other nodes' ranks.
#include <utility>

#include "daemon/app/admin_commands.h"
#include "daemon/app/held_copies.h"
#include "daemon/base/log.h"

namespace ckptd {
namespace {

// Newest first on the lineage: what a restore() without these copies comes to.
SnapshotId NewestCommitted(const Catalog& catalog) {
  for (const CatalogStep& step : catalog.steps) {
    if (step.committed() && step.on_lineage && !step.deleting) return step.id;
  }
  return {};
}

// Control thread.
CopiesFacts LookAtCopies(Agent& agent, const std::string& job) {
  CopiesFacts facts;
  for (region::PeerJob& each : agent.services().region.peers().Jobs()) {
    if (each.job == job) facts.held = std::move(each);
  }
  facts.in_use = LookAtJob(agent, job).in_use;
  const JobRunner* runner = agent.FindJob(job);
  const job::StatePtr state = runner == nullptr ? nullptr : runner->last_state();
  facts.restoring = state != nullptr && state->phase() != v1::State::RUN && facts.held.silent < kEndedAfter;
  return facts;
}

// Control thread.
absl::Status GiveUp(Agent& agent, const region::PeerJob& held, const std::string& reason) {
  absl::Status removed = agent.services().keeper.GiveUp(held.job);
  if (removed.ok()) Log(kWarning, "copies.removed").Job(held.job).Snapshot(held.newest).Field("why", reason);
  return removed;
}

}  // namespace

void ReclaimCopies(AdminContext& context, const Catalog& catalog, const v1::GcRequest& request,
                   v1::GcResponse& response) {
  v1::RemovedEntry entry;
  bool removed = false;
  const absl::Status ran = context.gate.Run([&] {
    CopiesFacts facts = LookAtCopies(context.agent, catalog.job);
    if (facts.held.job.empty()) return;
    facts.stored = NewestCommitted(catalog);
    const CopiesVerdict verdict = JudgeCopies(facts, !request.job().empty(), request.force());
    entry.set_job(catalog.job);
    entry.set_bytes(facts.held.bytes);
    entry.set_source("copies");
    entry.set_reason(verdict.reason);
    removed = verdict.goes;
    if (!verdict.goes || request.dry_run()) return;
    const absl::Status gone = GiveUp(context.agent, facts.held, verdict.reason);
    removed = gone.ok();
    if (!removed) entry.set_reason(std::string(gone.message()));
  });
  if (ran.ok() && !entry.job().empty()) *(removed ? response.add_removed() : response.add_kept()) = std::move(entry);
}

}  // namespace ckptd

#include "tests/protocol/store.h"

#include <algorithm>

#include "daemon/base/errors.h"

namespace ckptd::sim {

bool Store::Good(const SnapshotId& id) const {
  const auto it = steps.find(id);
  if (it == steps.end() || !it->second.committed || it->second.parts.size() != world_size) return false;
  return std::none_of(it->second.parts.begin(), it->second.parts.end(),
                      [](const auto& part) { return part.second.bad; });
}

job::NewestRead Store::Read(const job::ReadNewest& request) const {
  job::NewestRead answer;
  answer.op = request.op;
  if (records.empty()) return answer;
  answer.found = true;
  answer.record = records.rbegin()->second;
  const auto decision = decisions.find(Newest());
  answer.decided = decision != decisions.end();
  if (answer.decided) answer.decision = decision->second;
  return answer;
}

job::AttemptCreated Store::Create(const job::CreateAttempt& request) {
  const AttemptId attempt = request.record.attempt();
  const bool created = records.count(attempt) == 0 || gone_records.erase(attempt) != 0;
  if (created) records[attempt] = request.record;
  return {request.op, created ? absl::OkStatus() : absl::AlreadyExistsError("record")};
}

job::Listed Store::List(const job::List& request) const {
  job::Listed answer;
  answer.op = request.op;
  answer.newest = Newest();
  for (const auto& [attempt, decision] : decisions) {
    if (gone_decisions.count(attempt) == 0) answer.decisions.push_back(decision);
  }
  for (const auto& [id, step] : steps) {
    job::StoredStep& out = answer.steps.emplace_back();
    out.id = id;
    out.world_size = step.parts.empty() ? 0 : world_size;
    out.sidecars = static_cast<uint32_t>(step.parts.size());
    out.committed = step.committed;
    out.marker = step.marker;
  }
  return answer;
}

job::DecisionCreated Store::Create(const job::CreateDecision& request, bool* created) {
  const AttemptId attempt = request.decision.attempt();
  *created = decisions.count(attempt) == 0 || gone_decisions.erase(attempt) != 0;
  if (*created) decisions[attempt] = request.decision;
  return {request.op, absl::OkStatus(), decisions[attempt]};
}

job::ManifestCreated Store::Create(const job::CreateManifest& request) {
  const auto it = steps.find(request.id);
  if (request.world_size != world_size) return {request.op, absl::DataLossError("files of another number of ranks")};
  if (it == steps.end() || it->second.parts.size() != world_size) return {request.op, absl::NotFoundError("sidecar")};
  it->second.committed = true;
  return {request.op, absl::OkStatus()};
}

job::StepVerified Store::Verify(const job::VerifyStep& request) {
  if (!Good(request.id)) return {request.op, Error(ErrorCode::CORRUPT, "a chunk does not match")};
  for (auto& [rank, part] : steps.at(request.id).parts) part.read = true;
  return {request.op, absl::OkStatus()};
}

job::RankVerified Store::Verify(const job::VerifyRank& request) {
  const auto step = steps.find(request.id);
  const bool there = step != steps.end() && step->second.committed && step->second.parts.count(request.rank) != 0;
  if (!there) return {request.op, Error(ErrorCode::NOT_FOUND, "no such part")};
  Part& part = step->second.parts.at(request.rank);
  if (part.bad) return {request.op, Error(ErrorCode::CORRUPT, "a chunk does not match")};
  part.read = true;
  return {request.op, absl::OkStatus()};
}

job::MarkerPut Store::Put(const job::PutMarker& request) {
  const auto it = steps.find(request.id);
  if (it == steps.end()) return {request.op, absl::OkStatus()};
  const bool whole = it->second.committed || it->second.parts.size() == world_size;
  if (request.remains && whole) return {request.op, absl::OkStatus(), false, world_size};
  if (it->second.marker > request.attempt) return {request.op, Error(ErrorCode::FENCED, "of a higher attempt")};
  it->second.marker = request.attempt;
  return {request.op, absl::OkStatus()};
}

job::RecordsPruned Store::Prune(const job::PruneRecords& request) {
  if (Newest() != request.attempt) return {request.op, absl::OkStatus(), Newest()};
  gone_decisions.insert(request.decisions.begin(), request.decisions.end());
  for (const auto& [attempt, record] : records) {
    if (attempt < request.attempt) gone_records.insert(attempt);
  }
  return {request.op, absl::OkStatus(), request.attempt};
}

}  // namespace ckptd::sim

#include "daemon/job/proofs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {
namespace {

// Those that are there and read back what they are asked for.
std::set<std::string> Readers(const ProofFacts& facts) {
  std::set<std::string> readers{facts.config.agent};
  for (const auto& [agent, report] : facts.reports.by_agent()) {
    if (report->proves() && facts.reports.Alive(agent)) readers.insert(agent);
  }
  return readers;
}

std::vector<Rank> WithoutReader(uint32_t world_size, const ProofFacts& facts) {
  const std::set<std::string> readers = Readers(facts);
  std::vector<Rank> ranks;
  auto claim = facts.claims.begin();
  for (Rank rank = 0; rank < world_size; ++rank) {
    while (claim != facts.claims.end() && claim->first < rank) ++claim;
    const bool claimed = claim != facts.claims.end() && claim->first == rank;
    if (!claimed || readers.count(claim->second.agent()) == 0) ranks.push_back(rank);
  }
  return ranks;
}

// A code that is no error, or unknown, is an error all the same.
absl::Status ToStatus(const v1::Proof::Bad& bad, const std::string& agent) {
  const ErrorCode code = bad.code() == 0 ? ErrorCode::INTERNAL : InfoOf(static_cast<ErrorCode>(bad.code())).code;
  return Error(code, absl::StrCat("rank ", bad.rank(), ", read back by agent ", agent, ": ", bad.error()));
}

}  // namespace

struct Proofs::Counted {
  std::set<Rank> right;
  absl::Status bad;
};

bool Proofs::Ask(const StoredStep& step, const ProofFacts& facts) {
  const bool read = facts.config.rules.parts_of_others_are_read;
  const std::vector<Rank> others = read ? WithoutReader(step.sidecars, facts) : std::vector<Rank>();
  const bool same = asks_ && step.id == step_ && others == others_ && step.world_size == world_size_;
  asks_ = true;
  step_ = step.id;
  world_size_ = step.world_size;
  sidecars_ = step.sidecars;
  others_ = others;
  return !same;
}

bool Proofs::Rest() {
  others_.clear();
  return std::exchange(asks_, false);
}

bool Proofs::SpeaksFor(const std::string& agent, Rank rank, const ProofFacts& facts) const {
  if (rank >= world_size_) return false;
  if (agent == facts.config.agent && std::binary_search(others_.begin(), others_.end(), rank)) return true;
  const auto claim = facts.claims.find(rank);
  return claim != facts.claims.end() && claim->second.agent() == agent;
}

void Proofs::Count(const std::string& agent, const v1::Proof& proof, const ProofFacts& facts, Counted* counted) const {
  if (ToId(proof.step()) != step_ && facts.config.rules.proofs_of_this_step) return;
  for (const Rank rank : proof.ranks()) {
    if (SpeaksFor(agent, rank, facts)) counted->right.insert(rank);
  }
  for (const v1::Proof::Bad& bad : proof.bad()) {
    // What is damaged says more than what could not be read.
    const bool heard = CodeOf(counted->bad) == ErrorCode::CORRUPT || !SpeaksFor(agent, bad.rank(), facts);
    if (!heard) counted->bad = ToStatus(bad, agent);
  }
}

std::optional<absl::Status> Proofs::Found(const ProofFacts& facts) const {
  if (sidecars_ != world_size_ || world_size_ == 0) {
    return Error(ErrorCode::CORRUPT, absl::StrCat("the storage has ", sidecars_, " of its ", world_size_, " sidecars"));
  }
  Counted counted;
  for (const auto& [agent, report] : facts.reports.by_agent()) {
    if (agent != facts.config.agent) Count(agent, report->proof(), facts, &counted);
  }
  Count(facts.config.agent, facts.own, facts, &counted);
  if (!counted.bad.ok()) return counted.bad;
  const size_t needed = facts.config.rules.all_parts_proven ? world_size_ : world_size_ - 1;
  if (counted.right.size() < needed) return std::nullopt;
  return absl::OkStatus();
}

void Proofs::Fill(v1::State* state) const {
  if (!asks_) return;
  v1::ToProve& wanted = *state->mutable_to_prove();
  SetRef(step_, wanted.mutable_step());
  wanted.set_world_size(world_size_);
  wanted.mutable_others()->Assign(others_.begin(), others_.end());
}

}  // namespace ckptd::job

#include "daemon/job/protection.h"

#include <algorithm>
#include <set>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/lineage.h"
#include "daemon/job/parity_stock.h"

namespace ckptd::job {
namespace {

// Who has one rank's part.
struct Having {
  std::set<std::string> agents;  // in a slot or as a copy
  std::set<std::string> copies;
  size_t places = 0;  // slots and copies, of whatever agents
};

std::map<Rank, Having> ByRank(const Had& had) {
  std::map<Rank, Having> out;
  for (const auto& [rank, agent] : had.sealed) {
    out[rank->rank()].agents.insert(*agent);
    ++out[rank->rank()].places;
  }
  for (const auto& [held, agent] : had.copies) {
    out[held->rank()].agents.insert(*agent);
    out[held->rank()].copies.insert(*agent);
    ++out[held->rank()].places;
  }
  return out;
}

bool Enough(const Having& having, const std::string& owner, uint32_t copies, const Rules& rules) {
  if (!rules.only_other_agents_protect) return having.places >= copies;
  const size_t others = having.copies.size() - having.copies.count(owner);
  return having.agents.size() >= copies && others >= copies - 1;
}

std::map<Rank, std::set<std::string>> AgentsHaving(const Had& had) {
  std::map<Rank, std::set<std::string>> out;
  for (const auto& [rank, agent] : had.sealed) out[rank->rank()].insert(*agent);
  for (const auto& [held, agent] : had.copies) out[held->rank()].insert(*agent);
  return out;
}

std::vector<Rank> LackingParity(const Holdings& holdings, const Had& had, const Rules& rules) {
  const auto having = AgentsHaving(had);
  const ParityStock stock(had.parity, having, rules);
  std::set<Rank> lacking;
  for (const auto& [rank, claim] : holdings.claims) lacking.insert(rank);
  for (const protect::RankGroup& group : *holdings.rank_groups) {
    bool whole = stock.Whole(group, holdings.parity);
    for (size_t i = 0; i < group.ranks.size(); ++i) {
      const auto has = having.find(group.ranks[i]);
      whole = whole && has != having.end() && (has->second.count(group.agents[i]) != 0 || !rules.images_in_their_place);
    }
    if (!whole) continue;
    for (const Rank rank : group.ranks) lacking.erase(rank);
  }
  if (!rules.all_ranks_protect && lacking.count(0) == 0) return {};
  return {lacking.begin(), lacking.end()};
}

std::vector<Rank> LackingOf(const Holdings& holdings, const Had& had, const Rules& rules) {
  if (holdings.parity != 0) return LackingParity(holdings, had, rules);
  std::map<Rank, Having> having = ByRank(had);
  std::vector<Rank> lacking;
  for (const auto& [rank, claim] : holdings.claims) {
    if (rank != 0 && !rules.all_ranks_protect) continue;
    if (!Enough(having[rank], claim.agent(), holdings.copies, rules)) lacking.push_back(rank);
  }
  return lacking;
}

// Of groups in which an image is nowhere: only there is something to rebuild.
std::vector<Said<v1::HeldParity>> OfTornGroups(const Had& had, const std::map<Rank, std::set<std::string>>& having) {
  std::vector<Said<v1::HeldParity>> out;
  for (const auto& said : had.parity) {
    const auto& ranks = said.part->ranks();
    const bool torn = std::any_of(ranks.begin(), ranks.end(), [&](Rank rank) { return having.count(rank) == 0; });
    if (torn) out.push_back(said);
  }
  return out;
}

}  // namespace

ProtectionMarks MarksOf(const v1::State& state) {
  return {ToId(state.protected_()), ToId(state.protecting()), ToId(state.unprotected()), state.protection_turns()};
}

ProtectionMarks MarksOf(const v1::Report& report) {
  return {ToId(report.protected_()), ToId(report.protecting()), ToId(report.unprotected()), report.protection_turns()};
}

std::vector<Rank> Lacking(const Holdings& holdings, const SnapshotId& id, const Rules& rules) {
  return LackingOf(holdings, WhoHasWhat(holdings.reports, holdings.counts)[id], rules);
}

SnapshotId StillProtected(const Holdings& holdings, const v1::DecisionRecord& decision, const Rules& rules) {
  const SnapshotId parent = ToId(decision.parent());
  SnapshotId newest;
  for (const auto& [id, had] : WhoHasWhat(holdings.reports, holdings.counts)) {
    if (parent.none() || parent < id || !OnLineage(decision, id)) continue;
    if (had.copies.empty() && had.parity.empty()) continue;
    if (LackingOf(holdings, had, rules).empty()) newest = id;
  }
  return newest;
}

std::vector<v1::RankSources> SourcesOf(const Holdings& holdings, const SnapshotId& parent, const Rules& rules) {
  std::vector<v1::RankSources> out;
  if (parent.none()) return out;
  const Had had = WhoHasWhat(holdings.reports, holdings.counts)[parent];
  std::map<Rank, Having> having = ByRank(had);
  const auto agents_having = AgentsHaving(had);
  const ParityStock stock(had.parity, agents_having, rules);
  for (const auto& [rank, of] : holdings.claims) {
    const v1::RankClaim& claim = of;  // clang 14 lets no lambda have a structured binding
    const Having& has = having[rank];
    const bool sealed_here = has.agents.count(claim.agent()) != 0 && has.copies.count(claim.agent()) == 0;
    std::vector<std::string> agents(has.agents.begin(), has.agents.end());
    if (sealed_here) continue;
    if (agents.empty()) {
      if (auto parity = stock.SourcesOf(rank)) {
        out.emplace_back().set_rank(rank);
        *out.back().mutable_parity() = *std::move(parity);
      }
      continue;
    }
    std::rotate(agents.begin(), agents.begin() + static_cast<ptrdiff_t>(rank % agents.size()), agents.end());
    std::stable_partition(agents.begin(), agents.end(),
                          [&](const std::string& agent) { return agent == claim.agent(); });
    v1::RankSources& sources = out.emplace_back();
    sources.set_rank(rank);
    sources.mutable_agents()->Assign(agents.begin(), agents.end());
  }
  return out;
}

std::map<Rank, std::vector<SnapshotId>> Rebuildable(const HadBySnapshot& snapshots, const Rules& rules) {
  std::map<Rank, std::vector<SnapshotId>> out;
  for (const auto& [id, had] : snapshots) {
    if (had.parity.empty()) continue;
    const auto having = AgentsHaving(had);
    const ParityStock stock(OfTornGroups(had, having), having, rules);
    for (const Rank rank : stock.Rebuildable()) out[rank].push_back(id);
  }
  return out;
}

void Protection::Reset(const SnapshotId& parent, const SnapshotId& complete) {
  marks_ = {complete, parent, {}, 0};
  coverages_.clear();
  judged_ = {};
}

void Protection::Replace(AnyCoverage& coverage, const std::string& agent, const v1::Report* report) {
  std::visit([&](auto& of) { of.Replace(agent, report); }, coverage);
}

const std::set<Rank>& Protection::LackingOf(const AnyCoverage& coverage) {
  return std::visit([](const auto& of) -> const std::set<Rank>& { return of.lacking(); }, coverage);
}

void Protection::Heard(const Holdings& holdings, const std::string& agent) {
  const auto report = holdings.reports.find(agent);
  const v1::Report* counts =
      report != holdings.reports.end() && holdings.counts(agent) ? report->second.get() : nullptr;
  const bool knows = holdings.knows == nullptr || holdings.knows(agent);
  for (auto& [of, coverage] : coverages_) Replace(coverage, agent, of.second && !knows ? nullptr : counts);
}

void Protection::Told() {
  std::erase_if(coverages_, [](const auto& of) { return of.first.second; });
}

const Protection::AnyCoverage& Protection::CoverageOf(const Covered& of, const Holdings& holdings, const Rules& rules) {
  const SnapshotId& id = of.first;
  const auto known = coverages_.find(of);
  if (known != coverages_.end()) return known->second;
  AnyCoverage made = Coverage(id, holdings.claims, holdings.copies, rules);
  if (holdings.parity != 0) made = ParityCoverage(id, holdings.claims, *holdings.rank_groups, holdings.parity, rules);
  AnyCoverage& coverage = coverages_.emplace(of, std::move(made)).first->second;
  for (const auto& [agent, report] : holdings.reports) {
    const bool knows = !of.second || holdings.knows == nullptr || holdings.knows(agent);
    if (holdings.counts(agent) && knows) Replace(coverage, agent, report.get());
  }
  return coverage;
}

const std::set<Rank>& Protection::lacking() const {
  static const std::set<Rank> kNone;
  const auto coverage = coverages_.find({judged_, true});
  return coverage == coverages_.end() ? kNone : LackingOf(coverage->second);
}

bool Protection::Update(const Holdings& holdings, const Facts& facts, const Rules& rules) {
  const ProtectionMarks before = marks_;
  std::erase_if(coverages_,
                [&](const auto& of) { return of.first.first != (of.first.second ? marks_.target : marks_.complete); });
  const auto lacks = [&](const SnapshotId& id, bool knowing) {
    return !LackingOf(CoverageOf({id, knowing}, holdings, rules)).empty();
  };
  if (now() && facts.settled && lacks(marks_.complete, false)) marks_.GiveUp();
  judged_ = marks_.target;
  const bool lacking = !judged_.none() && lacks(judged_, true);
  const bool kept = marks_.target > marks_.given_up && facts.owners_reported;
  if (kept && !lacking) marks_.complete = std::max(marks_.complete, marks_.target);
  if (!lacking && IsMadeGood(facts, rules)) {
    marks_.complete = marks_.target;
    marks_.turns += 1 + marks_.turns % 2;
  }
  if (facts.hopeless && facts.settled) marks_.GiveUp();
  ChooseTarget(facts);
  if (!rules.target_before_protected) marks_.target = facts.watermark;
  return marks_ != before;
}

// What was given up, and is W still.
bool Protection::IsMadeGood(const Facts& facts, const Rules& rules) const {
  const bool given_up = !marks_.target.none() && marks_.target == marks_.given_up && !now();
  const bool captured = marks_.target == facts.watermark || !rules.made_good_only_captured;
  return given_up && captured && facts.owners_reported && !facts.hopeless;
}

// Only when every owner has spoken: a coordinator that restarted does not know before what its predecessor let them
// keep, and may have called protected.
void Protection::ChooseTarget(const Facts& facts) {
  if (!facts.owners_reported || facts.watermark <= marks_.target) return;
  const bool done = marks_.target <= marks_.complete || marks_.target <= facts.durable;
  const bool given_up = marks_.target <= marks_.given_up || (facts.hopeless && facts.settled);
  if (done || given_up) marks_.target = facts.watermark;
}

}  // namespace ckptd::job

#include "daemon/protect/parity_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::protect {
namespace {

constexpr int kMostAnew = 2;  // of one agent

absl::Status NoGroup(Rank rank, absl::string_view what) {
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("rank ", rank, ": no parity group to rebuild it from: ", what));
}

// Neither has this agent heard of the attempt in time, nor does it answer.
bool IsSilent(ErrorCode code) {
  return code == ErrorCode::TIMEOUT || code == ErrorCode::AGENT_UNREACHABLE || code == ErrorCode::BUSY;
}

// "1", "1 and 2", "1, 2 and 3".
std::string Listed(const std::vector<std::string>& words) {
  if (words.size() < 2) return words.empty() ? "" : words[0];
  const std::vector<std::string> most(words.begin(), words.end() - 1);
  return absl::StrCat(absl::StrJoin(most, ", "), " and ", words.back());
}

}  // namespace

absl::StatusOr<ParityPlan> ParityPlan::Make(const v1::ParitySources& sources, Rank rank, std::string agent) {
  const auto members = static_cast<uint32_t>(sources.ranks_size());
  if (members > erasure::kMaxMembers || sources.parity() >= members) return NoGroup(rank, "a shape that is none");
  std::vector<Rank> ranks(sources.ranks().begin(), sources.ranks().end());
  if (std::set<Rank>(ranks.begin(), ranks.end()).size() != members) return NoGroup(rank, "a rank is in it twice");
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) return NoGroup(rank, "it is in another one");
  CKPTD_ASSIGN_OR_RETURN(erasure::Code code, erasure::Code::Make({members - sources.parity(), sources.parity()}));
  ParityPlan plan(std::move(ranks), rank, std::move(agent), std::move(code));
  CKPTD_RETURN_IF_ERROR(plan.Add(sources));
  return plan;
}

absl::Status ParityPlan::Add(const v1::ParitySources& sources) {
  const erasure::Shape& shape = code_.shape();
  for (const v1::ParitySources::Data& data : sources.data()) {
    if (data.rank() == rank_) continue;  // whoever has it whole was asked before
    if (std::find(ranks_.begin(), ranks_.end(), data.rank()) == ranks_.end())
      return NoGroup(rank_, absl::StrCat("rank ", data.rank(), " is in another one"));
    std::vector<std::string> agents(data.agents().begin(), data.agents().end());
    std::stable_partition(agents.begin(), agents.end(), [this](const auto& agent) { return agent == agent_; });
    images_[data.rank()] = std::move(agents);
  }
  for (const v1::ParitySources::Block& block : sources.blocks()) {
    if (block.stripe() >= shape.members() || block.row() >= shape.parity)
      return NoGroup(rank_, absl::StrCat("stripe ", block.stripe(), " row ", block.row(), " of ", ToString(shape)));
    parity_[{block.stripe(), block.row()}] = block.agent();
  }
  return absl::OkStatus();
}

std::vector<uint32_t> ParityPlan::Stripes() const {
  const uint32_t place = *PlaceIn(0).PlaceOf(rank_);
  std::vector<uint32_t> stripes;
  for (uint32_t block = 0; block < code_.shape().data; ++block)
    stripes.push_back(erasure::StripeOf(code_.shape(), place, block));
  return stripes;
}

ParityPlace ParityPlan::PlaceIn(uint32_t stripe, uint32_t row) const { return {ranks_, code_.shape(), stripe, row}; }

std::vector<ParityPlan::Source> ParityPlan::Holders() const {
  std::vector<Source> holders;
  for (const auto& [at, agent] : parity_) {
    const ParityPlace place = PlaceIn(at.first, at.second);
    if (!place.DataIndexOf(rank_)) continue;
    Source holder{code_.shape().data + at.second, agent, rank_, place};
    holders.insert(agent == agent_ ? holders.begin() : holders.end(), std::move(holder));
  }
  return holders;
}

std::vector<std::string> ParityPlan::AgentsOf(uint32_t stripe, uint32_t member) const {
  const uint32_t data = code_.shape().data;
  std::vector<std::string> agents;
  if (member < data) {
    const Rank rank = PlaceIn(stripe).DataRanks()[member];
    if (const auto found = images_.find(rank); found != images_.end()) agents = found->second;
    std::erase_if(agents, [&](const std::string& agent) { return not_there_.count({rank, agent}) != 0; });
  } else if (const auto found = parity_.find({stripe, member - data}); found != parity_.end()) {
    agents = {found->second};
  }
  std::erase_if(agents, [&](const std::string& agent) {
    return silent_.count(agent) != 0 || spoiled_.count({stripe, member, agent}) != 0;
  });
  return agents;
}

absl::StatusOr<ParityPlan::Stripe> ParityPlan::Choose(uint32_t stripe) const {
  const erasure::Shape& shape = code_.shape();
  const ParityPlace place = PlaceIn(stripe);
  const uint32_t wanted = *place.DataIndexOf(rank_);
  std::vector<uint32_t> lost;
  for (uint32_t member = 0; member < shape.members(); ++member) {
    if (member == wanted || AgentsOf(stripe, member).empty()) lost.push_back(member);
  }
  if (lost.size() > shape.parity) return TooFew(stripe, lost);
  CKPTD_ASSIGN_OR_RETURN(erasure::Decoder decoder, erasure::Decoder::Make(code_, lost, {{wanted}}));
  Stripe out{place, std::move(decoder), {}};
  const std::vector<Rank> ranks = place.DataRanks();
  for (const uint32_t member : out.decoder.sources()) {
    const std::vector<std::string> agents = AgentsOf(stripe, member);
    Source source{member, agents[0], rank_, std::nullopt, lost.size() < shape.parity || agents.size() > 1};
    if (member < shape.data) source.rank = ranks[member];
    if (member >= shape.data) source.parity = PlaceIn(stripe, member - shape.data);
    out.sources.push_back(std::move(source));
  }
  return out;
}

absl::Status ParityPlan::TooFew(uint32_t stripe, const std::vector<uint32_t>& lost) const {
  const erasure::Shape& shape = code_.shape();
  const std::vector<Rank> data = PlaceIn(stripe).DataRanks();
  std::vector<Rank> sorted;
  std::vector<std::string> parity;
  for (const uint32_t member : lost) {
    if (member < shape.data) sorted.push_back(data[member]);
    if (member >= shape.data) parity.push_back(absl::StrCat("parity ", member - shape.data, " of stripe ", stripe));
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> ranks;
  ranks.reserve(sorted.size());
  for (const Rank rank : sorted) ranks.push_back(absl::StrCat(rank));
  std::vector<std::string> all = {absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", Listed(ranks))};
  all.insert(all.end(), parity.begin(), parity.end());
  const ErrorCode code = last_.ok() ? ErrorCode::NOT_FOUND : CodeOf(last_);
  return Error(code, absl::StrCat("parity group of ranks ", absl::StrJoin(ranks_, ","), " (", ToString(shape),
                                  "): ", Listed(all), " are lost"));
}

void ParityPlan::Lose(uint32_t stripe, const Source& source, const absl::Status& why) {
  const ErrorCode code = CodeOf(why);
  if (code == ErrorCode::FENCED && anew_[source.agent]++ < kMostAnew) return;
  last_ = why;
  if (IsSilent(code)) silent_.insert(source.agent);
  if (!source.parity && code != ErrorCode::CORRUPT) not_there_.insert({source.rank, source.agent});
  spoiled_.insert({stripe, source.member, source.agent});
}

}  // namespace ckptd::protect

// ckptctl plan --scheme S --nodes N --lost L: what a scheme would survive and cost, before anybody buys memory. The
// placement is made as an agent would make it, and counted.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/placement/placement.h"
#include "daemon/placement/spread.h"
#include "daemon/placement/survival.h"
#include "proto/ckptd/v1/plan.pb.h"
#include "tools/ckptctl/command.h"
#include "tools/ckptctl/formats.h"
#include "tools/ckptctl/output.h"

namespace ckptd {
namespace {

using placement::Kind;
using placement::Member;
using placement::Placement;
using placement::Scheme;

constexpr uint64_t kMaxBytes = uint64_t{1} << 50;  // of one node: CostOf's
constexpr uint64_t kMaxSlots = 8;                  // as region.slots
constexpr uint64_t kMaxListed = 64;                // of survival_by_lost

absl::Status Usage(absl::string_view text) { return Error(ErrorCode::INVALID_ARGUMENT, text); }

// A number that must be given.
absl::StatusOr<uint32_t> Wanted(const Args& args, const std::string& flag, uint64_t most, absl::string_view why) {
  if (!args.Has(flag)) return Usage(absl::StrCat("plan wants ", flag, ": ", why));
  CKPTD_ASSIGN_OR_RETURN(auto number, args.GetNumber(flag, 1, most));
  return static_cast<uint32_t>(*number);
}

absl::Status RefuseFlags(const Args& args, Kind kind, const std::vector<std::string>& flags,
                         absl::string_view instead) {
  for (const std::string& flag : flags) {
    if (args.Has(flag)) {
      return Usage(absl::StrCat("--scheme ", placement::KindName(kind), " takes no ", flag, instead));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Scheme> SchemeOf(const Args& args) {
  if (!args.Has("--scheme")) return Usage("plan wants --scheme: one of none group ring mixed xor rs");
  CKPTD_ASSIGN_OR_RETURN(Kind kind, placement::ParseKind(args.Get("--scheme")));
  if (kind == Kind::kNone) {
    CKPTD_RETURN_IF_ERROR(RefuseFlags(args, kind, {"--copies", "--data", "--parity"}, ""));
    return Scheme{};
  }
  if (Scheme{kind}.is_copies()) {
    CKPTD_RETURN_IF_ERROR(RefuseFlags(args, kind, {"--data", "--parity"}, ": --copies is what it has"));
    CKPTD_ASSIGN_OR_RETURN(uint32_t copies, Wanted(args, "--copies", placement::kMaxCopies,
                                                   "of each snapshot, the node's own included, as in --copies 2"));
    return Scheme::Copies(kind, copies);
  }
  CKPTD_RETURN_IF_ERROR(RefuseFlags(args, kind, {"--copies"}, ": --data and --parity are what it has"));
  CKPTD_ASSIGN_OR_RETURN(uint32_t data, Wanted(args, "--data", placement::kMaxCodeWidth,
                                               "blocks of data in a stripe, as in --data 6 --parity 2"));
  if (kind == Kind::kXor && !args.Has("--parity")) return Scheme::Xor(data);
  CKPTD_ASSIGN_OR_RETURN(uint32_t parity, Wanted(args, "--parity", placement::kMaxCodeWidth,
                                                 "so many nodes of a group may be lost, as in --data 6 --parity 2"));
  return Scheme{kind, 1, data, parity};
}

absl::StatusOr<std::optional<double>> LossProbability(const Args& args) {
  if (args.Has("--mtbf") != args.Has("--window")) {
    return Usage("--mtbf and --window go together: --mtbf 26280h --window 30m");
  }
  if (args.Has("--mtbf")) {
    if (args.Has("--loss-probability")) return Usage("--mtbf and --window give --loss-probability: leave it out");
    CKPTD_ASSIGN_OR_RETURN(Nanos mtbf, args.GetDuration("--mtbf", {}));
    CKPTD_ASSIGN_OR_RETURN(Nanos window, args.GetDuration("--window", {}));
    if (mtbf.count() <= 0) return Usage("--mtbf wants a time above 0, such as 26280h (3 years)");
    return std::optional<double>(-std::expm1(-static_cast<double>(window.count()) / static_cast<double>(mtbf.count())));
  }
  if (!args.Has("--loss-probability")) return std::optional<double>();
  double p = 0;
  if (!absl::SimpleAtod(args.Get("--loss-probability"), &p) || !(p >= 0 && p <= 1)) {
    return Usage(absl::StrCat("--loss-probability wants 0 to 1, such as 0.001, not ", args.Get("--loss-probability")));
  }
  return std::optional<double>(p);
}

std::vector<Member> Nodes(uint32_t nodes, uint32_t per_rack) {
  std::vector<Member> out(nodes);
  for (uint32_t i = 0; i < nodes; ++i) {
    out[i].name = absl::StrCat("node-", absl::Dec(i, absl::kZeroPad5));
    if (per_rack != 0) out[i].rack = absl::StrCat("rack-", i / per_rack);
  }
  return out;
}

void FillScheme(const Scheme& scheme, v1::Plan* plan) {
  plan->set_scheme(placement::KindName(scheme.kind));
  if (scheme.is_copies()) plan->set_copies(scheme.copies);
  if (scheme.is_code()) plan->set_data(scheme.data);
  if (scheme.is_code()) plan->set_parity(scheme.parity);
  plan->set_always_survives(scheme.tolerated());
}

absl::Status FillSurvival(const Placement& placed, v1::Plan* plan) {
  CKPTD_ASSIGN_OR_RETURN(double survival, placement::SurvivalOfLosses(placed, plan->lost()));
  plan->set_survival(survival);
  for (uint64_t lost = 0; lost <= std::min<uint64_t>(plan->lost(), kMaxListed); ++lost) {
    CKPTD_ASSIGN_OR_RETURN(double each, placement::SurvivalOfLosses(placed, lost));
    plan->add_survival_by_lost(each);
  }
  if (!plan->has_node_loss_probability()) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(double at, placement::SurvivalAtProbability(placed, plan->node_loss_probability()));
  plan->set_survival_at_probability(at);
  return absl::OkStatus();
}

void FillGroups(const Placement& placed, v1::Plan* plan) {
  std::map<size_t, uint32_t, std::greater<>> by_size;
  for (const auto& group : placed.groups) ++by_size[group.size()];
  for (const auto& [members, count] : by_size) {
    v1::PlanGroups* groups = plan->add_groups();
    groups->set_members(static_cast<uint32_t>(members));
    groups->set_count(count);
  }
}

void FillCost(const Scheme& scheme, std::optional<uint64_t> bytes, v1::Plan* plan) {
  // Of a node that saves so much that rounding blocks up is not seen.
  const placement::Cost part = placement::CostOf(scheme, plan->nodes(), kMaxBytes, plan->slots());
  auto factor = [](uint64_t cost) { return static_cast<double>(cost) / static_cast<double>(kMaxBytes); };
  plan->set_memory_factor(factor(part.memory));
  plan->set_traffic_factor(factor(part.traffic));
  plan->set_rebuild_factor(factor(part.rebuild));
  if (!bytes) return;
  const placement::Cost cost = placement::CostOf(scheme, plan->nodes(), *bytes, plan->slots());
  plan->set_bytes(*bytes);
  plan->set_memory_bytes_per_node(cost.memory);
  plan->set_traffic_bytes_per_save(cost.traffic);
  plan->set_rebuild_bytes(cost.rebuild);
}

absl::Status FillRacks(const Placement& placed, const std::vector<Member>& nodes, v1::Plan* plan) {
  if (!plan->has_nodes_per_rack()) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(auto shared, placement::SharedDomains(placed, nodes));
  const bool fatal = std::any_of(shared.begin(), shared.end(), [](const auto& each) { return each.fatal; });
  plan->set_shared_racks(static_cast<uint32_t>(shared.size()));
  plan->set_survives_one_rack(placed.scheme.kind != Kind::kNone && !fatal);
  return absl::OkStatus();
}

// What was asked, checked as far as one flag alone can be.
absl::StatusOr<v1::Plan> Asked(const Args& args) {
  v1::Plan plan;
  CKPTD_ASSIGN_OR_RETURN(uint32_t nodes,
                         Wanted(args, "--nodes", placement::kMaxMembers, "of the job, as in --nodes 64"));
  CKPTD_ASSIGN_OR_RETURN(uint32_t lost, Wanted(args, "--lost", nodes, "nodes that are lost at once, as in --lost 2"));
  CKPTD_ASSIGN_OR_RETURN(auto slots, args.GetNumber("--slots", 1, kMaxSlots));
  CKPTD_ASSIGN_OR_RETURN(auto per_rack, args.GetNumber("--per-rack", 1, nodes));
  CKPTD_ASSIGN_OR_RETURN(auto probability, LossProbability(args));
  plan.set_nodes(nodes);
  plan.set_lost(lost);
  plan.set_slots(static_cast<uint32_t>(slots.value_or(2)));
  if (per_rack) plan.set_nodes_per_rack(static_cast<uint32_t>(*per_rack));
  if (probability) plan.set_node_loss_probability(*probability);
  return plan;
}

}  // namespace

absl::StatusOr<int> RunPlan(const Args& args) {
  CKPTD_ASSIGN_OR_RETURN(bool json, args.Json());
  CKPTD_ASSIGN_OR_RETURN(Scheme scheme, SchemeOf(args));
  CKPTD_ASSIGN_OR_RETURN(v1::Plan plan, Asked(args));
  CKPTD_ASSIGN_OR_RETURN(auto bytes, args.GetBytes("--bytes", 1, kMaxBytes));
  const std::vector<Member> nodes = Nodes(plan.nodes(), plan.nodes_per_rack());
  CKPTD_ASSIGN_OR_RETURN(Placement placed, placement::Place(scheme, nodes));
  FillScheme(scheme, &plan);
  CKPTD_RETURN_IF_ERROR(FillSurvival(placed, &plan));
  FillGroups(placed, &plan);
  FillCost(scheme, bytes, &plan);
  CKPTD_RETURN_IF_ERROR(FillRacks(placed, nodes, &plan));
  if (json) {
    PrintJson(plan);
  } else {
    Print(FormatPlan(plan));
  }
  return kYes;
}

}  // namespace ckptd
